"""Processes that end while their group is deep: at once, whatever their exit handlers call, and the others go on."""
import signal
import time

import pytest

from sim_node import MIB, eventually, patience
from sim_node.evaluator import Evaluator
from sim_node.flipped import FlippedMemory as Memory


@pytest.fixture
def deep_node(bare_node):
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    bare_node.start_broker("--deep-enabled", "true")
    return bare_node


@pytest.fixture
def stays(deep_node):
    """The rank that goes on alone."""
    return Memory(deep_node, 4 * MIB, name="stays", device=1)


def ends(node, leaves, stays, status):
    began = time.monotonic()
    assert leaves.wait(10) == status
    assert time.monotonic() - began < patience(1)
    eventually(lambda: node.ctl.group("train")["rank_count"] == 1, what="amemd sees its end")
    node.ctl("resume", "train")
    stays.verify()
    node.ctl("pause", "train", "--deep")
    node.ctl("resume", "train")
    stays.verify()


@pytest.mark.parametrize("how", ["exit", "SIGTERM", "SIGINT", "SIGKILL"])
def test_it_ends(deep_node, stays, how):
    leaves = Memory(deep_node, 4 * MIB, name="leaves").puppet
    deep_node.ctl("pause", "train", "--deep")
    if how == "exit":
        leaves.send("quit 3")
        return ends(deep_node, leaves, stays, 3)
    leaves.signal(getattr(signal, how))
    ends(deep_node, leaves, stays, -getattr(signal, how))


def test_exit_handlers_that_free(deep_node, stays):
    """Before and after the driver's own end."""
    memory = Memory(deep_node, 4 * MIB, name="leaves")
    leaves, [block] = memory.puppet, memory.blocks
    leaves.ask(f"at-last free {block}")
    leaves.ask(f"at-exit free {block}")
    deep_node.ctl("pause", "train", "--deep")
    leaves.send("quit 3")
    ends(deep_node, leaves, stays, 3)
    assert [leaves.answer()["result"] for _ in range(2)] == [0, 0]


def test_exit_handlers_that_join_a_thread(deep_node, stays):
    """It waits at the gate."""
    leaves = Memory(deep_node, 4 * MIB, name="leaves").puppet
    leaves.ask("loop linked")
    leaves.loop_runs()
    leaves.ask("at-exit join")
    deep_node.ctl("pause", "train", "--deep")
    leaves.send("quit 0")
    ends(deep_node, leaves, stays, 0)
    assert "DEINITIALIZED" in leaves.failure()


def test_a_signal_handler_that_calls_exit_while_its_thread_waits(deep_node, stays):
    memory = Memory(deep_node, 4 * MIB, name="leaves")
    leaves, [block] = memory.puppet, memory.blocks
    leaves.ask(f"at-exit free {block}")
    leaves.ask("on-term")
    deep_node.ctl("pause", "train", "--deep")
    leaves.send(f"fill {block} 5")
    eventually(leaves.sleeps, what="it waits")
    leaves.signal(signal.SIGTERM)
    ends(deep_node, leaves, stays, 0)
    assert leaves.answer()["result"] == 0


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "exit"])
def test_a_python_program(deep_node, stays, how):
    """With functions for its end and objects that call the driver when they are destroyed, and a thread that waits."""
    leaves = Evaluator(deep_node, "leaves")
    leaves.ask(f"block, other = (made('cuMemAlloc_v2', ctypes.c_size_t({4 * MIB})) for _ in range(2))")
    leaves.ask("stream, event = made('cuStreamCreate', 1), made('cuEventCreate', 0)")
    leaves.ask("atexit.register(lambda: print(cuda.cuMemFree_v2(block), cuda.cuStreamSynchronize(stream), flush=True))")
    leaves.ask("kept = [Last(cuda.cuEventDestroy_v2, event), Last(cuda.cuStreamDestroy_v2, stream), Last(cuda.cuMemFree_v2, other)]")
    leaves.ask("watchdog = Watchdog(event, stream)")
    deep_node.ctl("pause", "train", "--deep")
    leaves.ask("worker.make(cuda.cuMemsetD8_v2, block, 0, ctypes.c_size_t(100))")
    if how == "exit":
        leaves.send("sys.exit(3)")
    else:
        leaves.signal(getattr(signal, how))
    ends(deep_node, leaves, stays, 3 if how == "exit" else -getattr(signal, how))
    assert how == "SIGTERM" or "0 0" in leaves.output("out")
