"""Ranks that die, hang or are slow, in each phase."""
import os
import signal

import pytest

from sim_node import MIB, Program, eventually, wire

SHARED_AND_OWN = 9  # allocations of a rank without slabs: 8 and a communicator's


def assert_survivor_works(node, rank):
    """What the dead rank shared lives on with the one that holds it."""
    rank.ask("verify")
    node.ctl("pause", "train")
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    node.ctl("resume", "train")
    rank.ask("verify")
    assert len(node.ctl.ranks("train")) == 1


def test_killed_while_running(node):
    job = node.job()
    job.ask("rewrite")
    job.ask("verify")
    job.ranks[1].kill()
    assert_survivor_works(node, job.ranks[0])


def test_killed_in_quiesce(node):
    job = node.job()
    job.ranks[1].ask("capture begin")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    job.ranks[1].kill()
    answer = pause.finish()
    assert answer.code == 1
    assert f"pid {job.ranks[1].pid}" in answer.error
    assert node.ctl.state("train") == "running"
    assert node.ctl.status()["pool"]["used_bytes"] == 0
    assert_survivor_works(node, job.ranks[0])


def test_killed_in_save(node):
    job = node.job()
    job.ranks[1].faults("cuMemcpyDtoHAsync:2:kill")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 1
    assert f"pid {job.ranks[1].pid}" in answer.error
    assert job.ranks[1].wait() == -signal.SIGKILL
    assert node.ctl.state("train") == "running"
    assert node.ctl.status()["pool"]["used_bytes"] == 0
    assert_survivor_works(node, job.ranks[0])


def test_killed_in_release(node):
    """Beyond the point of no return: the pause goes on without it."""
    job = node.job()
    job.ranks[1].faults("releaseBegins:1:kill")
    node.ctl("pause", "train")
    assert job.ranks[1].wait() == -signal.SIGKILL
    assert node.ctl.state("train") == "paused"
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    node.ctl("resume", "train")
    assert_survivor_works(node, job.ranks[0])


def test_killed_while_paused(node):
    job = node.job()
    node.ctl("pause", "train")
    saved = node.ctl.group("train")["saved_bytes"]
    job.ranks[1].kill()
    # What only the dead rank had is gone from the pool as well.
    node.ctl("resume", "train")
    assert node.ctl.group("train")["allocated_bytes"] < saved
    assert_survivor_works(node, job.ranks[0])


def test_killed_while_the_broker_creates(node):
    job = node.job()
    node.ctl("pause", "train")
    node.broker.faults("cuMemCreate:1:hold")
    resume = node.ctl.start("resume", "train")
    node.broker.holding()
    job.ranks[1].kill()
    node.broker.faults()
    answer = resume.finish()
    if answer.code != 0:  # it was to load bytes that the other one holds
        assert node.ctl.state("train") == "paused"
        node.ctl("resume", "train")
    assert_survivor_works(node, job.ranks[0])


def test_create_fails_when_one_rank_has_its_memory_already(node):
    job = node.job()
    node.ctl("pause", "train")
    saved = node.ctl.group("train")["saved_bytes"]
    node.broker.faults(f"cuMemCreate:{SHARED_AND_OWN + 1}:2")  # the first of the second keeper
    job.ranks[0].faults("cuMemcpyHtoDAsync:*:delay=20")
    answer = node.ctl.try_("resume", "train")
    assert answer.code == 7, answer
    assert "CUDA_ERROR_OUT_OF_MEMORY" in answer.error
    group = node.ctl.group("train")
    assert (group["state"], group["saved_bytes"]) == ("GROUP_STATE_PAUSED", saved)
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    node.broker.faults()
    job.ranks[0].faults()
    node.ctl("resume", "train")
    job.check()


