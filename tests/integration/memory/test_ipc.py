"""CUDA's older interprocess handles, of brokered memory and of memory that is not."""
import pytest

from sim_node import eventually

LAZY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
SIZE = 3000000


def used(node, device):
    return node.ctl.devices()[device]["used_bytes"]


def cycle(node, group="train"):
    node.ctl("pause", group)
    for device in node.ctl.devices():
        assert device["used_bytes"] == node.CONTEXT_BYTES
    node.ctl("resume", group)


def share(owner, importer, seed, offset=0):
    """A block of the owner's, filled and opened by the importer: both numbers."""
    mine = owner.ask(f"plain {SIZE}")["id"]
    owner.ask(f"fill {mine} {seed}")
    handle = owner.ask(f"share {mine} {offset}")["handle"]
    return mine, importer.ask(f"open {handle} {LAZY}")["id"]


def address(puppet, each):
    return puppet.ask(f"address {each}")["address"]


def refused(puppet, command, error):
    puppet.send(command)
    assert error in puppet.failure()


def test_both_ways_before_and_after_cycles(node):
    puppets = [node.puppet(f"puppet{i}", i) for i in range(2)]
    shared = [share(puppets[i], puppets[1 - i], 10 + i) for i in range(2)]
    addresses = [address(puppets[1 - i], theirs) for i, (_, theirs) in enumerate(shared)]
    for _ in range(3):
        for i, (mine, theirs) in enumerate(shared):
            puppets[1 - i].ask(f"verify {theirs} {10 + i}")
        cycle(node)
        for i, (mine, theirs) in enumerate(shared):
            puppets[i].ask(f"verify {mine} {10 + i}")
            puppets[1 - i].ask(f"verify {theirs} {10 + i}")
            assert address(puppets[1 - i], theirs) == addresses[i]
    # One memory, not a copy of it: what the importer writes the owner reads.
    for i, (mine, theirs) in enumerate(shared):
        puppets[1 - i].ask(f"fill {theirs} {20 + i}")
        puppets[i].ask(f"verify {mine} {20 + i}")
    cycle(node)
    for i, (mine, theirs) in enumerate(shared):
        puppets[i].ask(f"verify {mine} {20 + i}")
        puppets[1 - i].ask(f"free {theirs}")
        puppets[i].ask(f"free {mine}")
    eventually(lambda: node.ctl.group("train")["allocation_count"] == 0)
    for puppet in puppets:
        puppet.leave()


def test_a_handle_given_out_before_a_cycle(node):
    owner, importer = node.puppet("owner", 0), node.puppet("importer", 1)
    mine = owner.ask(f"plain {SIZE}")["id"]
    owner.ask(f"fill {mine} 4")
    handle = owner.ask(f"share {mine}")["handle"]
    node.ctl("pause", "train")
    assert owner.ask(f"share {mine}")["handle"] == handle
    node.ctl("resume", "train")
    importer.ask(f"verify {importer.ask(f'open {handle} {LAZY}')['id']} 4")


def test_openings_are_counted(node):
    owner, importer = node.puppet("owner", 0), node.puppet("importer", 1)
    mine, first = share(owner, importer, 5)
    # Of any byte of the block the handle is that of the whole.
    handle = owner.ask(f"share {mine} 65536")["handle"]
    second = importer.ask(f"open {handle} {LAZY}")["id"]
    assert address(importer, first) == address(importer, second)
    importer.ask(f"free {first}")
    importer.ask(f"verify {second} 5")
    cycle(node)
    importer.ask(f"verify {second} 5")
    importer.ask(f"free {second}")
    again = importer.ask(f"open {handle} {LAZY}")["id"]
    importer.ask(f"verify {again} 5")


