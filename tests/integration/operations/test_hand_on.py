"""Swaps in which memory changes hands: what the driver makes, what a death leaves, and who gets nothing."""
import os

import pytest

from sim_node import as_user, eventually
from sim_node.evaluator import Evaluator
from sim_node.node import MIB
from sim_node.turns import states

MEMORY = 24 * MIB
ALLOCATIONS = 9  # of 2 MiB: two ranks' fill a device


def moved(answer, group):
    """{how: bytes} of the group's pause or resume in this swap."""
    done = [line for line in answer.lines if line["group"] == group and line["done"]]
    return {how: int(done[-1]["memory"][f"{how}_bytes"]) for how in ("handed_on", "made", "closed")}


def spare(node):
    return sum(int(device["spare_bytes"]) for device in node.ctl("status").json["devices"])


@pytest.fixture
def twins(bare_node):
    """A node with group train running and rollout paused, alike, and no space for more."""
    def start(*flags, memory=MEMORY):
        bare_node.settings["AMEM_SIM_MEMORY"] = str(memory)
        bare_node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
        bare_node.start_broker("--pool-size", "80MiB", "--pool-segment", "80MiB", *flags)
        size = {"allocations": ALLOCATIONS, "size": "2MiB", "shared": 0.4}
        rollout = bare_node.job("rollout", **size)
        bare_node.ctl("pause", "rollout")
        train = bare_node.job("train", **size)
        assert spare(bare_node) == 0, "a process that comes finds all memory free"
        return bare_node, train, rollout

    yield start
    assert bare_node.broker.alive()


@pytest.mark.parametrize("flags", [(), ("--swap-wave", "4MiB"), ("--without", "duplex")])
def test_twins_need_nothing_new(twins, flags):
    node, train, rollout = twins(*flags)
    for out, back in [(train, rollout), (rollout, train)] * 2:
        answer = node.ctl("swap", out.group, back.group)
        left, came = moved(answer, out.group), moved(answer, back.group)
        assert left["handed_on"] == came["handed_on"] > 0
        assert came["made"] == left["closed"] <= 4 * MIB, "what came in before, where there was space"
        back.check()
    assert "handed on" in node.ctl("swap", "train", "rollout", "--explain", json_output=False).out
    past = node.ctl("history").json["operations"]
    assert int(past[-1]["memory"]["handed_on_bytes"]) > 0 and past[-1]["operation"] == "resume"
    rollout.check()


@pytest.mark.parametrize("without", ["", "hand_on"])
def test_the_driver_makes_nothing_while_twins_swap(twins, bare_node, without):
    create_us = 50_000  # of both devices, one after the other
    bare_node.settings["AMEM_SIM_DRIVER_TIMES"] = f"{create_us},0,0,0"
    node, _, rollout = twins("--without", without)
    answer = node.ctl("swap", "train", "rollout")
    took_us = max(int(line.get("swap_us", 0)) for line in answer.lines)
    assert (0 < took_us < 2 * ALLOCATIONS * create_us) == (without == "")
    rollout.check()


def test_it_can_be_switched_off(twins):
    node, _, rollout = twins("--without", "hand_on")
    answer = node.ctl("swap", "train", "rollout")
    assert moved(answer, "rollout")["handed_on"] == moved(answer, "train")["handed_on"] == 0
    rollout.check()


@pytest.mark.next_broker
@pytest.mark.parametrize("group, fault", [("train", "releaseBegins:1:hold"), ("rollout", "cuMemMap:2:hold"), ("rollout", "cuMemMap:7:hold"),
                                          ("rollout", "cuMemcpyHtoDAsync:3:hold")])
def test_the_next_amemd_gives_each_group_its_own(twins, group, fault):
    """It ends while memory leaves, and while it is the other group's already."""
    node, train, rollout = twins()
    job = {"train": train, "rollout": rollout}[group]
    job.ranks[0].faults(fault)
    swap = node.ctl.start("swap", "train", "rollout")
    eventually(lambda: node.ctl.group(group)["phase"] in ("release", "map+load"), what="memory changes hands")
    node.broker.kill()
    swap.finish()
    job.ranks[0].faults()
    node.start_broker("--pool-size", "80MiB", "--pool-segment", "80MiB")
    eventually(lambda: all(state in ("running", "paused") for state in states(node)), what="both are settled")
    for each in (train, rollout):
        for rank in each.ranks:
            rank.wait_for("has reconnected to the broker")
    for each in [name for name, state in zip(("train", "rollout"), states(node)) if state == "running"]:
        node.ctl("pause", each)
    node.ctl("resume", "train")
    train.check()
    answer = node.ctl("swap", "train", "rollout")
    assert moved(answer, "rollout")["handed_on"] > 0, "this amemd has made it"
    rollout.check()


