"""Memory of stream-ordered pools (cuMemAllocAsync) is brokered: a pause frees it, and streams keep their order."""
import pytest

from sim_node import MIB, Program, eventually

CURRENT, HIGH, USED, USED_HIGH = 5, 6, 7, 8  # of CUmemPool_attribute
OPPORTUNISTIC, WAITS, THRESHOLD = 2, 3, 4
INVALID_VALUE = 1


def started(node, streams=1, **options):
    puppet = node.puppet(scope="heap", **options)
    for _ in range(streams):
        puppet.ask("stream new")
    return puppet


def address(puppet, block):
    return puppet.ask(f"address {block}")["address"]


def reserved(puppet, pool=0):
    return puppet.ask(f"pool get {pool} {CURRENT}")["value"]


def allocated(node):
    return node.ctl.group("train")["allocated_bytes"]


def keep_all(puppet, pool=0):
    """As programs set the threshold that allocate often."""
    puppet.ask(f"pool set {pool} {THRESHOLD} {1 << 62}")


def test_a_pause_frees_it_and_addresses_and_bytes_stay(node):
    puppet = started(node)
    large = puppet.ask(f"async {12 * MIB} 1")["id"]
    small = puppet.ask("async 1000 1")["id"]
    own = puppet.ask(f"async {3 * MIB} 0 {puppet.ask('pool new')['pool']}")["id"]
    for block, byte in ((large, 11), (small, 22), (own, 33)):
        puppet.ask(f"set {block} {byte} 1")
    before = address(puppet, large), address(puppet, small)
    assert before[0] % 512 == before[1] % 512 == 0
    for _ in range(2):
        paused = node.ctl("pause", "train").json
        assert paused["unbrokered_bytes"] == 0
        assert all(each["used_bytes"] <= node.CONTEXT_BYTES for each in node.ctl.status()["devices"])
        node.ctl("resume", "train")
        for block, byte in ((large, 11), (small, 22), (own, 33)):
            puppet.ask(f"byte {block} {byte}")
    assert (address(puppet, large), address(puppet, small)) == before


def test_the_same_stream_has_freed_memory_again_at_once(node):
    puppet = started(node, 2)
    keep_all(puppet)
    block = puppet.ask(f"async {3 * MIB} 1")["id"]
    first = address(puppet, block)
    held = reserved(puppet)
    puppet.ask("stream hold 1")
    puppet.ask(f"free-async {block} 1")
    again = puppet.ask(f"async {3 * MIB} 1")["id"]
    assert address(puppet, again) == first
    puppet.ask(f"free-async {again} 1")
    assert reserved(puppet) == held
    puppet.ask("stream go 1")


def test_another_stream_has_it_only_once_the_first_has_come_so_far(node):
    puppet = started(node, 2)
    keep_all(puppet)
    block = puppet.ask(f"async {12 * MIB} 1")["id"]
    first = address(puppet, block)
    puppet.ask("stream hold 1")
    puppet.ask(f"set {block} 7 1")
    puppet.ask(f"free-async {block} 1")
    other = puppet.ask(f"async {12 * MIB} 2")["id"]
    assert address(puppet, other) != first
    puppet.ask(f"set {other} 9 2")
    puppet.ask("stream go 1")
    puppet.ask("stream sync 1")
    third = puppet.ask(f"async {12 * MIB} 2")["id"]
    assert address(puppet, third) == first
    puppet.ask("stream sync 2")
    puppet.ask(f"byte {other} 9")


def test_without_opportunistic_reuse_only_what_the_program_has_waited_for(node):
    puppet = started(node, 2)
    keep_all(puppet)
    puppet.ask(f"pool set 0 {OPPORTUNISTIC} 0")
    block = puppet.ask(f"async {12 * MIB} 1")["id"]
    first = address(puppet, block)
    puppet.ask(f"free-async {block} 1")
    assert address(puppet, puppet.ask(f"async {12 * MIB} 2")["id"]) != first
    puppet.ask("stream sync 1")
    assert address(puppet, puppet.ask(f"async {12 * MIB} 2")["id"]) == first


