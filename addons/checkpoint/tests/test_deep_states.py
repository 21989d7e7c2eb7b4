"""What a process does, and what others ask of it, while its group is becoming deep, is deep, or could not become so."""
import signal
import time

import pytest

from sim_node import MIB, eventually, patience
from sim_node.evaluator import Evaluator
from sim_node.flipped import FlippedMemory as Memory

# Of amem's C API, in the process itself.
READS = """
library = ctypes.CDLL(None)
text = ctypes.create_string_buffer(400)
def read():
    bytes_ = ctypes.create_string_buffer(64)
    return [library.amem_shim_backup_read(block, ctypes.c_uint64(64), bytes_, text, 400), bytes_.raw[0], text.value.decode()]
def view():
    global viewed
    viewed = ctypes.c_void_p()
    return [library.amem_shim_backup_view(block, ctypes.c_uint64(64), ctypes.byref(viewed), text, 400) or viewed.value is None, text.value.decode()]
def look():
    return ctypes.string_at(viewed.value, 1)[0]
def stats():
    out = ctypes.create_string_buffer(8192)
    return [library.amem_shim_stats(out, 8192), out.value.decode()]
"""
AT_ONCE = 2.0  # seconds, for what does not wait


def deep_node(node, place="memfd", *flags):
    node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    node.start_broker("--deep-enabled", "true", "--pool-place", place, *flags)
    return node


def script(node, name="script", **environment):
    rank = Evaluator(node, name, env=environment)
    rank.ask(f"exec({READS!r}, names)")
    rank.ask(f"block = made('cuMemAlloc_v2', ctypes.c_size_t({4 * MIB}))")
    assert rank.value(f"cuda.cuMemsetD8_v2(block, 7, ctypes.c_size_t({4 * MIB}))") == 0
    return rank


def runs_on(node, rank):
    """Whatever has become of a deep pause, a plain resume and a plain pause work."""
    node.ctl("resume", "train")
    host = "ctypes.create_string_buffer(8)"
    assert rank.value(f"[cuda.cuMemcpyDtoH_v2(h := {host}, block, ctypes.c_size_t(8)), h.raw[0]]") == [0, 7]
    node.ctl("pause", "train")
    assert rank.value("read()")[:2] == [0, 7]
    node.ctl("resume", "train")


def refused(node, *words):
    answer = node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0, answer
    for word in words:
        assert word in answer.error, answer
    group = node.ctl.group("train")
    assert group["state"] == "GROUP_STATE_PAUSED" and not group["deep"]


# ---- saved bytes that the program reads ----

@pytest.mark.parametrize("place", ["host_numa", "memfd"])
def test_saved_bytes_are_read_before_and_after_a_deep_pause(bare_node, place):
    node = deep_node(bare_node, place)
    rank = script(node)
    node.ctl("pause", "train")
    assert rank.value("read()")[:2] == [0, 7]
    node.ctl("pause", "train", "--deep")
    began = time.monotonic()
    result, byte, text = rank.value("read()")
    assert time.monotonic() - began < AT_ONCE
    if place == "memfd":
        assert (result, byte) == (0, 7), "the pool stays mapped"
    else:
        assert result != 0 and "cannot be reached after a deep pause" in text, text
    runs_on(node, rank)


def test_bytes_that_nobody_has_read_before(bare_node):
    node = deep_node(bare_node, "host_numa")
    rank = script(node)
    node.ctl("pause", "train", "--deep")
    assert rank.value("read()")[0] != 0
    runs_on(node, rank)


def test_a_view_keeps_what_would_be_unmapped(bare_node):
    node = deep_node(bare_node, "host_numa")
    rank = script(node)
    node.ctl("pause", "train")
    assert rank.value("view()")[0] == 0 and rank.value("look()") == 7
    refused(node, "views of its saved bytes", "host_numa")
    assert rank.value("look()") == 7
    runs_on(node, rank)
    node.ctl("pause", "train", "--deep")  # the view has ended with the resume
    runs_on(node, rank)


def test_a_view_of_what_stays_mapped(bare_node):
    node = deep_node(bare_node, "memfd")
    rank = script(node)
    node.ctl("pause", "train")
    assert rank.value("view()")[0] == 0
    node.ctl("pause", "train", "--deep")
    assert rank.value("look()") == 7
    runs_on(node, rank)


