"""A framework that amem has never heard of, added by another distribution as CONTRIBUTING.md says, on the simulated driver."""
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Protocol

import pytest
from scripts import FAILS, WARNED
from sim_node import Build, Node, patience

HERE = os.path.dirname(os.path.abspath(__file__))
MADE_UP = os.path.join(HERE, "made_up")
BEGIN = FAILS + """
import sys
import torch
import amem

def here():
    return {each.tag for each in amem.stats().brokered if each.resident_bytes}
"""


class Trainer(Protocol):
    def __call__(self, script: str, env: Mapping[str, str] | None = None, entry: str = ...) -> str: ...


@pytest.fixture
def trainer(node: Node, build: Build, tmp_path: pathlib.Path) -> Trainer:
    """Runs a script where the distribution is installed, and gives what it wrote to stderr."""
    with open(os.path.join(MADE_UP, "pyproject.toml"), encoding="utf-8") as file:
        found = re.search(r'\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"', file.read())
    assert found is not None
    group, name, place = found.groups()
    info = tmp_path / "amem_made_up-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amem-made-up\nVersion: 0.1.0\n")

    def run(script: str, env: Mapping[str, str] | None = None, entry: str = f"[{group}]\n{name} = {place}\n") -> str:
        (info / "entry_points.txt").write_text(entry)
        paths = [os.path.join(build.directory, "python"), os.path.join(HERE, "fake_frameworks"), MADE_UP, str(tmp_path)]
        done = subprocess.run([*node.launcher("job")[:-1], "--scope", "regions", "--", sys.executable, "-c",
                               BEGIN + textwrap.dedent(script)], text=True, capture_output=True, timeout=patience(120),
                              env=node.env({"PYTHONPATH": ":".join(paths), **(env or {})}))
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr

    return run


STEPS = """
tensors = [torch.Tensor(2 << 20)]
tensors[0].fill(7)
before, trainer = tensors[0].sum(), made_up.Trainer(tensors)
for _ in range(3):
    trainer.sleep()
    assert here() == set(), here()
    trainer.wake_up()
    assert here() == {"made_up"} and tensors[0].sum() == before
assert made_up.copies == 0
"""


def test_its_memory_leaves_by_amem(trainer: Trainer) -> None:
    said = trainer("import made_up\nassert amem.enable().frameworks == ('made_up',)" + STEPS)
    assert 'amem: on: group "job", scope regions, switched on: the made-up trainer\n' in said


def test_it_is_imported_later(trainer: Trainer) -> None:
    said = trainer("assert amem.enable().frameworks == ()\nimport made_up\nassert amem.enable().frameworks == ('made_up',)" + STEPS)
    assert said.count("amem: on for the made-up trainer, too\n") == 1


def test_a_version_that_was_not_tried(trainer: Trainer) -> None:
    trainer(WARNED + """
import made_up
amem.enable()
warned("this is the made-up trainer 2.0.0. amem was tried with 1.0 to 1.2.")
""" + STEPS, env={"MADE_UP_VERSION": "2.0.0"})


def test_a_version_that_has_moved_a_function(trainer: Trainer) -> None:
    """Nothing of it is changed."""
    said = trainer("""
import made_up
assert amem.enable().frameworks == ()
made_up.Trainer([]).sleep()
assert made_up.copies == 1
fails("made_up has no load(), which amem needs", amem.enable, require=True)
""", env={"MADE_UP_MOVED": "1"})
    assert said.count("the made-up trainer is not switched on and runs without amem: made_up has no load(), which amem needs") == 1


@pytest.mark.parametrize("entry, text", [
    ("made_up = amem_made_up:Nothing", "amem.frameworks: AttributeError"), ("made_up = made_up:Trainer", "is not a subclass of"),
    ("other = amem_made_up:MadeUp", "with the name 'other'"), ("vllm = amem_made_up:MadeUp", "amem has its own module of that name")])
def test_an_entry_point_that_names_something_else(trainer: Trainer, entry: str, text: str) -> None:
    """The job runs, with a sentence."""
    assert text in trainer("import made_up\nassert amem.enable().frameworks == ()", entry=f"[amem.frameworks]\n{entry}\n")