@pytest.mark.parametrize("phase, rule", [
    ("map", "cuMemImportFromShareableHandle:1:kill"),
    ("map", "cuMemSetAccess:1:kill"),
    ("load", "cuMemcpyHtoDAsync:1:kill"),
    ("load", f"cuMemcpyHtoDAsync:{SHARED_AND_OWN}:kill"),
    ("peers", f"cuMemImportFromShareableHandle:{SHARED_AND_OWN + 1}:kill"),
])
def test_killed_in_map_and_load(node, phase, rule):
    """It had bytes to load that its peer needs: rolled back, and the next resume has a new keeper."""
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    job = node.job()
    node.ctl("pause", "train")
    saved = node.ctl.group("train")["saved_bytes"]
    job.ranks[1].faults(rule)
    answer = node.ctl.try_("resume", "train")
    assert answer.code == 1, answer
    assert f"pid {job.ranks[1].pid}" in answer.error
    assert node.ctl.state("train") == "paused"
    assert 0 < node.ctl.group("train")["saved_bytes"] < saved
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    node.ctl("resume", "train")
    assert_survivor_works(node, job.ranks[0])


def test_killed_in_map_with_nothing_that_others_need(node):
    job = node.job(shared=0, ranks=2, arguments=["--communicators", 1])
    lone = node.job("lone", ranks=1, shared=0)
    node.ctl("pause", "lone")
    lone.ranks[0].faults("cuMemcpyHtoDAsync:1:kill")
    answer = node.ctl.try_("resume", "lone")
    assert lone.ranks[0].wait() == -signal.SIGKILL
    assert answer.code in (0, 1)
    assert node.ctl.group("lone") is None
    assert node.ctl.status()["pool"]["used_bytes"] == 0
    job.check()


def test_killed_in_open(node):
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    job = node.job()
    node.ctl("pause", "train")
    # Rank 0 is slow with its peers' memory; rank 1, which has done its part, is stopped before it can open.
    job.ranks[0].faults(f"cuMemImportFromShareableHandle:{SHARED_AND_OWN + 1}:hold")
    resume = node.ctl.start("resume", "train")
    resume.wait_phase("map+load", ranks_done=1)
    job.ranks[1].signal(signal.SIGSTOP)
    job.ranks[0].faults()
    resume.wait_phase("open")
    job.ranks[1].kill()
    assert resume.finish().code == 0
    assert_survivor_works(node, job.ranks[0])


def test_memory_is_served_to_a_rank_that_is_open_before_the_others(node):
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    job = node.job()
    node.ctl("pause", "train")
    job.ranks[0].send("alloc 100000")  # waits at the gate
    job.ranks[0].faults(f"cuMemImportFromShareableHandle:{SHARED_AND_OWN + 1}:hold")
    resume = node.ctl.start("resume", "train")
    resume.wait_phase("map+load", ranks_done=1)
    job.ranks[1].signal(signal.SIGSTOP)
    job.ranks[0].faults()
    resume.wait_phase("open")
    job.ranks[0].answer()
    job.ranks[1].signal(signal.SIGCONT)
    assert resume.finish().code == 0
    job.check()


def test_all_ranks_killed_in_the_middle(node):
    job = node.job()
    for rank in job.ranks:
        rank.faults("cuMemcpyDtoHAsync:3:kill")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 1
    assert node.ctl.group("train") is None
    for device in node.ctl.devices():
        assert device["used_bytes"] == 0
    assert node.ctl.status()["pool"]["used_bytes"] == 0
    node.job("train").check()


def test_a_rank_that_lives_on_without_a_session(node):
    """It writes to what its peer has too, so nothing may be taken away before it has ended."""
    job = node.job()
    job.ask("loop on")
    lost = job.ranks[1]
    wire.cut_off(lost)
    lost.wait_for("the broker has ended")
    node.broker.wait_for("its process continues to run with memory that other ranks share")
    answer = node.ctl.try_("pause", "train", "--timeout", "500ms")
    assert answer.code == 6, answer
    assert f"pid {lost.pid}) whose session has ended" in answer.error
    assert node.ctl.state("train") == "running"
    job.ask("loop off")
    job.check()
    lost.kill()
    assert_survivor_works(node, job.ranks[0])


# ---- slow ones ----

def quick_broker(node, phase):
    node.start_broker(f"--deadlines-{phase}", "2s")  # enough for the other ranks, whatever else runs


def test_slow_in_save_calls_the_pause_off(bare_node):
    node = bare_node
    quick_broker(node, "save")
    job = node.job()
    job.ranks[1].faults("cuMemcpyDtoHAsync:1:hold")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 6
    assert f"pid {job.ranks[1].pid}" in answer.error
    assert f"pid {job.ranks[0].pid}" not in answer.error
    assert node.ctl.state("train") == "running"
    job.ranks[1].faults()
    job.check()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


