"""Copies to and from memory whose tag is paused while the program runs, also as nodes of graphs: they wait, or fail with a
clear error."""
import contextlib

import pytest

from sim_node.child import eventually
from sim_node.node import MIB
from sim_node.program import Program

KEEP = 0


@pytest.fixture
def started(node):
    """Makes a program with memory of tag kv, which is paused."""
    def start(**env):
        program = Program(node, env=env)
        program.ask("alloc 0 5000 3")
        program.ask(f"region begin kv {KEEP}")
        program.ask("alloc 0 5000")
        program.ask(f"alloc 0 {3 * MIB}")
        program.ask("region end")
        node.ctl("pause", "train", "--tag", "kv")
        return program

    return start


def told(program, call):
    line = program.wait_for(f"{call}: 0x")
    assert "paused with its tag 'kv'" in line, line
    return line


@pytest.mark.parametrize("command, call", [("verify", "cuMemcpyDtoH_v2"), ("rewrite", "cuMemcpyHtoD_v2")])
def test_a_copy_waits_for_the_resume(node, started, command, call):
    program = started()
    program.send(command)
    program.stands()
    told(program, call)
    node.ctl("resume", "train", "--tag", "kv")
    program.answer()
    program.verify()


def test_the_group_can_be_paused_and_resumed_while_a_copy_waits(node, started):
    """The caller is not inside the gate."""
    program = started()
    program.send("verify")
    program.stands()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    assert program.answer()["wrong"] == 0


def test_a_copy_is_not_let_in_before_the_bytes_have_come(node, started):
    program = started()
    program.send("verify")
    program.stands()
    program.faults("cuMemcpyHtoDAsync:1:700")
    answer = node.ctl.try_("resume", "train", "--tag", "kv")
    assert answer.code == 1, answer
    program.faults()
    program.stands()
    node.ctl("resume", "train", "--tag", "kv")
    assert program.answer()["wrong"] == 0


def test_an_error_at_once(node, started):
    program = started(AMEM_GATE="error")
    program.send("verify")
    assert "NOT_READY" in program.failure()
    assert "AMEM_GATE=error" in told(program, "cuMemcpyDtoH_v2")
    node.ctl("resume", "train", "--tag", "kv")
    program.verify()


def test_patience_ends(node, started):
    program = started(AMEM_GATE="1s")
    program.send("verify")
    assert "TIMEOUT" in program.failure()
    program.wait_for("was not resumed within the time of AMEM_GATE")
    node.ctl("resume", "train", "--tag", "kv")
    program.verify()


@pytest.mark.parametrize("begun, command, call", [("relaxed", "verify", "cuMemcpyDtoH_v2"),
                                                  ("relaxed apart", "capture copy 4", "cuMemcpyDtoHAsync_v2")])
def test_no_call_of_a_capture_waits(node, started, begun, command, call):
    """Of the thread that has begun it, or into its stream."""
    program = started()
    program.ask(f"capture begin {begun}")
    program.send(command)
    assert "NOT_READY" in program.failure()
    assert "calls of a stream capture do not wait" in told(program, call)
    program.ask("capture drop")
    node.ctl("resume", "train", "--tag", "kv")
    program.verify()


def test_a_copy_waits_beside_another_threads_capture(node, started):
    program = started()
    program.ask("capture begin relaxed apart")
    program.send("verify")
    program.stands()
    told(program, "cuMemcpyDtoH_v2")
    node.ctl("resume", "train", "--tag", "kv")
    assert program.answer()["wrong"] == 0
    program.ask("capture end")


def test_a_copy_that_waits_keeps_no_pause_from_beginning(node, started):
    """It may be why a capture stays open, for whose end the pause waits."""
    program = started()
    program.ask("capture begin relaxed apart")
    program.send("verify")
    program.stands()
    pause = node.ctl.start("pause", "train")
    assert "NOT_READY" in program.failure()
    program.wait_for("a pause waits for the end of a stream capture, which may wait for this call")
    program.ask("capture end")
    assert pause.finish().code == 0
    node.ctl("resume", "train")
    program.verify()


