"""Graphs that were captured before a pause, and captures that are open when one comes."""
import time


def test_a_graph_captured_before_runs_after(node):
    job = node.job(arguments=["--communicators", 2])
    job.ask("capture 3")
    job.ask("graph 2")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.ask("graph 4")
    job.check()
    job.ask("graph 1")
    job.verify()


def test_a_graph_launched_while_paused_waits(node):
    job = node.job()
    job.ask("capture 2")
    node.ctl("pause", "train")
    job.send("graph 3")
    for rank in job.ranks:
        rank.stands()
    node.ctl("resume", "train")
    job.answers()
    job.check()


def test_a_pause_waits_for_an_open_capture(node):
    job = node.job()
    job.ask("capture begin 2")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    job.ranks[0].ask("capture end")
    assert pause.alive()  # the other rank's is open still
    job.ranks[1].ask("capture end")
    assert pause.finish().code == 0
    node.ctl("resume", "train")
    job.ask("graph 2")
    job.check()


def test_a_capture_that_stays_open_is_named(node):
    job = node.job()
    job.ranks[1].ask("capture begin")
    answer = node.ctl.try_("pause", "train", "--timeout", "2s")
    assert answer.code == 6
    assert f"pid {job.ranks[1].pid}" in answer.error
    assert "captur" in answer.error
    job.ranks[0].ask("capture begin")
    job.ask("capture end")
    job.ask("graph 2")
    job.check()


def test_a_pause_waits_for_a_capture_into_a_graph_that_there_is(node):
    """cuStreamBeginRecaptureToGraph of CUDA 13.3. A capture that the shim does not know is broken by the wait for the device."""
    puppet = node.puppet(env={"AMEM_SIM_DRIVER": "13.5"})
    block = puppet.ask("alloc 1000000")["id"]
    puppet.ask(f"fill {block} 7")
    puppet.ask("capture again")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    time.sleep(0.3)  # in which a rank that knows of no capture would have waited for its device
    assert puppet.ask("capture end")["result"] == 0
    assert pause.finish().code == 0
    node.ctl("resume", "train")
    puppet.ask(f"verify {block} 7")
