"""Deep pauses: the driver checkpoints a group's processes after the pause, and nothing of them stays on the GPUs."""
import glob
import json
import subprocess
import time

import pytest

from sim_node import eventually, patience, wire
from sim_node.flipped import FlippedMemory as Memory

MIB = 1 << 20


@pytest.fixture
def deep_node(bare_node):
    """A node on which processes can be checkpointed."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    bare_node.settings["AMEM_SIM_CONTEXT_BYTES"] = "8MiB"
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
    # The limit of each of six calls in turn is a sixth of nine tenths: about 2 s.
    ranks = started(deep_node, "--deadlines-checkpoint", f"{patience(13):.0f}s")
    proven(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:hold")
    answer = deep_node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0 and "no answer within" in answer.error, answer
    assert deep_node.ctl.state("train") == "paused"
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


@pytest.mark.next_broker
@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
def test_amemd_dies_meanwhile(deep_node, call):
    """The next amemd restores what it finds, whatever state that is in. test_deep_lost.py has the other two calls."""
    ranks = started(deep_node)
    proven(deep_node)
    deep_node.broker.faults(f"cuCheckpointProcess{call}:1:delay=1500")
    operation = deep_node.ctl.start("pause", "train", "--deep")
    operation.wait_phase("checkpoint")
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


@pytest.mark.parametrize("when", ["deep", "restore"])
def test_a_session_that_breaks(deep_node, when):
    """Its process is restored with the others, and has its memory."""
    ranks = started(deep_node)
    deep_node.ctl("pause", "train", "--deep")
    if when == "restore":
        operation = held_restore(deep_node)
    wire.cut_off(ranks[1].puppet)
    ranks[1].puppet.wait_for("has reconnected to the broker")
    if when == "restore":
        deep_node.broker.faults()
        assert operation.finish().code == 0
    else:
        deep_node.ctl("resume", "train")
    assert f"(pid {ranks[1].puppet.pid}): disconnected" in logged(deep_node)
    runs_on(deep_node, ranks)


def process_state(node, process):
    words = [node.build.program("amem-checkpoint"), "state", str(process.pid)]
    return json.loads(subprocess.run(words, env=node.env(), stdout=subprocess.PIPE, check=True, timeout=patience(20)).stdout)["state"]


@pytest.mark.parametrize("holder", ["auto", "off"])
def test_a_session_that_does_not_return(deep_node, holder):
    """amemd restores its process all the same, and says which one to end."""
    deep_node.start_broker("--deep-enabled", "true", "--deadlines-release", f"{patience(2):.0f}s", "--holder", holder)
    stays = Memory(deep_node, 4 * MIB, name="stays")
    lost = Memory(deep_node, 4 * MIB, name="lost", device=1, env={"AMEM_RECONNECT": "0"}).puppet
    deep_node.ctl("pause", "train", "--deep")
    wire.cut_off(lost)
    eventually(lambda: f"(pid {lost.pid}): disconnected" in logged(deep_node), what="amemd sees it")
    answer = deep_node.ctl.try_("resume", "train")
    assert answer.code != 0 and f"(pid {lost.pid})" in answer.error, answer
    assert deep_node.ctl.state("train") == "paused" and not is_deep(deep_node)
    assert process_state(deep_node, lost) == "running"
    lost.kill()
    lost.wait()
    eventually(lambda: deep_node.ctl.group("train")["rank_count"] == 1, what="amemd sees its end")
    deep_node.ctl("resume", "train")
    runs_on(deep_node, [stays])


def test_all_end_while_they_are_checkpointed(deep_node):
    """The calls that are under way end after their operation, and their group."""
    ranks = started(deep_node)
    proven(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:hold")
    operation = deep_node.ctl.start("pause", "train", "--deep")
    eventually(lambda: glob.glob(f"{deep_node.broker._fault_file}.held.*"), what="the driver is asked")
    for rank in ranks:
        rank.puppet.kill()
        rank.puppet.wait()
    assert operation.finish().code != 0
    deep_node.broker.faults()
    again = Memory(deep_node, 4 * MIB, name="again")
    deep_node.ctl("pause", "train", "--deep")
    deep_node.ctl("resume", "train")
    runs_on(deep_node, [again])


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


@pytest.mark.parametrize("way", ["address", "handle"])
def test_other_processes_memory_that_is_open_past_amem(deep_node, way):
    """The driver hangs or cannot restore such a process: it is refused before anything is asked of it."""
    ranks = started(deep_node)
    owner = deep_node.puppet("owner", group=None)
    if way == "address":
        handle = owner.ask(f"share {owner.ask('plain 2097152')['id']}")["handle"]
        opened = ranks[0].puppet.ask(f"open {handle} 1")["id"]
    else:
        owner.ask(f"offer {owner.ask('alloc 2097152 whole')['id']} {deep_node.dir}")
        opened = ranks[0].puppet.ask(f"take {deep_node.dir} 2097152")["id"]
    answer = deep_node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0 and "1 pieces of other processes' memory" in answer.error, answer
    assert deep_node.ctl.state("train") == "paused" and not is_deep(deep_node)
    deep_node.ctl("resume", "train")
    ranks[0].puppet.ask(f"free {opened}")
    deep_node.ctl("pause", "train", "--deep")
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


def test_wrong_arguments(deep_node):
    started(deep_node)
    for arguments in (["--tag", "heap"], ["--nodes", "a:1,b:1"]):
        answer = deep_node.ctl.try_("pause", "train", "--deep", *arguments)
        assert answer.code == 2 and "--deep" in answer.error, answer


def test_it_is_off_unless_it_is_switched_on(node):
    Memory(node, 4 * MIB)
    answer = node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0 and "deep.enabled" in answer.error, answer
    assert node.ctl.state("train") == "running"


# ---- space for the restore ----

WAITS = ("--deadlines-checkpoint", "6s")  # the wait for space is less than half of it


def crowded(node):
    """A process without the shim, and its memory, beside which a device has no space for another context."""
    crowd = node.puppet("crowd", group=None)
    small = crowd.ask(f"plain {2 * MIB}")["id"]  # makes its context
    device = node.ctl.devices()[0]
    block = crowd.ask(f"plain {device['total_bytes'] - device['used_bytes'] - 4 * MIB}")["id"]
    crowd.ask(f"free {small}")
    return crowd, block


def held_restore(node):
    """A resume whose restore does not answer before the faults end."""
    node.broker.faults("cuCheckpointProcessRestore:1:hold")
    operation = node.ctl.start("resume", "train")
    eventually(lambda: glob.glob(f"{node.broker._fault_file}.held.*"), what="the driver restores")
    return operation


def refused(node):
    answer = node.ctl.try_("resume", "train")
    assert answer.code != 0 and "to restore the processes of group 'train' takes" in answer.error, answer
    assert is_deep(node)


def test_a_restore_without_space_is_refused(deep_node):
    """Before the driver is asked for anything. Once there is space it works."""
    ranks = started(deep_node, *WAITS)
    deep_node.ctl("pause", "train", "--deep")
    crowd, block = crowded(deep_node)
    refused(deep_node)
    crowd.ask(f"free {block}")
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


def logged(node):
    with open(node.broker.log_path) as log:
        return log.read()


def test_a_restore_waits_for_space(deep_node):
    ranks = started(deep_node)
    deep_node.ctl("pause", "train", "--deep")
    crowd, block = crowded(deep_node)
    operation = deep_node.ctl.start("resume", "train")
    eventually(lambda: "the resume waits" in logged(deep_node), what="it waits")
    assert is_deep(deep_node) or deep_node.ctl.state("train") == "resuming"
    why = "free, but to restore the processes of group 'train' takes"
    note = deep_node.ctl.group("train")["note"]
    assert note.startswith("waits: ") and why in note, note
    crowd.ask(f"free {block}")
    answer = operation.finish()
    assert answer.code == 0
    waits = [line["waits_for"] for line in answer.lines if line["phase"] == "restore"]
    assert len(waits) == 3 and why in waits[1], waits
    assert waits[0] == waits[2] == ""
    assert deep_node.ctl.group("train").get("note", "") == ""
    runs_on(deep_node, ranks)


@pytest.mark.next_broker
def test_the_next_amemd_knows_what_a_restore_takes(deep_node):
    ranks = started(deep_node, *WAITS)
    deep_node.ctl("pause", "train", "--deep")
    deep_node.broker.kill()
    deep_node.start_broker("--deep-enabled", "true", *WAITS)
    eventually(lambda: is_deep(deep_node), what="it continues the group")
    crowd, block = crowded(deep_node)
    refused(deep_node)
    crowd.ask(f"free {block}")
    deep_node.ctl("resume", "train")
    runs_on(deep_node, ranks)


def test_allocations_wait_for_the_restore(deep_node):
    ranks = started(deep_node)
    deep_node.ctl("pause", "train", "--deep")
    other = Memory(deep_node, 2 * MIB, name="other", group="other")
    operation = held_restore(deep_node)
    other.puppet.send(f"plain {2 * MIB}")
    time.sleep(0.3)
    assert other.puppet.rest("out") == []
    elsewhere = Memory(deep_node, name="elsewhere", group="elsewhere", device=1)
    elsewhere.puppet.send(f"plain {2 * MIB}")  # there, too, a process is restored
    pause = deep_node.ctl.start("pause", "other")
    pause.wait_phase("quiesce")
    deep_node.broker.faults()
    assert operation.finish().code == 0
    other.puppet.answer()
    elsewhere.puppet.answer()
    assert pause.finish().code == 0
    deep_node.ctl("resume", "other")
    other.verify()
    runs_on(deep_node, ranks)


def test_allocations_do_not_wait_for_ever(deep_node):
    ranks = started(deep_node, "--deadlines-create", "2s")
    deep_node.ctl("pause", "train", "--deep")
    other = Memory(deep_node, 2 * MIB, name="other", group="other")
    operation = held_restore(deep_node)
    other.puppet.send(f"plain {2 * MIB}")
    assert "OUT_OF_MEMORY" in other.puppet.failure()
    deep_node.broker.faults()
    assert operation.finish().code == 0
    other.puppet.ask(f"plain {2 * MIB}")
    runs_on(deep_node, ranks)


def test_another_resume_waits_for_the_restore(deep_node):
    ranks = started(deep_node)
    other = Memory(deep_node, 2 * MIB, name="other", group="other")
    deep_node.ctl("pause", "other")
    deep_node.ctl("pause", "train", "--deep")
    operation = held_restore(deep_node)
    second = deep_node.ctl.start("resume", "other")
    second.wait_phase("admit")
    time.sleep(0.2)
    assert deep_node.ctl.state("other") == "resuming"
    deep_node.broker.faults()
    assert operation.finish().code == 0 and second.finish().code == 0
    other.verify()
    runs_on(deep_node, ranks)


@pytest.mark.parametrize("duplex, wave", [("true", "0"), ("true", "4MiB"), ("false", "0")])
def test_a_swap_of_groups_of_which_one_has_space(deep_node, duplex, wave):
    deep_node.settings["AMEM_SIM_MEMORY"] = str(64 * MIB)
    deep_node.start_broker("--deep-enabled", "true", "--swap-duplex", duplex, "--swap-wave", wave, "--pool-size", "160MiB")
    train = Memory(deep_node, *[8 * MIB] * 5, name="train")
    deep_node.ctl("pause", "train", "--deep")
    other = Memory(deep_node, *[8 * MIB] * 6, name="other", group="other")
    assert deep_node.ctl.devices()[0]["total_bytes"] - on_devices(deep_node) < 9 * MIB  # a context, and a tenth
    deep_node.ctl("swap", "other", "train")
    assert deep_node.ctl.state("other") == "paused" and deep_node.ctl.state("train") == "running"
    train.verify()
    deep_node.ctl("swap", "train", "other")
    other.verify()
    deep_node.ctl("swap", "other", "train")
    train.verify()
