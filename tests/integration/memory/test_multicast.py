"""Multicast objects (NVLS): brokered memory that is bound to one goes and comes like any other."""
import pytest

from sim_node import MIB, SLEEP, chosen, eventually
from sim_node.footprint import Footprint

MULTICAST_SUPPORTED = 132  # CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
NVLS = {"AMEM_NVLS": "1"}
SIZE = 2 * MIB


def used(node):
    return [device["used_bytes"] for device in node.ctl.devices()]


def both(puppets, command):
    for puppet in puppets:
        puppet.send(command)
    return [puppet.answer() for puppet in puppets]


def refused(puppet, command, error):
    puppet.send(command)
    assert error in puppet.failure()


def pair(node, env=NVLS):
    """Two puppets with an object, to which nothing is bound yet."""
    puppets = [node.puppet(f"puppet{i}", i, env=env) for i in range(2)]
    puppets[0].ask(f"team create {SIZE} 2")
    puppets[0].ask(f"team offer {node.dir}")
    puppets[1].ask(f"team join {node.dir} {SIZE}")
    return puppets


def team(node, way="bind"):
    """As NCCL sets it up: each has a block of the object's size, bound and mapped."""
    puppets = pair(node)
    both(puppets, "team add")
    assert [answer["id"] for answer in both(puppets, f"alloc {SIZE} whole")] == [1, 1]
    both(puppets, f"team {way} 1 0")
    both(puppets, "team map")
    return puppets


def broadcast(puppets, seed):
    for i, puppet in enumerate(puppets):
        puppet.ask(f"team write {seed + i}")
        both(puppets, f"verify 1 {seed + i}")


def pause(node):
    node.ctl("pause", "train")
    assert used(node) == [node.CONTEXT_BYTES] * 2


def resume(node):
    node.ctl("resume", "train")
    assert used(node) == [node.CONTEXT_BYTES + SIZE] * 2


@pytest.mark.parametrize("way", ["bind", "bind-address", "bind-for", "bind-address-for"])
def test_twenty_cycles(node, way):
    if way.endswith("-for") and float(chosen().get("AMEM_SIM_DRIVER", "13.1")) < 13.1:
        pytest.skip("these calls are of CUDA 13.1")
    puppets = team(node, way)
    broadcast(puppets, 1)

    def cycles(times):
        for i in range(times):
            pause(node)
            resume(node)
            both(puppets, "verify 1 2" if i == 0 else f"verify 1 {10 * i + 1}")
            broadcast(puppets, 10 * (i + 1))

    cycles(5)
    puppets[0].ask("team write 1")
    puppets[0].ask("team write 2")
    footprints = [Footprint(each) for each in (node.broker, *puppets)]
    cycles(20)
    for each in footprints:
        each.check()
    both(puppets, "team unbind 1 0")
    both(puppets, "team unmap")
    both(puppets, "team release")
    both(puppets, "free 1")
    eventually(lambda: used(node) == [node.CONTEXT_BYTES] * 2)
    for puppet in puppets:
        puppet.leave()


def test_a_bind_waits_for_the_team(node):
    puppets = pair(node)
    puppets[0].ask("team add")
    both(puppets, f"alloc {SIZE} whole")
    puppets[0].send("team bind 1 0")
    puppets[0].stands(SLEEP)  # as the simulated driver waits for the team
    # The rank inside the bind is busy, so there is no cut, and nothing has happened.
    answer = node.ctl.try_("pause", "train", "--timeout", "300ms")
    assert answer.code == 6, answer
    puppets[0].stands(SLEEP)
    puppets[1].ask("team add")
    puppets[0].answer()
    puppets[1].ask("team bind 1 0")
    both(puppets, "team map")
    broadcast(puppets, 1)
    pause(node)
    resume(node)
    broadcast(puppets, 3)


def test_a_device_is_added_while_the_gate_is_shut(node):
    puppets = pair(node)
    puppets[0].ask("team add")
    both(puppets, f"alloc {SIZE} whole")
    puppets[0].send("team bind 1 0")
    puppets[0].stands(SLEEP)
    operation = node.ctl.start("pause", "train")
    operation.wait_phase("quiesce")
    puppets[1].ask("team add")
    puppets[0].answer()
    assert operation.finish().code == 0
    assert used(node) == [node.CONTEXT_BYTES] * 2
    resume(node)
    puppets[1].ask("team bind 1 0")
    both(puppets, "team map")
    broadcast(puppets, 1)


def test_no_rank_runs_before_all_are_bound_again(node):
    puppets = team(node)
    broadcast(puppets, 1)
    pause(node)
    puppets[1].faults("cuMulticastBindMem:*:hold")
    puppets[0].send("team write 5")  # waits at the gate, and fails if it passes too early
    puppets[0].stands()
    operation = node.ctl.start("resume", "train")
    operation.wait_phase("map+load", ranks_done=1)
    puppets[0].stands()
    puppets[1].faults()
    assert operation.finish().code == 0
    puppets[0].answer()
    both(puppets, "verify 1 5")


