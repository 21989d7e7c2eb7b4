"""Calls that only free, unmap, release, close or destroy: they never wait for a resume."""
import pytest

from sim_node import MIB, SERVICE_THREAD, Program, eventually
from sim_node.evaluator import Evaluator

LAZY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


def saved(node):
    """Bytes of the pool that are in use."""
    return node.ctl("status").json["pool"]["used_bytes"]


def allocated(node, group="train"):
    return node.ctl.group(group)["allocated_bytes"]


def started(node, **env):
    """A program with memory of every sort: the ids of two blocks."""
    program = Program(node, env=env)
    large = program.ask(f"alloc 0 {5 * MIB}")["id"]
    small = program.ask("alloc 0 3000 4")["id"]
    program.ask(f"alloc 1 {3 * MIB}")
    program.ask(f"expand 0 {2 * MIB} 3")
    return program, large, small


def test_memory_of_a_paused_group_is_freed_at_once_and_its_bytes_go(node):
    program, large, small = started(node)
    node.ctl("pause", "train")
    before = saved(node)
    program.ask(f"free {large}")
    program.ask(f"free {small} 4")
    program.ask("drop unseen")  # cuMemUnmap, cuMemRelease, cuMemAddressFree
    assert saved(node) <= before - 11 * MIB
    assert allocated(node) < 4 * MIB
    node.ctl("resume", "train")
    program.verify()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.verify()


def test_a_program_that_paused_itself_frees_before_it_resumes(node):
    program, large, small = started(node)
    program.ask("pause")
    program.ask(f"free {large}")
    program.ask(f"free {small} 4")
    program.ask("drop unseen")
    program.ask("resume")
    program.verify()


def test_peer_access_ends_while_the_group_is_paused(node):
    program, _, _ = started(node)
    program.ask("peer on")
    node.ctl("pause", "train")
    program.ask("peer off")
    node.ctl("resume", "train")
    program.verify()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.verify()


def test_the_reset_of_a_device_waits_for_the_resume(node):
    """The shim works in the same context."""
    program, _, _ = started(node)
    node.ctl("pause", "train")
    program.send("reset 1")
    program.stands()
    node.ctl("resume", "train")
    program.answer()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.verify()


def test_with_errors_at_the_gate_frees_succeed(node):
    program, large, _ = started(node, AMEM_GATE="error")
    node.ctl("pause", "train")
    program.send("alloc 0 1000")
    assert "NOT_READY" in program.failure()
    program.ask(f"free {large}")
    node.ctl("resume", "train")
    program.verify()


@pytest.mark.parametrize("kind", ["alloc", "plain"])
def test_bytes_stay_until_the_last_rank_has_freed_them(node, kind):
    scope = "nccl" if kind == "alloc" else "heap"
    owner, peer = (node.puppet(f"puppet{i}", i, scope=scope) for i in range(2))
    mine = owner.ask(f"{kind} {3 * MIB}")["id"]
    owner.ask(f"fill {mine} 7")
    theirs = peer.ask(f"open {owner.ask(f'share {mine}')['handle']} {LAZY}")["id"] if kind == "plain" else None
    if theirs is None:
        owner.ask(f"offer {mine} {node.dir}")
        theirs = peer.ask(f"take {node.dir} {3 * MIB}")["id"]
    node.ctl("pause", "train")
    before = saved(node)
    assert before >= 3 * MIB
    owner.ask(f"free {mine}")
    assert saved(node) == before, "another rank holds it"
    node.ctl("resume", "train")
    peer.ask(f"verify {theirs} 7")
    node.ctl("pause", "train")
    peer.ask(f"free {theirs}")
    assert saved(node) == 0 and allocated(node) == 0
    node.ctl("resume", "train")


@pytest.mark.next_broker
def test_the_record_has_it_before_the_call_returns(node):
    program, large, small = started(node)
    node.ctl("pause", "train")
    program.ask(f"free {large}")
    program.ask(f"free {small} 4")
    rest = (saved(node), allocated(node))
    node.broker.kill()
    program.wait_for("tries to reconnect")
    node.start_broker(name="amemd2")
    program.wait_for("has reconnected to the broker")
    assert (saved(node), allocated(node)) == rest
    node.ctl("resume", "train")
    program.verify()


