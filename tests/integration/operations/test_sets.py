"""Several groups in one operation, which ends all or none: pauses, resumes and swaps of sets."""
import signal

import pytest

from sim_node.child import eventually
from sim_node.ctl import DEADLINE, NOT_FOUND, RESOURCES, USAGE, WRONG_STATE
from sim_node.turns import lines

ENGINES = ("a", "b")
SIZE = {"allocations": 3, "size": "1MiB", "shared": 0.4}


def states(node, *names):
    return [node.ctl.state(name) for name in names or ENGINES]


def done(answer):
    return sorted(line["group"] for line in answer.lines if line.get("done"))


@pytest.fixture
def engines(node):
    """Groups a and b, both running."""
    return [node.job(name, **SIZE) for name in ENGINES]


def assert_usable(node, jobs):
    """All of them run, with their bytes, and can be paused and resumed together."""
    for job in jobs:
        job.check()
    node.ctl("pause", *ENGINES)
    assert states(node) == ["paused"] * 2
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    node.ctl("resume", *ENGINES)
    assert states(node) == ["running"] * 2
    for job in jobs:
        job.check()


# ---- pauses and resumes -------------------------------------------------------------------------
def test_a_set_is_paused_and_resumed(node, engines):
    answer = node.ctl("pause", *ENGINES, "--explain")
    assert states(node) == ["paused"] * 2
    assert done(answer) == ["a", "b"]
    saved = [lines(answer, name, "agree")[0] for name in ENGINES]
    released = [lines(answer, name, "release")[0] for name in ENGINES]
    assert max(saved) < min(released), "none releases before every one has saved"
    answer = node.ctl("resume", *ENGINES)
    assert done(answer) == ["a", "b"]
    turned = [lines(answer, name, "turn")[0] for name in ENGINES]
    opened = [lines(answer, name, "open")[0] for name in ENGINES]
    assert max(turned) < min(opened), "none opens before every one has loaded"
    assert_usable(node, engines)


def test_the_view_for_people(node, engines):
    answer = node.ctl("pause", *ENGINES, json_output=False)
    assert "a: paused in" in answer.out and "b: paused in" in answer.out
    assert "a: agree" in answer.err
    node.broker.wait_for("pause of groups 'a', 'b' took")


def test_what_cannot_be_meant_changes_nothing(node, engines):
    def refused(code, *words, text):
        answer = node.ctl.try_(*words)
        assert answer.code == code and text in answer.error, answer

    refused(NOT_FOUND, "pause", "a", "nobody", text="nobody")
    refused(USAGE, "pause", "a", "b", "a", text='"a" is named twice')
    refused(USAGE, "swap", "a", "b", "--for", "b", text='"b" is named twice')
    refused(NOT_FOUND, "pause", "a", "b", "--tag", "kv", text="group 'a': the group has no memory of tag 'kv'")
    refused(WRONG_STATE, "resume", "a", "b", text="group 'a' is already running")
    refused(WRONG_STATE, "swap", "a", "--for", "b", text="group 'b' is already running")
    assert states(node) == ["running"] * 2
    node.ctl("pause", "b")
    refused(WRONG_STATE, "pause", "a", "b", text="group 'b' is already paused")
    assert states(node) == ["running", "paused"]
    node.ctl("resume", "b")
    assert_usable(node, engines)


def test_a_member_in_another_operation(node, engines):
    engines[1].ranks[0].faults("cuMemcpyDtoHAsync:1:hold")
    other = node.ctl.start("pause", "b")
    other.wait_phase("save")
    answer = node.ctl.try_("pause", "a", "b")
    assert answer.code == WRONG_STATE and "group 'b' is pausing (save)" in answer.error, answer
    assert node.ctl.state("a") == "running"
    engines[1].ranks[0].faults()
    assert other.finish().code == 0
    node.ctl("resume", "b")
    assert_usable(node, engines)


def test_a_member_that_does_not_become_quiet_calls_all_off(node, engines):
    busy = engines[1].ranks[0]  # inside a collective that its peer has not come to
    busy.send("step 1")
    busy.stands()
    answer = node.ctl.try_("pause", *ENGINES, "--timeout", "1s")
    assert answer.code == DEADLINE, answer
    assert f"pid {busy.pid}" in answer.error
    assert "pause of group 'a'" in answer.error and "the pause of group 'b' failed" in answer.error
    assert states(node) == ["running"] * 2
    engines[1].ranks[1].ask("step 1")
    busy.answer()
    assert_usable(node, engines)


def test_a_rank_that_dies_in_save_calls_all_off(node, engines):
    victim = engines[1].ranks[1]
    victim.faults("cuMemcpyDtoHAsync:1:kill")
    answer = node.ctl.try_("pause", *ENGINES)
    assert answer.code == 1, answer
    assert f"pid {victim.pid}" in answer.error and "called off, because the pause of group 'b' failed" in answer.error
    assert victim.wait() == -signal.SIGKILL
    assert states(node) == ["running"] * 2
    assert node.ctl.group("a")["saved_bytes"] == 0
    engines[0].check()
    node.ctl("pause", *ENGINES)
    node.ctl("resume", *ENGINES)
    engines[0].check()
    engines[1].ranks[0].ask("verify")


