"""Commands of amemctl around pauses: all groups at once; lists."""
import os

from sim_node import MIB, Program
from sim_node.ctl import FAILED, NOT_FOUND, RESOURCES, WRONG_STATE

KEEP, DROP = 1, 2  # the policy of a region


def test_run_without_a_scope_says_what_stays_on_the_gpu(node):
    said = node.ctl("run", "--group", "train", "--", "true", json_output=False).err
    assert said.count("\n") == 1 and "stay on the GPU. Use --scope heap to free them, too" in said
    assert node.ctl("run", "--group", "train", "--scope", "nccl", "--", "true", json_output=False).err == ""


def test_all_groups_but_those_that_fail(node):
    jobs = [node.job(name, allocations=2, size="1MiB") for name in ("a", "b", "c")]
    node.ctl("pause", "c")
    jobs[1].ranks[0].faults("cuMemcpyDtoHAsync:1")
    paused = node.ctl.try_("pause", "--all", json_output=False)
    jobs[1].ranks[0].faults()
    assert paused.code == FAILED and "1 of 2 groups could not be paused: b" in paused.err
    assert [line.split(" in ")[0] for line in paused.out.splitlines()] == ["a: paused", "c is already paused"]
    assert [node.ctl.state(name) for name in "abc"] == ["paused", "running", "paused"]
    resumed = node.ctl("resume", "--all")
    assert [each["group"] for each in resumed.lines if each["done"]] == ["a", "c"]
    assert {node.ctl.state(name) for name in "abc"} == {"running"}
    for job in jobs:
        job.check()


def test_lists_in_other_formats(node):
    node.job()
    assert node.ctl("groups", "-o", "name", json_output=False).out == "train\n"
    assert sorted(node.ctl("ranks", "-o", "name", json_output=False).out.split()) == ["train/0", "train/1"]
    assert node.ctl("groups", "-o", "json", json_output=False).json["groups"][0]["name"] == "train"
    assert f"train@{os.geteuid()}" in node.ctl("status", "-o", "wide", json_output=False).out
    assert "ALLOCATED" in node.ctl("ranks", "train", "--output", "wide", json_output=False).out