def test_slow_in_release_leaves_the_group_paused(bare_node):
    node = bare_node
    quick_broker(node, "release")
    job = node.job()
    job.ranks[1].faults("releaseBegins:1:hold")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 6
    assert f"pid {job.ranks[1].pid}" in answer.error
    group = node.ctl.group("train")
    assert group["state"] == "GROUP_STATE_PAUSED"
    assert f"pid {job.ranks[1].pid}" in group["note"]
    job.ranks[1].faults()
    node.ctl("resume", "train")
    job.check()


@pytest.mark.parametrize("phase, rule", [
    ("load", "cuMemcpyHtoDAsync:1:hold"),
    ("load", "cuMemImportFromShareableHandle:1:hold"),
    ("load", f"cuMemImportFromShareableHandle:{SHARED_AND_OWN + 1}:hold"),
])
def test_slow_in_resume_rolls_back(bare_node, phase, rule):
    node = bare_node
    quick_broker(node, phase)
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    job = node.job()
    node.ctl("pause", "train")
    saved = node.ctl.group("train")["saved_bytes"]
    job.ranks[1].faults(rule)
    resume = node.ctl.start("resume", "train")
    resume.wait_phase("rollback")
    job.ranks[1].faults()
    answer = resume.finish()
    assert answer.code == 6, answer
    assert f"pid {job.ranks[1].pid}" in answer.error
    assert node.ctl.state("train") == "paused"
    assert node.ctl.group("train")["saved_bytes"] == saved
    node.ctl("resume", "train")
    job.check()


def test_stopped_in_quiesce_is_named_and_nothing_happens(bare_node):
    """Before it, the pause does not begin (operators/test_job_control.py)."""
    node = bare_node
    node.start_broker("--deadlines-quiesce", "3s")
    job = node.job()
    job.ranks[0].ask("capture begin")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    job.ranks[1].signal(signal.SIGSTOP)
    answer = pause.finish()
    assert answer.code == 6
    assert f". stopped, as by Ctrl-Z, SIGSTOP or a frozen cgroup: rank 1 (pid {job.ranks[1].pid})" in answer.error
    assert node.ctl.state("train") == "running"
    job.ranks[1].signal(signal.SIGCONT)
    job.ranks[0].ask("capture end")
    job.check()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


@pytest.mark.parametrize("call", ["cuStreamQuery", "cuDevicePrimaryCtxGetState"])
def test_a_driver_that_blocks_in_the_cut_keeps_no_gate_shut(node, call):
    puppet = node.puppet()
    puppet.ask("alloc 100000")
    puppet.ask("loop linked")
    puppet.ask("managed 100000")
    # Then the shim has asked the driver whatever else it had to.
    eventually(lambda: node.ctl.group("train")["unbrokered_bytes"] > 0)
    for _ in range(10):
        puppet.faults(f"{call}:*:hold")
        answer = node.ctl.try_("pause", "train", "--timeout", "500ms")
        if answer.code != 0:
            break
        puppet.faults()  # the loop was between two calls, so that the stream was not asked about
        node.ctl("resume", "train")
    assert answer.code == 6, answer
    assert node.ctl.state("train") == "running"
    puppet.ask("alloc 100000")  # only the loop, whose stream is being asked about, may have to wait
    puppet.faults()
    puppet.loop_runs()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.loop_runs()


def test_a_rank_that_never_answers_is_named(node):
    job = node.job()
    ghost = wire.Session(node.runtime_dir)
    assert ghost.hello("train", rank=7)[0] == 0
    answer = node.ctl.try_("pause", "train", "--timeout", "500ms")
    assert answer.code == 6
    assert "rank 7" in answer.error
    job.check()
    ghost.close()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


# ---- failing driver calls ----

@pytest.mark.parametrize("rule", ["cuMemcpyDtoHAsync:1:700", "cuStreamSynchronize:1:700"])
def test_a_driver_call_fails_in_save(node, rule):
    job = node.job()
    job.ranks[1].faults(rule)
    fails_and_names(node, job.ranks[1], "pause")
    job.ranks[1].faults()
    assert node.ctl.state("train") == "running"
    job.check()
    cycle(node, job)


