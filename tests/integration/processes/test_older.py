"""An amemd, a shim or another node of an older build, beside this one. By hand, with a build tree of an older commit:

    AMEM_OLDER_BUILD=DIR python3 -m pytest tests/integration/processes/test_older.py --build-dir build/release
"""
import os
import pathlib
import shutil
import time

import pytest

from sim_node import Node, eventually
from sim_node.node import Build

OLDER = os.environ.get("AMEM_OLDER_BUILD")
pytestmark = pytest.mark.skipif(OLDER is None, reason="AMEM_OLDER_BUILD names no older build")


@pytest.fixture
def older():
    return Build(OLDER)


def install(node, build):
    """As a package does: new files in the place of the old ones. amemd's path."""
    folder = pathlib.Path(node.dir) / "bin"
    folder.mkdir(exist_ok=True)
    for name in ("amem-checkpoint", "amem-holder", "amemd"):
        shutil.copy(build.program(name), folder / f"{name}.new")
        os.rename(folder / f"{name}.new", folder / name)
    return str(folder / "amemd")


def launcher(node, build, group):
    return [build.program("amemctl"), "--runtime-dir", node.runtime_dir, "run", "--group", group, "--"]


def start(node, program):
    node.start_broker("--deep-enabled", "true", "--pool-size", "128MiB", program=program)


def await_ranks(node, *jobs):
    """Every rank has reconnected, and no operation is under way."""
    for job in jobs:
        eventually(lambda group=job.group: node.ctl.state(group) in ("running", "paused"), what=f"{job.group} is settled")
        for rank in job.ranks:
            rank.wait_for("has reconnected to the broker")


def check(node, *jobs):
    """All of them run, one at a time, with their bytes."""
    for job in jobs:
        if node.ctl.state(job.group) == "running":
            node.ctl("pause", job.group)
    for job in jobs:
        node.ctl("resume", job.group)
        job.check()
        node.ctl("pause", job.group)


@pytest.mark.parametrize("how", ["upgrade", "kill"])
@pytest.mark.parametrize("shim", ["older", "newer"])
def test_groups_that_run_or_are_paused_or_deep(bare_node, older, how, shim):
    node = bare_node
    node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    program = install(node, older)
    start(node, program)
    jobs = [node.job(name, run=launcher(node, older if shim == "older" else node.build, name)) for name in ("runs", "paused", "deep")]
    node.ctl("pause", "paused")
    node.ctl("pause", "deep", "--deep")
    install(node, node.build)
    if how == "upgrade":
        node.ctl("upgrade")
    else:
        node.broker.kill()
        start(node, program)
    await_ranks(node, *jobs)
    assert [node.ctl.state(job.group) for job in jobs] == ["running", "paused", "paused"]
    check(node, *jobs)
    node.ctl("resume", "runs")
    node.ctl("swap", "runs", "deep", "--deep")
    node.ctl("swap", "deep", "runs")
    check(node, *jobs)


@pytest.mark.parametrize("milliseconds", [0, 3, 6, 10, 15, 25, 40, 60, 90])
def test_a_swap_in_which_it_is_killed(bare_node, older, milliseconds):
    node = bare_node
    program = install(node, older)
    start(node, program)
    jobs = [node.job(name, size="2MiB", run=launcher(node, older, name)) for name in ("train", "rollout")]
    node.ctl("pause", "rollout")
    install(node, node.build)
    swap = node.ctl.start("swap", "train", "rollout")
    time.sleep(milliseconds / 1000)
    node.broker.kill()
    swap.finish()
    start(node, program)
    await_ranks(node, *jobs)
    check(node, *jobs)


@pytest.mark.parametrize("leader", ["older", "newer"])
def test_two_nodes(build, older, tmp_path, leader):
    nodes = []
    for number, which in enumerate([older, build]):
        (tmp_path / str(number)).mkdir()
        node = Node(which, str(tmp_path / str(number)))
        node.start_broker()
        nodes.append((node, [node.job("train", 1, shared=0), node.job("rollout", 1, shared=0)]))
    try:
        ctl = nodes[leader == "newer"][0].ctl
        addresses = ",".join(f"unix:{node.runtime_dir}/control.sock" for node, _ in nodes)
        for command in ("pause rollout", "swap train rollout", "swap rollout train", "pause train", "resume rollout"):
            ctl(*command.split(), "--nodes", addresses)
        for node, jobs in nodes:
            assert [node.ctl.state(job.group) for job in jobs] == ["paused", "running"]
            check(node, *jobs)
    finally:
        for node, _ in nodes:
            node.close()
