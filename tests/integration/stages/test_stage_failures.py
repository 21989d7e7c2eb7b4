"""What goes wrong with a group of a stage: the others go on, and everybody is told what it is."""
import re
import signal

import pytest

from sim_node import MIB, eventually
from sim_node.ctl import WRONG_STATE
from sim_node.stage import HAS_FAILED, WAITS_FOR, Tenant, eventually_turns, explained, let_go, stage_of, turns

QUICK = {"policy": "demand", "grace": "50ms", "idle": "300ms", "memory": 64 * MIB}


@pytest.fixture
def pair_of(stage):
    """Two groups of these names, of which one fits: the first is out, and the second runs."""
    def start(out, runs, *flags, **settings):
        node = stage("--pool-size", "160MiB", *flags, **(QUICK | settings))
        first = Tenant(node, out, 40 * MIB)
        node.ctl("pause", out)
        second = Tenant(node, runs, 30 * MIB)
        let_go(node, out)
        return node, first, second

    return start


# ---- ranks ---------------------------------------------------------------------------------------------------------------


def test_a_rank_that_is_stopped_while_it_works(pair_of):
    """As by Ctrl-Z. Who waits is told, and gets its turn when it goes on and is idle."""
    node, train, debugged = pair_of("train", "debugged")
    debugged.stays_busy()
    train.asks()
    eventually_turns(node, lambda said: WAITS_FOR in said["train"]["note"] and said["train"]["since_ms"] > 1500, "the other one is busy")
    debugged.puppet.signal(signal.SIGSTOP)

    def is_told(said):
        return re.search(r"waits for group 'debugged', which waits for rank .* to continue: stopped", said["train"]["note"])

    eventually_turns(node, is_told, "it is told why it waits", deadline=30)
    debugged.puppet.signal(signal.SIGCONT)
    debugged.puppet.ask("loop off", 60)
    train.has_worked(60)
    train.verify()
    debugged.verify()


@pytest.mark.parametrize("by", ["stage", "operator"])
def test_a_rank_that_dies_while_its_group_is_paused(pair_of, by):
    node, train, _engine = pair_of("train", "engine")
    worker = node.puppet("worker", group="engine", scope="heap", env={"RANK": "1"})
    worker.ask(f"plain {MIB}")
    if by == "operator":
        node.ctl("pause", "engine")
    train.works()
    assert node.ctl.group("engine")["paused_by_stage"] == (by == "stage")
    worker.kill()
    lost = re.compile(rf"lost rank .*{worker.pid}.* while it was paused")
    eventually(lambda: lost.search(turns(node)["engine"]["note"]), what="`turns` says so")
    assert lost.search(node.ctl.group("engine")["note"])
    answer = node.ctl.try_("ready", "engine")
    assert answer.code == WRONG_STATE and lost.search(answer.json["note"]), answer
    for command in ("turns", "groups", "ready engine"):
        assert lost.search(node.ctl.try_(*command.split(), json_output=False).out), command
    train.works()


# ---- devices -------------------------------------------------------------------------------------------------------------


def test_a_group_that_has_lost_its_device_does_not_come_in(pair_of):
    node, broken, train = pair_of("broken", "train")
    broken.puppet.lose_device()
    broken.asks()
    said = eventually_turns(node, lambda said: said["broken"]["failures"] >= 2, "it has failed twice")["broken"]
    assert said["turn"] in ("waits", "comes")
    note = eventually(lambda: HAS_FAILED in (note := broken.turn["note"]) and note, what="it is told so")
    assert "CUDA_ERROR_ECC_UNCORRECTABLE" in note and str(broken.puppet.pid) in note and re.search("next try|again", note), note
    for _ in range(3):
        train.works()
        explained(node)
    assert train.turn["failures"] == 0
    broken.puppet.kill()
    eventually(lambda: list(turns(node)) == ["train"], what="its group has ended")
    train.verify()


def test_a_group_that_has_lost_its_device_does_not_leave(pair_of):
    node, train, broken = pair_of("train", "broken")
    broken.puppet.lose_device()
    train.asks()
    said = eventually_turns(node, lambda said: said["broken"]["failures"] >= 1 and "broken" in said["train"]["note"], "it is told who does not leave")
    assert said["train"]["turn"] == "waits" and said["broken"]["turn"] == "runs"
    assert "CUDA_ERROR_ECC_UNCORRECTABLE" in said["broken"]["note"] + said["train"]["note"]
    broken.puppet.kill()
    train.has_worked(40)
    train.verify()


# ---- longest waits -------------------------------------------------------------------------------------------------------


def test_a_longest_wait_that_cannot_be_kept(pair_of):
    """It is refused, and so is a group with which it could not be kept. Who has turns has them as before."""
    node, first, second = pair_of("first", "second", policy="slice", slice="1s")
    first.works()
    refused = node.ctl.try_("stage", "first", "--longest-wait", "100ms")
    assert refused.code == WRONG_STATE and "first" in refused.error and first.turn["longest_wait_ms"] == 0, refused
    least = next(ms for ms in range(1000, 10000, 250) if node.ctl.try_("stage", "first", "--longest-wait", f"{ms}ms").code == 0)
    assert first.turn["longest_wait_ms"] == least
    third = Tenant(node, "third", 1 * MIB)
    said = eventually(lambda: third.turn["turn"] == "apart" and third.turn, what="it takes no turns")
    assert "longest wait" in said["note"] and "first" in said["note"], said
    third.works()
    second.works()
    first.works()
    assert stage_of(node)["failed_switches"] == 0