def fails_and_names(node, rank, operation):
    answer = node.ctl.try_(operation, "train")
    assert answer.code == 1, answer
    assert "CUDA_ERROR" in answer.error
    assert f"pid {rank.pid}" in answer.error
    return answer


def is_free(node, job):
    return all(device["used_bytes"] == node.context_bytes(device["ordinal"], job) for device in node.ctl.devices())


def cycle(node, job):
    node.ctl("pause", "train")
    assert is_free(node, job)
    node.ctl("resume", "train")
    job.check()


# The driver lets go of the memory at the second call, once it works again, and not before the resume.
LEFTOVERS = [("cuMemUnmap:1:1", True), ("cuMemUnmap:1+:1", False), ("cuMemRelease:1:1", True),
             ("cuMemRelease:1+:1", False)]


@pytest.mark.parametrize("rule, once", LEFTOVERS)
def test_memory_that_the_driver_does_not_let_go_of(node, rule, once):
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    job = node.job()
    before = job.addresses()
    job.ranks[1].faults(rule)
    if once:
        node.ctl("pause", "train")
    else:
        fails_and_names(node, job.ranks[1], "pause")
        assert not is_free(node, job)
    assert node.ctl.state("train") == "paused"
    job.ranks[1].faults()
    # With nobody's help: another group may want it.
    eventually(lambda: is_free(node, job))
    node.ctl("resume", "train")
    assert job.addresses() == before
    job.check()
    cycle(node, job)


def test_memory_that_the_driver_does_not_unmap_before_the_resume_either(node):
    job = node.job()
    before = job.addresses()
    job.ranks[1].faults("cuMemUnmap:*:1")
    fails_and_names(node, job.ranks[1], "pause")
    for _ in range(2):
        answer = fails_and_names(node, job.ranks[1], "resume")
        assert "its old memory" in answer.error
        assert node.ctl.state("train") == "paused"
    job.ranks[1].faults()
    node.ctl("resume", "train")
    assert job.addresses() == before
    job.check()
    cycle(node, job)


def test_unmapping_fails_where_a_resume_is_undone(node):
    job = node.job()
    node.ctl("pause", "train")
    job.ranks[1].faults("cuMemSetAccess:*:999", "cuMemUnmap:*:1")
    fails_and_names(node, job.ranks[1], "resume")
    assert node.ctl.state("train") == "paused"
    job.ranks[1].faults()
    node.ctl("resume", "train")
    job.check()
    cycle(node, job)


@pytest.mark.parametrize("rule", [
    "cuMemImportFromShareableHandle:2:304",
    "cuMemMap:3:999",
    "cuMemSetAccess:1+:999",
    "cuMemcpyHtoDAsync:4:700",
    f"cuMemMap:{SHARED_AND_OWN + 2}:999",
])
def test_a_driver_call_fails_in_resume(node, rule):
    job = node.job()
    before = job.addresses()
    node.ctl("pause", "train")
    saved = node.ctl.group("train")["saved_bytes"]
    job.ranks[1].faults(rule)
    answer = node.ctl.try_("resume", "train")
    job.ranks[1].faults()
    assert answer.code == 1
    assert "CUDA_ERROR" in answer.error
    assert f"pid {job.ranks[1].pid}" in answer.error
    group = node.ctl.group("train")
    assert group["state"] == "GROUP_STATE_PAUSED"
    assert group["saved_bytes"] == saved
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    node.ctl("resume", "train")
    assert job.addresses() == before
    job.check()


@pytest.mark.parametrize("operation, state", [("resume", "paused"), ("pause", "running")])
def test_the_driver_does_not_wait_for_copies(node, operation, state):
    """Then they are waited for in another way: what they read or write is not taken away meanwhile."""
    program = Program(node, env={"AMEM_SIM_BANDWIDTH": "0.05"})
    program.ask(f"alloc 0 {16 * MIB}")
    if operation == "resume":
        node.ctl("pause", "train")
    program.faults("cuStreamSynchronize:1+:304")
    answer = node.ctl.try_(operation, "train")
    program.faults()
    assert answer.code == 1 and "CUDA_ERROR_OPERATING_SYSTEM" in answer.error, answer
    assert node.ctl.state("train") == state
    node.ctl("resume" if state == "paused" else "pause", "train")
    if state == "running":
        node.ctl("resume", "train")
    program.verify()
