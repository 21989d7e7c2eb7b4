"""What becomes of a program's calls while its group is deep: the driver would keep each of them until the resume."""
import time

import pytest

from sim_node import MIB, eventually
from sim_node.evaluator import Evaluator
from sim_node.flipped import FlippedMemory as Memory

LAZY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
AT_ONCE = 1.0  # seconds, for what does not wait


@pytest.fixture
def deep_node(bare_node):
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    bare_node.start_broker("--deep-enabled", "true")
    return bare_node


def allocated(node):
    return node.ctl.group("train")["allocated_bytes"]


def saved(node):
    return node.ctl("status").json["pool"]["used_bytes"]


def script(node, device=0):
    """A script with a block of memory and things that a program destroys."""
    rank = Evaluator(node, f"script{device}", device)
    rank.ask(f"block = made('cuMemAlloc_v2', ctypes.c_size_t({4 * MIB}))")
    rank.ask("stream = made('cuStreamCreate', 1)")
    rank.ask("event = made('cuEventCreate', 0)")
    assert rank.value("cuda.cuMemsetD8_v2(block, 7, ctypes.c_size_t(100))") == 0
    assert rank.value("cuda.cuEventRecord(event, stream)") == 0
    assert rank.value("cuda.cuStreamSynchronize(stream)") == 0
    return rank


def waits(rank, call):
    """In a thread of its own: it has no result for a while."""
    rank.ask(f"worker.make({call})")
    time.sleep(0.3)
    assert rank.value("worker.result") is None, f"{call} waits"


def test_frees_return_at_once_and_are_made_in_the_resume(deep_node):
    ranks = [Memory(deep_node, 4 * MIB, 2 * MIB, name=f"rank{device}", device=device) for device in (0, 1)]
    deep_node.ctl("pause", "train", "--deep")
    before = allocated(deep_node)
    for rank in ranks:
        goes = next(iter(rank.blocks))
        rank.puppet.ask(f"free {goes}", AT_ONCE)
        del rank.blocks[goes], rank.flipped[goes]
    assert allocated(deep_node) == before, "only noted"
    deep_node.ctl("resume", "train")
    eventually(lambda: allocated(deep_node) <= before - 8 * MIB, what="the memory is free")
    for rank in ranks:
        rank.verify()
    deep_node.ctl("pause", "train")
    deep_node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


def test_memory_that_others_have_is_freed_before_the_others_load_it(deep_node):
    """In a resume under way such a free would roll it back."""
    owner, peer = (deep_node.puppet(f"puppet{device}", device, scope="heap") for device in (0, 1))
    mine = owner.ask(f"plain {4 * MIB}")["id"]
    owner.ask(f"fill {mine} 7")
    theirs = peer.ask(f"open {owner.ask(f'share {mine}')['handle']} {LAZY}")["id"]
    deep_node.ctl("pause", "train", "--deep")
    owner.ask(f"free {mine}", AT_ONCE)
    deep_node.ctl("resume", "train")
    peer.ask(f"verify {theirs} 7")
    deep_node.ctl("pause", "train", "--deep")
    peer.ask(f"free {theirs}", AT_ONCE)
    deep_node.ctl("resume", "train")
    assert allocated(deep_node) == 0 and saved(deep_node) == 0


def test_mapped_memory_is_freed_while_deep(deep_node):
    """Three calls, in their order."""
    rank = deep_node.puppet("mapped")
    block, stays = (rank.ask(f"alloc {3 * MIB}")["id"] for _ in range(2))
    rank.ask(f"fill {stays} 3")
    deep_node.ctl("pause", "train", "--deep")
    rank.ask(f"free {block}", AT_ONCE)
    deep_node.ctl("resume", "train")
    rank.ask(f"verify {stays} 3")
    rank.ask(f"alloc {3 * MIB}")


def test_what_is_destroyed_is_gone_after_the_resume(deep_node):
    rank = script(deep_node)
    deep_node.ctl("pause", "train", "--deep")
    began = time.monotonic()
    for call in ("cuEventDestroy_v2(event)", "cuStreamDestroy_v2(stream)", "cuMemFree_v2(block)", "cuDevicePrimaryCtxRelease_v2(device)"):
        assert rank.value(f"cuda.{call}") == 0
    assert time.monotonic() - began < AT_ONCE
    deep_node.ctl("resume", "train")
    for call in ("cuEventQuery(event)", "cuStreamQuery(stream)", "cuMemFree_v2(block)"):
        assert rank.value(f"cuda.{call}") != 0, f"{call}: it is gone"
    assert rank.value("cuda.cuMemsetD8_v2(made('cuMemAlloc_v2', ctypes.c_size_t(1000)), 0, ctypes.c_size_t(9))") == 0


