"""docs/design.md names functions in their order, with their files. Each exists, in a class of that name and in that file."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "design.md"
HEADERS = [path.read_text(encoding="utf-8") for top in ("client", "common", "daemon", "shim") for path in sorted((ROOT / top).rglob("*.h"))]


def exists(name, headers):
    """`Class::function`, or a function that is no class's, is declared in one of the headers."""
    owner, _, function = name.rpartition("::")
    return any(re.search(rf"\b{function}\(", text) and (not owner or re.search(rf"^(class|struct) {owner}\b[^;]*$", text, re.M)) for text in headers)


def functions(text):
    return re.findall(r"\b[A-Z]\w+::\w+|\b[a-z]\w+(?=\(\))", text)


def code(page):
    """The blocks of code, and what is between backticks."""
    blocks = re.findall(r"^```\n(.*?)^```", page, re.M | re.S)
    return blocks + re.findall(r"`([^`\n]+)`", re.sub(r"^```\n.*?^```", "", page, flags=re.M | re.S))


def misplaced(page, read):
    """The lines of blocks whose file does not have one of their functions. `read`: the text of a file, empty if there is none."""
    wrong = []
    for line in "\n".join(code(page)).splitlines():
        path = re.search(r"\S+/\S+\.(cpp|h)$", line)
        if path and not all(re.search(rf"\b{name.rpartition('::')[2]}\(", read(path[0])) for name in functions(line) or ["a file without a function"]):
            wrong.append(line)
    return wrong


def read(path):
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""


def test_each_function_of_the_page_exists():
    names = {name for part in code(PAGE.read_text(encoding="utf-8")) for name in functions(part)}
    assert len(names) > 100
    missing = sorted(name for name in names if not exists(name, HEADERS))
    assert not missing, "docs/design.md names what is not there"


def test_each_function_is_in_its_file():
    assert not [line for line in misplaced(PAGE.read_text(encoding="utf-8"), read) if functions(line)]


def test_each_file_of_the_page_exists():
    paths = {path for part in code(PAGE.read_text(encoding="utf-8")) for path in re.findall(r"\b(?:client|common|daemon|shim)/\S+\.\w+", part)}
    assert len(paths) > 40 and not [path for path in sorted(paths) if not read(path)]


def test_a_name_that_is_not_there_is_found():
    headers = ["class Groups {\n  void drive(GroupEntry& group);\n};\nclass Course;\n", "void plan_save();\n"]
    assert exists("Groups::drive", headers) and exists("plan_save", headers)
    assert not exists("Groups::act", headers) and not exists("Course::drive", headers) and not exists("save_plan", headers)


def test_a_function_in_another_file_is_found():
    page = "```\namemd  Groups::drive, plan()  daemon/groups.cpp\n```\n"
    assert not misplaced(page, {"daemon/groups.cpp": "void Groups::drive() {}\nvoid plan() {}\n"}.get)
    assert misplaced(page, {"daemon/groups.cpp": "void plan() {}\n"}.get)
