"""Wheels of the Python package index, by pip as it is configured here: which is the newest, and its files. Of a large wheel only the
parts that are read are fetched, where the index answers ranges. Nothing of a wheel is imported or run."""
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse
import zipfile

LIMIT_S = 1800
PYTHON = "3.12"  # whose wheels are read, whichever runs this
PLATFORMS = ("linux_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(17, 40)))
_TARGET = ("--no-deps", "--only-binary", ":all:", "--python-version", PYTHON, *(part for each in PLATFORMS for part in ("--platform", each)))
_CHUNK = 4 << 20  # what is asked for at a time


class Missing(Exception):
    """There is no such wheel, or it cannot be read."""


class Folder:
    """An unpacked wheel."""

    def __init__(self, path, version="unpacked"):
        self.path, self.version = pathlib.Path(path), version

    def names(self):
        return {str(file.relative_to(self.path)): file.stat().st_size for file in self.path.rglob("*") if file.is_file()}

    def read(self, name):
        return (self.path / name).read_bytes()

    def pieces(self, name, size=_CHUNK):
        with open(self.path / name, "rb") as file:
            while piece := file.read(size):
                yield piece


class Wheel:
    """A wheel that is read from wherever its file is."""

    def __init__(self, file, version):
        self.archive, self.version = zipfile.ZipFile(file), version

    def names(self):
        """{file: bytes that it takes in the wheel}"""
        return {info.filename: info.compress_size for info in self.archive.infolist()}

    def read(self, name):
        return self.archive.read(name)

    def pieces(self, name, size=_CHUNK):
        with self.archive.open(name) as file:
            while piece := file.read(size):
                yield piece


@contextlib.contextmanager
def newest(package, version=None):
    """The wheel that pip would choose. Missing: there is none."""
    requirement = f"{package}=={version}" if version else package
    try:
        opened = _by_ranges(package, requirement)
    except Missing:
        raise
    except Exception as error:  # noqa: BLE001: another pip is another pip, and the index may answer no ranges
        print(f"wheels: the whole wheel of {requirement} is fetched: {type(error).__name__}: {error}", file=sys.stderr)
        opened = _whole(package, requirement)
    with opened as wheel:
        yield wheel


@contextlib.contextmanager
def _by_ranges(package, requirement):
    """By the parts of pip that read a wheel's metadata so."""
    from pip._internal.cli.cmdoptions import make_target_python
    from pip._internal.commands import create_command
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP
    from pip._internal.req.constructors import install_req_from_line

    command = create_command("download")
    with command.main_context():
        options, _ = command.parse_args([*_TARGET, requirement])
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session, target_python=make_target_python(options))
        wanted = install_req_from_line(requirement)
        best = finder.find_best_candidate(package, specifier=wanted.specifier).best_candidate
        if best is None or not best.link.is_wheel:
            raise Missing(f"the index has no wheel of {requirement} for Python {PYTHON} on x86-64")
        if best.link.is_file:
            yield Wheel(best.link.file_path, str(best.version))
            return
        with LazyZipOverHTTP(best.link.url_without_fragment, session, _CHUNK) as file:
            yield Wheel(file, str(best.version))


@contextlib.contextmanager
def _whole(package, requirement):
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *_TARGET, "--dest", work, requirement],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
        found = list(pathlib.Path(work).glob("*.whl"))
        if done.returncode != 0 or len(found) != 1:
            raise Missing(f"pip has no wheel of {requirement}: {done.stdout.strip()[-500:]}")
        name = urllib.parse.unquote(found[0].name)
        yield Wheel(found[0], re.match(re.escape(package).replace(r"\-", "[-_.]") + r"-([^-]+)-", name, re.IGNORECASE)[1])