@pytest.mark.next_broker
def test_what_another_amemd_has_made_is_not_handed_on(twins):
    node, _, rollout = twins()
    node.broker.kill()
    node.start_broker("--pool-size", "80MiB", "--pool-segment", "80MiB")
    eventually(lambda: states(node) == ("running", "paused"))
    answer = node.ctl("swap", "train", "rollout")
    assert moved(answer, "rollout")["handed_on"] == 0
    rollout.check()
    answer = node.ctl("swap", "rollout", "train")
    assert moved(answer, "train")["handed_on"] > 0


@pytest.mark.parametrize("verify", ["0", "1"])
def test_what_a_pause_frees_waits_for_a_resume(twins, bare_node, verify):
    bare_node.settings["AMEM_VERIFY"] = verify
    node, train, rollout = twins("--spare-idle", "60s")
    for out, back in [(train, train), (train, rollout), (rollout, rollout)]:
        assert moved(node.ctl("pause", out.group), out.group)["closed"] == 0
        kept = spare(node)
        assert moved(node.ctl("resume", back.group), back.group) == {"handed_on": kept, "made": 0, "closed": 0}
        assert spare(node) == 0
        back.check()


@pytest.mark.parametrize("allocate", ["'cuMemAlloc_v2', ctypes.c_size_t({})", "'cuMemAllocAsync', ctypes.c_size_t({}), None"],
                         ids=["cuMemAlloc", "cuMemAllocAsync"])
def test_the_driver_itself_finds_what_waits(twins, allocate):
    """By calls that amem does not broker."""
    node, train, _ = twins("--spare-idle", "60s", memory=MEMORY + 16 * MIB)
    script = Evaluator(node, group="other")
    script.ask("total = ctypes.c_uint64()")
    script.ask("small = made('cuMemAlloc_v2', ctypes.c_size_t(1))")  # it joins
    free = "made('cuMemGetInfo_v2', ctypes.byref(total)).value"
    node.ctl("pause", "train")
    kept, found = spare(node), script.value(free)
    assert 0 < kept // 2 < found
    assert script.value("ctypes.CDLL(None).amem_shim_unbrokered_begin(None, 0)") == 0
    script.ask(f"block = made({allocate.format(found - 2 * MIB)})")
    assert spare(node) == 0
    assert script.value(free) <= 2 * MIB
    assert script.value("cuda.cuMemFree_v2(block)") == 0
    node.ctl("resume", "train")
    train.check()


@pytest.mark.next_broker
def test_what_waits_is_free_to_everybody_else(twins):
    node, train, _ = twins("--spare-idle", "60s", memory=MEMORY + 16 * MIB)
    script = Evaluator(node, group="other")
    script.ask("total = ctypes.c_uint64()")
    free = "made('cuMemGetInfo_v2', ctypes.byref(total)).value"
    script.ask("small = made('cuMemAlloc_v2', ctypes.c_size_t(1))")  # it joins
    before = script.value(free)
    node.ctl("pause", "train")
    kept = spare(node)
    script.ask(f"block = made('cuMemAlloc_v2', ctypes.c_size_t({before + 8 * MIB}))")
    left = spare(node)
    assert 0 < left < kept, "as much is closed as it lacks"
    assert script.value("cuda.cuMemFree_v2(block)") == 0
    assert script.value(free) == before + kept // 2, "of one device of two"
    assert spare(node) == left, "a look at what is free takes nothing"
    node.ctl("resume", "train")
    train.check()
    node.ctl("pause", "train")
    assert spare(node) > 0
    node.broker.kill()
    node.start_broker("--pool-size", "80MiB", "--pool-segment", "80MiB")
    node.ctl("resume", "train")
    train.check()


@pytest.mark.parametrize("seen", ["0,1", "1"])
def test_a_process_starts_where_all_that_is_free_waits(twins, seen):
    """The driver makes the context before a call of the program could join. The GPU that the process does not see is none of its."""
    node, train, _ = twins("--spare-idle", "60s")
    node.ctl("pause", "train")
    before = [int(device["spare_bytes"]) for device in node.ctl.devices()]
    taken = [int(device["total_bytes"]) - int(device["used_bytes"]) for device in node.ctl.devices()]
    assert all(spares + node.CONTEXT_BYTES > free for spares, free in zip(before, taken)), "a context fits beside what waits"
    script = Evaluator(node, group="other", env={"CUDA_VISIBLE_DEVICES": seen})
    after = [int(device["spare_bytes"]) for device in node.ctl.devices()]
    assert after == ([0, 0] if seen == "0,1" else [before[0], 0])
    script.kill()
    node.ctl("resume", "train")
    train.check()


