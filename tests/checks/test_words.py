"""docs/words.md, "Names in the source": identifiers use a word of the table only in its folders."""
import collections
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOPS = ("addons", "client", "common", "daemon", "shim")
# What is not a name of amem's own: comments, texts, files, namespaces of libraries.
NOT_NAMES = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|^[ \t]*#[ \t]*include[^\n]*|\b(?:std|grpc)(?:::\w+)+', re.S | re.M)
NAME = re.compile(r"[A-Za-z_]\w*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
GRPC = {"AddHold", "RemoveHold"}  # members of a class of gRPC


def expanded(folders):
    """daemon/{a,b} shim -> daemon/a, daemon/b, shim"""
    for each in re.findall(r"[^\s,{}]+(?:\{[^}]*\})?", folders):
        start, _, names = each.rstrip("}").partition("{")
        yield from (start + name for name in names.split(",")) if names else (start,)


def rows(page):
    """{the words of a row: their folders}, of the table of the section."""
    section = page.split("\n## Names in the source\n")[1].split("\n## ")[0]
    table = {}
    for words, folders in re.findall(r"^\|(?!-)([^|]+)\|([^|]+)\|[^|]+\|$", section, re.M)[1:]:
        table[tuple(word.strip() for word in words.split(","))] = set(expanded(folders))
    return table


def uses(root):
    """{word: {folder: names that have it}}. A folder is that of the file, or the second one of its path."""
    found = collections.defaultdict(lambda: collections.defaultdict(set))
    for top in TOPS:
        for path in (root / top).rglob("*"):
            place = path.relative_to(root)
            if path.suffix not in (".h", ".hpp", ".c", ".cpp") or "tests" in place.parts:
                continue
            for name in set(NAME.findall(NOT_NAMES.sub(" ", path.read_text(encoding="utf-8")))) - GRPC:
                for part in PART.findall("" if name.isupper() else name):
                    found[part.lower()]["/".join(place.parts[:-1][:2])].add(name)
    return found


def strays(table, found):
    """What breaks the table: names elsewhere, and folders that do not have the word."""
    for words, folders in table.items():
        have = collections.defaultdict(set)
        for form in (word + end for word in words for end in ("", "s")):
            for folder, names in found.get(form, {}).items():
                have[folder] |= names
        yield from (f"{folder}: {', '.join(sorted(have[folder]))}: {words[0]} is not a word of this folder" for folder in sorted(set(have) - folders))
        yield from (f"{folder}: nothing there is named {words[0]}" for folder in sorted(folders - set(have)))


def test_words_are_used_in_their_folders_only():
    table = rows((ROOT / "docs" / "words.md").read_text(encoding="utf-8"))
    assert len(table) >= 20
    found = list(strays(table, uses(ROOT)))
    assert not found, "see docs/words.md"


@pytest.fixture
def tree(tmp_path):
    for path, text in (("daemon/phases/cut.h", "class CutMonitor {  // a lane\n};"),
                       ("daemon/phases/tests/cut_test.cpp", "int lane;"),
                       ("shim/gate/gate.cpp", '#include "lane.h"\nconst char* kName = "a lane";\nint planes = CU_LANE + std::lane;\n')):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_table_is_read():
    page = "# Words\n\n## Names in the source\nText.\n\n|word|folders|meaning|\n|---|---|---|\n|cut, cuts|daemon/{a,b},shim|x|\n| lane | daemon | y |\n\n## Other\n|a|b|c|\n"
    assert rows(page) == {("cut", "cuts"): {"daemon/a", "daemon/b", "shim"}, ("lane",): {"daemon"}}


def test_names_only_and_without_tests(tree):
    assert "lane" not in uses(tree)
    assert not list(strays({("cut",): {"daemon/phases"}}, uses(tree)))


@pytest.mark.parametrize("name", ["kLaneOf", "set_lane", "Lanes", "lane_", "CUlane_LANE"])
def test_a_word_in_another_folder_is_found(tree, name):
    (tree / "shim/gate/gate.h").write_text(f"int {name};\n", encoding="utf-8")
    assert [stray.partition(":")[0] for stray in strays({("lane",): {"daemon/memory"}}, uses(tree))] == ["shim/gate", "daemon/memory"]


def test_a_folder_without_the_word_is_found(tree):
    assert list(strays({("cut",): {"daemon/phases", "daemon/fleet"}}, uses(tree))) == ["daemon/fleet: nothing there is named cut"]