def test_memory_that_is_only_bound(node):
    """Neither handle nor mapping left: the binding keeps it, through cycles too, until the object goes."""
    puppets = team(node)
    both(puppets, "free 1")
    assert used(node) == [node.CONTEXT_BYTES + SIZE] * 2
    both(puppets, "team release")  # the mapping keeps the object
    for value in (1, 2, 3):
        puppets[0].ask(f"team set {value}")
        pause(node)
        resume(node)
    both(puppets, "team unmap")
    eventually(lambda: used(node) == [node.CONTEXT_BYTES] * 2)
    assert node.ctl.group("train")["allocation_count"] == 0


def test_two_blocks_one_of_which_is_taken_out(node):
    puppets = pair(node)
    both(puppets, "team add")
    for at, each in enumerate((1, 2)):
        both(puppets, f"alloc {SIZE // 2} whole")
        both(puppets, f"team bind {each} {at * SIZE // 2}")
    both(puppets, "team map")
    puppets[0].ask("team write 7")
    both(puppets, "verify 1 7")  # the second block has the rest of the pattern
    both(puppets, f"team unbind 2 {SIZE // 2}")
    pause(node)
    resume(node)
    refused(puppets[0], f"team unbind 2 {SIZE // 2}", "CUDA_ERROR_INVALID_VALUE")
    both(puppets, "verify 1 7")
    both(puppets, f"team bind 2 {SIZE // 2}")
    puppets[1].ask("team write 8")
    both(puppets, "verify 1 8")


def test_binding_again_fails(node):
    puppets = team(node)
    broadcast(puppets, 1)
    pause(node)
    puppets[1].faults("cuMulticastBindMem:1:2")
    answer = node.ctl.try_("resume", "train")
    assert answer.code != 0
    assert "multicast" in answer.error
    assert node.ctl.state("train") == "paused"
    assert used(node) == [node.CONTEXT_BYTES] * 2
    puppets[1].faults()
    resume(node)
    both(puppets, "verify 1 2")
    broadcast(puppets, 5)


def test_making_fails(node):
    """What is bound its rank makes itself, also for a resume: a failure there rolls it back like any other."""
    puppets = team(node)
    broadcast(puppets, 1)
    pause(node)
    puppets[1].faults("cuMemCreate:1:2")
    answer = node.ctl.try_("resume", "train")
    assert answer.code == 7, answer  # as when amemd finds no space
    assert "has not made it" in answer.error and f"pid {puppets[1].pid}" in answer.error
    assert node.ctl.state("train") == "paused"
    assert used(node) == [node.CONTEXT_BYTES] * 2
    puppets[1].faults("cuMemExportToShareableHandle:1:999")
    answer = node.ctl.try_("resume", "train")
    assert answer.code != 0 and "has not made it" in answer.error
    assert used(node) == [node.CONTEXT_BYTES] * 2
    puppets[1].faults()
    resume(node)
    both(puppets, "verify 1 2")
    broadcast(puppets, 5)


def test_making_takes_too_long(node_with):
    # The rank does not answer the rollback either, so each phase of it takes the whole deadline.
    node = node_with("--deadlines-create", "2s", "--deadlines-release", "3s")
    puppets = team(node)
    broadcast(puppets, 1)
    pause(node)
    puppets[1].faults("cuMemCreate:*:hold")
    answer = node.ctl.try_("resume", "train")
    assert answer.code != 0 and "has not made" in answer.error and f"pid {puppets[1].pid}" in answer.error
    puppets[1].faults()  # it answers now, which counts for nothing, and releases
    eventually(lambda: node.ctl.state("train") == "paused")
    eventually(lambda: used(node) == [node.CONTEXT_BYTES] * 2)
    resume(node)
    both(puppets, "verify 1 2")


def test_its_maker_dies_making_it(node):
    puppets = team(node)
    broadcast(puppets, 1)
    pause(node)
    puppets[1].faults("cuMemCreate:1:kill")
    node.ctl("resume", "train")
    puppets[0].ask("verify 1 2")
    eventually(lambda: used(node) == [node.CONTEXT_BYTES + SIZE, 0])


@pytest.mark.next_broker
def test_the_broker_dies_while_it_is_made(bare_node):
    node = bare_node
    node.start_broker()
    puppets = team(node)
    broadcast(puppets, 1)
    pause(node)
    puppets[1].faults("cuMemCreate:*:hold")
    operation = node.ctl.start("resume", "train")
    operation.wait_phase("create")
    node.broker.kill()
    node.start_broker(name="amemd2")
    puppets[1].faults()
    for each in puppets:
        each.wait_for("has reconnected to the broker")
    eventually(lambda: node.ctl.state("train") == "paused" and used(node) == [node.CONTEXT_BYTES] * 2)
    resume(node)
    both(puppets, "verify 1 2")
    broadcast(puppets, 5)
    pause(node)
    resume(node)
    both(puppets, "verify 1 6")


