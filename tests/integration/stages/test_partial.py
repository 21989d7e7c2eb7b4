"""Turns that end with a part of a group's memory: tags that leave first, and the order in which tags return."""
import signal

import pytest

from sim_node import MIB, Program, eventually
from sim_node.ctl import USAGE
from sim_node.stage import await_look, next_broker, turns
from sim_node.turns import states

KEEP = 0


def make(node, name, **tags):
    """A group with so many MiB of each tag."""
    program = Program(node, name)
    for tag, mib in tags.items():
        program.ask(f"region begin {tag} {KEEP}")
        program.ask(f"alloc 0 {2 * MIB} {mib // 2}")
        program.ask("region end")
    return program


def let_go(node, name):
    """It is paused, and its stage has it."""
    assert node.ctl.try_("resume", name).code != 0, "there is no space for it"
    assert node.ctl.group(name)["paused_by_stage"]


def start(node, **more):
    """On 24 MiB: train, which runs, with kv and workspace that leave first, and rollout, which its stage has paused. `more`:
    other such groups, with so many MiB."""
    rollout = make(node, "rollout", weights=10)
    node.ctl("pause", "rollout")
    others = [make(node, name, weights=mib) for name, mib in more.items()]
    for name in more:
        node.ctl("pause", name)
    train = make(node, "train", weights=6, kv=8, workspace=2)
    for name in ["rollout", *more]:
        let_go(node, name)
    node.ctl("stage", "train", "--leave-first", "kv,later,workspace", "--return", "weights,kv")
    await_look()
    eventually(lambda: all(each["needs_bytes"] >= 4 * MIB for each in turns(node).values()), what="needs are known")
    node.ctl("lease", "train")
    return train, rollout, *others


@pytest.fixture
def jobs(stage):
    node = stage()
    return node, *start(node)


