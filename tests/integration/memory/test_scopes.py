"""Whose memory is brokered besides NCCL's: scopes, regions, tags, and what is not."""
import pytest

from sim_node import MIB, Program, eventually

KEEP, DISCARD = 1, 2


def test_regions(node):
    program = Program(node)
    program.ask("alloc 0 5000 3")
    program.ask(f"region begin weights {KEEP}")
    program.ask("alloc 0 5000 3")
    program.ask(f"alloc 0 {3 * MIB}")
    program.ask("region end")
    program.ask(f"region begin scratch {DISCARD}")
    program.ask("alloc 0 5000 3")
    program.ask(f"alloc 1 {3 * MIB}")
    program.ask(f"expand 0 {2 * MIB} 2")
    program.ask(f"nccl 0 {2 * MIB}")
    program.ask("region end")
    program.verify()
    brokered = program.brokered()
    assert brokered == {("heap", 0): 2 * MIB, ("weights", 0): 5 * MIB, ("scratch", 0): 6 * MIB,
                        ("scratch", 1): 3 * MIB, ("nccl", 0): 2 * MIB}
    for tag in ("heap", "weights", "nccl"):
        node.ctl("policy", "train", tag, "--save", "dense")
    node.ctl("pause", "train")
    assert node.ctl.group("train")["saved_bytes"] == 9 * MIB
    assert program.paused() == brokered
    node.ctl("resume", "train")
    program.ask("zero scratch")
    program.verify()
    program.ask("rewrite")
    program.verify()


def test_an_operators_policy_goes_before_a_regions(node):
    program = Program(node)
    program.ask(f"region begin scratch {DISCARD}")
    program.ask("alloc 0 5000 3")
    program.ask("region end")
    node.ctl("policy", "train", "scratch", "keep")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.verify()


def test_a_rank_sets_a_policy(node):
    program = Program(node)
    program.ask(f"region begin scratch {KEEP}")
    program.ask("alloc 0 5000 3")
    program.ask("region end")
    program.ask(f"policy scratch {DISCARD}")
    node.ctl("pause", "train")
    assert node.ctl.group("train")["dropped_bytes"] > 0
    node.ctl("resume", "train")
    program.ask("zero scratch")
    program.verify()
    program.ask("rewrite")
    node.ctl("policy", "train", "scratch", "keep")
    program.ask(f"policy scratch {DISCARD}")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.verify()


def test_a_tag_is_paused_while_the_program_runs(node):
    program = Program(node)
    program.ask("alloc 0 5000 3")
    program.ask(f"region begin kv {KEEP}")
    first = program.ask("alloc 0 5000 2")["id"]
    large = program.ask(f"alloc 0 {3 * MIB}")["id"]
    attributes = program.ask(f"attributes {first}")
    for pause, resume in ((lambda: node.ctl("pause", "train", "--tag", "kv"),
                           lambda: node.ctl("resume", "train", "--tag", "kv")),
                          (lambda: program.ask("pause kv"), lambda: program.ask("resume kv"))):
        pause()
        assert program.paused()["kv", 0] == 5 * MIB
        assert program.ask(f"attributes {first}") == attributes
        # The program runs on; what it allocates now is there at once, beside what is paused.
        program.ask("churn 0 20")
        program.ask("free %d" % program.ask("alloc 0 5000")["id"])
        assert program.paused()["kv", 0] == 5 * MIB
        resume()
        program.verify()
    node.ctl("pause", "train", "--tag", "kv")
    program.ask(f"free {first} 2")
    program.ask(f"free {large}")
    assert ("kv", 0) not in program.brokered()
    program.verify()


