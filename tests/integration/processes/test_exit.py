"""Programs that call exit() while their group is paused, or about to be: the end takes no second, and everybody is told."""
import json
import signal
import time

import pytest

from sim_node import SERVICE_THREAD, eventually, patience

DEINITIALIZED = 4  # CUDA_ERROR_DEINITIALIZED
READ = 0  # a system call, by its number on x86-64
BLOCK = 3 << 20


def rank(node, name="leaves", device=0):
    """A puppet in the group train with one block of device memory."""
    puppet = node.puppet(name, device, scope="heap")
    puppet.block = puppet.ask(f"plain {BLOCK}")["id"]
    puppet.ask(f"fill {puppet.block} {device + 1}")
    return puppet


def quits(puppet, status=0):
    """Has it call exit()."""
    began = time.monotonic()
    puppet.send(f"quit {status}")
    assert puppet.wait(10) == status
    took = time.monotonic() - began
    assert took < patience(1), f"its end took {took:.1f} s"


def used(node, device=0):
    return node.ctl.devices()[device]["used_bytes"]


def survives(node, puppet, device):
    """The group goes on with this one alone."""
    eventually(lambda: len(node.ctl.ranks("train")) == 1, what="the other one is gone")
    assert used(node, 1 - device) == 0
    puppet.ask(f"verify {puppet.block} {device + 1}")
    node.ctl("pause", "train")
    assert used(node, device) == node.CONTEXT_BYTES
    node.ctl("resume", "train")
    puppet.ask(f"verify {puppet.block} {device + 1}")


# ---- while paused ----

def test_exit_handlers_that_free_do_not_wait(node):
    """Neither before nor after the driver's own end. The second one was registered after the session had begun."""
    leaves, stays = rank(node), rank(node, "stays", 1)
    leaves.ask(f"at-last free {leaves.block}")
    leaves.ask(f"at-exit free {leaves.block}")
    watch = node.ctl.start("watch")

    def watched():
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        return watch.rest("out")

    eventually(watched, what="the watch tells of pauses")
    node.ctl("pause", "train")
    quits(leaves, 3)
    assert [leaves.answer()["result"] for _ in range(2)] == [0, DEINITIALIZED], "a free needs no resume"
    assert f"pid {leaves.pid}" in json.loads(watch.wait_for("rank_left", stream="out"))["text"]
    node.ctl("resume", "train")
    assert node.ctl.status()["pool"]["used_bytes"] == 0
    survives(node, stays, 1)


def test_threads_that_exit_handlers_join_do_not_wait(node):
    leaves = rank(node)
    leaves.ask("loop linked")
    leaves.loop_runs()
    leaves.ask("at-exit join")
    node.ctl("pause", "train")
    quits(leaves)
    assert "DEINITIALIZED" in leaves.failure()
    eventually(lambda: node.ctl.group("train") is None, what="the group is gone")
    assert used(node) == 0
    assert node.ctl.status()["pool"]["used_bytes"] == 0


def test_a_signal_handler_that_calls_exit_while_its_thread_waits(node):
    leaves = rank(node)
    leaves.ask(f"at-exit free {leaves.block}")
    leaves.ask("on-term")
    node.ctl("pause", "train")
    leaves.send(f"fill {leaves.block} 5")
    eventually(leaves.sleeps, what="it waits at the gate")
    began = time.monotonic()
    leaves.signal(signal.SIGTERM)
    assert leaves.wait(10) == 0
    assert time.monotonic() - began < patience(1)
    assert leaves.answer()["result"] == 0


def test_nothing_changes_for_who_runs(node):
    """Its exit handlers use the device until the driver ends."""
    leaves, stays = rank(node), rank(node, "stays", 1)
    leaves.ask(f"at-last free {leaves.block}")
    leaves.ask(f"at-exit free {leaves.block}")
    quits(leaves)
    assert [leaves.answer()["result"] for _ in range(2)] == [0, DEINITIALIZED]
    survives(node, stays, 1)


