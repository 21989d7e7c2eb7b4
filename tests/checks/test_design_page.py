"""docs/design.md names functions in their order, with their files. Each exists, in a class of that name and in that file."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
HEADERS = [path.read_text(encoding="utf-8") for top in ("client", "common", "daemon", "shim") for path in sorted((ROOT / top).rglob("*.h"))]
BLOCK = re.compile(r"^```text\n(.*?)^```", re.M | re.S)


def functions(text):
    return re.findall(r"\b[A-Z]\w+::\w+|\b[a-z]\w+(?=\(\))", text)


def exists(name, headers):
    """`Class::function`, or a function that is no class's, is declared in one of the headers."""
    owner, _, function = name.rpartition("::")
    return any(re.search(rf"\b{function}\(", text) and (not owner or re.search(rf"^(class|struct) {owner}\b[^;]*$", text, re.M)) for text in headers)


def code(page):
    """The blocks of code, and what is between backticks."""
    return BLOCK.findall(page) + re.findall(r"`([^`\n]+)`", BLOCK.sub("", page))


def places(page):
    """(function, file) of the blocks. A line without a file has that of the line above."""
    for block in BLOCK.findall(page):
        file = ""
        for line in block.splitlines():
            found = re.search(r"\S+/\S+\.\w+$", line)
            file = found[0] if found else file
            yield from ((name, file) for name in functions(line))


def misplaced(page, read):
    """Functions that are not in their file. `read`: the text of a file; empty: there is none."""
    return [(name, file) for name, file in places(page) if not re.search(rf"\b{name.rpartition('::')[2]}\(", read(file))]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""


def test_each_function_of_the_page_exists():
    names = {name for part in code(PAGE) for name in functions(part)}
    assert len(names) > 100
    missing = sorted(name for name in names if not exists(name, HEADERS))
    assert not missing, "docs/design.md names what is not there"


def test_each_function_is_in_its_file():
    assert len(list(places(PAGE))) > 90
    assert not misplaced(PAGE, read), "docs/design.md names another file"


def test_each_file_of_the_page_exists():
    files = {file for part in code(PAGE) for file in re.findall(r"\b(?:client|common|daemon|shim)/\S+\.\w+", part)}
    assert len(files) > 40 and not [file for file in sorted(files) if not read(file)]


def test_a_name_that_is_not_there_is_found():
    headers = ["class Groups {\n  void drive(GroupEntry& group);\n};\nclass Course;\n", "void plan_save();\n"]
    assert exists("Groups::drive", headers) and exists("plan_save", headers)
    assert not exists("Groups::act", headers) and not exists("Course::drive", headers) and not exists("save_plan", headers)


def test_a_function_in_another_file_is_found():
    page = "```text\namemd  Groups::drive, plan()  daemon/groups.cpp\n       Groups::act\n```\n"
    files = {"daemon/groups.cpp": "void Groups::drive() {}\nvoid plan() {}\n"}
    assert misplaced(page, files.get) == [("Groups::act", "daemon/groups.cpp")]
