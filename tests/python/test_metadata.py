"""What the package says of itself: pyproject.toml for wheels, METADATA.in and its entry points for the distribution's package."""
import configparser
import email.parser
import pathlib
import subprocess

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has tomllib, which reads pyproject.toml")

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def entry_points(pyproject: pathlib.Path) -> dict[str, dict[str, str]] | None:
    """What CMake makes of a pyproject.toml; None: it refuses the file."""
    script = f'include("{FOLDER}/entry_points.cmake")\namem_entry_points("{pyproject}" found)\nmessage(NOTICE "${{found}}")\n'
    file = pyproject.parent / "script.cmake"
    file.write_text(script, encoding="utf-8")
    done = subprocess.run(["cmake", "-P", file], stderr=subprocess.PIPE, text=True, timeout=60)
    if done.returncode != 0:
        assert "there is no entry point" in done.stderr
        return None
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(done.stderr)
    return {name: dict(parser[name]) for name in parser.sections()}


def test_the_package_index_has_something_to_show() -> None:
    assert PROJECT["license"] == "Apache-2.0" and PROJECT["authors"] and PROJECT["keywords"]
    assert "GPU" in (FOLDER / PROJECT["readme"]).read_text(encoding="utf-8")
    assert not [each for each in PROJECT["classifiers"] if each.startswith("License ::")], "the expression says it"


def test_both_say_the_same() -> None:
    template = email.parser.Parser().parsestr((FOLDER / "METADATA.in").read_text(encoding="utf-8"))
    for name, of_project in (("Name", "@distribution@"), ("Version", "@PROJECT_VERSION@"), ("Summary", PROJECT["description"]),
                             ("License-Expression", PROJECT["license"] + "@project_url@"), ("Keywords", ",".join(PROJECT["keywords"])),
                             ("Author", ", ".join(each["name"] for each in PROJECT["authors"])),
                             ("Requires-Python", PROJECT["requires-python"])):
        assert template[name] == of_project, name
    assert template.get_all("Classifier") == PROJECT["classifiers"]
    extras = PROJECT["optional-dependencies"]
    assert template.get_all("Provides-Extra") == list(extras)
    wanted = [f'{each}; extra == "{extra}"' for extra, requirements in extras.items() for each in requirements]
    assert template.get_all("Requires-Dist") == wanted


def test_entry_points(tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "pyproject.toml"
    copy.write_text((FOLDER / "pyproject.toml").read_text(encoding="utf-8"), encoding="utf-8")
    assert entry_points(copy) == PROJECT["entry-points"]


def test_tables_of_entry_points_with_several_lines(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[project.entry-points."one"]\na = "x:a"\n# why\nb = "x:b"\n\n[project.entry-points."two"]\nc = "y:c"\n'
                    '[tool.other]\nd = "z"\n[project.entry-points."three"]\ne = "y:e"', encoding="utf-8")
    assert entry_points(file) == {"one": {"a": "x:a", "b": "x:b"}, "two": {"c": "y:c"}, "three": {"e": "y:e"}}
    file.write_text("[project]\nname = 'x'\n", encoding="utf-8")
    assert entry_points(file) is None
