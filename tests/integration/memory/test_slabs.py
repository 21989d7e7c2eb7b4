"""NCCL's buffers in slabs: packed, moved out, zeroed, given back; and every order of calls works without an error."""
import pytest

from sim_node import Program, eventually

MIB = 1 << 20
UNIT = 64 << 10  # the simulated device's granularity
ORDERS = ["remembered", "twice", "elsewhere", "exported-first", "in-between", "reused", "twice-late"]


@pytest.fixture
def driver_zeros(bare_node):
    """New memory has zeros, as that of the driver. To be named before `node`."""
    del bare_node.settings["AMEM_SIM_FRESH"]


def allocations(node):
    return node.ctl.group("train")["allocation_count"]


def resident(node):
    return node.ctl.group("train")["allocated_bytes"]


@pytest.mark.parametrize("slab", ["64", "0"])
@pytest.mark.parametrize("order", ORDERS)
def test_order(driver_zeros, node, order, slab):
    """No error whatever the order, with slabs and without, and nothing is left behind."""
    puppet = node.puppet("puppet", env={"AMEM_SLAB": slab})
    puppet.ask("alloc 4096")
    before = allocations(node)
    answer = puppet.ask(f"order {order}")
    assert order != "twice" or answer["same_address"] == (1 if slab != "0" else 0)
    eventually(lambda: allocations(node) == before)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.ask(f"order {order}")
    eventually(lambda: allocations(node) == before)
    puppet.leave()


def test_many_in_few(node):
    puppet = node.puppet("puppet")
    blocks = [puppet.ask(f"alloc {size}")["id"] for size in [4096, 100, 12288, 200000, 70000] * 20]
    for block in blocks:
        puppet.ask(f"fill {block} {block}")
    asked = 20 * (4096 + 4096 + 12288 + 200704 + 73728)
    assert resident(node) < 1.35 * asked
    assert allocations(node) < 40
    addresses = [puppet.ask(f"address {block}")["address"] for block in blocks]
    for _ in range(3):
        node.ctl("pause", "train")
        assert node.ctl.devices()[0]["brokered_bytes"] == 0
        node.ctl("resume", "train")
        for block in blocks:
            puppet.ask(f"verify {block} {block}")
    assert addresses == [puppet.ask(f"address {block}")["address"] for block in blocks]
    # What is freed here and there is used again before there is more memory.
    count = allocations(node)
    for block in blocks[::2]:
        puppet.ask(f"free {block}")
    again = [puppet.ask(f"alloc {size}")["id"] for size in [4096, 12288, 70000] * 12]
    assert allocations(node) <= count
    for block in [*blocks[1::2], *again]:
        puppet.ask(f"free {block}")
    eventually(lambda: allocations(node) == 0)
    assert node.ctl.devices()[0]["brokered_bytes"] == 0
    puppet.leave()


def test_rows_of_large_buffers(node):
    """As NCCL makes them: of one size after the other, and as many as before."""
    mib = 1 << 20
    puppet = node.puppet("puppet", env={"AMEM_SLAB": "64"})
    blocks = [puppet.ask(f"alloc {size}")["id"] for size in ([mib] * 8 + [2 * mib] * 8) * 2]
    for block in blocks:
        puppet.ask(f"fill {block} {block}")
    assert resident(node) == 48 * mib
    assert allocations(node) <= 10  # 1, 1, 2, 4 of each size; then one for all eight
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    for block in blocks:
        puppet.ask(f"verify {block} {block}")
        puppet.ask(f"free {block}")
    eventually(lambda: allocations(node) == 0)
    puppet.leave()


def test_what_a_peer_was_given_is_not_used_again(node):
    """A kernel of the peer's may still write to it when its communicator has ended here."""
    puppet = node.puppet("puppet")
    assert puppet.ask("order shared-and-freed")["same_address"] == 0
    eventually(lambda: allocations(node) == 0)
    puppet.leave()


@pytest.mark.parametrize("shared", (True, False))
def test_a_pause_does_not_save_what_is_freed(driver_zeros, node, shared):
    """Also what a peer was given, and has open still: nobody uses that space again as long as the slab lives."""
    puppet = node.puppet("puppet", env={"AMEM_SLAB": "64"})
    peer = node.puppet("peer", device=1)
    blocks = [puppet.ask(f"alloc {MIB}")["id"] for _ in range(8)]
    assert allocations(node) == 1
    for block in blocks:
        puppet.ask(f"fill {block} {block}")
    opened = []
    if shared:
        for block in blocks:
            puppet.ask(f"offer {block} {node.dir}")
            opened.append(peer.ask(f"take {node.dir} {MIB}")["id"])
    node.ctl("pause", "train")
    assert node.ctl.group("train")["saved_bytes"] == 8 * MIB
    node.ctl("resume", "train")
    for block in blocks[:3] + blocks[4:]:
        puppet.ask(f"free {block}")
    for _ in range(2):
        node.ctl("pause", "train")
        assert MIB <= node.ctl.group("train")["saved_bytes"] < MIB + UNIT
        node.ctl("resume", "train")
        puppet.ask(f"verify {blocks[3]} {blocks[3]}")
    if shared:
        peer.ask(f"verify {opened[3]} {blocks[3]}")
        peer.ask(f"fill {opened[5]} 5")  # late, and harmless
        puppet.ask(f"verify {blocks[3]} {blocks[3]}")
    # What gets the space next finds zeros, as in memory of the driver's.
    again = [puppet.ask(f"alloc {MIB}")["id"] for _ in range(7)]
    for block in again:
        puppet.ask(f"zero {block}")
    puppet.ask(f"verify {blocks[3]} {blocks[3]}")


