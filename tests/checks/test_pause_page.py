"""daemon/pause.md names the functions that carry a pause. Each exists, in a class of that name."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "daemon" / "pause.md"
HEADERS = [path.read_text(encoding="utf-8") for top in ("client", "common", "daemon", "shim") for path in sorted((ROOT / top).rglob("*.h"))]


def exists(name, headers):
    """`Class::function`, or a function that is no class's, is declared in one of the headers."""
    owner, _, function = name.rpartition("::")
    return any(re.search(rf"\b{function}\(", text) and (not owner or re.search(rf"^(class|struct) {owner}\b[^;]*$", text, re.M)) for text in headers)


def names():
    page = PAGE.read_text(encoding="utf-8")
    free = re.findall(r"(?<!:)\b[a-z]+_\w+(?= {2})", "".join(re.findall(r"^```\n(.*?)^```", page, re.M | re.S)))
    return sorted({*free, *re.findall(r"\b[A-Z]\w+::\w+", page)})


def test_each_function_of_the_page_exists():
    assert len(names()) > 30
    missing = [name for name in names() if not exists(name, HEADERS)]
    assert not missing, "daemon/pause.md names what is not there"


def test_a_name_that_is_not_there_is_found():
    headers = ["class Groups {\n  void drive(GroupEntry& group);\n};\nclass Course;\n", "void plan_save();\n"]
    assert exists("Groups::drive", headers) and exists("plan_save", headers)
    assert not exists("Groups::act", headers) and not exists("Course::drive", headers) and not exists("save_plan", headers)