@pytest.mark.parametrize("place", ["host_numa", "memfd"])
def test_saved_bytes_are_read_after_a_deep_pause_that_has_failed(bare_node, place):
    node = deep_node(bare_node, place)
    rank = script(node)
    node.ctl("pause", "train", "--deep")
    node.ctl("resume", "train")
    node.ctl("pause", "train")
    assert rank.value("read()")[:2] == [0, 7]
    node.broker.faults("cuCheckpointProcessLock:1:999")
    refused(node, "CUDA_ERROR_UNKNOWN")
    node.broker.faults()
    result, byte, text = rank.value("read()")
    assert (result, byte) == (0, 7) or "Resume the group first" in text, (result, byte, text)
    runs_on(node, rank)


def test_what_is_not_brokered_is_told_while_the_driver_is_away(bare_node):
    node = deep_node(bare_node)
    rank = script(node)
    node.ctl("pause", "train", "--deep")
    rank.send("stats()")
    answer = rank.answer(patience(AT_ONCE))["value"]
    assert answer[0] > 0 and '"paused_bytes":' in answer[1], answer
    runs_on(node, rank)


# ---- ranks and work beside the way ----

def test_a_rank_that_joined_the_paused_group(bare_node):
    node = deep_node(bare_node)
    rank = script(node)
    node.ctl("pause", "train")
    late = Evaluator(node, "late")
    late.ask("worker.make(cuda.cuMemAlloc_v2, ctypes.byref(address := ctypes.c_uint64()), ctypes.c_size_t(1 << 20))")
    eventually(lambda: node.ctl.group("train")["rank_count"] == 2, what="it waits for the resume")
    for _ in range(2):
        node.ctl("pause", "train", "--deep")
        assert node.ctl.group("train")["deep"]
        node.ctl("resume", "train")
        eventually(lambda: late.value("worker.result") == 0, what="its call is made")
        node.ctl("pause", "train")
    runs_on(node, rank)


def test_a_host_function_that_waits_for_a_thread_at_the_gate(bare_node):
    """A resume lets the thread pass, so nothing may wait for the function's end."""
    node = deep_node(bare_node)
    rank = script(node)
    rank.ask("stream, woken = made('cuStreamCreate', 1), threading.Event()")
    rank.ask("function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: woken.wait())")
    node.ctl("pause", "train")
    rank.ask("threading.Thread(target=lambda: [cuda.cuCtxSetCurrent(context), cuda.cuMemsetD8_v2(block, 7, ctypes.c_size_t(16)), "
             "woken.set()], daemon=True).start()")
    assert rank.value("cuda.cuLaunchHostFunc(stream, function, None)") == 0
    refused(node, "does not end", "host function")
    began = time.monotonic()
    runs_on(node, rank)
    assert time.monotonic() - began < patience(10)
    node.ctl("pause", "train", "--deep")
    runs_on(node, rank)


def test_a_host_function_that_waits_for_a_question(bare_node):
    """Nobody is at the gate: the thread that it waits for asks about another stream."""
    node = deep_node(bare_node)
    rank = script(node)
    rank.ask("stream, other, woken = made('cuStreamCreate', 1), made('cuStreamCreate', 1), threading.Event()")
    rank.ask("function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: woken.wait())")
    node.ctl("pause", "train", "--deep")  # the proof is over
    node.ctl("resume", "train")
    node.ctl("pause", "train")
    rank.ask("threading.Thread(target=lambda: [cuda.cuCtxSetCurrent(context), time.sleep(0.7), cuda.cuStreamQuery(other), woken.set()], "
             "daemon=True).start()")
    assert rank.value("cuda.cuLaunchHostFunc(stream, function, None)") == 0
    node.ctl("pause", "train", "--deep")
    assert node.ctl.group("train")["deep"]
    runs_on(node, rank)


# ---- calls that the driver's lock does not hold: one of them in the driver beside a checkpoint ends the process ----