def test_a_pause_drops_what_it_is_told_to_and_excepts(node):
    program = Program(node)
    program.ask("alloc 0 5000 3")
    program.ask(f"region begin kv {KEEP}")
    program.ask("alloc 0 5000 2")
    program.ask("region end")
    program.ask(f"region begin scratch {KEEP}")
    program.ask(f"alloc 0 {3 * MIB}")
    program.ask("region end")
    for pause, resume, rest in (
            (lambda: node.ctl("pause", "train", "--discard", "scratch"),
             lambda: node.ctl("resume", "train", "--except", "kv"), lambda: node.ctl("resume", "train")),
            (lambda: program.ask("pause -scratch"), lambda: program.ask("resume ^kv"), lambda: program.ask("resume"))):
        pause()
        assert node.ctl.group("train")["dropped_bytes"] >= 3 * MIB
        resume()
        assert program.paused()["kv", 0] > 0 and program.paused()["heap", 0] == 0
        rest()
        program.ask("zero scratch")
        program.verify()
        program.ask("rewrite")
    node.ctl("pause", "train", "--except", "heap", "--discard", "scratch")
    assert program.paused()["heap", 0] == 0 and program.paused()["kv", 0] > 0 and program.paused()["scratch", 0] > 0
    node.ctl("resume", "train", "--except", "heap")
    program.ask("zero scratch")
    program.verify()
    answer = node.ctl.try_("pause", "train", "--discard", "cash")
    assert answer.code == 4 and "it has memory of tags heap, kv, scratch" in answer.error, answer


def test_scope_regions(node):
    program = Program(node, scope="regions")
    outside = program.ask("alloc 0 3000000")["id"]
    program.ask("alloc 0 100")
    program.ask("region begin kv 0")
    inside = program.ask("alloc 0 3000000 2")["id"]
    program.ask("region end")
    program.ask(f"expand 0 {2 * MIB} 2")
    assert {tag for tag, _ in program.brokered()} == {"kv"}
    assert program.unbrokered() == {("device", 0): 3000100, ("vmm", 0): 4 * MIB}
    node.ctl("pause", "train")
    assert node.ctl.devices()[0]["used_bytes"] < node.CONTEXT_BYTES + 8 * MIB
    node.ctl("resume", "train")
    program.verify()
    program.ask(f"free {inside} 2")
    program.ask(f"free {outside} 2")
    program.ask("drop")
    assert not any(program.brokered().values())
    assert program.unbrokered() == {}


def test_scope_nccl_counts_what_it_does_not_broker(node):
    program = Program(node, scope="nccl")
    program.ask("region begin kv 0")
    assert "AMEM_SCOPE" in program.wait_for("warning: a region has begun")
    program.ask("alloc 0 5000")
    program.ask("region end")
    program.ask("region begin kv 0")
    program.ask("region end")
    assert not any("a region has begun" in line for line in program.rest())
    program.ask(f"nccl 0 {2 * MIB}")
    assert program.brokered() == {("nccl", 0): 2 * MIB}
    assert program.unbrokered() == {("device", 0): 5000}
    assert program.stats()["scope"] == "nccl"
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.verify()


@pytest.mark.parametrize("scope", ("nccl", "heap"))
def test_pinned_host_memory_is_listed_and_stays(node, scope):
    """NCCL's proxies, say, send from it. It is no device's: no sum of what stays on the devices has it."""
    program = Program(node, scope=scope)
    program.ask(f"nccl 0 {2 * MIB}")
    for kind, size in (("host", 5000), ("host", 6000), ("nccl_host", 7000), ("registered", 8192), ("shared", 2 * MIB)):
        program.ask(f"unbrokered {kind} {size}")
    assert program.unbrokered() == {("host", 0): 11000 + 2 * MIB, ("nccl_host", 0): 7000, ("registered", 0): 8192}
    assert all(each["host"] for each in program.stats()["unbrokered"])
    paused = node.ctl("pause", "train").json
    assert paused["unbrokered_bytes"] == 0 and node.ctl.group("train")["unbrokered_bytes"] == 0
    [rank] = node.ctl.ranks("train")
    assert {(each["kind"], each["bytes"], each["count"], each["host"]) for each in rank["unbrokered"]} == {
        ("host", 11000 + 2 * MIB, 3, True), ("nccl_host", 7000, 1, True), ("registered", 8192, 1, True)}
    assert "nccl_host" in node.ctl("ranks", "train", json_output=False).out
    assert "unbrokered_bytes{" not in node.ctl("metrics", json_output=False).out
    node.ctl("resume", "train")
    program.ask("unbrokered free")
    assert program.unbrokered() == {}


