"""Commands of amemctl around pauses: what they say beforehand is what happens then; all groups at once; lists."""
import os

from sim_node import MIB, Program
from sim_node.ctl import FAILED, NOT_FOUND, RESOURCES, WRONG_STATE

KEEP, DROP = 1, 2  # the policy of a region


def test_run_without_a_scope_says_what_stays_on_the_gpu(node):
    said = node.ctl("run", "--group", "train", "--", "true", json_output=False).err
    assert said.count("\n") == 1 and "stay on the GPU. Use --scope heap to free them, too" in said
    assert node.ctl("run", "--group", "train", "--scope", "nccl", "--", "true", json_output=False).err == ""


def allocate(program, tag, policy, size):
    program.ask(f"region begin {tag} {policy}")
    program.ask(f"alloc 0 {size} 1")
    program.ask("region end")


def test_advice_that_is_taken_is_not_given_again(node):
    assert node.ctl.try_("advise", "train").code == NOT_FOUND
    program = Program(node, scope="regions")
    allocate(program, "kv_cache", KEEP, 72 * MIB)
    [advice] = node.ctl("advise", "train").json["advice"]
    assert advice["check"] == "discard" and advice["bytes"] == 72 * MIB
    said = node.ctl("advise", "train", json_output=False).out
    assert "`amem.region(TAG, keep=False)`" in said and "discard" not in said, "nobody knows here whether it can be lost"
    program.ask("free 1")
    allocate(program, "kv_cache", DROP, 72 * MIB)
    assert node.ctl("advise", "train", json_output=False).out.startswith("train: nothing to advise")


def test_a_dry_run_of_a_pause(node):
    """The bytes that it names are those of the pause, nothing has changed before, and the time is that of the last pause."""
    node.job(allocations=4, size="2MiB")
    assert node.ctl.try_("pause", "other", "--dry-run").code == NOT_FOUND
    first = node.ctl("pause", "train", "--dry-run").json
    assert first["fits"] == "yes" and first["groups"][0]["us"] == 0
    assert node.ctl.state("train") == "running" and not node.ctl("history").json["operations"]
    assert "train: the duration is unknown" in node.ctl("pause", "train", "--dry-run", json_output=False).out
    node.ctl("pause", "train")
    done = node.ctl("history").json["operations"][0]
    assert 0 < done["bytes"] <= first["copied_bytes"]
    assert node.ctl.try_("pause", "train", "--dry-run").code == WRONG_STATE
    node.ctl("resume", "train")
    second = node.ctl("pause", "train", "--dry-run").json["groups"][0]
    assert 0 < second["us"] <= done["us"] and "its last pause took" in second["rests_on"]


def test_a_dry_run_counts_what_is_dropped(node):
    program = Program(node, scope="regions")
    allocate(program, "weights", KEEP, 2 * MIB)
    allocate(program, "cache", DROP, 4 * MIB)
    [group] = node.ctl("pause", "train", "--dry-run").json["groups"]
    assert group["dropped_bytes"] == 4 * MIB and group["copied_bytes"] == 2 * MIB
    [group] = node.ctl("pause", "train", "--dry-run", "--tag", "weights", "--discard", "weights").json["groups"]
    assert group["dropped_bytes"] == 2 * MIB and group["copied_bytes"] == 0


def test_a_dry_run_says_that_a_pool_is_too_small(bare_node):
    node = bare_node
    node.start_broker("--pool-size", "4MiB", "--pool-segment", "4MiB")
    node.job(allocations=8, size="2MiB")
    answer = node.ctl.try_("pause", "train", "--dry-run")
    assert answer.code == RESOURCES and answer.json["fits"] == "unsure"
    assert "may not fit: the pool has" in node.ctl.try_("pause", "train", "--dry-run", json_output=False).out
    assert node.ctl.try_("pause", "train").code == RESOURCES


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