def test_copies_that_wait_one_after_the_other_are_told_once(node, started):
    program = started()
    for _ in range(3):
        program.send("verify")
        program.stands()
        node.ctl("resume", "train", "--tag", "kv")
        assert program.answer()["wrong"] == 0
        node.ctl("pause", "train", "--tag", "kv")
    assert len([line for line in program.rest() if "The call waits for its resume" in line]) == 1


def with_a_broker_to_kill(node):
    """A program whose memory of tag kv is paused, and that does not wait for another broker."""
    node.settings["AMEM_RECONNECT"] = "0"
    node.start_broker()
    program = Program(node)
    program.ask(f"region begin kv {KEEP}")
    program.ask("alloc 0 5000")
    program.ask("region end")
    node.ctl("pause", "train", "--tag", "kv")
    return program


def test_without_a_broker_it_cannot_come_back(bare_node):
    program = with_a_broker_to_kill(bare_node)
    bare_node.broker.kill()
    program.wait_for("of paused tags are lost")
    program.send("verify")
    program.failure()
    assert "the broker has ended" in told(program, "cuMemcpyDtoH_v2")


def test_who_waits_hears_that_the_broker_is_gone(bare_node):
    program = with_a_broker_to_kill(bare_node)
    program.send("verify")
    program.stands()
    bare_node.broker.kill()
    program.failure()
    program.wait_for("the broker has ended, so this memory is lost")


class Graphs:
    """A program with memory of tag kv, and other memory."""

    def __init__(self, node, **env):
        self.node, self.program = node, Program(node, env=env)
        self.here = self.program.ask("alloc 0 5000")["id"]
        self.program.ask(f"region begin kv {KEEP}")
        self.kv = self.program.ask("alloc 0 5000")["id"]
        self.program.ask("region end")

    def steps(self, *steps):
        for step in steps:
            self.program.ask(f"graph {step}")

    def pause(self):
        self.node.ctl("pause", "train", "--tag", "kv")

    def waits(self, step, call):
        self.program.send(f"graph {step}")
        self.program.stands()
        told(self.program, call)
        self.node.ctl("resume", "train", "--tag", "kv")
        self.program.answer()


@pytest.mark.parametrize("step, call", [("copy", "cuGraphAddMemcpyNode"), ("set", "cuGraphAddMemsetNode"),
                                        ("node", "cuGraphAddNode_v2"), ("change", "cuGraphMemcpyNodeSetParams"),
                                        ("change-made", "cuGraphExecMemcpyNodeSetParams")])
def test_a_node_that_names_it_waits_for_the_resume(node, step, call):
    graphs = Graphs(node)
    graphs.steps(f"copy {graphs.here}", "make")
    graphs.pause()
    graphs.waits(f"{step} {graphs.kv}", call)
    graphs.program.verify()


@pytest.mark.parametrize("steps", [["copy"], ["node"], ["set"], ["capture"], ["copy", "wrap"], ["capture", "wrap"]])
def test_a_launch_waits_for_what_its_graph_copies_and_sets(node, steps):
    graphs = Graphs(node)
    graphs.steps(f"{steps[0]} {graphs.kv}", *steps[1:], "make", "drop")
    graphs.pause()
    graphs.waits("launch", "cuGraphLaunch")
    graphs.steps("launch")


def test_a_launch_waits_for_what_a_node_names_now(node):
    graphs = Graphs(node)
    graphs.steps(f"copy {graphs.here}", "make", f"change-made {graphs.kv}")
    graphs.pause()
    graphs.waits("launch", "cuGraphLaunch")


def test_a_launch_waits_for_what_an_update_has_made_it_touch(node):
    graphs = Graphs(node)
    graphs.steps(f"copy {graphs.here}", "make", "new", f"copy {graphs.kv}", "update", "drop")
    graphs.pause()
    graphs.waits("launch", "cuGraphLaunch")