@pytest.mark.parametrize("waits", [1, 0])
def test_where_there_is_no_memory_a_stream_waits_for_another(node, waits):
    """Or the allocation does, as the driver's before it says that there is no memory."""
    puppet = started(node, 2)
    keep_all(puppet)
    puppet.ask(f"pool set 0 {WAITS} {waits}")
    block = puppet.ask(f"async {60 * MIB} 1")["id"]
    first = address(puppet, block)
    puppet.ask("stream hold 1 500")
    puppet.ask(f"set {block} 8 1")
    puppet.ask(f"free-async {block} 1")
    other = puppet.ask(f"async {60 * MIB} 2")["id"]
    assert address(puppet, other) == first or not waits
    puppet.ask(f"set {other} 9 2")
    puppet.ask("stream sync 1")
    puppet.ask("stream sync 2")
    puppet.ask(f"byte {other} 9")


def test_with_the_default_threshold_it_is_free_after_a_synchronisation(node):
    puppet = started(node)
    free = puppet.ask("meminfo")["free"]
    block = puppet.ask(f"async {12 * MIB} 1")["id"]
    assert puppet.ask("meminfo")["free"] <= free - 12 * MIB
    puppet.ask(f"free-async {block} 1")
    assert reserved(puppet) == 12 * MIB
    puppet.ask("stream sync 1")
    assert reserved(puppet) == 0
    assert puppet.ask("meminfo")["free"] == free
    assert allocated(node) == 0


def test_a_threshold_keeps_memory_and_trimming_does_not(node):
    puppet = started(node)
    puppet.ask(f"pool set 0 {THRESHOLD} {12 * MIB}")
    blocks = [puppet.ask(f"async {12 * MIB} 1")["id"] for _ in range(3)]
    for block in blocks:
        puppet.ask(f"free-async {block} 1")
    puppet.ask("stream sync 1")
    assert reserved(puppet) == 12 * MIB
    eventually(lambda: allocated(node) == 12 * MIB, what="the broker has freed the rest")
    puppet.ask(f"pool trim 0 {10 * MIB}")
    assert reserved(puppet) == 12 * MIB, "it must keep at least so much"
    puppet.ask("pool trim 0 0")
    assert reserved(puppet) == 0
    eventually(lambda: allocated(node) == 0, what="the broker has freed it")


def test_memory_that_pools_keep_is_nobodys_in_a_pause(node):
    puppet = started(node)
    keep_all(puppet)
    kept = puppet.ask(f"async {12 * MIB} 1")["id"]
    mixed = [puppet.ask(f"async {MIB // 2} 1")["id"] for _ in range(4)]
    puppet.ask(f"set {mixed[0]} 5 1")
    for block in [kept, *mixed[1:]]:
        puppet.ask(f"free-async {block} 1")
    puppet.ask("stream sync 1")
    node.ctl("pause", "train")
    assert node.ctl.status()["pool"]["used_bytes"] <= MIB
    node.ctl("resume", "train")
    puppet.ask(f"byte {mixed[0]} 5")


def test_attributes_count_what_is_brokered(node):
    puppet = started(node)
    keep_all(puppet)
    blocks = [puppet.ask(f"async {size} 1")["id"] for size in (1000, 12 * MIB)]
    here = reserved(puppet)
    assert here >= 12 * MIB
    assert puppet.ask(f"pool get 0 {USED}")["value"] == 12 * MIB + 1000
    puppet.ask(f"free-async {blocks[1]} 1")
    assert puppet.ask(f"pool get 0 {USED}")["value"] == 1000
    assert puppet.ask(f"pool get 0 {USED_HIGH}")["value"] == 12 * MIB + 1000
    puppet.ask(f"pool set 0 {USED_HIGH} 0")
    assert puppet.ask(f"pool get 0 {USED_HIGH}")["value"] == 1000
    puppet.ask("pool trim 0 0")
    assert puppet.ask(f"pool get 0 {HIGH}")["value"] == here
    assert reserved(puppet) == here - 12 * MIB