@pytest.mark.next_broker
def test_it_is_made_after_a_restart_too(bare_node):
    """The record says whose making it is."""
    node = bare_node
    node.start_broker()
    puppets = team(node)
    broadcast(puppets, 1)
    for turn in range(2):
        if turn == 1:
            pause(node)
        node.broker.kill()
        node.start_broker(name=f"next{turn}")
        for each in puppets:
            each.wait_for("has reconnected to the broker")
    resume(node)
    both(puppets, "verify 1 2")
    broadcast(puppets, 5)


def test_what_others_keep_of_freed_memory_makes_space(node):
    puppets = pair(node)
    other = node.puppet("other", 0, env={"AMEM_SCOPE": "heap", "AMEM_MODULES": None})
    other.ask(f"plain {32 * MIB}")
    left = node.ctl.devices()[0]["total_bytes"] - used(node)[0]
    other.ask("free 1")  # and kept for half a second
    puppets[0].ask(f"alloc {left + 16 * MIB} whole")


def test_a_job_whose_memory_is_all_of_its_own_making(node):
    """Its peers import that as ever: one after the other and in one process, also when a rank ends."""
    for per_process in (1, 2):
        job = node.job(f"job{per_process}", group=f"g{per_process}", per_process=per_process, env={**NVLS, "AMEM_SHIM_WITHOUT": "slabs"})
        for _ in range(2):
            node.ctl("pause", f"g{per_process}")
            assert node.ctl.group(f"g{per_process}")["resident_bytes"] == 0
            node.ctl("resume", f"g{per_process}")
            job.check()
        job.leave()


@pytest.mark.parametrize("way", ["bind", "bind-address"])
def test_memory_of_amemds_making_is_refused_with_a_sentence(node, way):
    puppets = pair(node, env={**NVLS, "AMEM_SCOPE": "heap", "AMEM_MODULES": None})
    both(puppets, "team add")
    both(puppets, f"alloc {SIZE} whole")
    refused(puppets[0], f"team {way} 1 0", "CUDA_ERROR_INVALID_VALUE")
    puppets[0].wait_for("the driver binds only memory that the process has made itself")
    pause(node)


def test_unbinding_fails(node):
    puppets = team(node)
    broadcast(puppets, 1)
    puppets[1].faults("cuMulticastUnbind:*:1")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 1
    assert "multicast" in answer.error
    assert node.ctl.state("train") == "paused"
    assert used(node) == [node.CONTEXT_BYTES, node.CONTEXT_BYTES + SIZE]
    answer = node.ctl.try_("resume", "train")
    assert answer.code == 1
    assert "its old memory" in answer.error
    puppets[1].faults()
    eventually(lambda: used(node) == [node.CONTEXT_BYTES] * 2)
    for seed in (5, 7):
        resume(node)
        both(puppets, f"verify 1 {2 if seed == 5 else 6}")
        broadcast(puppets, seed)
        pause(node)


def test_a_member_dies(node):
    puppets = team(node)
    broadcast(puppets, 1)
    puppets[1].kill()
    eventually(lambda: used(node) == [node.CONTEXT_BYTES + SIZE, 0])
    node.ctl("pause", "train")
    assert used(node) == [node.CONTEXT_BYTES, 0]
    node.ctl("resume", "train")
    puppets[0].ask("verify 1 2")
    puppets[0].ask("team unbind 1 0")


def test_hidden_unless_asked_for(node):
    for env, value in (({}, 0), (NVLS, 1), ({"AMEM_DISABLE": "1"}, 1), ({"AMEM_MODULES": None}, 1)):
        puppet = node.puppet(f"puppet{len(node.children)}", env=env)
        assert puppet.ask(f"attribute {MULTICAST_SUPPORTED}")["value"] == value
        puppet.leave()


@pytest.mark.parametrize("way", ["bind", "bind-address"])
def test_binding_is_refused_unless_asked_for(node, way):
    puppets = pair(node, env={})
    both(puppets, "team add")
    both(puppets, f"alloc {SIZE} whole")
    refused(puppets[0], f"team {way} 1 0", "CUDA_ERROR_NOT_SUPPORTED")
    puppets[0].wait_for("AMEM_NVLS")


def test_without_a_broker(bare_node):
    puppets = team(bare_node)
    broadcast(puppets, 1)
    refused(puppets[0], "team bind 1 0", "CUDA_ERROR_INVALID_VALUE")
    both(puppets, "team unbind 1 0")
    puppets[0].send("team write 1")
    assert "CUDA_ERROR" in puppets[0].failure()