@pytest.mark.parametrize("scope", ("nccl", "regions", "heap"))
def test_nccl_without_cumem(node, scope):
    """NCCL_CUMEM_ENABLE=0: NCCL takes its memory from cuMemAlloc, and passes it on by interprocess handles."""
    program = Program(node, scope=scope)
    program.ask("peer on")
    assert node.ctl.group("train") is None  # peers are noted, and no broker is told
    program.ask("alloc 0 5000")
    large = program.ask(f"nccl_block 0 {3 * MIB}")["id"]
    small = program.ask("nccl_block 1 5000 3")["id"]
    assert {key: bytes_ for key, bytes_ in program.brokered().items() if key[0] == "nccl"} == {
        ("nccl", 0): 3 * MIB, ("nccl", 1): 2 * MIB}
    assert program.ask(f"access {large}") == program.ask(f"access {small}")
    for _ in range(2):
        node.ctl("pause", "train")
        assert node.ctl.devices()[1]["used_bytes"] == node.CONTEXT_BYTES
        node.ctl("resume", "train")
        program.verify()
    program.ask(f"free {large}")
    program.ask(f"free {small} 3")
    assert not any(bytes_ for (tag, _), bytes_ in program.brokered().items() if tag == "nccl")
    program.verify()


def test_a_thread_allocates_what_is_not_brokered(node):
    program = Program(node)
    program.ask("alloc 0 5000")
    program.ask(f"region begin kv {KEEP}")
    program.ask("unbrokered begin")
    block = program.ask("alloc 0 3000000")["id"]
    program.ask("pitch 0 1000 33")
    program.ask(f"expand 0 {2 * MIB} 2")
    program.ask(f"nccl 0 {2 * MIB}")
    for refused in ("unbrokered begin", "region end", f"region begin weights {KEEP}"):
        program.send(refused)
        assert "code 9" in program.failure()
    program.ask("unbrokered end")
    program.ask("alloc 0 5000")
    program.ask("region end")
    program.send("unbrokered end")
    assert "code 9" in program.failure()
    assert program.brokered() == {("heap", 0): 2 * MIB, ("kv", 0): 2 * MIB, ("nccl", 0): 2 * MIB}
    stays = program.unbrokered()
    assert stays["vmm", 0] == 4 * MIB and stays["device", 0] > 3000000 + 33 * 1000
    paused = node.ctl("pause", "train").json
    assert paused["unbrokered_bytes"] == sum(stays.values())
    assert node.ctl.devices()[0]["used_bytes"] >= node.CONTEXT_BYTES + sum(stays.values())
    node.ctl("resume", "train")
    program.verify()
    # Freed anywhere, it goes to the driver.
    program.ask(f"free {block}")
    program.ask("drop")
    assert ("vmm", 0) not in program.unbrokered()
    assert program.unbrokered()["device", 0] < 100000


def test_what_the_heap_keeps_freed_is_there_for_the_driver(node):
    program = Program(node)
    size = (node.ctl.devices()[0]["total_bytes"] - node.CONTEXT_BYTES) * 3 // 4
    program.ask("free %d" % program.ask(f"alloc 0 {min(size, 60 * MIB)}")["id"])
    program.ask("unbrokered begin")
    program.ask(f"alloc 0 {size}")
    program.ask("unbrokered end")
    program.verify()


def test_rules_of_regions(node):
    program = Program(node)
    program.send("region end")
    assert "code 9" in program.failure()
    for tag, policy, code in (("nccl", 0, 3), ("a/b", 0, 3), ("x" * 32, 0, 3), ("kv", 3, 3)):
        program.send(f"region begin {tag} {policy}")
        assert f"code {code}" in program.failure()
    program.ask("region begin kv 0")
    program.send("region begin kv 0")
    assert "code 9" in program.failure()
    program.ask("region end")