def test_memory_that_is_short_is_taken_from_pools(node):
    puppet = started(node)
    keep_all(puppet)
    puppet.ask(f"free-async {puppet.ask(f'async {60 * MIB} 1')['id']} 1")
    puppet.ask(f"plain {60 * MIB}")
    assert reserved(puppet) == 0


def test_a_pool_has_a_limit(node):
    puppet = started(node)
    pool = puppet.ask(f"pool new {30 * MIB}")["pool"]
    puppet.ask(f"async {20 * MIB} 1 {pool}")
    puppet.send(f"async {20 * MIB} 1 {pool}")
    assert "OUT_OF_MEMORY" in puppet.failure()


def test_a_pool_goes_with_the_last_of_its_memory(node):
    puppet = started(node)
    pool = puppet.ask("pool new")["pool"]
    keep_all(puppet, pool)
    puppet.ask(f"pool use {pool}")
    block = puppet.ask(f"async {3 * MIB} 1")["id"]
    puppet.ask(f"set {block} 5 1")
    puppet.ask(f"pool destroy {pool}")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.ask(f"byte {block} 5")
    puppet.ask(f"free-async {block} 1")
    puppet.ask("stream sync 1")
    eventually(lambda: allocated(node) == 0, what="the broker has freed it")


def test_mistakes_get_the_drivers_errors(node):
    puppet = started(node, 2)
    block = puppet.ask(f"async {3 * MIB} 1")["id"]
    where = address(puppet, block)
    assert puppet.ask(f"free-async-address {where + 512} 1")["result"] == INVALID_VALUE
    puppet.ask("stream capture 2")
    assert puppet.ask(f"free-async {block} 2")["result"] == INVALID_VALUE, "it is not the graph's"
    puppet.ask("stream end 2")
    assert puppet.ask(f"free-async {block} 1")["result"] == 0
    assert puppet.ask(f"free-async-address {where} 1")["result"] == INVALID_VALUE
    other = puppet.ask(f"async {3 * MIB} 1")["id"]
    puppet.send(f"share {other}")
    assert "INVALID_VALUE" in puppet.failure()
    puppet.ask(f"free {other}")  # cuMemFree
    assert puppet.ask(f"free-async-address {where} 1")["result"] == INVALID_VALUE


def test_pointer_attributes_are_a_pools(node):
    puppet = started(node)
    pool = puppet.ask("pool new")["pool"]
    of_none, of_pool = puppet.ask(f"plain {MIB}")["id"], puppet.ask(f"async 1000 1 {pool}")["id"]
    of_another = puppet.ask("async 1000 1")["id"]
    handles = [puppet.ask(f"pointer {block} 17")["value"] for block in (of_none, of_pool, of_another)]
    assert handles[0] == 0 and handles[1] not in (0, handles[2]) and handles[2] != 0
    assert puppet.ask(f"pointer {of_pool} 12")["value"] == 1000  # RANGE_SIZE
    assert puppet.ask(f"pointer {of_pool} 1")["value"] == 0  # CONTEXT
    assert puppet.ask(f"pointer {of_pool} 10")["value"] == 0  # IS_LEGACY_CUDA_IPC_CAPABLE
    node.ctl("pause", "train")
    assert puppet.ask(f"pointer {of_pool} 17")["value"] == handles[1]


def test_other_devices_have_the_access_that_the_pool_gives(node):
    puppet = started(node)
    before = puppet.ask(f"async {3 * MIB} 1")["id"]
    assert puppet.ask(f"access {before} 1")["flags"] == 0
    puppet.ask("pool access 0 1 3")
    after = puppet.ask(f"async {12 * MIB} 1")["id"]
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    assert [puppet.ask(f"access {block} 1")["flags"] for block in (before, after)] == [3, 3]


def test_frees_and_trims_do_not_wait_for_a_resume(node):
    puppet = started(node)
    keep_all(puppet)
    blocks = [puppet.ask(f"async {12 * MIB} 1")["id"] for _ in range(2)]
    for block in blocks:
        puppet.ask(f"fill {block} {block}")
    node.ctl("pause", "train")
    assert allocated(node) == 24 * MIB
    puppet.ask(f"free-async {blocks[0]} 1")
    puppet.ask("pool trim 0 0")
    assert allocated(node) == 12 * MIB
    puppet.send(f"async {12 * MIB} 1")
    puppet.stands()
    node.ctl("resume", "train")
    puppet.answer()
    puppet.ask(f"verify {blocks[1]} {blocks[1]}")


