"""A pause of tags that a rank asks for is its own: ranks that share nothing with it run on."""
from __future__ import annotations

import os
import pathlib
import signal
import time

import pytest

from sim_node.child import eventually
from sim_node.evaluator import Evaluator

PAUSED_AT_ONCE = 5.0  # seconds; the ranks of a group used to wait for each other


class Rank(Evaluator):
    """Has 16 MiB in region w, filled with 7."""

    def __init__(self, node, number, **env):
        super().__init__(node, f"rank{number}", number, env={"AMEM_SCOPE": "regions", **env})
        tutorial = pathlib.Path(__file__).parents[3] / "examples" / "tutorial"
        self.ask(f"sys.path[:0] = [{node.build.directory + '/python'!r}, {str(tutorial)!r}]")
        self.ask("import amem, memory")
        self.ask("with amem.region('w'): m = memory.DriverMemory(16 << 20)")
        self.ask("m.fill(7)")

    def begin(self, call):
        self.send(f"amem.{call}")

    def does(self, call):
        before = time.monotonic()
        self.ask(f"amem.{call}", PAUSED_AT_ONCE * 4)
        assert time.monotonic() - before < PAUSED_AT_ONCE

    def fails(self, call):
        self.begin(call)
        return self.failure()

    def on_device(self):
        return self.value("[t.resident_bytes >> 20 for t in amem.stats().brokered]") == [16]


def together(first, second, call):
    """Both make the call, and neither waits longer than for the other."""
    first.begin(call)
    second.does(call)
    first.answer()


@pytest.fixture
def ranks(node):
    return [Rank(node, number) for number in range(2)]


def test_the_others_run_on(node, ranks):
    a, b = ranks
    a.does("pause('w')")
    assert not a.on_device() and b.on_device()
    assert node.ctl.state("train") == "running"
    assert b.value("m.holds(7)")
    a.does("pause('w')")  # it is so already
    b.does("pause('w')")
    a.does("resume('w')")
    assert a.value("m.holds(7)") and not b.on_device()
    b.does("resume('w')")
    assert b.value("m.holds(7)")


def test_unequal_numbers_of_turns(ranks):
    """As where one rank calls a tool more often, and the other waits in a collective."""
    a, b = ranks
    for rank, turns in ((a, 1), (b, 5)):
        for _ in range(turns):
            rank.does("pause('w')")
            rank.does("resume('w')")
    assert a.value("m.holds(7)") and b.value("m.holds(7)")


def test_an_operators_pause_takes_all_ranks_and_brings_all_back(node, ranks):
    a, b = ranks
    a.does("pause('w')")
    node.ctl("pause", "train")
    assert node.ctl.state("train") == "paused" and not b.on_device()
    node.ctl("resume", "train")
    assert a.value("m.holds(7)") and b.value("m.holds(7)")


def test_a_set_is_one(ranks):
    a, b = ranks
    a.begin("pause('w', ranks=('engine', 2))")
    time.sleep(0.3)
    assert b.on_device()
    b.does("pause('w', ranks=('engine', 2))")
    a.answer()
    assert not a.on_device() and not b.on_device()
    together(b, a, "resume('w', ranks=('engine', 2))")
    assert a.value("m.holds(7)") and b.value("m.holds(7)")


def test_a_set_that_is_not_complete_names_it(ranks):
    a, b = ranks
    assert "1 of the 2 ranks of 'engine'" in a.fails("pause('w', 1, ranks=('engine', 2))")
    assert a.on_device() and b.on_device()
    assert "a set of ranks needs" in a.fails("pause(ranks=('engine', 2))")