def resident(node, name):
    return {each["tag"]: each["resident_bytes"] // MIB for each in node.ctl.group(name)["tags"] if each["allocated_bytes"] >= MIB}


def to_rollout(node):
    node.ctl("lease", "train", "--yield")
    node.ctl("lease", "rollout", "--timeout", "20s")


def to_train(node):
    node.ctl("lease", "rollout", "--yield")
    node.ctl("lease", "train", "--timeout", "20s")


def test_only_what_is_needed_leaves_and_the_bytes_are_right(jobs):
    node, train, rollout = jobs
    for _ in range(2):
        to_rollout(node)
        assert states(node) == ("paused", "running")
        assert resident(node, "train") == {"weights": 6, "kv": 0, "workspace": 2}
        assert node.ctl.group("train")["saved_bytes"] <= 8 * MIB
        assert turns(node)["train"]["stays_bytes"] == 8 * MIB
        rollout.verify()
        pause = next(each for each in reversed(node.ctl("history").json["operations"]) if each["group"] == "train")
        assert pause["partial"] and pause["tags"] == "tag kv" and pause["bytes"] <= 8 * MIB
        assert "of group 'train' only kv leaves" in pause["why"]
        assert not node.ctl.try_("ready", "train").json["ready"]
        to_train(node)
        resume = next(each for each in reversed(node.ctl("history").json["operations"]) if each["group"] == "train")
        assert resume["operation"] == "resume" and resume["bytes"] <= 8 * MIB
        assert resident(node, "train") == {"weights": 6, "kv": 8, "workspace": 2}
        train.verify()
    [night] = node.ctl("turns").json["stages"]
    assert night["failed_switches"] == 0
    assert "partial pause of tag kv" in node.ctl("history", json_output=False).out
    assert "train: leaves first: kv, later, workspace; returns first: weights, kv" in node.ctl("turns", json_output=False).out


def test_the_rest_leaves_when_the_space_is_needed(stage):
    node = stage()
    train, rollout, third = start(node, third=4)
    to_rollout(node)
    assert resident(node, "train") == {"weights": 6, "kv": 0, "workspace": 0}, "with a third context kv is not enough"
    node.ctl("lease", "third", "--timeout", "20s")
    assert resident(node, "train") == {"weights": 0, "kv": 0, "workspace": 0}
    assert states(node) == ("paused", "running") and node.ctl.group("train")["paused_by_stage"]
    [night] = node.ctl("turns").json["stages"]
    assert "group 'train' is paused and has memory on the GPUs" in night["last"]["why"]
    rollout.verify()
    third.verify()
    node.ctl("lease", "third", "--yield")
    to_train(node)
    train.verify()


def test_an_operators_pause_takes_the_rest(jobs):
    node, train, _rollout = jobs
    to_rollout(node)
    node.ctl("pause", "train")
    assert resident(node, "train") == {"weights": 0, "kv": 0, "workspace": 0}
    assert not node.ctl.group("train")["paused_by_stage"]
    node.ctl("pause", "rollout")
    node.ctl("resume", "train")
    train.verify()


def test_a_policy_of_a_tag_that_leaves_first(jobs):
    node, train, _rollout = jobs
    node.ctl("policy", "train", "kv", "discard")
    to_rollout(node)
    group = node.ctl.group("train")
    assert group["dropped_bytes"] == 8 * MIB and group["saved_bytes"] == 0


def test_what_is_refused_and_what_is_cleared(jobs):
    node, _train, _rollout = jobs
    assert "is named twice" in node.ctl.try_("stage", "train", "--leave-first", "kv,kv").error
    assert "a tag must have" in node.ctl.try_("stage", "train", "--return", "x" * 40).error
    assert "at most 64 tags" in node.ctl.try_("stage", "train", "--return", ",".join(map(str, range(65)))).error
    assert node.ctl.try_("stage", "train").code == USAGE
    node.ctl("stage", "train", "--leave-first", "none")
    assert turns(node)["train"].get("leave_first", []) == [] and turns(node)["train"]["return_order"] == ["weights", "kv"]
    to_rollout(node)
    assert resident(node, "train") == {"weights": 0, "kv": 0, "workspace": 0}


def test_a_rank_that_dies_while_a_part_is_out(jobs):
    node, train, rollout = jobs
    to_rollout(node)
    train.kill()
    eventually(lambda: list(turns(node)) == ["rollout"])
    rollout.verify()


@pytest.mark.next_broker
@pytest.mark.parametrize("instant", ["save", "release", "load", "out", "rest save", "rest release"])
def test_amemd_killed(jobs, instant):
    node, train, rollout = jobs
    fault = {"save": "cuMemcpyDtoHAsync:1:hold", "release": "releaseBegins:1:hold", "load": "cuMemcpyHtoDAsync:1:hold"}
    phase = instant.split()[-1]
    begun = None
    if instant == "load" or "rest" in instant or instant == "out":
        to_rollout(node)
    if phase in fault:
        train.faults(fault[phase])
    if "rest" in instant:
        begun = node.ctl.start("pause", "train")
    elif instant == "load":
        node.ctl("lease", "rollout", "--yield")
        begun = node.ctl.start("lease", "train")
    elif instant != "out":
        node.ctl("lease", "train", "--yield")
        begun = node.ctl.start("lease", "rollout")
    if phase in fault:
        eventually(lambda: node.ctl.group("train")["phase"].endswith(phase))
    node.broker.signal(signal.SIGKILL)
    node.broker.wait()
    if phase in fault:
        train.faults()
    if begun is not None:
        begun.finish()
    next_broker(node)
    eventually(lambda: node.ctl("wait", "idle", "--timeout", "20s").code == 0)
    assert turns(node)["train"]["leave_first"] == ["kv", "later", "workspace"]
    assert turns(node)["train"]["return_order"] == ["weights", "kv"]
    if instant in ("out", "rest save"):
        assert resident(node, "train") == {"weights": 6, "kv": 0, "workspace": 2}
        assert states(node) == ("paused", "running")
    if instant == "release":
        assert resident(node, "train")["weights"] == 6 and node.ctl.state("train") == "paused"
    if "rest" in instant:
        node.ctl.try_("pause", "rollout")
        node.ctl("resume", "train")
        train.verify()
        return
    for name, job in [("rollout", rollout), ("train", train), ("rollout", rollout), ("train", train)]:
        node.ctl("lease", name, "--timeout", "20s")
        job.verify()
        node.ctl("lease", name, "--yield")