# ---- while a phase is under way ----

def test_in_quiesce(node):
    leaves, stays = rank(node), rank(node, "stays", 1)
    leaves.ask(f"at-exit free {leaves.block}")
    stays.faults("cuCtxSynchronize:*:hold")
    pause = node.ctl.start("pause", "train")
    while True:  # its gate is shut
        progress = pause.json_line()
        if progress["phase"] == "quiesce" and progress["ranks_done"] == 1:
            break
    quits(leaves)
    assert leaves.answer()["result"] == DEINITIALIZED
    answer = pause.finish()
    assert answer.code == 1 and f"pid {leaves.pid}" in answer.error
    stays.faults()
    assert node.ctl.state("train") == "running"
    survives(node, stays, 1)


@pytest.mark.parametrize("phase, call, code, state", [
    ("save", "cuMemcpyDtoHAsync", 1, "running"),
    ("save", "cuMemUnmap", 1, "running"),
    ("release", "releaseBegins", 0, "paused"),
])
def test_in_pause(node, phase, call, code, state):
    """The service thread is in the driver, and stays there."""
    leaves, stays = rank(node), rank(node, "stays", 1)
    leaves.ask(f"at-exit free {leaves.block}")
    leaves.faults(f"{call}:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase(phase)
    leaves.held(SERVICE_THREAD)
    quits(leaves)
    assert leaves.answer()["result"] == DEINITIALIZED
    answer = pause.finish()
    assert answer.code == code, answer
    assert code == 0 or f"pid {leaves.pid}" in answer.error
    assert node.ctl.state("train") == state
    if state == "paused":
        node.ctl("resume", "train")
    survives(node, stays, 1)


def test_in_resume(node):
    leaves, stays = rank(node), rank(node, "stays", 1)
    leaves.ask(f"at-exit free {leaves.block}")
    node.ctl("pause", "train")
    leaves.faults("cuMemcpyHtoDAsync:1:hold")
    resume = node.ctl.start("resume", "train")
    resume.wait_phase("map+load")
    leaves.held(SERVICE_THREAD)
    quits(leaves)
    assert leaves.answer()["result"] == DEINITIALIZED
    assert resume.finish().code == 0
    survives(node, stays, 1)


def test_a_process_that_lingers_without_a_driver_is_named(bare_node):
    """It does nothing for its group any more, and says nothing untrue."""
    node = bare_node
    node.start_broker("--deadlines-load", "400ms", "--deadlines-release", "400ms")
    leaves, stays = rank(node), rank(node, "stays", 1)
    leaves.ask("at-exit wait")
    leaves.ask("at-last wait")
    node.ctl("pause", "train")
    leaves.send("quit 0")
    leaves.send("")
    leaves.answer()  # of the first wait: it goes on to the driver's end
    answer = node.ctl.try_("resume", "train")
    assert answer.code == 6 and f"pid {leaves.pid}" in answer.error
    assert f"pid {stays.pid}" not in answer.error
    assert node.ctl.state("train") == "paused"
    leaves.send("")
    assert leaves.wait() == 0
    node.ctl("resume", "train")
    survives(node, stays, 1)


def test_a_broker_that_dies_after_the_drivers_end(bare_node):
    """What becomes of the memory takes the driver, and nobody needs it any more."""
    node = bare_node
    node.settings["AMEM_RECONNECT"] = "0"
    node.start_broker()
    leaves = rank(node)
    leaves.ask("at-exit wait")
    leaves.ask("at-last wait")
    leaves.send("quit 0")
    leaves.send("")
    leaves.answer()
    leaves.stands(READ)  # in the last handler
    threads = leaves.threads()
    node.broker.kill()
    eventually(lambda: leaves.threads() < threads, what="the service thread has ended")
    leaves.send("")
    assert leaves.wait() == 0
    assert "the broker has ended" not in leaves.output()
