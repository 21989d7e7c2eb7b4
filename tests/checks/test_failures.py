"""docs/failures.md names a test for each row; each of them exists."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
CELL = re.compile(r"`([\w./*…]+)`")


def unit_tests():
    for file in (*(ROOT / "tests" / "unit").rglob("*.cpp"), *ROOT.glob("addons/*/tests/*.cpp")):
        for suite, name in re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", file.read_text(encoding="utf-8")):
            yield from (f"{suite}.{name}", f"{suite}.*")


def integration_tests():
    for file in (*(ROOT / "tests" / "integration").rglob("test_*.py"), *ROOT.glob("addons/*/tests/test_*.py")):
        for name in re.findall(r"^def test_(\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"{file.stem.removeprefix('test_')}/{name}"


def rows():
    """The last cell of each row of a table, but for heads and rules."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[-1] not in ("test", "---"):
            yield line, cells[-1]


def test_each_row_has_a_test_that_exists():
    known = set(unit_tests()) | set(integration_tests()) | {"tests/chaos"}
    without = []
    for line, cell in rows():
        names = [name for name in CELL.findall(cell) if "." in name or "/" in name]
        missing = [name for name in names if name not in known]
        assert not missing, f"no such tests: {missing}"
        if not names:
            without.append(line)
    assert not without, f"rows without a test: {without}"