def test_a_destroy_that_fails_is_in_the_log(deep_node):
    rank = script(deep_node)
    deep_node.ctl("pause", "train", "--deep")
    assert [rank.value("cuda.cuEventDestroy_v2(event)") for _ in range(2)] == [0, 0]
    deep_node.ctl("resume", "train")
    rank.wait_for("cuEventDestroy_v2, made after a deep pause,")
    assert rank.value("cuda.cuMemsetD8_v2(block, 0, ctypes.c_size_t(100))") == 0


def test_a_watchdog_is_answered(deep_node):
    """All work has ended, so no driver is needed to say so."""
    rank = script(deep_node)
    rank.ask("watchdog = Watchdog(event, stream)")
    for _ in range(2):
        deep_node.ctl("pause", "train", "--deep")
        rank.ask("watchdog.longest = 0")
        before = rank.value("watchdog.asked")
        eventually(lambda: rank.value("watchdog.asked") > before + 20, what="it asks on")
        deep_node.ctl("resume", "train")
    told = rank.value("watchdog.told()")
    assert told["results"] == [0] and told["longest"] < AT_ONCE, told


def test_work_waits(deep_node):
    """At the gate, and host functions in the shim: none of them is in the driver when a process is brought back."""
    rank = script(deep_node)
    rank.ask("function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)")
    for call in ("cuda.cuMemsetD8_v2, block, 0, ctypes.c_size_t(100)", "cuda.cuLaunchHostFunc, stream, function, None"):
        deep_node.ctl("pause", "train", "--deep")
        waits(rank, call)
        deep_node.ctl("resume", "train")
        eventually(lambda: rank.value("worker.result") == 0, what="it is made")
        assert rank.value("cuda.cuStreamSynchronize(stream)") == 0


def test_events_that_other_processes_may_record_are_the_drivers(deep_node):
    rank = script(deep_node)
    rank.ask("cuda.cuIpcGetEventHandle(ctypes.create_string_buffer(64), event)")
    deep_node.ctl("pause", "train", "--deep")
    assert rank.value("cuda.cuStreamQuery(stream)") == 0
    waits(rank, "cuda.cuEventQuery, event")
    deep_node.ctl("resume", "train")
    eventually(lambda: rank.value("worker.result") == 0, what="the driver answers")


def test_frees_are_made_where_a_checkpoint_fails(deep_node):
    ranks = [Memory(deep_node, 4 * MIB, 2 * MIB, name=f"rank{device}", device=device) for device in (0, 1)]
    for verb in (("pause", "--deep"), ("resume",)):  # the proof makes the same calls
        deep_node.ctl(verb[0], "train", *verb[1:])
    deep_node.broker.faults("cuCheckpointProcessLock:1:delay=1000", "cuCheckpointProcessCheckpoint:1:999")
    pause = deep_node.ctl.start("pause", "train", "--deep")
    pause.wait_phase("checkpoint")
    rank = ranks[0]
    before = allocated(deep_node)
    goes = next(iter(rank.blocks))
    rank.puppet.ask(f"free {goes}", AT_ONCE)
    del rank.blocks[goes], rank.flipped[goes]
    assert pause.finish().code != 0
    eventually(lambda: allocated(deep_node) <= before - 4 * MIB, what="the memory is free")
    deep_node.broker.faults()
    deep_node.ctl("resume", "train")
    for each in ranks:
        each.verify()


def test_a_context_that_has_failed_is_not_checkpointed(deep_node):
    """Otherwise the shim would say of its work that it has ended well."""
    ranks = [Memory(deep_node, 4 * MIB, 2 * MIB, name=f"rank{device}", device=device) for device in (0, 1)]
    deep_node.ctl("pause", "train")
    rank = ranks[0]
    rank.puppet.faults("cuCtxSynchronize:*:719")
    answer = deep_node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0 and "LAUNCH_FAILED" in answer.error and "cannot be checkpointed" in answer.error, answer
    assert deep_node.ctl.state("train") == "paused" and not deep_node.ctl.group("train")["deep"]
    rank.puppet.faults()
    goes = next(iter(rank.blocks))
    rank.puppet.ask(f"free {goes}", AT_ONCE)
    del rank.blocks[goes], rank.flipped[goes]
    deep_node.ctl("resume", "train")
    for each in ranks:
        each.verify()


@pytest.mark.next_broker
def test_frees_are_made_with_the_next_broker(deep_node):
    ranks = [Memory(deep_node, 4 * MIB, 2 * MIB, name=f"rank{device}", device=device) for device in (0, 1)]
    deep_node.ctl("pause", "train", "--deep")
    before = allocated(deep_node)
    goes = next(iter(ranks[0].blocks))
    deep_node.broker.kill()
    deep_node.broker.wait()
    ranks[0].puppet.ask(f"free {goes}", AT_ONCE)
    del ranks[0].blocks[goes], ranks[0].flipped[goes]
    deep_node.start_broker("--deep-enabled", "true")
    eventually(lambda: deep_node.ctl.try_("resume", "train").code == 0, what="the next amemd resumes it")
    eventually(lambda: allocated(deep_node) <= before - 4 * MIB, what="the memory is free")
    for each in ranks:
        each.verify()