def test_a_pause_that_compares_all_bytes_saves_what_is_freed(node):
    puppet = node.puppet("puppet", env={"AMEM_SLAB": "64", "AMEM_VERIFY": "1"})
    blocks = [puppet.ask(f"alloc {MIB}")["id"] for _ in range(8)]
    for block in blocks:
        puppet.ask(f"fill {block} {block}")
    for block in blocks[1:]:
        puppet.ask(f"free {block}")
    node.ctl("pause", "train")
    assert node.ctl.group("train")["saved_bytes"] == 8 * MIB
    node.ctl("resume", "train")
    puppet.ask(f"verify {blocks[0]} {blocks[0]}")


def test_what_is_freed_here_cannot_be_imported_again(node):
    puppet = node.puppet("puppet")
    assert puppet.ask("order freed-and-imported")["result"] == 1  # CUDA_ERROR_INVALID_VALUE
    eventually(lambda: allocations(node) == 0)
    puppet.ask("order remembered")
    puppet.leave()


def test_the_end_of_a_slab_does_not_wait_for_a_resume(node):
    """Its last address is freed by the program after its memory: the slab goes then, and not while it is saved."""
    puppet = node.puppet("puppet")
    block = puppet.ask("alloc 4096")["id"]
    puppet.ask(f"unmap {block}")
    puppet.faults("releaseBegins:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("release")
    puppet.send(f"free {block}")
    puppet.stands()
    assert allocations(node) == 1
    puppet.faults()
    puppet.answer()
    assert pause.finish().code == 0
    assert allocations(node) == 0
    puppet.leave()


def test_a_buffer_that_fits_is_made_where_a_larger_slab_does_not_fit(driver_zeros, node):
    """Of a kind whose slabs have space for many, and of one that is new."""
    puppet = node.puppet("puppet", env={"AMEM_SLAB": "64"})
    space = puppet.ask("meminfo")["free"]
    puppet.ask(f"alloc {space - 10 * MIB} whole")
    block = puppet.ask(f"alloc {4 * MIB}")["id"]
    puppet.ask(f"alloc {4 * MIB}")
    puppet.ask("alloc 4096")
    puppet.ask(f"fill {block} 1")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.ask(f"verify {block} 1")
    puppet.send(f"alloc {4 * MIB}")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in puppet.failure()


def test_a_buffer_gets_what_the_heap_keeps_of_freed_memory(driver_zeros, node):
    """Also where it is no multiple of the driver's granularity."""
    puppet = node.puppet("puppet", scope="heap")
    block = puppet.ask(f"plain {4 * MIB}")["id"]
    puppet.ask(f"alloc {puppet.ask('meminfo')['free']} whole")
    assert puppet.ask("meminfo")["free"] == 0
    puppet.ask(f"free {block}")
    puppet.ask("alloc 12288")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.leave()


def test_read_only_access(node):
    """To a piece it is given as to any memory; what the slab has more of it keeps."""
    puppet = node.puppet("puppet")
    block = puppet.ask("alloc 4096")["id"]
    assert puppet.ask(f"access {block} 1")["flags"] == 0
    for given, has in ((1, 1), (3, 3), (1, 3), (0, 3)):
        puppet.ask(f"grant {block} 1 {given}")
        assert puppet.ask(f"access {block} 1")["flags"] == has
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    assert puppet.ask(f"access {block} 1")["flags"] == 3
    puppet.leave()


def test_turned_off(node):
    puppet = node.puppet("puppet", env={"AMEM_SHIM_WITHOUT": "slabs"})
    for _ in range(5):
        puppet.ask("alloc 4096")
    assert allocations(node) == 5
    assert resident(node) == 5 * UNIT
    puppet.leave()


def test_what_asks_for_more_is_never_packed(node):
    puppet = node.puppet("puppet")
    for _ in range(3):
        puppet.ask(f"alloc {UNIT} whole")
    assert allocations(node) == 3
    puppet.leave()


def test_another_order_is_said_once(node):
    """Then nothing is packed any more."""
    puppet = node.puppet("puppet")
    puppet.ask("order elsewhere")
    puppet.ask("order elsewhere")
    for _ in range(3):
        puppet.ask(f"alloc {UNIT}")
    assert allocations(node) == 3
    puppet.leave()
    assert puppet.output().count("no longer packs") == 1


@pytest.mark.parametrize("how", ("", " looked-up"))
def test_windows_of_a_newer_nccl_end_the_packing(node, how):
    """It makes a buffer of its own a window, too: one that is packed could not be mapped there."""
    program = Program(node, scope="nccl", env={"WORKLOAD_NCCL_VERSION": "23203"})
    program.ask("nccl 0 4096")
    program.ask(f"window 0{how}")
    program.ask("window 0")
    said = program.wait_for("warning: NCCL 2.32.3 may register its own buffers as windows")
    assert "no longer packs" in said
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    before = allocations(node)
    program.ask(f"nccl 0 {UNIT}")
    assert allocations(node) == before + 1
    assert not [line for line in program.rest() if "warning" in line]


def test_windows_of_an_nccl_that_is_known_do_not(node):
    """The buffer of its own that this one maps twice nevertheless is a piece of a slab, and refused."""
    program = Program(node, scope="nccl", env={"WORKLOAD_NCCL_VERSION": "23007"})
    program.ask("nccl 0 4096")
    program.send("window 0")
    assert "ncclCommWindowRegister failed" in program.failure()
    assert "uses a buffer elsewhere whose address is known" in program.wait_for("no longer packs")


def test_a_size_that_is_none(node):
    puppet = node.puppet("puppet", env={"AMEM_SLAB": "much"})
    puppet.ask("alloc 4096")
    puppet.wait_for("AMEM_SLAB=much is not a number of MiB")
    puppet.leave()
