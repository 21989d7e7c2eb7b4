"""Deep pauses: the driver checkpoints a group's processes after the pause, and nothing of them stays on the GPUs."""
import os
import signal
import time

import pytest

from sim_node import eventually, patience
from sim_node.flipped import FlippedMemory as Memory

MIB = 1 << 20


@pytest.fixture
def deep_node(bare_node):
    """A node on which processes can be checkpointed."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    return bare_node


def on_devices(node):
    """Bytes in use, contexts included."""
    return sum(device["used_bytes"] for device in node.ctl.devices())


def started(node, *flags, **options):
    """Two processes of a group, each on its GPU."""
    node.start_broker("--deep-enabled", "true", *flags, **options)
    return [Memory(node, 4 * MIB, 2 * MIB, name=f"rank{device}", device=device) for device in (0, 1)]


def proven(node):
    """Faults that follow are not of the proof (test_deep_proof.py)."""
    node.ctl("pause", "train", "--deep")
    node.ctl("resume", "train")


def is_deep(node):
    group = node.ctl.group("train")
    return group["state"] == "GROUP_STATE_PAUSED" and group["deep"]


def runs_on(node, ranks):
    assert node.ctl.state("train") == "running"
    assert not node.ctl.group("train")["deep"]
    for rank in ranks:
        rank.verify()
        rank.flip(next(iter(rank.blocks)), 77)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


def test_nothing_stays_on_the_devices(deep_node):
    ranks = started(deep_node)
    for _ in range(3):
        deep_node.ctl("pause", "train", "--deep")
        assert is_deep(deep_node)
        assert on_devices(deep_node) == 0
        deep_node.ctl("resume", "train")
        for rank in ranks:
            rank.verify()
    runs_on(deep_node, ranks)


def test_a_paused_group_is_made_deep(deep_node):
    ranks = started(deep_node)
    deep_node.ctl("pause", "train")
    assert on_devices(deep_node) > 0  # contexts
    deep_node.ctl("pause", "train", "--deep")
    assert is_deep(deep_node) and on_devices(deep_node) == 0
    again = deep_node.ctl.try_("pause", "train", "--deep")
    assert again.code != 0 and "already paused, with nothing left on its devices" in again.error
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
def test_a_call_that_fails_brings_all_back(deep_node, call):
    """The calls are made by amem-checkpoint, each in a process of its own: every one of them fails."""
    ranks = started(deep_node)
    proven(deep_node)
    deep_node.broker.faults(f"cuCheckpointProcess{call}:1:999")
    answer = deep_node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0 and f"pid {ranks[0].puppet.pid}" in answer.error and "CUDA_ERROR_UNKNOWN" in answer.error, answer
    deep_node.broker.faults()
    assert deep_node.ctl.state("train") == "paused" and not is_deep(deep_node)
    block = list(ranks[0].blocks)[-1]
    ranks[0].puppet.ask(f"free {block}")  # as in any pause it does not wait
    del ranks[0].blocks[block], ranks[0].flipped[block]
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


def test_a_caller_that_is_killed(deep_node):
    ranks = started(deep_node)
    proven(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:kill")
    answer = deep_node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0 and "signal 9" in answer.error, answer
    assert deep_node.ctl.state("train") == "paused"
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


def test_a_call_that_hangs(deep_node):
    """Its caller is killed at the deadline."""
    ranks = started(deep_node, "--deadlines-checkpoint", "3s")
    proven(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:hold")
    answer = deep_node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0 and "no answer within" in answer.error, answer
    assert deep_node.ctl.state("train") == "paused"
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


@pytest.mark.next_broker
@pytest.mark.parametrize("call", ["Lock", "Checkpoint", "Restore", "Unlock"])
def test_amemd_dies_meanwhile(deep_node, call):
    """The next amemd restores what it finds, whatever state that is in."""
    ranks = started(deep_node)
    proven(deep_node)
    fault = f"cuCheckpointProcess{call}:1:delay=1500"
    if call in ("Lock", "Checkpoint"):
        deep_node.broker.faults(fault)
        operation = deep_node.ctl.start("pause", "train", "--deep")
        operation.wait_phase("checkpoint")
    else:
        deep_node.ctl("pause", "train", "--deep")
        deep_node.broker.faults(fault)
        operation = deep_node.ctl.start("resume", "train")
        operation.wait_phase("restore")
    deep_node.broker.kill()
    deep_node.broker.wait()
    assert operation.finish().code != 0
    deep_node.broker.faults()
    deep_node.start_broker()
    eventually(lambda: deep_node.ctl.try_("resume", "train").code == 0, what="the next amemd resumes it")
    runs_on(deep_node, ranks)


def test_a_process_that_dies_while_it_is_checkpointed(deep_node):
    ranks = started(deep_node)
    deep_node.ctl("pause", "train", "--deep")
    ranks[1].puppet.kill()
    ranks[1].puppet.wait()
    eventually(lambda: deep_node.ctl.group("train")["rank_count"] == 1, what="amemd sees its end")
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks[:1])


def test_a_restore_that_fails_is_tried_again(deep_node):
    ranks = started(deep_node)
    deep_node.ctl("pause", "train", "--deep")
    deep_node.broker.faults("cuCheckpointProcessRestore:1:2")  # of amem-checkpoint, which amemd starts
    answer = deep_node.ctl.try_("resume", "train")
    assert answer.code != 0 and f"pid {ranks[0].puppet.pid}" in answer.error and "OUT_OF_MEMORY" in answer.error, answer
    assert is_deep(deep_node)
    deep_node.broker.faults()
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


def test_wrong_arguments(deep_node):
    started(deep_node)
    for arguments in (["--tag", "heap"], ["--dry-run"]):
        answer = deep_node.ctl.try_("pause", "train", "--deep", *arguments)
        assert answer.code == 2 and "--deep" in answer.error, answer


def test_it_is_off_unless_it_is_switched_on(node):
    Memory(node, 4 * MIB)
    answer = node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0 and "deep.enabled" in answer.error, answer
    assert node.ctl.state("train") == "running"


def test_a_restore_without_space_is_refused(deep_node):
    """Before the driver is asked for anything. Once there is space it works."""
    ranks = started(deep_node)
    deep_node.ctl("pause", "train", "--deep")
    crowd = deep_node.puppet("crowd", group=None)
    total = deep_node.ctl.devices()[0]["total_bytes"]
    block = crowd.ask(f"plain {total - 4 * MIB}")["id"]
    answer = deep_node.ctl.try_("resume", "train")
    assert answer.code != 0 and "to restore the processes of group 'train' takes" in answer.error, answer
    assert is_deep(deep_node)
    crowd.ask(f"free {block}")
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


@pytest.mark.parametrize("how", ["exit", "SIGTERM", "SIGINT"])
def test_a_process_that_ends_while_it_is_checkpointed(deep_node, how):
    """It ends at once, and the others are restored."""
    ranks = started(deep_node)
    leaves = ranks[1].puppet
    deep_node.ctl("pause", "train", "--deep")
    began = time.monotonic()
    if how == "exit":
        leaves.send("quit 3")
    else:
        os.kill(leaves.pid, getattr(signal, how))
    assert leaves.wait(10) == (3 if how == "exit" else -getattr(signal, how))
    assert time.monotonic() - began < patience(1)
    eventually(lambda: deep_node.ctl.group("train")["rank_count"] == 1, what="amemd sees its end")
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks[:1])