def test_closing_gives_the_memory_back(node):
    owner, importer = node.puppet("owner", 0), node.puppet("importer", 0)
    contexts = used(node, 0)
    mine, theirs = share(owner, importer, 6)
    assert used(node, 0) > contexts + SIZE
    owner.ask(f"free {mine}")
    importer.ask(f"verify {theirs} 6")  # the importer holds it
    importer.ask(f"free {theirs}")
    eventually(lambda: used(node, 0) == contexts)
    descriptors = importer.descriptors()
    for _ in range(10):
        mine, theirs = share(owner, importer, 7)
        importer.ask(f"free {theirs}")
        owner.ask(f"free {mine}")
    assert importer.descriptors() == descriptors
    eventually(lambda: used(node, 0) == contexts)


def test_what_the_driver_refuses_is_refused(node):
    owner, importer = node.puppet("owner", 0), node.puppet("importer", 1)
    mine, theirs = share(owner, importer, 8)
    handle = owner.ask(f"share {mine}")["handle"]
    refused(owner, f"open {handle} {LAZY}", "CUDA_ERROR_INVALID_CONTEXT")  # its own
    refused(importer, f"open {handle} 0", "CUDA_ERROR_INVALID_VALUE")  # from another device
    refused(importer, f"open {handle} 6", "CUDA_ERROR_INVALID_VALUE")
    refused(importer, f"share {theirs}", "CUDA_ERROR_INVALID_VALUE")  # not its own
    refused(importer, f"open {'00' * 64} {LAZY}", "CUDA_ERROR_INVALID_VALUE")
    importer.ask(f"verify {theirs} 8")
    importer.ask(f"free {theirs}")
    cycle(node)
    owner.ask(f"verify {mine} 8")


def test_a_handle_with_another_token(node):
    owner, friend = node.puppet("owner", 0), node.puppet("friend", 1)
    mine = owner.ask(f"plain {SIZE}")["id"]
    handle = owner.ask(f"share {mine}")["handle"]
    forged = handle[:80] + "00" * 16 + handle[112:]
    refused(friend, f"open {forged} {LAZY}", "CUDA_ERROR_SYSTEM_NOT_READY")
    said = friend.wait_for("opening the IPC handle")
    assert f"process {owner.pid}" in said
    cycle(node)
    friend.ask(f"open {handle} {LAZY}")
    assert node.ctl.group("train")["allocation_count"] == 1


def test_a_piece_outside_its_allocation(node):
    owner, importer = node.puppet("owner", 0), node.puppet("importer", 1)
    mine = owner.ask(f"plain {SIZE}")["id"]
    handle = owner.ask(f"share {mine}")["handle"]
    within = handle[:48] + (65536).to_bytes(8, "little").hex() + (65536).to_bytes(8, "little").hex() + handle[80:]
    piece = importer.ask(f"open {within} {LAZY}")["id"]
    whole = importer.ask(f"open {handle} {LAZY}")["id"]
    assert address(importer, piece) == address(importer, whole) + 65536
    beyond = handle[:48] + (2 << 20).to_bytes(8, "little").hex() + handle[64:]
    refused(importer, f"open {beyond} {LAZY}", "CUDA_ERROR_INVALID_HANDLE")
    importer.ask(f"free {whole}")
    cycle(node)
    importer.ask(f"free {piece}")
    owner.ask(f"free {mine}")
    eventually(lambda: node.ctl.group("train")["allocation_count"] == 0)


def test_the_owner_dies(node):
    owner, importer = node.puppet("owner", 0), node.puppet("importer", 1)
    _, theirs = share(owner, importer, 9)
    owner.kill()
    eventually(lambda: len(node.ctl.ranks("train")) == 1)
    importer.ask(f"verify {theirs} 9")
    node.ctl("pause", "train")
    assert used(node, 0) == 0
    assert used(node, 1) == node.CONTEXT_BYTES
    node.ctl("resume", "train")
    importer.ask(f"verify {theirs} 9")
    importer.ask(f"free {theirs}")
    eventually(lambda: used(node, 0) == 0)


