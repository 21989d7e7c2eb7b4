"""amemctl advise and pause --dry-run: what they say beforehand is what happens then."""
from sim_node import MIB, Program
from sim_node.ctl import NOT_FOUND, RESOURCES, USAGE, WRONG_STATE

KEEP, DROP = 1, 2  # the policy of a region


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


def test_a_dry_run_refuses_to_discard_the_heap(node):
    program = Program(node)
    program.ask(f"alloc 0 {2 * MIB} 1")
    would = node.ctl.try_("pause", "train", "--discard", "heap", "--dry-run")
    assert would.code == USAGE and "would lose the bytes of tag heap" in would.error, would