def asks_on(rank, *calls):
    """Threads that make these calls without end."""
    rank.ask("stream, first, second = made('cuStreamCreate', 1), made('cuEventCreate', 0), made('cuEventCreate', 0)")
    assert rank.value("[cuda.cuEventRecord(first, stream), cuda.cuEventRecord(second, stream), cuda.cuStreamSynchronize(stream)]") == [0, 0, 0]
    rank.ask("ms, results = ctypes.c_float(), set()")
    for call in calls:
        rank.ask(f"threading.Thread(target=lambda: [cuda.cuCtxSetCurrent(context)] + [results.add(cuda.{call}) for _ in iter(int, 1)], "
                 "daemon=True).start()")


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_threads_that_ask_without_end(bare_node, shared):
    """Where the process shares events, only the driver knows of events, so the questions wait."""
    node = deep_node(bare_node)
    rank = script(node)
    asks_on(rank, "cuEventQuery(first)", "cuStreamQuery(stream)", "cuEventSynchronize(first)", "cuStreamSynchronize(stream)", "cuCtxSynchronize()",
            "cuEventElapsedTime(ctypes.byref(ms), first, second)")
    if shared:
        rank.ask("cuda.cuIpcGetEventHandle(ctypes.create_string_buffer(64), first)")
    for _ in range(3):
        node.ctl("pause", "train", "--deep")
        time.sleep(0.2)
        runs_on(node, rank)
    assert rank.value("results") == "{0}"


# ---- devices that a process does not see ----

@pytest.mark.parametrize("visible", ["1", "1,0", "0"])
def test_the_pools_device_is_hidden(bare_node, visible):
    """The driver counts host memory of its own to its maker's first device, and loses who has mapped it and does not see that."""
    node = deep_node(bare_node, "host_numa")
    rank = script(node, CUDA_VISIBLE_DEVICES=visible)
    if visible == "1":
        node.ctl("pause", "train")
        refused(node, "host_numa")  # the proof refuses it, because the driver loses its process
    else:
        node.ctl("pause", "train", "--deep")
    runs_on(node, rank)


@pytest.mark.parametrize("visible", ["0", "1", "1,0", "GPU"])
def test_each_process_sees_what_it_likes(bare_node, visible):
    """A node with two devices has a pool that all can use, unless somebody sets another."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    bare_node.start_broker("--deep-enabled", "true")
    if visible == "GPU":
        visible = bare_node.ctl.devices()[1]["uuid"]
    rank = script(bare_node, CUDA_VISIBLE_DEVICES=visible)
    for _ in range(3):
        bare_node.ctl("pause", "train", "--deep")
        runs_on(bare_node, rank)


def test_a_program_that_changes_what_it_sees(bare_node):
    """The driver has read it at the start."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    bare_node.start_broker("--deep-enabled", "true")
    rank = script(bare_node, CUDA_VISIBLE_DEVICES="1")
    rank.ask("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'")
    bare_node.ctl("pause", "train", "--deep")
    runs_on(bare_node, rank)


def test_memory_of_a_peer_whose_device_is_hidden(bare_node):
    """As NCCL has it where each rank sees a device of its own."""
    node = deep_node(bare_node)
    ranks = [Memory(node, 4 * MIB, name=f"rank{device}", env={"CUDA_VISIBLE_DEVICES": str(device)}) for device in (0, 1)]
    mine = ranks[0].puppet.ask("alloc 2097152 whole")["id"]
    ranks[0].puppet.ask(f"offer {mine} {node.dir}")
    theirs = ranks[1].puppet.ask(f"take {node.dir} 2097152")["id"]
    node.ctl("pause", "train")
    refused(node, "which it does not see", "NCCL_P2P_DISABLE")
    node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()
    ranks[1].puppet.ask(f"free {theirs}")
    node.ctl("pause", "train")
    refused(node, "which it does not see")  # the driver keeps the device open
    node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


def test_ranks_that_see_different_devices(bare_node):
    """One of them forks while the group is deep, and one is interrupted. Both have threads that ask the driver without end."""
    node = deep_node(bare_node)
    ranks = [script(node, name, CUDA_VISIBLE_DEVICES=seen) for name, seen in (("one", "1"), ("both", "1,0"))]
    for rank in ranks:
        asks_on(rank, "cuEventQuery(first)", "cuStreamSynchronize(stream)", "cuEventElapsedTime(ctypes.byref(ms), first, second)")
    node.ctl("pause", "train", "--deep")
    ranks[0].ask("import os; child = os.fork() or os._exit(cuda.cuEventQuery(first))")
    assert ranks[0].value("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 3, "CUDA_ERROR_NOT_INITIALIZED, as without amem"
    ranks[1].signal(signal.SIGINT)
    ranks[1].wait(10)
    eventually(lambda: node.ctl.group("train")["rank_count"] == 1, what="amemd sees its end")
    runs_on(node, ranks[0])
    assert ranks[0].value("results") == "{0}"
