"""The ways to a deep pause other than `amemctl pause --deep`: from inside, by a swap, and by the setting deep.after."""
import json
import time

import pytest

from sim_node import eventually, patience
from sim_node.flipped import FlippedMemory as Memory
from sim_node.program import Program

MIB = 1 << 20


@pytest.fixture
def deep_node(bare_node):
    """A node on which processes can be checkpointed, and each driver call of a checkpointed process waits."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    return bare_node


def used(node):
    """Bytes in use on each device, contexts included."""
    return [device["used_bytes"] for device in node.ctl.devices()]


def is_deep(node, name="train"):
    group = node.ctl.group(name)
    return group["state"] == "GROUP_STATE_PAUSED" and group["deep"]


def history(node):
    return node.ctl("history").json["operations"]


# ---- from inside ----
def programs(node, *flags):
    node.start_broker("--deep-enabled", "true", *flags)
    both = [Program(node, rank=rank) for rank in range(2)]
    for each in both:
        each.ask("alloc 0 1000000")
    return both


def all_ask(ranks, command):
    """The same of all, at the same time: none has its answer before all have asked."""
    for rank in ranks:
        rank.send(command)
    for rank in ranks:
        rank.answer()


def test_the_ranks_ask(deep_node):
    """Their threads, which wait for the answer, make no driver call, which would wait for the resume."""
    ranks = programs(deep_node)
    for _ in range(3):
        all_ask(ranks, "pause !")
        assert is_deep(deep_node) and sum(used(deep_node)) == 0
        all_ask(ranks, "resume")
        for rank in ranks:
            rank.verify()
    past = history(deep_node)
    assert [(each["operation"], each["deep"], each["transaction"]) for each in past[:2]] == [
        ("pause", True, 0), ("resume", False, 0)]
    assert "deep pause" in deep_node.ctl("history", json_output=False).out


def test_the_ranks_make_deep_what_is_paused(deep_node):
    ranks = programs(deep_node)
    all_ask(ranks, "pause")
    all_ask(ranks, "pause !")
    assert is_deep(deep_node)
    all_ask(ranks, "pause !")  # it is
    all_ask(ranks, "pause")
    assert is_deep(deep_node)
    deep_node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


def test_ranks_that_ask_for_different_pauses_wait_for_each_other(deep_node):
    ranks = programs(deep_node)
    ranks[0].send("pause !")
    ranks[1].send("pause")
    ranks[0].stands()
    assert deep_node.ctl.state("train") == "running"
    deep_node.ctl("pause", "train", "--deep")
    for rank in ranks:
        rank.answer()
    all_ask(ranks, "resume")
    for rank in ranks:
        rank.verify()


def test_a_checkpoint_that_fails_is_told_to_the_ranks(deep_node):
    ranks = programs(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:999")
    for rank in ranks:
        rank.send("pause !")
    for rank in ranks:
        assert "CUDA_ERROR_UNKNOWN" in rank.failure()
    deep_node.broker.faults()
    assert deep_node.ctl.state("train") == "paused" and not is_deep(deep_node)
    all_ask(ranks, "resume")
    for rank in ranks:
        rank.verify()


def test_the_ranks_are_refused(node):
    rank = Program(node)
    rank.ask("alloc 0 1000000")
    rank.send("pause !")
    assert "deep.enabled" in rank.failure()
    rank.verify()


def test_no_tags_from_inside(deep_node):
    [rank, _] = programs(deep_node)
    rank.send("pause ! heap")
    assert "takes all memory" in rank.failure()
    rank.verify()


# ---- a swap ----
def two_groups(node, *flags):
    """Train runs, rollout is paused; each has a process on each device."""
    node.start_broker("--deep-enabled", "true", *flags)
    groups = {}
    for name in ("rollout", "train"):
        groups[name] = [Memory(node, 4 * MIB, 2 * MIB, name=f"{name}{device}", device=device, group=name) for device in (0, 1)]
        if name == "rollout":
            node.ctl("pause", name)
    return groups


def verify(group):
    for rank in group:
        rank.verify()


@pytest.mark.parametrize("duplex", ["true", "false"])
def test_a_swap(deep_node, duplex):
    groups = two_groups(deep_node, "--swap-duplex", duplex)
    for out, into in (("train", "rollout"), ("rollout", "train")) * 2:
        both = used(deep_node)
        answer = deep_node.ctl("swap", out, into, "--deep")
        assert is_deep(deep_node, out) and deep_node.ctl.state(into) == "running"
        verify(groups[into])
        done = [line for line in answer.lines if line.get("done")]
        assert sorted(line["group"] for line in done) == ["rollout", "train"]
        assert [line for line in done if line["group"] == into][0]["swap_us"] > 0
        assert all(now <= before for now, before in zip(used(deep_node), both))
    alone = used(deep_node)
    deep_node.ctl("resume", "rollout")
    assert all(now > before for now, before in zip(used(deep_node), alone))
    verify(groups["rollout"])


def test_what_comes_in_does_not_wait_for_the_checkpoint(deep_node):
    groups = two_groups(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:delay=2000")
    swap = deep_node.ctl.start("swap", "train", "rollout", "--deep")
    swap.wait_phase("checkpoint")
    eventually(lambda: deep_node.ctl.state("rollout") == "running", what="it has opened")
    verify(groups["rollout"])
    assert deep_node.ctl.state("train") == "pausing"
    assert swap.finish().code == 0
    assert is_deep(deep_node, "train")


def test_a_checkpoint_that_fails_in_a_swap(deep_node):
    """What came in runs."""
    groups = two_groups(deep_node)
    deep_node.broker.faults("cuCheckpointProcessLock:1:999")
    answer = deep_node.ctl.try_("swap", "train", "rollout", "--deep")
    assert answer.code != 0 and "CUDA_ERROR_UNKNOWN" in answer.error and "group 'rollout' is running" in answer.error, answer
    deep_node.broker.faults()
    assert deep_node.ctl.state("train") == "paused" and not is_deep(deep_node)
    verify(groups["rollout"])
    deep_node.ctl("swap", "rollout", "train")
    verify(groups["train"])


def test_what_is_paused_already_is_made_deep_first(deep_node):
    """Then what comes in has all space."""
    groups = two_groups(deep_node)
    deep_node.ctl("pause", "train")
    assert deep_node.ctl.try_("swap", "train", "rollout").code != 0
    deep_node.ctl("swap", "train", "rollout", "--deep")
    assert is_deep(deep_node, "train")
    verify(groups["rollout"])
    assert [each["group"] for each in history(deep_node)[-2:]] == ["train", "rollout"]


def test_a_swap_that_is_refused(node):
    node.job("train")
    other = node.job("rollout")
    node.ctl("pause", "rollout")
    answer = node.ctl.try_("swap", "train", "rollout", "--deep")
    assert answer.code != 0 and "deep.enabled" in answer.error, answer
    assert node.ctl.state("train") == "running" and node.ctl.state("rollout") == "paused"
    node.ctl("swap", "train", "rollout")
    other.check()


def test_a_set_of_which_one_is_paused_already(deep_node):
    groups = two_groups(deep_node)
    deep_node.ctl("pause", "train", "rollout", "--deep")
    assert is_deep(deep_node, "train") and is_deep(deep_node, "rollout") and sum(used(deep_node)) == 0
    deep_node.ctl("resume", "train", "rollout")
    for group in groups.values():
        verify(group)


# ---- deep.after ----
def test_what_has_been_paused_for_long(deep_node):
    ranks = programs(deep_node, "--deep-after", "1s")
    deep_node.ctl("pause", "train")
    assert not is_deep(deep_node)
    eventually(lambda: is_deep(deep_node), what="amemd makes it deep")
    assert sum(used(deep_node)) == 0
    past = history(deep_node)[-1]
    assert past["operation"] == "pause" and past["deep"] and past["by_broker"] and past["code"] == 0, past
    assert " amemd " in deep_node.ctl("history", json_output=False).out
    deep_node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


def test_what_the_ranks_have_paused_is_theirs(deep_node):
    """A resume of tags from inside does not wait for an operator: no operator has paused it."""
    ranks = programs(deep_node, "--deep-after", "1s")
    all_ask(ranks, "pause")
    eventually(lambda: is_deep(deep_node), what="amemd makes it deep")
    all_ask(ranks, "resume heap")
    for rank in ranks:
        rank.verify()


def test_a_group_that_a_swap_brings_in_stays_as_it_is(deep_node):
    """The other one is slow to leave."""
    groups = two_groups(deep_node, "--deep-after", "2s")
    deep_node.ctl("swap", "train", "rollout")
    deep_node.ctl("swap", "rollout", "train")
    groups["train"][0].puppet.ask("capture begin")
    swap = deep_node.ctl.start("swap", "train", "rollout")
    swap.wait_phase("quiesce")
    time.sleep(patience(3))
    assert not is_deep(deep_node, "rollout")
    groups["train"][0].puppet.ask("capture end")
    assert swap.finish().code == 0
    verify(groups["rollout"])


def test_a_try_that_fails_is_repeated(deep_node):
    ranks = programs(deep_node, "--deep-after", "2s")
    for words in (("pause", "train", "--deep"), ("resume", "train")):  # the proof makes the same calls
        deep_node.ctl(*words)
    deep_node.broker.faults("cuCheckpointProcessLock:1:999")
    deep_node.ctl("pause", "train")
    eventually(lambda: len(history(deep_node)) == 4, what="a first try")
    assert history(deep_node)[-1]["code"] != 0
    assert deep_node.ctl.state("train") == "paused" and not is_deep(deep_node)
    began = time.monotonic()
    deep_node.broker.faults()
    eventually(lambda: is_deep(deep_node), what="a second try")
    assert time.monotonic() - began < patience(10)
    assert len(history(deep_node)) == 5
    deep_node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


@pytest.mark.next_broker
def test_it_counts_from_a_restart(deep_node):
    ranks = programs(deep_node)
    deep_node.ctl("pause", "train")
    deep_node.broker.kill()
    deep_node.broker.wait()
    deep_node.start_broker("--deep-enabled", "true", "--deep-after", "1s")
    eventually(lambda: is_deep(deep_node), what="the next amemd makes it deep")
    deep_node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


# ---- before it ----
@pytest.mark.add_on("tools")
def test_what_it_would_do(deep_node):
    programs(deep_node)
    text = deep_node.ctl("pause", "train", "--deep", "--dry-run", json_output=False).out
    assert "deep: its processes' own memory leaves, too" in text, text
    assert deep_node.ctl.state("train") == "running"
    [group] = json.loads(deep_node.ctl("pause", "train", "--deep", "--dry-run").out)["groups"]
    assert group["deep"]
    deep_node.ctl("pause", "train")
    assert "a pause would free" in deep_node.ctl("pause", "train", "--deep", "--dry-run", json_output=False).out
    deep_node.ctl("pause", "train", "--deep")
    assert deep_node.ctl.try_("pause", "train", "--deep", "--dry-run").code == 5
