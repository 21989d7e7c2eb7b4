"""Large blocks are made of parts of one size, which the program does not see, and which fit another program's blocks."""
import pytest

from sim_node import MIB, Program, eventually
from sim_node.evaluator import Evaluator

LAZY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
PART = 2 * MIB  # on devices as small as these
INVALID_HANDLE = "CUDA_ERROR_INVALID_HANDLE"
OUT_OF_MEMORY = 2
CREATE_S = 0.02


def allocations(node, group="train"):
    return node.ctl.group(group)["allocation_count"]


def address(puppet, each):
    return puppet.ask(f"address {each}")["address"]


def two_puppets(node):
    return [node.puppet(name, device, scope="heap", env={"AMEM_MODULES": "none"}) for device, name in enumerate(("owner", "importer"))]


def test_the_program_sees_one_block(node):
    program = Program(node)
    block = program.ask(f"alloc 0 {7 * PART}")["id"]
    assert allocations(node) == 7
    seen = program.ask(f"attributes {block} {3 * PART + 100}")
    assert (seen["base"], seen["size"], seen["range_size"]) == (seen["range_start"], 7 * PART, 7 * PART)
    program.ask(f"free {block}")
    eventually(lambda: allocations(node) == 0)


def test_a_block_below_two_parts_is_one_allocation(node):
    program = Program(node)
    program.ask(f"alloc 0 {2 * PART - MIB}")
    assert allocations(node) == 1
    program.ask(f"alloc 1 {2 * PART + MIB}")
    assert allocations(node) == 1 + 3


@pytest.mark.parametrize("flags", [("--swap-hand-on", "false"), ("--spare-idle", "1s")])
def test_only_where_memory_is_handed_on(bare_node, flags):
    bare_node.start_broker(*flags)
    program = Program(bare_node)
    program.ask(f"alloc 0 {4 * PART}")
    assert allocations(bare_node) == (1 if "false" in flags else 4)


def test_a_peer_opens_all_parts(node):
    owner, importer = two_puppets(node)
    mine = owner.ask(f"plain {5 * PART}")["id"]
    assert allocations(node) == 5
    owner.ask(f"fill {mine} 1")
    handle = owner.ask(f"share {mine} {4 * PART}")["handle"]
    theirs = importer.ask(f"open {handle} {LAZY}")["id"]
    there = address(importer, theirs)
    for seed in range(2, 5):
        importer.ask(f"verify {theirs} {seed - 1}")
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        importer.ask(f"fill {theirs} {seed}")
        owner.ask(f"verify {mine} {seed}")
    assert address(importer, theirs) == there
    owner.ask(f"free {mine}")
    importer.ask(f"verify {theirs} 4")
    importer.ask(f"free {theirs}")
    eventually(lambda: allocations(node) == 0)


def test_a_handle_that_names_more_than_there_is(node):
    owner, importer = two_puppets(node)
    mine, other = (owner.ask(f"plain {2 * PART}")["id"] for _ in range(2))
    handle = bytearray.fromhex(owner.ask(f"share {mine}")["handle"])
    handle[32:40] = (3 * PART).to_bytes(8, "little")  # its size
    importer.send(f"open {handle.hex()} {LAZY}")
    assert INVALID_HANDLE in importer.failure(), "the next allocation is another block's"
    owner.ask(f"free {mine}")
    owner.ask(f"free {other}")
    eventually(lambda: allocations(node) == 0)


@pytest.mark.next_broker
def test_the_next_amemd_knows_the_parts(node):
    owner, importer = two_puppets(node)
    mine = owner.ask(f"plain {3 * PART}")["id"]
    owner.ask(f"fill {mine} 7")
    node.broker.kill()
    node.start_broker()
    handle = owner.ask(f"share {mine}")["handle"]
    theirs = importer.ask(f"open {handle} {LAZY}")["id"]
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    importer.ask(f"verify {theirs} 7")
    owner.ask(f"verify {mine} 7")
    assert allocations(node) == 3


def test_blocks_of_other_sizes_change_hands(bare_node):
    """What one program has in blocks of 7 parts the other one has in blocks of 11 and a rest."""
    bare_node.settings["AMEM_SIM_MEMORY"] = str(86 * MIB)
    bare_node.start_broker("--pool-size", "200MiB", "--pool-segment", "100MiB")
    programs = {}
    for name, count, size in (("train", 5, 7 * PART), ("rollout", 3, 11 * PART + MIB)):
        programs[name] = Program(bare_node, name)
        for _ in range(count):
            programs[name].ask(f"alloc 0 {size}")
        if name == "train":
            bare_node.ctl("pause", name)
    for out, into in (("rollout", "train"), ("train", "rollout")) * 2:
        answer = bare_node.ctl("swap", out, into)
        [came] = [line["memory"] for line in answer.lines if line["group"] == into and line["done"]]
        assert int(came["handed_on_bytes"]) >= 0.8 * (int(came["handed_on_bytes"]) + int(came["made_bytes"]))
        programs[into].verify()


def test_a_block_that_does_not_fit_is_refused_as_one(bare_node):
    """Of parts the driver would make nearly all before it refuses one, each time that amemd asks."""
    bare_node.settings["AMEM_SIM_MEMORY"] = str(100 * MIB)
    bare_node.settings["AMEM_SIM_DRIVER_TIMES"] = f"{CREATE_S * 1e6:.0f},0,0,0"
    bare_node.start_broker()
    evaluator = Evaluator(bare_node)
    evaluator.ask("allocate = lambda size: cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size))")
    _, made, took_s = evaluator.value(f"[began := time.monotonic(), allocate({60 * MIB}), time.monotonic() - began]")
    _, refused, refused_s = evaluator.value(f"[began := time.monotonic(), allocate({60 * MIB}), time.monotonic() - began]")
    assert (made, refused) == (0, OUT_OF_MEMORY)
    assert took_s >= 60 * MIB // PART * CREATE_S > refused_s
