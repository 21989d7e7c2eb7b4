"""Swaps without space for both groups: one leaves in waves, and the other comes in where it has been."""
import signal

import pytest

from sim_node.node import MIB
from sim_node.turns import lines, states

MEMORY = 24 * MIB
# Of 2 MiB, for each rank: with what peers share 18 MiB of a device, of which the contexts of four ranks take 4.
ALLOCATIONS = 9


@pytest.fixture
def swapping(bare_node):
    """A node with group train running and rollout paused, and no space for a second allocation."""
    def start(*flags):
        bare_node.settings["AMEM_SIM_MEMORY"] = str(MEMORY)
        bare_node.settings["AMEM_SHIM_WITHOUT"] = "slabs"  # the space is counted in allocations
        # So that faults can count copies: whole bytes, and no allocation that lies in two segments.
        bare_node.settings["AMEM_POOL_SAVE"] = "dense"
        bare_node.start_broker("--swap-wave", "4MiB", "--pool-size", "80MiB", "--pool-segment", "80MiB", *flags)
        size = {"allocations": ALLOCATIONS, "size": "2MiB", "shared": 0.4}
        rollout = bare_node.job("rollout", **size)
        rollout.ask("rewrite")
        rollout.verify()  # peers learn what the others have written
        bare_node.ctl("pause", "rollout")
        return bare_node, bare_node.job("train", **size), rollout

    yield start
    assert bare_node.broker.alive()


def test_waves_each_way(swapping):
    node, train, rollout = swapping()
    addresses = train.addresses()
    for _ in range(5):
        answer = node.ctl("swap", "train", "rollout")
        assert states(node) == ("paused", "running")
        rollout.check()
        assert len(lines(answer, "train", "drop")) > 3, answer
        assert lines(answer, "rollout", "create")[0] < lines(answer, "train", "drop")[-1], "while the other leaves"
        node.ctl("swap", "rollout", "train")
        assert states(node) == ("running", "paused")
        train.check()
    assert train.addresses() == addresses
    for device in node.ctl.devices():
        contexts = node.context_bytes(device["ordinal"], train, rollout)
        assert device["used_bytes"] == contexts + device["brokered_bytes"]


def test_a_copy_that_fails_in_a_later_wave_leaves_both_paused(swapping):
    node, train, rollout = swapping()
    train.ranks[1].faults("cuMemcpyDtoHAsync:4:700")
    answer = node.ctl.try_("swap", "train", "rollout")
    assert answer.code == 1 and "CUDA_ERROR" in answer.error, answer
    assert states(node) == ("paused", "paused")
    assert node.ctl.group("train")["resident_bytes"] > 0, "what it could not save"
    train.ranks[1].faults()
    node.ctl("resume", "train")
    train.check()
    node.ctl("swap", "train", "rollout")
    rollout.check()


def test_a_rank_killed_in_a_later_wave_takes_nothing_from_its_peer(swapping):
    node, train, rollout = swapping()
    train.ranks[1].faults("cuMemcpyDtoHAsync:4:kill")
    node.ctl.try_("swap", "train", "rollout")
    assert train.ranks[1].wait() == -signal.SIGKILL
    if states(node) == ("paused", "running"):
        rollout.check()
        node.ctl("pause", "rollout")
    assert states(node) == ("paused", "paused")
    node.ctl("resume", "train")
    train.ranks[0].ask("verify")  # also what the dead one kept and shared
    assert node.ctl.status()["pool"]["used_bytes"] == node.ctl.group("rollout")["saved_bytes"]


def test_a_rank_killed_while_it_lets_go_of_a_wave(swapping):
    node, train, rollout = swapping()
    train.ranks[1].faults("releaseBegins:2:kill")
    node.ctl.try_("swap", "train", "rollout")
    if states(node) == ("paused", "running"):
        rollout.check()
        node.ctl("pause", "rollout")
    node.ctl("resume", "train")
    train.ranks[0].ask("verify")


def test_hundreds_of_allocations_in_one_wave(bare_node):
    """More than one packet of them."""
    bare_node.settings["AMEM_SIM_MEMORY"] = str(700 * MIB)
    bare_node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    bare_node.start_broker("--pool-size", "1280MiB")
    size = {"ranks": 1, "allocations": 300, "size": "2MiB"}
    rollout = bare_node.job("rollout", **size)
    bare_node.ctl("pause", "rollout")
    train = bare_node.job("train", **size)
    answer = bare_node.ctl("swap", "train", "rollout")
    assert len(lines(answer, "train", "drop")) == 1
    assert bare_node.ctl.group("train")["resident_bytes"] == 0
    rollout.check()
    bare_node.ctl("swap", "rollout", "train")
    train.check()