@pytest.mark.parametrize("group", ["train", None])
def test_memory_that_is_not_brokered(node, group):
    """Goes to the driver, which has handles for memory of cuMemAlloc only."""
    owner, importer = node.puppet("owner", 0, group=group), node.puppet("importer", 1, group=group)
    mine, theirs = share(owner, importer, 3)
    importer.ask(f"verify {theirs} 3")
    handle = owner.ask(f"share {mine}")["handle"]
    again = importer.ask(f"open {handle} {LAZY}")["id"]
    assert address(importer, again) == address(importer, theirs)
    importer.ask(f"free {again}")
    refused(owner, f"open {handle} {LAZY}", "CUDA_ERROR_INVALID_CONTEXT")
    refused(importer, f"open {handle} 0", "CUDA_ERROR_INVALID_VALUE")
    refused(importer, f"share {theirs}", "CUDA_ERROR_INVALID_VALUE")
    owner.ask(f"free {mine}")
    importer.ask(f"verify {theirs} 3")
    importer.ask(f"free {theirs}")


@pytest.mark.parametrize("group, scope, modules", [(None, "nccl", ""), ("train", "nccl", "amem-puppet"),
                                                   ("train", "heap", "amem-puppet"), ("train", "heap", "libnccl")])
@pytest.mark.parametrize("kind", ["alloc {}", "alloc {} whole"])
def test_mapped_memory_has_no_handle(node, group, scope, modules, kind):
    """As the driver says of all memory of cuMemCreate: programs then exchange it by descriptor. It may be one of many pieces
    side by side, as in PyTorch's expandable segments, and a handle would be of that piece only."""
    owner = node.puppet("owner", 0, group=group, scope=scope, env={"AMEM_MODULES": modules})
    importer = node.puppet("importer", 1, group=group, scope=scope, env={"AMEM_MODULES": modules})
    mapped = owner.ask(kind.format(4 << 20))["id"]
    for offset in (0, 65536, (2 << 20) + 1):
        refused(owner, f"share {mapped} {offset}", "CUDA_ERROR_INVALID_VALUE")
    owner.ask(f"offer {mapped} {node.dir}")
    taken = importer.ask(f"take {node.dir} {4 << 20}")["id"]
    refused(importer, f"share {taken}", "CUDA_ERROR_INVALID_VALUE")
    if group is None:
        return
    node.ctl("pause", group)  # nobody's handle is asked for at the gate
    refused(owner, f"share {mapped}", "CUDA_ERROR_INVALID_VALUE")
    refused(importer, f"share {taken}", "CUDA_ERROR_INVALID_VALUE")
    node.ctl("resume", group)
    refused(owner, f"share {mapped}", "CUDA_ERROR_INVALID_VALUE")


def test_blocks_of_the_heap(node):
    """A handle is about the program's own block, though small ones share an allocation."""
    owner, importer = (node.puppet(name, i, scope="heap") for i, name in enumerate(("owner", "importer")))
    sizes = (5000, 1 << 16, SIZE)
    mine = [owner.ask(f"plain {size}")["id"] for size in sizes]
    handles = [owner.ask(f"share {each} {size // 2}")["handle"] for each, size in zip(mine, sizes)]
    for seed, each in enumerate(mine):
        owner.ask(f"fill {each} {seed}")
    theirs = [importer.ask(f"open {handle} {LAZY}")["id"] for handle in handles]
    for _ in range(2):
        for seed, each in enumerate(theirs):  # in the length that cuMemGetAddressRange gives the importer
            importer.ask(f"verify {each} {seed}")
        cycle(node)
    importer.ask(f"fill {theirs[0]} 10")
    owner.ask(f"verify {mine[0]} 10")
    owner.ask(f"verify {mine[1]} 1")
    for each in theirs:
        importer.ask(f"free {each}")
    for each in mine:
        owner.ask(f"free {each}")
    eventually(lambda: node.ctl.group("train")["allocation_count"] == 0)