def test_a_launch_is_not_held_up_by_what_it_does_not_touch(node):
    graphs = Graphs(node)
    graphs.steps(f"copy {graphs.here}", "make", f"change {graphs.kv}", f"copy {graphs.here}")
    graphs.pause()
    graphs.steps("launch")


@pytest.mark.parametrize("made_harmless", ["change", "disable", "update"])
def test_a_launch_is_not_held_up_by_what_it_no_longer_touches(node, made_harmless):
    graphs = Graphs(node)
    graphs.steps(f"copy {graphs.kv}", "make")
    if made_harmless == "change":
        graphs.steps(f"change-made {graphs.here}")
    elif made_harmless == "disable":
        graphs.steps("disable")
    else:
        graphs.steps("new", f"copy {graphs.here}", "update")
    graphs.pause()
    graphs.steps("launch")


def test_a_launch_that_may_not_wait_fails_at_once(node):
    graphs = Graphs(node, AMEM_GATE="error")
    graphs.steps(f"copy {graphs.kv}", "make")
    graphs.pause()
    graphs.program.send("graph launch")
    assert "NOT_READY" in graphs.program.failure()
    assert "AMEM_GATE=error" in told(graphs.program, "cuGraphLaunch")
    graphs.node.ctl("resume", "train", "--tag", "kv")
    graphs.steps("launch")


def test_no_launch_of_a_thread_that_captures_waits(node):
    graphs = Graphs(node)
    graphs.steps(f"copy {graphs.kv}", "make")
    graphs.pause()
    graphs.program.ask("capture begin relaxed")
    graphs.program.send("graph launch")
    assert "NOT_READY" in graphs.program.failure()
    assert "calls of a stream capture do not wait" in told(graphs.program, "cuGraphLaunch")
    graphs.program.ask("capture drop")


def test_a_node_waits_while_the_whole_group_is_paused(node):
    graphs = Graphs(node)
    node.ctl("pause", "train")
    graphs.program.send(f"graph copy {graphs.here}")
    graphs.program.stands()
    node.ctl("resume", "train")
    graphs.program.answer()
    graphs.steps("make", "launch")


def loop_fails(puppet, call, way):
    """Its launches go on until that call gives CUDA_ERROR_ILLEGAL_ADDRESS."""
    puppet.faults(f"{call}:1:700")
    puppet.send(f"loop {way}")
    with contextlib.suppress(AssertionError):  # it may have ended before it could say that it runs
        puppet.answer()
    eventually(lambda: "ILLEGAL_ADDRESS" in str(puppet.loop_error()), what="the loop has ended")


@pytest.mark.parametrize("call", ["cuCtxSynchronize", "cuLaunchKernel"])
@pytest.mark.parametrize("paused", [True, False])
def test_an_illegal_address_is_explained_by_what_is_paused(node, call, paused):
    """The driver does not say which address a kernel has touched."""
    puppet = node.puppet(scope="heap", env={"AMEM_MODULES": "libnccl"})
    puppet.ask(f"alloc {4 * MIB}")
    puppet.ask(f"alloc {2 * MIB}")
    if paused:
        node.ctl("pause", "train", "--tag", "heap")
    for _ in range(2):
        loop_fails(puppet, call, "looked-up")
    puppet.faults()
    puppet.leave()
    said = [line for line in puppet.output("err").splitlines() if "ILLEGAL_ADDRESS (700) while memory" in line]
    assert len(said) == (1 if paused else 0)
    if paused:
        assert f"error: {call}: " in said[0] and f"tag 'heap' ({6 * MIB} bytes)" in said[0]


def test_a_wait_for_a_stream_is_explained_too(node, started):
    program = started()
    program.faults("cuStreamSynchronize:1:700")
    program.ask(f"unbrokered pool {MIB}")
    program.send("unbrokered free")
    program.failure()
    assert "tag 'kv'" in program.wait_for("cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700) while memory")
