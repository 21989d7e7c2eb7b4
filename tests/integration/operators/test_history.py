"""History: what was done is told afterwards, to those who may see it."""
import os

import pytest

from sim_node import MIB, NOBODY, Program, as_user, eventually

KEEP = 1  # the policy of a region


def history(node, *arguments):
    return node.ctl("history", *arguments).json["operations"]


def test_what_was_done_and_how_it_ended(node):
    train = node.job("train", allocations=4, size="2MiB")
    node.ctl("pause", "train")
    rollout = node.job("rollout", allocations=4, size="2MiB")
    node.ctl("swap", "rollout", "train")
    train.ask("rewrite")  # else nothing need be copied
    train.ranks[0].faults("cuMemcpyDtoHAsync:1")
    assert node.ctl.try_("pause", "train").code != 0
    train.ranks[0].faults()
    told = history(node)
    assert [(each["group"], each["operation"], each["swap"], each["code"] == 0) for each in told] == [
        ("train", "pause", False, True), ("rollout", "pause", True, True), ("train", "resume", True, True),
        ("train", "pause", False, False)]
    assert [each["transaction"] for each in told] == [1, 2, 2, 3]
    assert "saving" in told[-1]["error"]
    assert told[0]["bytes"] > 8 << 20 and not told[0]["spans"]
    assert [each["began_us"] for each in told] == sorted(each["began_us"] for each in told)
    assert [each["transaction"] for each in history(node, "rollout")] == [2]
    assert [each["transaction"] for each in history(node, "--most", "1")] == [3]
    text = node.ctl("history", json_output=False).out
    assert "2 swap" in text and text.splitlines()[-1].endswith(told[-1]["error"])
    for job in (train, rollout):
        job.leave()
    eventually(lambda: not node.ctl("groups").json["groups"], what="the groups are gone")
    assert len(history(node, "train")) == 3, "what was done outlives the group"
    missing = node.ctl.try_("history", "nobody")
    assert missing.code == 4 and "no group 'nobody'" in missing.error


def test_bytes_that_were_dropped_are_not_copied_back(node):
    program = Program(node, scope="regions")
    for tag, count in (("weights", 1), ("cache", 4)):
        program.ask(f"region begin {tag} {KEEP}")
        program.ask(f"alloc 0 {4 * MIB} {count}")
        program.ask("region end")
    node.ctl("pause", "train", "--discard", "cache")
    node.ctl("resume", "train")
    program.ask("zero cache")
    paused, resumed = history(node)
    assert paused["bytes"] == resumed["bytes"] < 8 * MIB


def test_what_ranks_ask_for_is_remembered(node):
    job = node.job("train")
    job.ask("ncclPause")
    job.ask("ncclResume")
    told = history(node)
    assert [(each["operation"], each["transaction"]) for each in told] == [("pause", 0), ("resume", 0)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_stranger_sees_no_other_groups(bare_node):
    node = bare_node
    node.start_broker("--sockets-control-mode", "0660", "--sockets-group", "nogroup")
    node.job("secret")
    node.ctl("pause", "secret")
    nobody = node.ctl.by(as_user(NOBODY))
    assert history(node) and nobody("history").json["operations"] == []
    said = nobody.try_("history", "secret")
    assert said.code == 4 and "Groups of other users are not shown" in said.error
