"""Before the first deep pause on a device amemd proves with a throwaway process that the driver can do it."""
import time

import pytest

from sim_node import eventually
from sim_node.child import processes
from sim_node.flipped import FlippedMemory as Memory

MIB = 1 << 20
PROVEN = "deep pauses are proven"


@pytest.fixture
def deep_node(bare_node):
    """A node on which processes can be checkpointed."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    return bare_node


def started(node, *flags, devices=(0,)):
    node.start_broker("--deep-enabled", "true", *flags)
    return [Memory(node, 4 * MIB, 2 * MIB, name=f"rank{device}", device=device) for device in devices]


def targets(node):
    """The throwaway processes that live; other nodes' are not counted."""
    def is_ours(pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return node.sim_dir.encode() in file.read()
        except OSError:
            return False
    return [pid for pid, words in processes() if words[1:2] == [b"target"] and is_ours(pid)]


def proofs(node):
    with open(node.broker.log_path) as log:
        return log.read().count(PROVEN)


def refused(node, *words):
    answer = node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0, answer
    for word in words:
        assert word in answer.error, answer
    eventually(lambda: not targets(node), what="the process for it has ended")
    return answer


def works(node, ranks):
    node.ctl("pause", "train", "--deep")
    assert node.ctl.group("train")["deep"]
    node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


def still_runs(node, ranks):
    assert node.ctl.state("train") == "running"
    for rank in ranks:
        rank.verify()


@pytest.mark.parametrize("place", ["host_numa", "memfd"])
def test_each_device_is_proven_once(deep_node, place):
    ranks = started(deep_node, "--pool-place", place, devices=(0, 1))
    deep_node.ctl("pause", "train")
    deep_node.ctl("resume", "train")
    assert proofs(deep_node) == 0  # a plain pause needs none
    for _ in range(2):
        works(deep_node, ranks)
        assert proofs(deep_node) == 2  # of two devices
        assert not targets(deep_node)


def test_a_proof_serves_all_that_wait_for_it(deep_node):
    ranks = started(deep_node)
    other = Memory(deep_node, 4 * MIB, name="other", group="other")
    deep_node.broker.faults("cuCheckpointProcessLock:*:delay=500")
    operations = [deep_node.ctl.start("pause", group, "--deep") for group in ("train", "other")]
    assert all(operation.finish().code == 0 for operation in operations)
    assert proofs(deep_node) == 1
    deep_node.broker.faults()
    deep_node.ctl("resume", "train")
    deep_node.ctl("resume", "other")
    for rank in [*ranks, other]:
        rank.verify()


def test_a_refusal_stays(deep_node):
    """The driver has said that it cannot. Plain pauses do not care."""
    ranks = started(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:801")
    refused(deep_node, "deep pauses do not work on this node", "device GPU-", "checkpoint", "CUDA_ERROR_NOT_SUPPORTED",
            "Pause without --deep")
    deep_node.broker.faults()
    still_runs(deep_node, ranks)
    refused(deep_node, "CUDA_ERROR_NOT_SUPPORTED")
    deep_node.ctl("pause", "train")
    refused(deep_node, "CUDA_ERROR_NOT_SUPPORTED")
    assert deep_node.ctl.state("train") == "paused"
    deep_node.ctl("resume", "train")
    still_runs(deep_node, ranks)


@pytest.mark.parametrize("mode, words", [("lose_all", ["restore", "failed"]), ("forget", ["other bytes than before"])])
def test_a_driver_that_does_harm(bare_node, mode, words):
    """It loses processes, or their memory."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = mode
    ranks = started(bare_node)
    refused(bare_node, "deep pauses do not work on this node", *words)
    still_runs(bare_node, ranks)


def test_a_driver_without_these_calls(bare_node):
    bare_node.settings["AMEM_SIM_DRIVER"] = "12.4"
    ranks = started(bare_node)
    refused(bare_node, "deep pauses do not work on this node", "CUDA 12.4 lacks cuCheckpointProcess", "570")
    still_runs(bare_node, ranks)


@pytest.mark.parametrize("call", ["cuCheckpointProcessCheckpoint", "cuGraphLaunch"])
def test_a_call_that_hangs_is_tried_again(deep_node, call):
    """Of amem-checkpoint, or of the process that it checkpoints."""
    ranks = started(deep_node, "--deadlines-checkpoint", "4s")
    deep_node.broker.faults(f"{call}:1:hold")
    refused(deep_node, "amemd could not prove", "Try again")
    still_runs(deep_node, ranks)
    deep_node.broker.faults()
    works(deep_node, ranks)


def test_a_device_without_space_is_tried_again(deep_node):
    """A plain pause makes space for the process."""
    ranks = started(deep_node)
    crowd = deep_node.puppet("crowd", group=None)
    device = deep_node.ctl.devices()[0]
    crowd.ask(f"plain {device['total_bytes'] - device['used_bytes'] - MIB}")
    refused(deep_node, "amemd could not prove", "OUT_OF_MEMORY", "without --deep first")
    still_runs(deep_node, ranks)
    deep_node.ctl("pause", "train")
    works(deep_node, ranks)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_amemd_ends_meanwhile(deep_node, end):
    """No process is left behind."""
    started(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:delay=3000")
    operation = deep_node.ctl.start("pause", "train", "--deep")
    eventually(lambda: targets(deep_node), what="the proof has begun")
    getattr(deep_node.broker, end)()
    assert operation.finish().code != 0
    eventually(lambda: not targets(deep_node), what="the process for it has ended")


def test_the_group_ends_meanwhile(deep_node):
    ranks = started(deep_node)
    deep_node.broker.faults("cuCheckpointProcessLock:*:delay=500")
    operation = deep_node.ctl.start("pause", "train", "--deep")
    eventually(lambda: targets(deep_node), what="the proof has begun")
    ranks[0].puppet.kill()
    ranks[0].puppet.wait()
    answer = operation.finish()
    assert answer.code != 0 and "has ended in the meantime" in answer.error, answer


def test_the_proof_of_a_swap_comes_before_its_checkpoint(deep_node):
    """The group has left by then: it is paused, and the other runs."""
    ranks = started(deep_node)
    other = Memory(deep_node, 4 * MIB, name="other", group="other")
    deep_node.ctl("pause", "other")
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:801")
    answer = deep_node.ctl.try_("swap", "train", "other", "--deep")
    assert answer.code != 0 and "deep pauses do not work on this node" in answer.error, answer
    assert deep_node.ctl.state("train") == "paused" and not deep_node.ctl.group("train")["deep"]
    other.verify()
    assert not targets(deep_node)
    deep_node.ctl("swap", "other", "train")
    still_runs(deep_node, ranks)


def test_what_amemd_makes_deep_by_itself_is_proven(deep_node):
    ranks = started(deep_node, "--deep-after", "1s")
    deep_node.ctl("pause", "train")
    eventually(lambda: len(deep_node.ctl("history").json["operations"]) == 2, what="amemd makes it deep")
    assert deep_node.ctl.group("train")["deep"] and proofs(deep_node) == 1
    deep_node.ctl("resume", "train")
    still_runs(deep_node, ranks)


def test_what_the_proof_refuses_is_not_tried_for_ever(deep_node):
    started(deep_node, "--deep-after", "1s")
    deep_node.broker.faults("cuCheckpointProcessLock:1:999")
    deep_node.ctl("pause", "train")
    eventually(lambda: "deep pause of group 'train': checkpoint" in deep_node.broker.output(), what="a first try")
    time.sleep(2.5)
    assert deep_node.broker.output().count("amemd makes it deep") == 1