@pytest.mark.next_broker
def test_without_a_broker_a_free_does_not_wait_and_the_next_one_hears_of_it(node):
    program, large, small = started(node)
    node.ctl("pause", "train")
    before = saved(node)
    node.broker.kill()
    program.wait_for("tries to reconnect")
    program.send(f"free {large}")
    program.answer(3)
    program.ask(f"free {small} 4")
    node.start_broker(name="amemd2")
    program.wait_for("has reconnected to the broker")
    eventually(lambda: saved(node) <= before - 5 * MIB, what="the next broker drops the bytes")
    node.ctl("resume", "train")
    program.verify()


@pytest.mark.parametrize("rule, phase", [("cuMemcpyDtoHAsync:1:hold", "save"), ("releaseBegins:1:hold", "release")])
def test_a_free_waits_for_a_step_of_a_pause_and_no_longer(node, rule, phase):
    node.settings["AMEM_POOL_SAVE"] = "dense"
    program, large, _ = started(node)
    program.faults(rule)
    pause = node.ctl.start("pause", "train")
    pause.wait_phase(phase)
    program.held(SERVICE_THREAD)
    program.send(f"free {large}")
    program.stands()
    program.faults()
    assert pause.finish().code == 0
    program.answer()
    assert node.ctl.state("train") == "paused"
    assert allocated(node) < 12 * MIB
    node.ctl("resume", "train")
    program.verify()


def the_free_follows(node, program, resume):
    """What was held goes on: the resume ends well, and then the free that is under way."""
    program.faults()
    assert resume.finish().code == 0
    program.answer()
    program.verify()
    eventually(lambda: allocated(node) < 12 * MIB, what="it is freed")


@pytest.mark.parametrize("rule", ["mapDone:1:hold", "loadBegins:1:hold", "cuMemcpyHtoDAsync:1:hold"])
def test_a_free_waits_for_a_load_and_no_longer(node, rule):
    program, large, _ = started(node)
    node.ctl("pause", "train")
    program.faults(rule)
    resume = node.ctl.start("resume", "train")
    resume.wait_phase("map+load")
    program.held(SERVICE_THREAD)  # a free that comes before passes
    program.send(f"free {large}")
    program.stands()
    the_free_follows(node, program, resume)


def test_a_resume_comes_while_a_free_is_inside(node):
    """The memory is mapped and loaded before the free changes anything: then it waits for the resume's end."""
    program, large, _ = started(node)
    node.ctl("pause", "train")
    program.faults("freePasses:1:hold;loadBegins:1:hold")
    program.send(f"free {large}")
    program.held()
    resume = node.ctl.start("resume", "train")
    resume.wait_phase("map+load")
    program.held(SERVICE_THREAD)
    program.faults("loadBegins:1:hold")  # the free goes on, and finds memory that is on its way back
    program.stands()
    the_free_follows(node, program, resume)


def test_a_free_that_crosses_the_load_of_its_memory(node):
    """The broker has told the rank to load, and the rank has not read it yet."""
    program, large, _ = started(node)
    node.ctl("pause", "train")
    program.faults("freeDone:1:hold;mapDone:1:hold")
    program.send(f"free {large}")
    program.held()
    resume = node.ctl.start("resume", "train")
    resume.wait_phase("map+load")
    the_free_follows(node, program, resume)


def test_a_resume_that_fails_lets_frees_pass_again(node):
    program, large, _ = started(node)
    node.ctl("pause", "train")
    program.faults("cuMemMap:2:801")
    assert node.ctl.try_("resume", "train").code != 0
    program.faults()
    assert node.ctl.state("train") == "paused"
    program.ask(f"free {large}")
    assert allocated(node) < 12 * MIB
    node.ctl("resume", "train")
    program.verify()


# ---- cuMemFreeAsync ----