def test_what_is_not_brokered_is_counted(node):
    program = Program(node)
    program.ask("alloc 0 1000")
    for kind in ("own_pool", "own_pool", "managed", "array"):
        program.ask(f"unbrokered {kind} {MIB}")
    assert program.unbrokered() == {("pool", 0): 2 * MIB, ("managed", 0): MIB, ("array", 0): MIB}
    node.ctl("pause", "train")
    assert node.ctl.devices()[0]["used_bytes"] == node.CONTEXT_BYTES + 4 * MIB
    assert program.unbrokered() == {("pool", 0): 2 * MIB, ("managed", 0): MIB, ("array", 0): MIB}
    node.ctl("resume", "train")
    program.ask("unbrokered free")
    assert program.unbrokered() == {}
    program.verify()


def test_the_broker_is_told_what_is_not_brokered(node):
    program = Program(node)
    program.ask("alloc 0 1000")

    def told():
        [rank] = node.ctl.ranks("train")
        return {each["kind"]: each["bytes"] for each in rank["unbrokered"]}

    assert told() == {}
    program.ask(f"unbrokered managed {MIB}")
    program.ask(f"unbrokered own_pool {MIB}")
    expected = {"managed": MIB, "pool": MIB}
    eventually(lambda: told() == expected, what="the broker knows")
    paused = node.ctl("pause", "train").json
    assert paused["unbrokered_bytes"] == 2 * MIB and paused["pinned_bytes"] == 0
    node.ctl("resume", "train")
    program.ask("unbrokered free")
    paused = node.ctl("pause", "train").json
    assert told() == {}
    assert paused["unbrokered_bytes"] == 0


@pytest.mark.parametrize("kind, call", [("own_pool", "cuMemAllocFromPoolAsync"), ("managed", "cuMemAllocManaged")])
@pytest.mark.parametrize("scope", ["heap", "regions"])
def test_a_program_with_nothing_but_the_drivers_memory_is_in_its_group(node, scope, kind, call):
    """Of a pool that others may import, or managed. In scope regions it is about regions only."""
    program = Program(node, scope=scope)
    if scope == "regions":
        program.ask(f"unbrokered {kind} {MIB}")
        assert node.ctl("status").json["groups"] == []
        program.ask(f"region begin weights {KEEP}")
    else:
        program.ask("unbrokered begin")
        program.ask(f"unbrokered {kind} {MIB}")
        program.ask("unbrokered end")
        assert node.ctl("status").json["groups"] == []
    for _ in range(2):
        program.ask(f"unbrokered {kind} {MIB}")
    program.wait_for(f"warning: {call} of {MIB} bytes: amem cannot broker memory of this kind")
    paused = node.ctl("pause", "train").json
    assert paused["unbrokered_bytes"] == 3 * MIB
    node.ctl("resume", "train")
    program.leave()
    assert program.output("err").count("amem cannot broker memory") == 1


def test_in_scope_nccl_the_drivers_memory_is_no_news(node):
    program = Program(node, scope="nccl")
    program.ask(f"unbrokered pool {MIB}")
    program.ask(f"unbrokered managed {MIB}")
    assert node.ctl("status").json["groups"] == []
    program.leave()
    assert "amem cannot broker memory" not in program.output("err")


def test_stats(node):
    program = Program(node)
    program.ask("alloc 1 100")
    stats = program.stats()
    assert (stats["group"], stats["scope"]) == ("train", "heap")
    assert stats["rank_id"] > 0
    [brokered] = stats["brokered"]
    assert brokered == {"tag": "heap", "device": 1, "resident_bytes": 2 * MIB, "paused_bytes": 0, "imported_bytes": 0,
                        "allocations": 1}


def test_turned_off(node):
    program = Program(node, env={"AMEM_DISABLE": "1"})
    program.ask("region begin kv 0")
    program.ask("alloc 0 100")
    program.ask("region end")
    assert program.stats()["scope"] == "off"
    program.verify()
