"""Swaps: one group in while the other goes out, with much, little and no memory for both, and what goes wrong."""
import re
import signal

import pytest

from sim_node.node import MIB
from sim_node.turns import lines, states

MEMORY = 24 * MIB
# Allocations of 2 MiB for each rank; the contexts of four ranks take 4 MiB of each device.
SPACE = {"plenty": 3, "little": 6, "none": 9}


@pytest.fixture
def swapping(bare_node):
    """Makes a node with group train running and rollout paused; bytes differ."""
    def start(space="plenty", without=""):
        bare_node.settings["AMEM_SIM_MEMORY"] = str(MEMORY)
        bare_node.settings["AMEM_SHIM_WITHOUT"] = "slabs"  # space is counted in allocations
        bare_node.start_broker("--without", without, "--pool-size", "80MiB")
        size = {"allocations": SPACE[space], "size": "2MiB", "shared": 0.4}
        rollout = bare_node.job("rollout", **size)
        rollout.ask("rewrite")
        rollout.verify()  # peers learn what the others have written
        bare_node.ctl("pause", "rollout")
        train = bare_node.job("train", **size)
        return bare_node, train, rollout

    yield start
    assert bare_node.broker.alive()


def assert_usable(node, train, rollout):
    """Whichever of them runs: both have their bytes, at their addresses, and can be swapped."""
    if states(node) == ("paused", "paused"):
        node.ctl("resume", "train")
    if states(node) == ("paused", "running"):
        rollout.verify()
        node.ctl("swap", "rollout", "train")
    train.verify()
    node.ctl("swap", "train", "rollout")
    rollout.verify()
    assert states(node) == ("paused", "running")


@pytest.mark.parametrize("space", SPACE)
def test_many_swaps_each_way(swapping, space):
    node, train, rollout = swapping(space)
    addresses = train.addresses(), None
    for i in range(10):
        answer = node.ctl("swap", "train", "rollout")
        assert states(node) == ("paused", "running")
        rollout.verify()
        if i == 0:
            addresses = addresses[0], rollout.addresses()
        rollout.step(1)
        assert [line["group"] for line in answer.lines if line.get("done")] == ["train", "rollout"]
        assert answer.lines[-1]["swap_us"] >= answer.lines[-1]["elapsed_us"]
        node.ctl("swap", "rollout", "train")
        assert states(node) == ("running", "paused")
        train.verify()
        train.step(1)
    assert_usable(node, train, rollout)
    assert rollout.addresses() == addresses[1]
    node.ctl("swap", "rollout", "train")
    assert train.addresses() == addresses[0]
    for device in node.ctl.devices():
        contexts = node.context_bytes(device["ordinal"], train, rollout)
        assert device["used_bytes"] == contexts + device["brokered_bytes"]


@pytest.mark.parametrize("without", ["", "duplex"])
def test_what_overlaps(swapping, without):
    node, train, rollout = swapping(without=without)
    train.ranks[0].faults("cuMemcpyDtoHAsync:1:hold")
    swap = node.ctl.start("swap", "train", "rollout")
    swap.wait_phase("turn" if not without else "save")
    train.ranks[0].faults()
    answer = swap.finish()
    assert answer.code == 0, answer
    saved = lines(answer, "train", "release")[0]
    if not without:
        assert lines(answer, "rollout", "turn")[0] < saved, "it has loaded before the other has saved"
    else:
        assert lines(answer, "rollout")[0] > saved
    assert lines(answer, "rollout", "open")[0] > lines(answer, "train", "drop")[0], "never do both run"
    told = re.search(r" began ([0-9.]+) ms (before|after) the end", node.broker.wait_for("swap of 'train' for 'rollout' took"))
    assert told[2] == ("before" if not without else "after")
    if not without:
        assert float(told[1]) > 0
    assert_usable(node, train, rollout)


def test_the_view_for_people(swapping):
    node, train, rollout = swapping()
    answer = node.ctl("swap", "train", "rollout", json_output=False)
    assert re.search(r"^train: paused in .*\nrollout: resumed in .*\nswapped in [0-9.]+ ", answer.out), answer
    assert answer.err.count("rollout: create") == 1, answer


def test_a_rank_that_comes_in_is_killed(swapping):
    node, train, rollout = swapping("little")
    rollout.ranks[1].faults("cuMemcpyHtoDAsync:2:kill")
    answer = node.ctl.try_("swap", "train", "rollout")
    assert answer.code == 1, answer
    assert f"pid {rollout.ranks[1].pid}" in answer.error and "group 'train' is paused" in answer.error
    assert rollout.ranks[1].wait() == -signal.SIGKILL
    assert states(node) == ("paused", "paused")
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    node.ctl("resume", "train")
    train.check()
    node.ctl("swap", "train", "rollout")
    rollout.ranks[0].ask("verify")  # also what the dead one kept and shared


def test_a_rank_that_goes_out_is_killed_while_it_saves(swapping):
    node, train, rollout = swapping("little")
    train.ranks[0].faults("cuMemcpyDtoHAsync:1:delay=300")
    train.ranks[1].faults("cuMemcpyDtoHAsync:2:kill")
    answer = node.ctl.try_("swap", "train", "rollout")
    assert answer.code == 1, answer
    assert f"pid {train.ranks[1].pid}" in answer.error
    assert states(node) == ("running", "paused")
    train.ranks[0].faults()
    train.ranks[0].ask("verify")
    node.ctl("swap", "train", "rollout")
    rollout.check()
    node.ctl("swap", "rollout", "train")
    train.ranks[0].ask("verify")


def test_a_rank_that_goes_out_is_killed_while_it_releases(swapping):
    node, train, rollout = swapping()
    train.ranks[1].faults("releaseBegins:1:kill")
    node.ctl("swap", "train", "rollout")
    assert states(node) == ("paused", "running")
    rollout.check()
    node.ctl("swap", "rollout", "train")
    train.ranks[0].ask("verify")


def test_a_copy_that_fails_on_the_way_out(swapping):
    node, train, rollout = swapping()
    train.ranks[0].faults("cuMemcpyDtoHAsync:1:delay=300")
    train.ranks[1].faults("cuMemcpyDtoHAsync:2:700")
    answer = node.ctl.try_("swap", "train", "rollout")
    assert answer.code == 1 and "CUDA_ERROR" in answer.error, answer
    assert states(node) == ("running", "paused")
    for rank in train.ranks:
        rank.faults()
    train.check()
    assert_usable(node, train, rollout)


@pytest.mark.parametrize("rule", ["cuMemcpyHtoDAsync:2:700", "cuMemSetAccess:1+:999"])
def test_a_call_that_fails_on_the_way_in(swapping, rule):
    node, train, rollout = swapping("little")
    rollout.ranks[1].faults(rule)
    answer = node.ctl.try_("swap", "train", "rollout")
    assert answer.code == 1 and "CUDA_ERROR" in answer.error, answer
    assert states(node) == ("paused", "paused")
    rollout.ranks[1].faults()
    assert_usable(node, train, rollout)