def test_memory_of_cuMemAlloc_is_freed_behind_a_stream(node):
    program, large, small = started(node)
    program.ask("stream hold")
    rest = allocated(node)
    program.ask(f"free_async {large}")
    program.ask(f"free_async {small}")
    assert allocated(node) == rest, "the stream may use it still"
    program.ask("stream go")
    eventually(lambda: allocated(node) <= rest - 5 * MIB, what="it goes without another call")
    program.verify()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.verify()


def test_what_was_freed_behind_a_stream_is_not_saved(node):
    program, large, _ = started(node)
    program.ask("stream hold")
    program.ask(f"free_async {large}")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    program.ask("stream go")
    assert pause.finish().code == 0
    assert allocated(node) < 12 * MIB
    node.ctl("resume", "train")
    program.verify()


def test_while_paused_it_goes_at_once(node):
    program, large, _ = started(node)
    program.ask("stream hold")
    program.ask("stream go")
    node.ctl("pause", "train")
    program.ask(f"free_async {large}")
    assert allocated(node) < 12 * MIB
    node.ctl("resume", "train")
    program.verify()


@pytest.mark.parametrize("done", ["before", "after"])
def test_behind_a_stream_that_is_done_it_is_free_at_once(node, done):
    """As the driver's is: whoever asks how much memory is free finds it, whether the stream was done before the free or after it."""
    rank = Evaluator(node, "script", 0)
    for line in ("stream, total = made('cuStreamCreate', 1), ctypes.c_uint64()",
                 "free = lambda: made('cuMemGetInfo_v2', ctypes.byref(total)).value",
                 "go = threading.Event()",
                 "function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: go.wait())"):
        rank.ask(line)
    before = rank.value("free()")
    rank.ask(f"block = made('cuMemAlloc_v2', ctypes.c_size_t({4 * MIB}))")
    calls = ["cuLaunchHostFunc(stream, function, None)", "cuMemFreeAsync(block, stream)"]
    if done == "before":
        calls[1:1] = ["cuStreamSynchronize(stream)"]
        rank.ask("go.set()")
    for call in calls:
        assert rank.value(f"cuda.{call}") == 0
    if done == "after":
        assert rank.value("free()") <= before - 4 * MIB, "the stream may use it still"
        rank.ask("go.set()")
        assert rank.value("cuda.cuStreamSynchronize(stream)") == 0
    assert rank.value("free()") == before


def test_who_finds_no_memory_waits_for_what_was_freed_behind_a_stream(node):
    program = Program(node)
    first = program.ask(f"alloc 0 {60 * MIB}")["id"]
    program.ask("stream hold 300")
    program.ask(f"free_async {first}")
    program.ask(f"alloc 0 {60 * MIB}")
    program.verify()


def test_what_was_freed_behind_a_stream_of_a_tag_that_comes_back(node):
    """The stream ends while the tag's memory is on its way: what frees it must not wait for what brings it."""
    program = Program(node)
    program.ask("alloc 0 3000")
    program.ask("region begin kv 1")
    block = program.ask(f"alloc 0 {3 * MIB}")["id"]
    program.ask(f"alloc 0 {2 * MIB}")
    program.ask("region end")
    node.ctl("pause", "train", "--tag", "kv")
    program.ask("stream hold")
    program.ask(f"free_async {block}")
    program.faults("loadBegins:1:delay=1500")
    resume = node.ctl.start("resume", "train", "--tag", "kv")
    resume.wait_phase("map+load")
    program.ask("stream go")
    assert resume.finish().code == 0
    program.verify()
    eventually(lambda: allocated(node) < 5 * MIB, what="the block goes then")


def test_a_resume_gets_what_another_program_has_just_freed(node):
    """A program keeps a little of what it has freed for half a second, and gives it up where another one lacks it."""
    paused, other = Program(node, "train"), Program(node, "other")
    paused.ask(f"alloc 0 {30 * MIB} 1")
    node.ctl("pause", "train")
    free = node.MEMORY - node.ctl.devices()[0]["used_bytes"]
    count = (free - 10 * MIB) // (3 * MIB // 2)  # too small to have parts
    other.ask(f"alloc 0 {3 * MIB // 2} {count}")
    other.ask(f"free 1 {count}")
    node.ctl("resume", "train")
    paused.verify()
