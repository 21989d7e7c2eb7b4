"""Each rule of check_includes.py on a small made-up tree. Run by pytest."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import check_includes  # noqa: E402

FLOORS = ".: tests deploy addons client,daemon,shim common\n"
SOUND = {
    "tests/floors.txt": FLOORS + "daemon: main.cpp high/ mid/\n  low/  # comment\n",
    "client/README.md": "The client.\n",
    "client/api.h": "#pragma once\nclass Api {};\n",
    "common/README.md": "Shared.\n",
    "common/fd.h": "#pragma once\n#include <vector>\nclass Fd {};\n",
    "daemon/README.md": "The daemon.\n",
    "daemon/main.cpp": '#include "daemon/high/a.h"\n',
    "daemon/high/a.h": '#pragma once\n#include "common/fd.h"\n#include "daemon/low/b.h"\nclass A {};\n',
    "daemon/high/a.cpp": '#include "daemon/high/a.h"\n',
    "daemon/mid/c.h": '#pragma once\n#include "daemon/low/b.h"\n',
    "daemon/low/b.h": '#pragma once\n#include "common/fd.h"\nclass B {};\n',
    "shim/README.md": "The shim.\n",
    "shim/gate.cpp": '#include "common/fd.h"\nnamespace { struct Local {}; }\n',
    "tests/README.md": "Tests.\n",
    "tests/a_test.cpp": '#include "daemon/high/a.h"\n#include "shim/nothing_here.h"\nclass A {};\n',
}


@pytest.fixture
def faults(tmp_path):
    def of(**changes):
        """Faults of the sound tree with these files instead, or without those that are None."""
        for name, text in {**SOUND, **changes.get("files", {})}.items():
            if text is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text, encoding="utf-8")
        return check_includes.faults(tmp_path)
    return of


def one(faults, files, *words):
    """The only fault of a tree has these words in it."""
    found = faults(files=files)
    assert len(found) == 1, found
    assert [word for word in words if word not in found[0]] == [], found[0]


def test_a_sound_tree_has_no_fault(faults):
    assert faults() == []


def test_this_tree_is_checked_where_it_is():
    tree = check_includes.Tree(pathlib.Path(check_includes.__file__).parent.parent)
    assert {"common", "client", "daemon", "shim", "tests"} <= {name.partition("/")[0] for name in tree.includes}
    assert any(target.startswith("common/") for target in tree.includes["common/packet.cpp"])


@pytest.mark.parametrize(("name", "target"), [
    ("shim/gate.cpp", "daemon/low/b.h"), ("client/api.h", "shim/gate.h"), ("common/fd.h", "client/api.h"),
    ("daemon/low/b.h", "tests/helper.h")])
def test_floors_include_only_what_is_below(faults, name, target):
    one(faults, {"shim/gate.h": "", "tests/helper.h": "", name: f'\n#include "{target}"\n'},
        f"{name}:2: includes {target}", "includes nothing of")


ADDON = {"addons/README.md": "One.\n", "addons/one/README.md": "One.\n", "client/core/calls.h": "#pragma once\n", "client/api.h": None,
         "addons/one/own.h": '#include "client/core/calls.h"\n#include "common/fd.h"\n', "addons/one/main.cpp": '#include "addons/one/own.h"\n'}


def test_an_add_on_includes_its_seam(faults):
    seam = {"addons/one/own.h": '#include "client/core/calls.h"\n#include "common/fd.h"\n#include "daemon/low/b.h"\n'}
    assert faults(files={**ADDON, **seam}) == []


@pytest.mark.parametrize("name", ["daemon/main.cpp", "client/core/calls.h"])
def test_the_core_includes_no_add_on(faults, name):
    found = faults(files={**ADDON, "addons/one/own.h": "", name: '#include "addons/one/own.h"\n'})
    assert f"{name}:1: includes addons/one/own.h: {name.partition('/')[0]}/ includes nothing of addons/one/" in found


@pytest.mark.parametrize("name", ["tests/a_test.cpp", "addons/one/tests/own_test.cpp"])
def test_tests_include_add_ons(faults, name):
    own = {"tests/floors.txt": SOUND["tests/floors.txt"] + "addons/one: tests/\n", "addons/one/tests/own_test.cpp": ""}
    assert faults(files={**ADDON, **own, name: '#include "addons/one/own.h"\n'}) == []


@pytest.mark.parametrize("target", ["addons/two/x.h", "tests/helper.h"])
def test_an_add_on_includes_no_other_and_no_tests(faults, target):
    files = {**ADDON, "tests/floors.txt": SOUND["tests/floors.txt"] + "addons: one/ two/\n", "addons/two/README.md": "Two.\n", "addons/two/x.h": "", "tests/helper.h": "",
             "addons/one/main.cpp": f'#include "{target}"\n'}
    one(faults, files, f"addons/one/main.cpp:1: includes {target}: ", "addons/one/ includes nothing of")


def test_a_folder_includes_only_folders_below_it(faults):
    found = faults(files={"daemon/mid/c.h": '#include "daemon/high/a.h"\n'})
    assert found == ["daemon/mid/c.h:1: includes daemon/high/a.h: daemon/mid/ includes daemon/high/, which stands above it in "
                     "tests/floors.txt"]


def test_a_file_beside_folders_has_its_place(faults):
    one(faults, {"daemon/mid/c.h": '#include "daemon/main.h"\n', "daemon/main.h": "",
                 "tests/floors.txt": FLOORS + "daemon: main.* high/ mid/ low/\n"},
        "daemon/mid/ includes daemon/main.h, which stands above")


def test_a_readme_names_what_is_there(faults):
    one(faults, {"daemon/low/README.md": "Low.\n`B` and `Gone`.\n`Elsewhere` of `daemon/mid`.\n", "daemon/low/b.h": "class B {}; class Other {};\n"},
        "daemon/low/README.md:2: names Gone")


def test_a_circle_of_folders_is_named(faults):
    found = faults(files={"daemon/low/b.h": '#include "daemon/mid/d.h"\n', "daemon/mid/d.h": ""})
    assert len(found) == 2 and found[0].startswith("daemon/low/b.h:1: "), found
    assert found[1] == "daemon: a circle of folders: low/ -> mid/ -> low/"


def test_a_circle_of_files_is_named(faults):
    one(faults, {"daemon/low/b.h": '#include "daemon/low/d.h"\n', "daemon/low/d.h": '#include "daemon/low/b.h"\n'},
        "daemon/low/b.h -> daemon/low/d.h -> daemon/low/b.h")


def test_every_folder_has_its_place(faults):
    one(faults, {"daemon/new/x.cpp": ""}, "daemon/new/: tests/floors.txt does not say where in daemon it stands")


def test_a_file_beside_folders_that_is_not_in_the_list_stands_at_the_top(faults):
    files = {"daemon/top.h": '#include "daemon/high/a.h"\n'}
    assert faults(files=files) == []
    one(faults, {**files, "daemon/mid/c.h": '#include "daemon/top.h"\n'}, "daemon/mid/c.h:1", "stands above")


def test_the_list_names_nothing_that_is_not_there(faults):
    one(faults, {"tests/floors.txt": FLOORS + "daemon: main.cpp high/ mid/ low/ gone/\n"}, "daemon has no gone/")


def test_includes_are_from_the_top_of_the_tree(faults):
    one(faults, {"daemon/high/a.cpp": '#include "a.h"\n'}, 'daemon/high/a.cpp:1', '"daemon/high/a.h"')
    one(faults, {"daemon/high/a.cpp": '#include "../low/b.h"\n'}, '"daemon/low/b.h"')


@pytest.mark.parametrize("top", ["daemon", "addons/one"])
def test_a_top_folder_and_an_add_on_need_a_readme(faults, top):
    one(faults, {**ADDON, f"{top}/README.md": None}, f"{top}: has no README.md")


@pytest.mark.parametrize("text", ["class B;\nclass A { class B {}; };", "enum class Other { B };", "void f() { struct B {}; }",
                                  "template <class B> void f(B b) { if (b) {} }", "// struct B {};", 'auto t = "struct B {";'])
def test_what_is_not_another_type_of_the_name(faults, text):
    assert faults(files={"daemon/high/a.h": text}) == []


@pytest.mark.parametrize("text", ["class B {};", "namespace x { namespace y { struct B : Z<int> {}; } }",
                                  "enum class B : int { kOne };", "namespace { class [[nodiscard]] B final {}; }"])
def test_two_types_of_one_name(faults, text):
    one(faults, {"shim/other.h": "\n" + text}, "daemon/low/b.h:3: B is also the name of a type in shim/other.h:2")


def test_names_that_only_their_files_know_may_be_the_same(faults):
    assert faults(files={"daemon/high/a.cpp": "namespace { struct Local {}; }"}) == []


def test_the_public_api_keeps_its_names(faults):
    files = {"client/include/amem/amem.hpp": "namespace amem { class B {}; }", "client/api.h": None}
    assert faults(files=files) == []


def test_faults_make_the_exit_status(faults, monkeypatch, tmp_path, capsys):
    faults()
    monkeypatch.setattr(sys, "argv", ["check_includes.py", str(tmp_path)])
    assert check_includes.main() == 0
    (tmp_path / "daemon/README.md").unlink()
    assert check_includes.main() == 1
    assert capsys.readouterr().err.strip() == "daemon: has no README.md that says what lives there"
