"""docs/configuration.md has every setting of amemd, in its order, with the default that root's broker and a user's have."""
import os
import re
import subprocess

import pytest

from sim_node import NOBODY, as_user

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3, "docs", "configuration.md")


def documented():
    """Defaults by key, of root's broker and of a user's; None: the page says it elsewhere."""
    with open(PAGE, encoding="utf-8") as file:
        table = file.read().partition("| key | default | meaning |")[2].partition("\n\n")[0]

    def default(text):
        text = text.strip()
        return "" if text in ("", "empty") else text.strip("`")

    for key, said in re.findall(r"^\| `([a-z_.]+)` \|([^|]*)\|", table, re.MULTILINE):
        if said.strip() == "see below":
            yield key, None
        elif " for root, else " in said:
            yield key, tuple(default(part) for part in said.split(" for root, else "))
        else:
            yield key, (default(said),) * 2


def settings(amemd, prefix=()):
    """Of amemd itself, with its defaults."""
    text = subprocess.run([*prefix, amemd, "--config", "/dev/null", "--check-config"], env={}, capture_output=True, text=True,
                          check=True, timeout=30).stdout
    table = ""
    for line in text.splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            table = found[1] + "."
        elif found := re.match(r'(\w+) = "(.*?)"  # ', line):
            yield table + found[1], found[2]


@pytest.mark.parametrize("who", [0, 1], ids=["root", "user"])
def test_every_setting_with_its_default(build, who):
    prefix = ()
    if who == 0 and os.geteuid() != 0:
        pytest.skip("needs root")
    if who == 1 and os.geteuid() == 0:
        prefix, build = as_user(NOBODY), build.for_others()
    actual = dict(settings(build.program("amemd"), prefix))
    page = dict(documented())
    assert len(actual) >= 30 and list(page) == list(actual)
    assert {key: values[who] for key, values in page.items() if values} == {key: actual[key] for key, values in page.items() if values}