def test_a_stream_that_is_destroyed_before_its_free_is_done(node):
    puppet = started(node, 2)
    keep_all(puppet)
    block = puppet.ask(f"async {12 * MIB} 1")["id"]
    first = address(puppet, block)
    puppet.ask("stream hold 1")
    puppet.ask(f"set {block} 7 1")
    puppet.ask(f"free-async {block} 1")
    puppet.ask("stream destroy 1")
    assert address(puppet, puppet.ask(f"async {12 * MIB} 2")["id"]) != first
    puppet.ask("stream go 1")

    def rest():
        puppet.ask("pool trim 0 0")
        return reserved(puppet)
    eventually(lambda: rest() == 12 * MIB, what="the stream has come to its free")


def test_the_legacy_stream_keeps_the_order_of_streams_that_wait_for_it(node):
    """A free in it comes after their work, and work of theirs after the next allocation in it."""
    puppet = node.puppet(scope="heap")
    for _ in range(2):
        puppet.ask("stream blocking")
    keep_all(puppet)
    block = puppet.ask(f"async {12 * MIB} 0")["id"]
    first = address(puppet, block)
    puppet.ask("stream hold 1")
    puppet.ask(f"set {block} 7 1")
    puppet.ask(f"free-async {block} 0")
    again = puppet.ask(f"async {12 * MIB} 0")["id"]
    assert address(puppet, again) == first
    puppet.ask(f"set {again} 9 2")
    puppet.ask("stream go 1")
    for stream in (1, 2):
        puppet.ask(f"stream sync {stream}")
    puppet.ask(f"byte {again} 9")


def test_work_in_the_legacy_stream_is_in_front_of_frees_in_others(node):
    puppet = node.puppet(scope="heap")
    puppet.ask("stream blocking")
    puppet.ask("stream new")
    keep_all(puppet)
    block = puppet.ask(f"async {12 * MIB} 1")["id"]
    first = address(puppet, block)
    puppet.ask("stream hold 0")
    puppet.ask(f"set {block} 7 0")
    puppet.ask(f"free-async {block} 1")
    assert address(puppet, puppet.ask(f"async {12 * MIB} 2")["id"]) != first
    puppet.ask("stream go 0")


def test_memory_that_nothing_has_used_is_still_behind_what_was_there_before(node):
    puppet = started(node, 2)
    keep_all(puppet)
    block = puppet.ask(f"async {12 * MIB} 1")["id"]
    first = address(puppet, block)
    puppet.ask("stream hold 1")
    puppet.ask(f"set {block} 7 1")
    puppet.ask(f"free-async {block} 1")
    again = puppet.ask(f"async {12 * MIB} 1")["id"]
    assert address(puppet, again) == first
    puppet.ask(f"free {again}")  # cuMemFree, which waits for nothing
    assert address(puppet, puppet.ask(f"async {12 * MIB} 2")["id"]) != first
    puppet.ask("stream go 1")


def test_the_pool_is_that_of_the_streams_device(node):
    """Whichever device is current; and another device's, if the program says so."""
    puppet = started(node)
    there = puppet.ask("stream new 1")["stream"]
    block = puppet.ask(f"async {3 * MIB} {there}")["id"]
    of_pool = puppet.ask(f"async {3 * MIB} {there} 0")["id"]
    assert [puppet.ask(f"pointer {each} 9")["value"] for each in (block, of_pool)] == [1, 0]  # DEVICE_ORDINAL
    puppet.ask(f"set {block} 5 {there}")
    puppet.ask(f"set {of_pool} 6 {there}")
    for _ in range(2):
        node.ctl("pause", "train")
        assert allocated(node) == 6 * MIB and all(each["used_bytes"] <= node.CONTEXT_BYTES for each in node.ctl.status()["devices"])
        node.ctl("resume", "train")
    puppet.ask(f"byte {block} 5")
    puppet.ask(f"byte {of_pool} 6")
    puppet.ask(f"free-async {block} {there}")
    puppet.ask(f"stream sync {there}")
    eventually(lambda: allocated(node) == 3 * MIB, what="the broker has freed it")