def test_a_pool_too_small_for_all_takes_none(bare_node):
    node = bare_node
    node.start_broker("--pool-size", "16MiB")
    jobs = [node.job(name, allocations=5, size="1MiB", shared=0) for name in ENGINES]
    answer = node.ctl.try_("pause", *ENGINES)
    assert answer.code == RESOURCES and "pool" in answer.error, answer
    assert states(node) == ["running"] * 2
    eventually(lambda: node.ctl.status()["pool"]["used_bytes"] == 0, what="the pool is empty again")
    for name in ENGINES:
        node.ctl("pause", name)
        node.ctl("resume", name)
    for job in jobs:
        job.check()


def test_a_device_too_small_for_all_brings_none_back(bare_node):
    node = bare_node
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    node.start_broker("--pool-size", "256MiB")
    big = {"allocations": 5, "size": "10MiB", "shared": 0}
    jobs = []
    for name in ENGINES:
        jobs.append(node.job(name, **big))
        node.ctl("pause", name)
    answer = node.ctl.try_("resume", *ENGINES)
    assert answer.code == RESOURCES and "needed by the 2 groups together" in answer.error, answer
    assert states(node) == ["paused"] * 2
    for name, job in zip(ENGINES, jobs):
        node.ctl("resume", name)
        job.check()
        node.ctl("pause", name)


def test_tags_of_a_set(node, engines):
    """The groups run on without that memory, and nobody gets it back before all have it."""
    node.ctl("pause", *ENGINES, "--tag", "nccl")
    assert states(node) == ["running"] * 2
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    engines[0].ranks[0].faults("cuMemcpyHtoDAsync:1:700")
    answer = node.ctl.try_("resume", *ENGINES, "--tag", "nccl")
    assert answer.code == 1 and "called off" in answer.error, answer
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    engines[0].ranks[0].faults()
    node.ctl("resume", *ENGINES, "--tag", "nccl")
    assert_usable(node, engines)


# ---- swaps of sets ------------------------------------------------------------------------------
@pytest.fixture(params=[("", "1GiB"), ("", "1MiB"), ("duplex", "1GiB")], ids=["duplex", "waves", "in-turn"])
def sets(request, bare_node):
    """a and b run, c and d are paused; there is no space for all."""
    without, wave = request.param
    node = bare_node
    node.settings["AMEM_SIM_MEMORY"] = str(40 << 20)
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    node.start_broker("--without", without, "--swap-wave", wave, "--pool-size", "128MiB")
    jobs = {}
    for name in ("c", "d", "a", "b"):
        jobs[name] = node.job(name, allocations=4, size="2MiB", shared=0.4)
        jobs[name].ask("rewrite")
        jobs[name].verify()
        if name == "d":
            node.ctl("pause", "c", "d")
    return node, jobs


def test_many_swaps_of_sets(sets):
    node, jobs = sets
    out, into = ("a", "b"), ("c", "d")
    for _ in range(20):
        answer = node.ctl("swap", *out, "--for", *into)
        assert states(node, *out, *into) == ["paused"] * 2 + ["running"] * 2
        assert done(answer) == ["a", "b", "c", "d"]
        assert sum(line["swap_us"] > 0 for line in answer.lines) == 1
        paused = max(lines(answer, name, "drop")[0] for name in out)
        assert paused < min(lines(answer, name, "open")[0] for name in into), "never do both run"
        for name in into:
            jobs[name].verify()
        out, into = into, out
    assert states(node, "a", "b", "c", "d") == ["running"] * 2 + ["paused"] * 2
    for name in out:
        jobs[name].check()


def test_two_out_one_in_and_back(sets):
    node, jobs = sets
    node.ctl("swap", "a", "b", "--for", "c")
    assert states(node, "a", "b", "c", "d") == ["paused", "paused", "running", "paused"]
    jobs["c"].check()
    node.ctl("swap", "c", "--for", "a", "b")
    for name in ("a", "b"):
        jobs[name].check()


def test_a_swap_whose_save_fails_changes_nothing(sets):
    node, jobs = sets
    jobs["b"].ranks[0].faults("cuMemcpyDtoHAsync:1:700")
    answer = node.ctl.try_("swap", "a", "b", "--for", "c", "d")
    assert answer.code == 1, answer
    for name in jobs:
        assert f"group '{name}'" in answer.error, answer
    assert states(node, "a", "b", "c", "d") == ["running"] * 2 + ["paused"] * 2
    jobs["b"].ranks[0].faults()
    node.ctl("swap", "a", "b", "--for", "c", "d")
    for name in ("c", "d"):
        jobs[name].check()


def test_a_swap_whose_load_fails_leaves_all_paused(sets):
    node, jobs = sets
    jobs["d"].ranks[1].faults("cuMemcpyHtoDAsync:1:700")
    answer = node.ctl.try_("swap", "a", "b", "--for", "c", "d")
    assert answer.code == 1 and "group 'a' is paused; group 'b' is paused" in answer.error, answer
    assert states(node, "a", "b", "c", "d") == ["paused"] * 4
    jobs["d"].ranks[1].faults()
    node.ctl("resume", "c", "d")
    for name in ("c", "d"):
        jobs[name].check()