@pytest.mark.parametrize("call", ["cuStreamCreate, ctypes.byref(made), 0", "cuCtxCreate_v2, ctypes.byref(made), 0, 1",
                                  "cuDevicePrimaryCtxRetain, ctypes.byref(made), 1", "cuGraphInstantiateWithFlags, ctypes.byref(made), graph, 0"],
                         ids=lambda call: call.partition(",")[0])
def test_what_the_driver_lacks_for_itself_is_asked_for_again(twins, call):
    """Once: if the driver has no memory then either, the program gets its answer."""
    node, train, _ = twins("--spare-idle", "60s", memory=MEMORY + 16 * MIB)
    script = Evaluator(node, group="other")
    script.ask("made_, made = made, ctypes.c_uint64()")
    script.ask("graph = made_('cuGraphCreate', 0)")
    script.ask("small = made_('cuMemAlloc_v2', ctypes.c_size_t(1))")  # it joins
    name, _, arguments = call.partition(", ")
    for fault, result in ((f"{name}:1:2", 0), (f"{name}:*:2", 2)):
        node.ctl("pause", "train")
        assert spare(node) > 0
        script.faults(fault)
        assert script.value(f"cuda.{name}({arguments})") == result
        assert spare(node) == 0
        script.faults()
        node.ctl("resume", "train")
        train.check()


def test_a_launch_that_finds_no_memory_for_its_code_is_made_again(twins):
    node, train, _ = twins("--spare-idle", "60s", memory=MEMORY + 16 * MIB)
    puppet = node.puppet("other", 0, group="other")
    puppet.ask(f"alloc {2 * MIB} whole")
    node.ctl("pause", "train")
    assert spare(node) > 0
    puppet.faults("cuLaunchKernel:1:2")
    puppet.ask("loop linked")
    eventually(lambda: puppet.ask("loop status")["launches"] > 1, what="launches go on")
    puppet.ask("loop off")
    assert spare(node) == 0
    node.ctl("resume", "train")
    train.check()


@pytest.mark.next_broker
def test_a_look_is_at_the_gpu_that_the_program_sees(twins):
    """With the other one hidden. What waits there stays, and amemd's end closes the rest without a byte that counts twice."""
    node, train, _ = twins("--spare-idle", "60s", memory=MEMORY + 16 * MIB)
    script = Evaluator(node, group="other", env={"CUDA_VISIBLE_DEVICES": "1"})
    script.ask("total = ctypes.c_uint64()")
    script.ask("small = made('cuMemAlloc_v2', ctypes.c_size_t(1))")  # it joins
    free = "made('cuMemGetInfo_v2', ctypes.byref(total)).value"

    def waiting():
        return [int(device["spare_bytes"]) for device in node.ctl.devices()]

    before = script.value(free)
    node.ctl("pause", "train")
    hidden, seen = waiting()
    assert hidden > 0 < seen and script.value(free) == before + seen
    script.ask(f"block = made('cuMemAlloc_v2', ctypes.c_size_t({before + seen - 2 * MIB}))")
    assert waiting() == [hidden, 0]
    assert script.value("cuda.cuMemFree_v2(block)") == 0
    found = script.value(free)
    node.ctl("resume", "train")
    train.check()
    node.ctl("pause", "train")
    assert waiting() == [hidden, seen] and script.value(free) == found
    node.broker.kill()
    eventually(lambda: script.value(free) == found, what="the driver has it back")
    node.start_broker("--pool-size", "80MiB", "--pool-segment", "80MiB")
    node.ctl("resume", "train")
    train.check()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")
def test_two_owners_get_nothing_of_each_other(bare_node):
    node = bare_node
    node.settings["AMEM_SIM_MEMORY"] = str(MEMORY)
    node.start_broker()
    node.let_others_in()
    hers, his = (node.puppet(name, 0, group=name, prefix=as_user(uid, "nogroup")) for name, uid in (("alice", 65531), ("bob", 65532)))
    blocks = {}
    for puppet, name in ((hers, "alice"), (his, "bob")):
        blocks[name] = puppet.ask(f"alloc {8 * MIB} whole")["id"]
        puppet.ask(f"fill {blocks[name]} 7")
        node.ctl("pause", f"{name}")
    node.ctl("resume", "alice")
    answer = node.ctl("swap", "alice", "bob")
    assert moved(answer, "bob") == {"handed_on": 0, "made": 8 * MIB, "closed": 0}
    his.ask(f"verify {blocks['bob']} 7")
