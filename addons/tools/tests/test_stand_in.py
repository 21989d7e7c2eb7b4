"""client/ctl/no_tools.cpp, which stands in for the add-on, refuses each of its commands by name."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]


def names(pattern, *parts):
    return set(re.findall(pattern, ROOT.joinpath(*parts).read_text(encoding="utf-8")))


def test_each_command_is_refused_without_the_add_on():
    added = names(r'add\(app, options, \w+,\s*"([\w-]+)"', "addons", "tools", "tools.cpp") - {"bench-rank"}
    assert added >= {"advise", "bench", "doctor"} and added <= names(r'"([\w-]+)"', "client", "ctl", "no_tools.cpp")