def test_a_set_whose_wake_fails_on_one_rank_sleeps_and_wakes_later(node, ranks):
    a, b = ranks
    a.begin("pause('w', ranks=('engine', 2))")
    b.ask("amem.pause('w', ranks=('engine', 2))")
    a.answer()
    b.faults("cuMemMap:1:999")
    a.begin("resume('w', ranks=('engine', 2))")
    assert "rank 1" in b.fails("resume('w', ranks=('engine', 2))")
    assert "rank 1" in a.failure()
    assert not a.on_device() and not b.on_device()
    b.faults()
    a.begin("resume('w', ranks=('engine', 2))")
    b.ask("amem.resume('w', ranks=('engine', 2))")
    a.answer()
    assert a.value("m.holds(7)") and b.value("m.holds(7)")


def test_a_pool_that_is_too_small_for_one_of_a_set_leaves_both_awake(bare_node):
    bare_node.start_broker("--pool-size", "24MiB")
    a, b = [Rank(bare_node, number) for number in range(2)]
    a.begin("pause('w', ranks=('engine', 2))")
    assert "pool" in b.fails("pause('w', ranks=('engine', 2))")
    assert "pool" in a.failure()
    assert a.on_device() and b.on_device()
    a.does("pause('w')")
    assert "pool" in b.fails("pause('w')")
    assert not a.on_device() and b.value("m.holds(7)")


def test_a_rank_that_is_killed_in_its_pause_is_in_nobodys_way(node, ranks):
    a, b = ranks
    a.begin("pause('w', ranks=('engine', 2))")
    time.sleep(0.3)
    a.kill()
    assert "1 of the 2 ranks" in b.fails("pause('w', 1, ranks=('engine', 2))")
    b.does("pause('w')")
    b.does("resume('w')")
    assert b.value("m.holds(7)")


def test_the_next_amemd_knows_whose_memory_is_paused(node, ranks):
    a, b = ranks
    a.does("pause('w')")
    node.broker.kill()
    node.start_broker()
    for rank in ranks:
        rank.wait_for("has reconnected to the broker")
    assert not a.on_device() and b.value("m.holds(7)")
    a.does("resume('w')")
    assert a.value("m.holds(7)")


def test_a_copy_of_what_the_process_has_paused_itself_fails(ranks):
    """As a checkpoint that is saved while the framework has offloaded its state."""
    a, b = ranks
    a.does("pause('w')")
    a.send("m.holds(7)")
    assert "600" in a.failure(5) or "NOT_READY" in a.failure(1)
    assert "Resume tag 'w' before this call" in a.wait_for("this process has paused it itself")
    a.does("resume('w')")
    assert a.value("m.holds(7)") and b.value("m.holds(7)")


def test_a_copy_waits_where_an_operator_has_paused_it(node, ranks):
    a, _ = ranks
    node.ctl("pause", "train", "--tag", "w")
    a.send("m.holds(7)")
    a.wait_for("The call waits for its resume")
    node.ctl("resume", "train", "--tag", "w")
    assert a.answer()["value"]


def test_a_tag_that_becomes_shared_while_it_is_paused(ranks):
    """The other rank's call fails and says why. The owner needs nobody for its resume; afterwards both pause it together."""
    a, b = ranks
    a.ask("handle = ctypes.create_string_buffer(64)")
    assert a.value("cuda.cuIpcGetMemHandle(handle, m._address)") == 0
    b.ask("class Handle(ctypes.Structure): _fields_ = [('bytes', ctypes.c_ubyte * 64)]")
    b.ask(f"handle, theirs = Handle.from_buffer_copy(bytes.fromhex({a.value('handle.raw.hex()')!r})), ctypes.c_uint64()")
    opens = "cuda.cuIpcOpenMemHandle_v2(ctypes.byref(theirs), handle, 1)"
    a.does("pause('w')")
    assert b.value(opens) == 802  # CUDA_ERROR_SYSTEM_NOT_READY
    b.wait_for("paused with its tag 'w'. Resume this tag first")
    a.does("resume('w')")
    assert a.value("m.holds(7)") and b.value(opens) == 0
    assert "missing, because they share this memory or are of one set: rank 1" in a.fails("pause('w', 1)")
    together(b, a, "pause('w')")
    together(b, a, "resume('w')")
    assert a.value("m.holds(7)") and b.value("m.holds(7)")


