"""What CUDA's headers declare, and what the table of driver calls says of it (shim/calls/driver_calls.inc)."""
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "shim" / "calls" / "driver_calls.inc"
HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\\\n", re.DOTALL)
_STATEMENT = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>cu[A-Z]\w*)[ \t]+(?:(?P<other>cu\w+)|__CUDA_API_PT(?P<kind>[DS][SZ])\((?P<of>\w+)\))[ \t]*$"
    r"|^[ \t]*#[ \t]*undef[ \t]+(?P<forgotten>\w+)"
    r"|\bCUresult\s+CUDAAPI\s+(?P<function>cu\w+)\s*\((?P<parameters>[^;{]*)\)\s*;", re.MULTILINE)
_PER_THREAD = {"DS": "_ptds", "SZ": "_ptsz"}
_WRAPPED = re.compile(r"^(GATED|ANSWERED|COUNTED|RETRIED|WATCHED|FREES|DESTROYS|DELAYED)\((\w+), (\d+), (\w+), (\w+)\)$", re.MULTILINE)
_LISTED = re.compile(r'^(PASSED|UNSUPPORTED|HIDDEN)\("[^"]*",([^()]*)\)', re.MULTILINE)

Row = collections.namedtuple("Row", "kind api version type symbol")


def parse(header):
    """{exported symbol: parameters} of a header's text. A name that the header redefines counts in its place, and as the variant for
    per-thread default streams besides. A declaration may stand on several lines."""
    text = _COMMENT.sub(" ", header)
    exported_as, symbols = {}, {}
    for found in _STATEMENT.finditer(text):
        if found["name"]:
            name = found["other"] or found["of"]
            exported_as[found["name"]] = [name] + ([name + _PER_THREAD[found["kind"]]] if found["kind"] else [])
        elif found["forgotten"]:
            exported_as.pop(found["forgotten"], None)
        else:
            for symbol in exported_as.get(found["function"], [found["function"]]):
                symbols.setdefault(symbol, " ".join(found["parameters"].split()))
    return symbols


def entry_points(header):
    """The names that a header's text declares, whatever they are exported as."""
    return {found["function"] for found in _STATEMENT.finditer(_COMMENT.sub(" ", header)) if found["function"]}


def declared(folder):
    """The same of all headers in a folder that declare driver calls."""
    symbols = {}
    for header in HEADERS:
        path = pathlib.Path(folder) / header
        if path.exists():
            symbols = parse(path.read_text(encoding="utf-8", errors="replace")) | symbols
    return symbols


def wrapped(table=None):
    """The rows of wrapped calls."""
    text = TABLE.read_text(encoding="utf-8") if table is None else table
    return [Row(kind, api, int(version), suffix, symbol) for kind, api, version, suffix, symbol in _WRAPPED.findall(text)]


def rows(table=None):
    """[(class, symbol)] of the whole table."""
    text = TABLE.read_text(encoding="utf-8") if table is None else table
    listed = [(kind, symbol.strip()) for kind, symbols in _LISTED.findall(text) for symbol in symbols.split(",")]
    return [(row.kind, row.symbol) for row in wrapped(text)] + listed


def base(symbol):
    """As cuGetProcAddress names it: without _v2, _ptsz or _ptds."""
    return re.sub(r"_v\d+$", "", re.sub(r"_pt[sd][zs]$", "", symbol))
