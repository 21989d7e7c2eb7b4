"""Pause and resume asked for by the ranks themselves."""
import os

from sim_node.program import Program


def test_pause_and_resume(node):
    job = node.job()
    before = job.addresses()
    job.ask("ncclPause")
    assert node.ctl.state("train") == "paused"
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    job.ask("ncclResume")
    assert node.ctl.state("train") == "running"
    assert job.addresses() == before
    job.check()


def test_a_rank_that_never_asks_is_named(node):
    job = node.job(env={"AMEM_TIMEOUT": "2"})
    job.ranks[0].send("ncclPause")
    assert "returned" in job.ranks[0].failure()
    complaint = job.ranks[0].wait_for("ncclPause:")
    assert "rank 1" in complaint
    assert f"pid {job.ranks[1].pid}" in complaint
    assert node.ctl.state("train") == "running"
    job.check()
    job.ask("ncclPause")
    job.ask("ncclResume")
    job.check()


def test_a_rank_that_dies_is_not_waited_for(node):
    job = node.job()
    job.ranks[0].send("ncclPause")
    job.ranks[0].stands()
    job.ranks[1].kill()
    job.ranks[0].answer()
    assert node.ctl.state("train") == "paused"
    job.ranks[0].ask("ncclResume")
    job.ranks[0].ask("verify")


def test_one_process_with_several_devices_asks_once(node):
    job = node.job(ranks=2, per_process=2)
    job.ask("ncclPause")
    assert node.ctl.state("train") == "paused"
    job.ask("ncclResume")
    job.check()


def test_pauses_from_inside_between_loops(node):
    job = node.job()
    for _ in range(3):
        job.ask("loop on")
        job.ask("loop off")
        job.ask("ncclPause")
        job.ask("ncclResume")
    job.check()


def test_amems_other_calls(node):
    job = node.job()
    job.ask("ncclMemStats")
    for rank in job.ranks:
        line = rank.wait_for("memory of group train")
        assert "allocations" in line


def test_amems_group_numbers(node):
    shim = os.path.join(node.build.directory, "lib", "libamem_shim.so")
    job = node.job("seven", run=[], env={"LD_PRELOAD": shim, "AMEM_GROUPID": "7"})
    assert [group["name"] for group in node.ctl.status()["groups"]] == ["7"]
    job.ask("ncclPause")
    assert node.ctl.state("7") == "paused"
    job.ask("ncclResume")
    job.check()


def test_a_thread_that_waits_for_its_own_resume_says_so(node):
    program = Program(node)
    program.ask("alloc 0 1000")
    program.ask("pause")
    program.send("verify")
    program.wait_for("cuMemcpyDtoH_v2 waits for the resume of group train, but its own thread has paused that "
                     "group")
    program.stands()
    node.ctl("resume", "train")
    program.answer()
    program.ask("pause")
    program.send("alloc 0 1000")
    program.wait_for("cuMemAlloc_v2 waits for the resume of group train")
    node.ctl("resume", "train")
    program.answer()
    node.ctl("pause", "train")
    program.send("verify")
    program.stands()
    node.ctl("resume", "train")
    program.answer()
    program.leave()
    assert program.output().count("its own thread has paused that group") == 2, "not of an operator's pause"


def test_a_thread_that_copies_from_a_tag_that_it_has_paused_says_so(node):
    program = Program(node)
    program.ask("region begin kv 1")
    program.ask("alloc 0 5000")
    program.ask("region end")
    program.ask("pause kv")
    program.send("verify")
    assert "NOT_READY" in program.failure()
    program.wait_for("this process has paused it itself")
    node.ctl("resume", "train", "--tag", "kv")
    program.verify()