def test_a_threads_own_stream(node):
    puppet = started(node)
    keep_all(puppet)
    block = puppet.ask(f"async {12 * MIB} t")["id"]
    puppet.ask(f"set {block} 7 t")
    first = address(puppet, block)
    puppet.ask(f"free-async {block} t")
    again = puppet.ask(f"async {12 * MIB} t")["id"]
    assert address(puppet, again) == first
    puppet.ask(f"free-async {again} t")
    node.ctl("pause", "train")
    assert allocated(node) == 0
    node.ctl("resume", "train")


def test_while_a_stream_is_captured_others_allocate(node):
    puppet = started(node, 2)
    keep_all(puppet)
    block = puppet.ask(f"async {12 * MIB} 1")["id"]
    first = address(puppet, block)
    puppet.ask("stream capture 2")
    puppet.ask(f"free-async {block} 1")
    again = puppet.ask(f"async {12 * MIB} 1")["id"]
    assert address(puppet, again) == first
    puppet.ask(f"free-async {again} 1")
    puppet.ask("stream sync 1")
    assert puppet.ask("stream end 2")["result"] == 0
    assert address(puppet, puppet.ask(f"async {12 * MIB} 2")["id"]) == first


def test_pauses_in_the_middle_of_allocations(node):
    """On two streams, each block written on one and read on the other."""
    puppet = started(node, 3)
    keep_all(puppet)
    for size in (MIB // 2, 3 * MIB, 12 * MIB):
        puppet.send(f"pool churn 400 {size}")
        for _ in range(3):
            assert node.ctl("pause", "train").json["unbrokered_bytes"] == 0
            node.ctl("resume", "train")
        assert puppet.answer(60)["wrong"] == 0


def test_memory_of_a_pool_that_others_may_import_stays_the_drivers(node):
    puppet = started(node)
    pool = puppet.ask("pool new 0 exportable")["pool"]
    block = puppet.ask(f"async {3 * MIB} 1 {pool}")["id"]
    puppet.ask(f"set {block} 5 1")
    puppet.wait_for("warning: cuMemAllocFromPoolAsync of 3145728 bytes: amem cannot broker memory of this kind")
    assert node.ctl("pause", "train").json["unbrokered_bytes"] == 3 * MIB
    node.ctl("resume", "train")
    puppet.ask(f"byte {block} 5")
    assert puppet.ask(f"free-async {block} 1")["result"] == 0
    puppet.ask("stream sync 1")
    assert reserved(puppet, pool) == 0


@pytest.mark.parametrize("engine", [False, True])
def test_memory_for_a_decompression_engine_that_there_is_stays_the_drivers(bare_node, engine):
    """RMM's pool asks for that with every driver of 12.8 and later."""
    if engine:
        bare_node.settings["AMEM_SIM_DECOMPRESS"] = "1"
    bare_node.start_broker()
    puppet = started(bare_node)
    pool = puppet.ask("pool new 0 decompression")["pool"]
    puppet.ask(f"async {3 * MIB} 1 {pool}")
    assert bare_node.ctl("pause", "train").json["unbrokered_bytes"] == (3 * MIB if engine else 0)


def test_a_region_has_its_own_memory_of_a_pool(node):
    """A pause by its tag leaves the rest, and nobody gets what is paused."""
    program = Program(node)
    program.ask("region begin weights 1")
    program.ask(f"unbrokered pool {3 * MIB}")
    program.ask("region end")
    program.ask(f"unbrokered pool {3 * MIB}")
    assert program.brokered() == {("heap", 0): 3 * MIB, ("weights", 0): 3 * MIB}
    program.ask("unbrokered free")
    assert program.brokered() == {}
    assert program.unbrokered() == {}
