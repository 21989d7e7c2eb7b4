"""docs/configuration.md has every setting of amemd, in its order, with the default that root's broker and a user's have. Each has a test that
changes it."""
import os
import pathlib
import re
import subprocess

import pytest

from sim_node import MIB, NOBODY, as_user
from sim_node.ctl import DEADLINE

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


def test_each_has_a_user_who_must_change_it(build):
    """docs/decisions/settings.md names that user."""
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    named = pathlib.Path(PAGE).with_name("decisions").joinpath("settings.md").read_text(encoding="utf-8")
    named = {key for cell in re.findall(r"^\| (`.*?) \|", named, re.MULTILINE) for key in re.findall(r"`(\w[\w.]*)`", cell)}
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE)) | set(re.findall(r"^\| `(AMEM_\w+)` \|", page, re.MULTILINE))
    assert named == documented and {key for key, _ in settings(build.program("amemd"))} < documented


def test_each_setting_is_changed_by_a_test_on_a_node(build):
    """By its flag or its variable, in a test of whole programs."""
    root = pathlib.Path(__file__).resolve().parents[3]
    tests = [path.read_text(encoding="utf-8") for folder in ("tests/integration", "addons") for path in root.glob(f"{folder}/**/test_*.py")]
    flags = {key: "--" + key.replace(".", "-").replace("_", "-") for key, _ in settings(build.program("amemd"))}
    variables = {key: "AMEM_" + key.replace(".", "_").upper() for key in flags}
    assert [key for key in flags if not any(f'"{flags[key]}"' in text or f'"{variables[key]}"' in text for text in tests)] == []


def test_a_step_that_takes_too_long(bare_node):
    """deadlines.step: of the copies, here."""
    bare_node.start_broker("--deadlines-step", "1s")
    job = bare_node.job()
    job.ranks[0].faults("cuMemcpyDtoHAsync:1:hold")
    answer = bare_node.ctl.try_("pause", "train")
    assert answer.code == DEADLINE and "save" in answer.error, answer
    job.ranks[0].faults()
    assert bare_node.ctl.state("train") == "running"
    job.check()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")
def test_an_owner_gets_no_more_of_the_devices(bare_node):
    """quotas.device"""
    bare_node.start_broker("--quotas-device", "16MiB")
    bare_node.let_others_in()
    puppet = bare_node.puppet(prefix=as_user(NOBODY))
    puppet.ask(f"alloc {12 * MIB}")
    puppet.send(f"alloc {8 * MIB}")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in puppet.failure()
    puppet.wait_for("quotas.device")
    puppet.ask(f"alloc {2 * MIB}")
