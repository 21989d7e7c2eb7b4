"""Processes that the driver loses in a deep pause, and amemd killed in its phases: what is not lost goes on."""
import glob
import random
import time

import pytest

from sim_node import MIB, eventually
from sim_node.flipped import FlippedMemory as Memory

DEEP = ("--deep-enabled", "true")
LOSES = {"checkpoint": "lose_at_once", "restore": "lose_all"}


@pytest.fixture
def deep_node(bare_node):
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    return bare_node


def started(node, loses=None):
    """Two processes. The driver loses the first one."""
    node.start_broker(*DEEP)
    env = {"AMEM_SIM_CHECKPOINT": LOSES[loses]} if loses else None
    return [Memory(node, 4 * MIB, 2 * MIB, name="first", env=env), Memory(node, 4 * MIB, name="second", device=1)]


def label(node, memory):
    """As messages name it."""
    [rank] = [each["rank"] for each in node.ctl.ranks("train") if each["pid"] == memory.puppet.pid]
    return f"rank {rank} (pid {memory.puppet.pid})"


def is_deep(node):
    group = node.ctl.group("train")
    return group["state"] == "GROUP_STATE_PAUSED" and group["deep"]


def names_the_lost(answer, lost, other):
    assert answer.code != 0, answer
    assert f"{lost}: the driver has lost this process" in answer.error, answer
    assert "End it, and restart the job" in answer.error
    assert f"{other}:" not in answer.error


def others_go_on(node, lost, others):
    """Once the lost one has ended: with the right bytes, also after further pauses."""
    lost.puppet.kill()
    lost.puppet.wait()
    eventually(lambda: node.ctl.group("train")["rank_count"] == len(others), what="amemd sees its end")
    for arguments in ([], ["--deep"], []):
        node.ctl("resume", "train")
        assert node.ctl.state("train") == "running" and not node.ctl.group("train")["deep"]
        for memory in others:
            memory.verify()
            memory.flip(next(iter(memory.blocks)), 77)
        node.ctl("pause", "train", *arguments)


def next_amemd(node):
    node.broker.kill()
    node.broker.wait()
    node.start_broker(*DEEP)
    eventually(lambda: all(rank.get("phase") != "comeback" for rank in node.ctl.ranks("train")), what="the ranks reconnect")


@pytest.mark.parametrize("at", ["checkpoint", "restore"])
def test_it_is_named_and_the_others_go_on(deep_node, at):
    lost, other = ranks = started(deep_node, at)
    labels = [label(deep_node, each) for each in ranks]
    if at == "restore":
        deep_node.ctl("pause", "train", "--deep")
        names_the_lost(deep_node.ctl.try_("resume", "train"), *labels)
    else:
        names_the_lost(deep_node.ctl.try_("pause", "train", "--deep"), *labels)
    for _ in range(2):
        assert is_deep(deep_node)
        names_the_lost(deep_node.ctl.try_("resume", "train"), *labels)
    others_go_on(deep_node, lost, [other])


@pytest.mark.next_broker
@pytest.mark.parametrize("call", ["Restore", "Unlock"])
@pytest.mark.parametrize("at", ["checkpoint", "restore"])
def test_amemd_is_killed_meanwhile(deep_node, at, call):
    """While the driver takes a step of the other process. The next amemd names the lost one, too."""
    lost, other = ranks = started(deep_node, at)
    labels = [label(deep_node, each) for each in ranks]
    if at == "restore":
        deep_node.ctl("pause", "train", "--deep")
    else:
        for device in (0, 1):  # the proofs
            Memory(deep_node, 2 * MIB, name=f"proof{device}", group="proof", device=device)
        deep_node.ctl("pause", "proof", "--deep")
    deep_node.broker.faults(f"cuCheckpointProcess{call}:1:hold")
    operation = deep_node.ctl.start(*(["resume", "train"] if at == "restore" else ["pause", "train", "--deep"]))
    eventually(lambda: glob.glob(f"{deep_node.broker._fault_file}.held.*"), what="the driver takes that step")
    next_amemd(deep_node)
    deep_node.broker.faults()
    assert operation.finish().code != 0
    assert is_deep(deep_node)
    names_the_lost(deep_node.ctl.try_("resume", "train"), *labels)
    others_go_on(deep_node, lost, [other])


def at_rest(node):
    group = node.ctl.group("train")
    return group if group["state"] in ("GROUP_STATE_RUNNING", "GROUP_STATE_PAUSED") else None


@pytest.mark.next_broker
def test_amemd_is_killed_often(deep_node):
    """In phases of deep pauses, at random. No process is lost, and no byte."""
    chance = random.Random(20261128)
    ranks = started(deep_node)
    slow = [f"cuCheckpointProcess{call}:1:delay=30" for call in ("Lock", "Checkpoint", "Restore", "Unlock")]
    deep_node.broker.faults(*slow)
    group = deep_node.ctl.group("train")
    for _ in range(20):
        pauses = group["state"] == "GROUP_STATE_RUNNING"
        operation = deep_node.ctl.start(*(["pause", "train", "--deep"] if pauses else ["resume", "train"]))
        operation.wait_phase("detach" if pauses else "restore" if group["deep"] else "admit")
        time.sleep(chance.uniform(0, 0.25))
        next_amemd(deep_node)
        operation.finish()
        group = eventually(lambda: at_rest(deep_node), what="the next amemd ends what was under way")
    deep_node.broker.faults()
    if deep_node.ctl.state("train") == "paused":
        deep_node.ctl("resume", "train")
    for memory in ranks:
        memory.verify()
        memory.flip(next(iter(memory.blocks)), 77)
    deep_node.ctl("pause", "train", "--deep")
    deep_node.ctl("resume", "train")
    for memory in ranks:
        memory.verify()
