"""Scope heap: all device memory of a program, through pauses and resumes."""
import pytest

from sim_node import MIB, Job, Program, eventually

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT = 0, 1, 2, 201
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901
NO_ACCESS, READ_WRITE = 0, 3


def used(node):
    return [device["used_bytes"] for device in node.ctl.devices()]


def fill(program):
    """Memory of every sort, on both devices. Ids of some of the small blocks."""
    for device in (0, 1):
        program.ask(f"alloc {device} 1000 5")
        program.ask(f"alloc {device} 1048576 3")
        program.ask(f"alloc {device} 1048577")
        program.ask(f"alloc {device} {5 * MIB}")
        program.ask(f"pitch {device} 1000 33")
        program.ask(f"expand {device} {2 * MIB} 3")


def cycle(node, program, contexts=2):
    """A pause and a resume by the operator, looked at from all sides."""
    before = program.ask("list")["memory"]
    resident = used(node)
    node.ctl("pause", "train")
    assert used(node) == [contexts // 2 * node.CONTEXT_BYTES] * 2
    assert not any(program.brokered().values())
    node.ctl("resume", "train")
    assert used(node) == resident
    assert program.ask("list")["memory"] == before
    program.verify()


@pytest.mark.parametrize("granularity", ["64KiB", "2MiB"])
def test_the_whole_heap_comes_and_goes(bare_node, granularity):
    node = bare_node
    node.settings["AMEM_SIM_GRANULARITY"] = granularity
    node.start_broker("--pool-size", "128MiB")
    program = Program(node)
    fill(program)
    program.verify()
    tags = {tag for tag, _ in program.brokered()}
    assert tags == {"heap"}
    assert node.ctl.group("train")["allocated_bytes"] == sum(program.brokered().values())
    cycle(node, program)
    program.ask("rewrite")
    program.ask("shuffle")
    cycle(node, program)
    program.leave()
    eventually(lambda: used(node) == [0, 0], what="the driver has the memory of its contexts, too")


def test_twenty_cycles_without_growth(node):
    program = Program(node)
    fill(program)

    def turn():
        program.ask("shuffle")
        program.ask("churn 0 40")
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        program.ask("churn 1 40")

    for _ in range(5):  # buffers reach their size
        turn()
    program.verify()
    # Who asks what there is has what was freed, and is kept for a moment, freed first.
    brokered, held = program.brokered(), node.broker.holding()
    # A rank maps a segment of the pool when it first saves there, which may be in any turn.
    rss, descriptors, threads = program.rss_bytes(), program.descriptors(pool=False), program.threads()
    for _ in range(20):
        turn()
    program.verify()
    assert program.brokered() == brokered
    eventually(lambda: node.broker.holds_at_most(held), what="the broker holds as much as before")
    assert (program.descriptors(pool=False), program.threads()) == (descriptors, threads)
    assert program.rss_bytes() < rss + MIB


def test_pause_and_resume_from_inside(node):
    program = Program(node)
    fill(program)
    for _ in range(3):
        program.ask("pause")
        assert node.ctl.state("train") == "paused"
        assert used(node) == [node.CONTEXT_BYTES] * 2
        program.ask("resume")
        program.verify()


def test_freed_memory_is_kept_for_a_moment_and_does_not_show(node):
    program = Program(node)
    program.ask(f"alloc 0 {5 * MIB}")  # the group stays

    def allocated():
        return node.ctl.group("train")["allocated_bytes"]

    def free_some():
        program.ask("free %d" % program.ask(f"alloc 1 {3 * MIB}")["id"])

    rest = allocated()
    free_some()
    assert sum(program.brokered().values()) == rest == allocated(), "who asks what there is does not see it"
    free_some()
    node.ctl("pause", "train")
    assert allocated() == rest, "nor is it saved"
    node.ctl("resume", "train")
    free_some()
    eventually(lambda: allocated() == rest, what="what is kept goes by itself")

    def used_again():
        free_some()
        node.broker.faults("cuMemCreate:*:2")
        program.send(f"alloc 1 {3 * MIB}")
        got = program.json_line()["ok"]
        node.broker.faults()
        return got

    eventually(used_again, what="a block is had without the broker, soon after another was freed")
    program.verify()


def test_freed_memory_goes_to_whoever_finds_none(node):
    program, other = Program(node), Program(node, name="other")
    for each in (program, other):
        each.ask("alloc 0 1000")
    space = node.MEMORY - used(node)[0]
    program.ask("free %d" % program.ask(f"alloc 0 {space // 2}")["id"])
    other.ask(f"alloc 0 {space - MIB}")
    other.verify()


def test_pauses_while_memory_is_allocated_and_freed(node):
    program = Program(node)
    fill(program)
    program.ask("background on")
    eventually(lambda: program.ask("background status")["rounds"] > 0, what="the thread works")
    for _ in range(10):
        rounds = program.ask("background status")["rounds"]
        node.ctl("pause", "train")
        assert used(node) == [node.CONTEXT_BYTES] * 2
        node.ctl("resume", "train")
        eventually(lambda: program.ask("background status")["rounds"] > rounds, what="the thread goes on")
    program.ask("background off")
    program.verify()


def test_allocations_wait_while_the_group_is_paused(node):
    program = Program(node, env={"AMEM_GATE": "1s"})
    block = program.ask("alloc 0 3000000")["id"]
    node.ctl("pause", "train")
    for command in ("alloc 0 1000", "peer on"):
        program.send(command)
        assert "CUDA_ERROR_TIMEOUT" in program.failure()
    node.ctl("resume", "train")
    program.verify()
    program.ask(f"free {block}")
    assert not any(program.brokered().values())
    program.leave()
    said = [line for line in program.output("err").splitlines() if "AMEM_GATE" in line]
    assert len(said) == 2 and "resume" in said[0]


@pytest.mark.parametrize("scope", [None, "heap"])
def test_mistakes_are_answered_as_by_the_driver(node, scope):
    program = Program(node, scope=scope)
    results = program.ask("mistakes")
    expected = {
        "alloc_nothing": INVALID_VALUE, "alloc_too_much": OUT_OF_MEMORY, "alloc_everything": OUT_OF_MEMORY,
        "pitch_element": INVALID_VALUE, "pitch_nothing": INVALID_VALUE, "free_null": SUCCESS,
        "free_unknown": INVALID_VALUE, "create_nothing": INVALID_VALUE, "create_half": INVALID_VALUE,
        "alloc_without_context": INVALID_CONTEXT}
    expected.update({"mapped_" + mistake: INVALID_VALUE for mistake in (
        "release_twice", "map_released", "export_released", "properties_released", "free_address")})
    expected.update(mapped_retained_properties=SUCCESS, unmapped_free_address=SUCCESS)
    for size in ("small_", "large_"):
        expected.update({size + "free_inside": INVALID_VALUE, size + "unmap": INVALID_VALUE,
                         size + "retain": INVALID_VALUE, size + "free": SUCCESS, size + "free_twice": INVALID_VALUE,
                         size + "attribute_of_freed": INVALID_VALUE})
    assert {name: results[name] for name in expected} == expected


def test_out_of_memory(node):
    program = Program(node)
    program.ask(f"alloc 0 {60 * MIB}")
    program.send(f"alloc 0 {60 * MIB}")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in program.failure()
    program.verify()
    program.ask("free 1")
    program.ask(f"alloc 0 {60 * MIB}")
    program.verify()


@pytest.mark.parametrize("scope", [None, "heap"])
def test_pointer_attributes(node, scope):
    program = Program(node, scope=scope)
    for bytes_ in (1000, 3 * MIB + 5):
        block = program.ask(f"alloc 1 {bytes_}")["id"]
        address = next(each["va"] for each in program.ask("list")["memory"] if each["id"] == block)
        program.ask(f"sync_memops {block}")
        running = program.ask(f"attributes {block} 100")
        assert running["context"] != 0
        expected = {"memory_type": 2, "device_pointer": address + 100, "sync_memops": 1, "is_managed": 0,
                    "device_ordinal": 1, "ipc": 1, "range_start": address, "range_size": bytes_, "mapped": 1,
                    "handle_types": 0, "base": address, "size": bytes_}
        assert {name: running[name] for name in expected} == expected
        if scope is None:
            continue
        node.ctl("pause", "train")
        assert program.ask(f"attributes {block} 100") == running
        node.ctl("resume", "train")
        assert program.ask(f"attributes {block} 100") == running


def test_peers_get_access_and_keep_it(node):
    program = Program(node)
    first = program.ask("alloc 0 1000")["id"]
    large = program.ask("alloc 1 3000000")["id"]

    def access(block):
        return program.ask(f"access {block}")["access"]

    assert (access(first), access(large)) == ([READ_WRITE, NO_ACCESS], [NO_ACCESS, READ_WRITE])
    program.ask("peer on")
    later = program.ask("alloc 1 3000000")["id"]
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    for block in (first, large, later):
        assert access(block) == [READ_WRITE, READ_WRITE]
    program.verify()
    program.ask("peer off")
    assert (access(first), access(later)) == ([READ_WRITE, NO_ACCESS], [NO_ACCESS, READ_WRITE])
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    assert (access(first), access(later)) == ([READ_WRITE, NO_ACCESS], [NO_ACCESS, READ_WRITE])
    program.verify()


@pytest.mark.parametrize("pool", ("host_numa", "memfd"))
def test_memory_goes_with_its_context(bare_node, pool):
    node = bare_node
    node.start_broker("--pool-place", pool)
    assert node.ctl.status()["pool"]["place"] == pool
    program = Program(node)
    program.ask("alloc 0 1000 3")
    program.ask("alloc 1 3000000")
    before = program.brokered()
    for bytes_ in (1000, 3000000):
        assert program.ask(f"context 0 {bytes_}")["free"] == INVALID_VALUE
    assert program.brokered() == before
    program.ask("reset 0")
    assert program.brokered() == {("heap", 1): before["heap", 1]}
    program.ask("alloc 0 1000 3")
    for device in (None, 1, 0):
        if device is not None:
            program.ask(f"reset {device}")
        program.ask("alloc 0 3000000")
        program.ask("alloc 1 3000000")
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        program.verify()


def test_a_pause_does_not_save_what_is_freed_of_a_chunk(node):
    program = Program(node)
    first = program.ask(f"alloc 0 {128 << 10} 16")["id"]
    assert program.brokered() == {("heap", 0): 2 * MIB}
    program.ask(f"free {first} 5")
    program.ask(f"free {first + 6} 10")
    for _ in range(2):
        node.ctl("pause", "train")
        assert 128 << 10 <= node.ctl.group("train")["saved_bytes"] < 192 << 10
        node.ctl("resume", "train")
        program.verify()
    program.ask(f"alloc 0 {128 << 10} 15")
    assert program.brokered() == {("heap", 0): 2 * MIB}
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.verify()


@pytest.mark.parametrize("scope", [None, "heap"])
@pytest.mark.parametrize("mode, forbidden", [("relaxed", False), ("thread_local", True), ("global", True)])
def test_captures(node, scope, mode, forbidden):
    program = Program(node, scope=scope)
    program.ask("alloc 0 1000")
    program.ask(f"capture begin {mode}")
    results = program.ask("capture alloc 3000000")
    if forbidden:
        assert results["alloc"] == CAPTURE_UNSUPPORTED
        assert program.ask("capture end")["result"] == CAPTURE_INVALIDATED
    else:
        assert (results["alloc"], results["free"], results["free_twice"]) == (SUCCESS, SUCCESS, INVALID_VALUE)
        assert program.ask("capture end")["result"] == SUCCESS
    if scope is not None:
        # What was freed in the capture went when it ended.
        assert program.brokered() == {("heap", 0): 2 * MIB}
    program.verify()


def test_a_capture_goes_with_its_stream(node):
    program = Program(node)
    program.ask("alloc 0 1000")
    program.ask("capture begin relaxed")
    program.ask("capture alloc 3000000")
    program.ask("capture drop")
    assert program.brokered() == {("heap", 0): 2 * MIB}
    node.ctl("pause", "train", "--timeout", "5s")
    node.ctl("resume", "train")
    program.verify()


def test_a_free_put_off_does_not_hold_a_pause_up(node):
    program = Program(node)
    program.ask("alloc 0 1000")
    program.ask("capture begin relaxed")
    program.ask("capture alloc 3000000")
    assert program.brokered() == {("heap", 0): 2 * MIB + 3014656}
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    assert program.ask("capture end")["result"] == SUCCESS
    assert pause.finish().code == 0
    assert program.paused() == {("heap", 0): 2 * MIB}
    node.ctl("resume", "train")
    program.verify()


def test_without_a_broker_the_driver_serves(bare_node):
    program = Program(bare_node)
    program.ask("alloc 0 3000000")
    program.ask("alloc 0 100")
    program.ask(f"expand 0 {2 * MIB} 2")
    program.wait_for("This process runs without amem")
    program.ask("peer on")
    program.ask("churn 0 50")
    program.verify()
    assert program.brokered() == {}
    assert program.unbrokered() == {("device", 0): 3000100, ("vmm", 0): 4 * MIB}
    program.leave()


def test_a_broker_is_required(bare_node):
    program = Program(bare_node, env={"AMEM_REQUIRED": "1"})
    program.send("alloc 0 100")
    assert "CUDA_ERROR_SYSTEM_NOT_READY" in program.failure()


def test_memory_outlives_the_broker(node_that_loses_its_broker):
    node = node_that_loses_its_broker
    program = Program(node)
    fill(program)
    before = program.brokered()
    node.broker.kill()
    program.wait_for("the broker has ended")
    program.verify()
    later = program.ask("alloc 0 3000000")["id"]
    assert program.brokered() == before
    program.ask(f"free {later}")
    program.ask("free 1 5")
    program.ask("drop")
    program.verify()


@pytest.fixture
def node_that_loses_its_broker(bare_node):
    bare_node.settings["AMEM_RECONNECT"] = "0"
    bare_node.start_broker()
    return bare_node


def test_nccl_and_the_heap_in_one_group(node):
    job = Job(node, "train", 2, env={"AMEM_SCOPE": "heap"}).ready()
    program = Program(node, rank=2)
    fill(program)
    job.check()
    for _ in range(3):
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        job.check()
        program.verify()