def test_ctrl_c_ends_the_wait_and_the_next_pause_works(ranks):
    a, b = ranks
    a.ask("import signal, threading, os")
    a.ask("signal.signal(signal.SIGINT, signal.default_int_handler)")
    a.ask("threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()")
    before = time.monotonic()
    a.send("exec(\"try: amem.pause('w', 3, ranks=('engine', 2))\\nexcept KeyboardInterrupt: interrupted = True\")")
    a.answer()
    assert a.value("interrupted") and time.monotonic() - before < 2
    a.does("pause('w')")  # when what was interrupted has been given up
    assert not a.on_device() and b.on_device()
    a.does("resume('w')")
    assert a.value("m.holds(7)")


def test_a_rank_that_is_killed_while_it_saves_is_in_nobodys_way(node, ranks):
    a, b = ranks
    a.faults("cuMemcpyDtoHAsync:1:hold")
    a.begin("pause('w')")
    eventually(lambda: node.ctl.group("train").get("phase") == "save")
    b.begin("pause('w')")
    time.sleep(0.3)
    a.kill()
    b.answer()
    b.does("resume('w')")
    assert b.value("m.holds(7)") and node.ctl.state("train") == "running"


def test_the_main_thread_hears_that_it_waits_for_itself(node, ranks):
    a, b = ranks
    b.begin("pause()")
    a.ask("amem.pause()")
    b.answer()
    a.send("m.holds(7)")
    a.wait_for("its own thread has paused that group")
    node.ctl("resume", "train")
    assert a.answer()["value"]


def test_ctrl_c_withdraws_a_call_that_has_not_begun(node, ranks):
    a, b = ranks
    alone, both = "pause('w', ranks=('engine', 2), timeout=30)", "pause('w', ranks=('engine', 2), timeout=30)"
    a.begin(alone)
    time.sleep(0.5)
    os.kill(a.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in a.failure()
    a.wait_for("the pause whose wait was interrupted has failed: ")
    b.begin(both)
    time.sleep(0.5)
    assert a.value("m.holds(7)") and a.on_device(), "it has changed its mind"
    a.begin(both)
    assert [each.answer()["ok"] for each in (a, b)] == [True, True]
    assert not a.on_device() and not b.on_device()


def captures(rank):
    """Its device is not quiet from here on, until the second text is evaluated."""
    rank.ask("s = made('cuStreamCreate', 0); assert cuda.cuStreamBeginCapture_v2(s, 2) == 0")
    return "assert cuda.cuStreamEndCapture(s, ctypes.byref(ctypes.c_uint64())) == 0"


def test_an_operators_pause_goes_before_one_that_waits_for_its_device(node, ranks):
    a, b = ranks
    end = captures(a)
    a.ask("f = amem.pause_async('w')")
    time.sleep(0.3)
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    a.ask(end)
    assert pause.finish().code == 0
    assert node.ctl.state("train") == "paused" and not b.on_device()
    a.ask("f.result(20)")
    node.ctl("resume", "train")
    a.does("resume('w')")
    assert a.value("m.holds(7)") and b.value("m.holds(7)")


def test_an_operators_pause_waits_for_one_that_has_begun(node, ranks):
    a, b = ranks
    a.faults("cuMemcpyDtoHAsync:1:hold")
    a.ask("f = amem.pause_async('w')")
    eventually(lambda: node.ctl.group("train").get("phase") == "save", what="it saves")
    b.ask("g = amem.pause_async('w')")
    pause = node.ctl.start("pause", "train")
    assert "under way (save)" in pause.json_line()["waits_for"]
    assert node.ctl.state("train") == "running"
    a.faults()
    assert pause.finish().code == 0
    assert node.ctl.state("train") == "paused"
    a.ask("f.result(20)")
    b.ask("g.result(20)")
    node.ctl("resume", "train")
    for rank in ranks:
        rank.does("resume('w')")
        assert rank.value("m.holds(7)")
