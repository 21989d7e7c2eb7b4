"""Ranks whose broker is killed: they come back to the next one, or do what AMEM_ORPHAN says."""
import os
import signal
import time

import pytest

from sim_node import eventually
from sim_node.program import Program

MIB = 1 << 20
KEEP, DISCARD = 1, 2


def next_broker(node, *ranks, name="amemd2"):
    """Another broker, to which these ranks have come back."""
    node.start_broker(name=name)
    for rank in ranks:
        rank.wait_for("has reconnected to the broker")


def dies(node, *ranks):
    node.broker.kill()
    for rank in ranks:
        rank.wait_for("tries to reconnect")


def cycle(node, job):
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


# ---- another broker comes ----

def test_running_ranks_run_on(bare_node):
    node = bare_node
    node.start_broker()
    job = node.job()
    before = job.addresses()
    job.ask("loop on")
    dies(node, *job.ranks)
    next_broker(node, *job.ranks)
    job.ask("loop off")
    job.check()
    assert job.addresses() == before
    cycle(node, job)
    assert len(node.ctl.ranks("train")) == 2


def test_again_and_again(bare_node):
    node = bare_node
    node.start_broker()
    job = node.job()
    for turn in range(3):
        dies(node, *job.ranks)
        next_broker(node, *job.ranks, name=f"next{turn}")
        cycle(node, job)


def test_a_paused_group_is_resumed_by_the_next(bare_node):
    node = bare_node
    node.start_broker()
    job = node.job()
    node.ctl("pause", "train")
    job.send("step 1")  # waits at the gate
    dies(node, *job.ranks)
    next_broker(node, *job.ranks)
    assert node.ctl.state("train") == "paused"
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    node.ctl("resume", "train")
    job.answers()
    job.check()
    cycle(node, job)


@pytest.mark.parametrize("rule", ["cuMemcpyDtoHAsync:2:hold", "releaseBegins:1:hold"])
def test_in_the_middle_of_a_pause(bare_node, rule):
    """The rank is inside the driver when its broker dies: it ends that, and then comes back."""
    node = bare_node
    node.start_broker()
    job = node.job()
    job.ranks[1].faults(rule)
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save" if "Memcpy" in rule else "release")
    node.broker.kill()
    assert pause.finish().code == 3
    job.ranks[1].faults()
    next_broker(node, *job.ranks)
    eventually(lambda: node.ctl.state("train") in ("running", "paused"))
    if node.ctl.state("train") == "paused":
        node.ctl("resume", "train")
    job.check()
    cycle(node, job)


@pytest.mark.parametrize("rule", ["cuMemImportFromShareableHandle:2:hold", "cuMemcpyHtoDAsync:2:hold"])
def test_in_the_middle_of_a_resume(bare_node, rule):
    node = bare_node
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    node.start_broker()
    job = node.job()
    before = job.addresses()
    node.ctl("pause", "train")
    job.ranks[1].faults(rule)
    resume = node.ctl.start("resume", "train")
    resume.wait_phase("map+load")
    node.broker.kill()
    assert resume.finish().code == 3
    job.ranks[1].faults()
    next_broker(node, *job.ranks)
    eventually(lambda: node.ctl.state("train") in ("running", "paused"))
    if node.ctl.state("train") == "paused":
        node.ctl("resume", "train")
    assert job.addresses() == before
    job.check()
    cycle(node, job)


def test_in_the_cut(bare_node):
    """Gates that the dead broker has shut are opened by the next."""
    node = bare_node
    node.start_broker()
    job = node.job()
    job.ranks[1].ask("capture begin")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    node.broker.kill()
    assert pause.finish().code == 3
    job.ranks[0].send("alloc 100000")
    job.ranks[0].stands()
    next_broker(node, *job.ranks)
    job.ranks[0].answer()
    job.ranks[1].ask("capture end")
    job.check()
    cycle(node, job)


@pytest.fixture
def puppet(bare_node):
    """One with a block that has bytes."""
    bare_node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    bare_node.start_broker()
    puppet = bare_node.puppet()
    puppet.block = puppet.ask(f"alloc {MIB}")["id"]
    puppet.ask(f"fill {puppet.block} 7")
    return puppet


def brokered(node):
    return sum(device["brokered_bytes"] for device in node.ctl.devices())


def test_memory_is_made_and_freed_meanwhile(bare_node, puppet):
    node = bare_node
    other = puppet.ask(f"alloc {MIB}")["id"]
    dies(node, puppet)
    puppet.ask(f"free {other}")
    puppet.send(f"alloc {4 * MIB}")
    puppet.stands()
    next_broker(node, puppet)
    new = puppet.answer()["id"]
    eventually(lambda: brokered(node) == 5 * MIB)
    puppet.ask(f"fill {new} 8")
    node.ctl("pause", "train")
    assert brokered(node) == 0
    node.ctl("resume", "train")
    puppet.ask(f"verify {puppet.block} 7")
    puppet.ask(f"verify {new} 8")
    puppet.leave()


def test_a_create_that_was_under_way_is_made_again(bare_node, puppet):
    node = bare_node
    node.broker.faults("cuMemCreate:1:hold")
    puppet.send(f"alloc {2 * MIB}")
    puppet.stands()
    node.broker.holding()
    dies(node, puppet)
    next_broker(node, puppet)
    puppet.answer()
    assert brokered(node) == 3 * MIB


def test_pins_are_known_to_the_next(bare_node):
    node = bare_node
    libraries = os.path.join(node.build.directory, "lib")
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"
    node.start_broker()
    puppet = node.puppet(env={"LD_LIBRARY_PATH": ":".join([node.build.sim_libraries, f"{libraries}/rdma", libraries])})
    puppet.block = puppet.ask(f"alloc {MIB}")["id"]
    puppet.ask(f"fill {puppet.block} 7")
    at = puppet.ask(f"address {puppet.block}")["address"]
    pinned = puppet.ask(f"nic register {at} {MIB} dlsym")["id"]
    other = puppet.ask(f"alloc {MIB}")["id"]
    dies(node, puppet)
    late = puppet.ask(f"nic register {puppet.ask(f'address {other}')['address']} {MIB} dlsym")["id"]
    next_broker(node, puppet)
    node.ctl("pause", "train")
    assert brokered(node) == 2 * MIB
    node.ctl("resume", "train")
    puppet.ask(f"nic deregister {pinned}")
    puppet.ask(f"nic deregister {late}")
    node.ctl("pause", "train")
    assert brokered(node) == 0
    node.ctl("resume", "train")
    puppet.ask(f"verify {puppet.block} 7")


def test_what_is_not_brokered_is_told_again(bare_node, puppet):
    node = bare_node
    puppet.ask(f"managed {MIB}")
    eventually(lambda: node.ctl.group("train")["unbrokered_bytes"] == MIB)
    dies(node, puppet)
    next_broker(node, puppet)
    eventually(lambda: node.ctl.group("train")["unbrokered_bytes"] == MIB)


def test_a_pause_asked_for_from_inside_is_asked_again(bare_node):
    node = bare_node
    node.start_broker()
    job = node.job()
    job.ranks[0].send("ncclPause")
    job.ranks[0].stands()
    dies(node, *job.ranks)
    next_broker(node, *job.ranks)
    job.ranks[1].ask("ncclPause")
    job.ranks[0].answer()
    assert node.ctl.state("train") == "paused"
    job.ask("ncclResume")
    job.check()


@pytest.mark.parametrize("command", ["fork", "fork exec"])
def test_children_of_a_rank_without_a_broker(bare_node, command):
    node = bare_node
    node.start_broker()
    job = node.job()
    dies(node, *job.ranks)
    for answer in job.ask(command):
        assert answer["status"] == 0
    next_broker(node, *job.ranks)
    job.check()
    cycle(node, job)


def test_a_rank_ends_without_a_broker(bare_node):
    node = bare_node
    node.start_broker()
    job = node.job()
    dies(node, *job.ranks)
    begin = time.monotonic()
    job.leave()
    assert time.monotonic() - begin < 10


def test_a_paused_rank_ends_without_a_broker(bare_node):
    node = bare_node
    node.start_broker()
    job = node.job()
    node.ctl("pause", "train")
    dies(node, *job.ranks)
    begin = time.monotonic()
    job.leave()
    assert time.monotonic() - begin < 10


def test_the_program_waits_for_a_broker_that_is_stopped(bare_node, puppet):
    """No death: nothing is done twice."""
    node = bare_node
    node.broker.signal(signal.SIGSTOP)
    puppet.send(f"alloc {MIB}")
    puppet.stands()
    node.broker.signal(signal.SIGCONT)
    puppet.answer()
    assert brokered(node) == 2 * MIB


# ---- no broker comes ----

def test_running_ranks_go_on_without_amem(bare_node):
    node = bare_node
    node.settings["AMEM_RECONNECT"] = "500ms"
    node.start_broker()
    job = node.job()
    node.broker.kill()
    job.send("alloc 100000")
    job.answers()  # the driver's
    for rank in job.ranks:
        rank.wait_for("Mapped memory stays")
    job.check()
    job.leave()


def test_an_allocation_that_waited_fails_where_a_broker_is_required(bare_node):
    node = bare_node
    node.settings.update({"AMEM_RECONNECT": "500ms", "AMEM_REQUIRED": "1"})
    node.start_broker()
    puppet = node.puppet()
    puppet.ask(f"alloc {MIB}")
    node.broker.kill()
    puppet.send(f"alloc {MIB}")
    assert "SYSTEM_NOT_READY" in puppet.failure()


def test_a_paused_rank_waits_for_a_broker_however_long(bare_node):
    node = bare_node
    node.settings["AMEM_RECONNECT"] = "500ms"
    node.start_broker()
    job = node.job()
    node.ctl("pause", "train")
    job.send("step 1")
    node.broker.kill()
    for rank in job.ranks:
        line = rank.wait_for("It waits for a broker")
        assert "of group train" in line and "bytes of its memory are paused" in line
        assert "Start amemd again" in line and "AMEM_ORPHAN=restore" in line
        rank.stands()
    next_broker(node, *job.ranks)
    node.ctl("resume", "train")
    job.answers()
    job.check()


def test_a_gate_stays_shut_where_others_have_some_of_the_memory(bare_node):
    """They may have let go of it."""
    node = bare_node
    node.settings["AMEM_RECONNECT"] = "500ms"
    node.start_broker()
    job = node.job()
    job.ranks[1].ask("capture begin")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    node.broker.kill()
    assert pause.finish().code == 3
    job.ranks[0].wait_for("its gate is shut and other processes share its memory")
    job.ranks[0].send("alloc 100000")
    job.ranks[0].stands()
    next_broker(node, job.ranks[0])
    job.ranks[0].answer()


def test_a_gate_opens_where_nothing_is_paused_and_nothing_shared(bare_node):
    node = bare_node
    node.settings["AMEM_RECONNECT"] = "500ms"
    node.start_broker()
    puppet = node.puppet()
    block = puppet.ask(f"alloc {MIB}")["id"]
    puppet.ask(f"fill {block} 7")
    puppet.faults("cuMemcpyDtoHAsync:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save")
    node.broker.kill()
    assert pause.finish().code == 3
    puppet.send(f"alloc {MIB}")
    puppet.stands()
    puppet.faults()
    puppet.answer()
    puppet.wait_for("Mapped memory stays")


def test_a_paused_rank_ends_if_told_to(bare_node):
    node = bare_node
    node.settings.update({"AMEM_RECONNECT": "500ms", "AMEM_ORPHAN": "exit"})
    node.start_broker()
    job = node.job()
    other = node.job("other", ranks=1, shared=0)
    node.ctl("pause", "train")
    node.broker.kill()
    for rank in job.ranks:
        assert rank.wait() == 75
        assert "The process ends with status 75 (AMEM_ORPHAN=exit)" in rank.output()
    other.ranks[0].wait_for("Mapped memory stays")
    other.check()


@pytest.fixture(params=["500ms", "0"])
def restoring(bare_node, request):
    bare_node.settings.update({"AMEM_RECONNECT": request.param, "AMEM_ORPHAN": "restore", "AMEM_SHIM_WITHOUT": "slabs"})
    bare_node.start_broker()
    return bare_node


def test_a_paused_rank_brings_its_memory_back_by_itself(restoring):
    node = restoring
    puppet = node.puppet()
    dense = puppet.ask(f"alloc {MIB}")["id"]
    sparse = puppet.ask(f"alloc {4 * MIB}")["id"]  # zeros but for what is registered below
    puppet.ask(f"fill {dense} 7")
    at = puppet.ask(f"address {sparse}")["address"]
    puppet.ask("loop linked")
    node.ctl("pause", "train")
    puppet.send(f"verify {dense} 7")
    puppet.stands()
    node.broker.kill()
    puppet.answer()
    line = puppet.wait_for("bytes from the host pool to its own memory")
    assert f"{5 * MIB} bytes" in line
    assert puppet.ask(f"address {sparse}")["address"] == at
    puppet.loop_runs()
    puppet.ask("loop off")
    puppet.ask(f"fill {sparse} 9")
    puppet.ask(f"verify {sparse} 9")
    puppet.ask(f"free {dense}")
    puppet.ask(f"alloc {MIB}")
    # It never comes back: the next broker would pause what it does not have.
    node.start_broker(name="amemd2")
    puppet.ask(f"verify {sparse} 9")
    assert not [line for line in puppet.rest() if "has reconnected to the broker" in line]
    puppet.leave()


def test_what_a_pause_dropped_comes_back_as_zeros_and_what_it_kept_with_its_bytes(restoring):
    node = restoring
    program = Program(node)
    program.ask(f"region begin scratch {DISCARD}")
    program.ask(f"alloc 0 {MIB}")
    program.ask("region end")
    program.ask(f"region begin weights {KEEP}")
    program.ask(f"alloc 0 {3 * MIB}")
    program.ask("alloc 0 5000")
    program.ask("region end")
    program.ask("zero scratch")
    node.ctl("pause", "train")
    program.send("verify")
    program.stands()
    node.broker.kill()
    answer = program.answer()
    assert answer["wrong"] == 0 and answer["bytes"] > 4 * MIB, answer
    program.wait_for("bytes from the host pool to its own memory")


def test_memory_of_a_tag_comes_back_to_a_program_that_runs(restoring):
    node = restoring
    program = Program(node)
    program.ask("alloc 0 5000")
    program.ask(f"region begin kv {KEEP}")
    program.ask(f"alloc 0 {3 * MIB}")
    program.ask("region end")
    node.ctl("pause", "train", "--tag", "kv")
    program.send("verify")
    program.stands()
    node.broker.kill()
    answer = program.answer()
    assert answer["wrong"] == 0 and answer["bytes"] > 3 * MIB, answer


def test_no_space_for_it_changes_nothing(bare_node):
    node = bare_node
    node.settings.update({"AMEM_RECONNECT": "500ms", "AMEM_ORPHAN": "restore", "AMEM_SHIM_WITHOUT": "slabs"})
    node.start_broker()
    puppet = node.puppet()
    blocks = [puppet.ask(f"alloc {MIB}")["id"] for _ in range(3)]
    for block in blocks:
        puppet.ask(f"fill {block} {block}")
    node.ctl("pause", "train")
    puppet.faults("cuMemCreate:3:2")
    node.broker.kill()
    line = puppet.wait_for("cannot restore its memory itself")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in line and "allocation" in line
    puppet.wait_for("It waits for a broker")
    puppet.faults()
    next_broker(node, puppet)
    assert brokered(node) == 0
    assert all(device["used_bytes"] <= 2 * node.CONTEXT_BYTES for device in node.ctl.devices())
    node.ctl("resume", "train")
    for block in blocks:
        puppet.ask(f"verify {block} {block}")


def test_memory_that_others_have_is_left_to_a_broker(bare_node):
    node = bare_node
    node.settings.update({"AMEM_RECONNECT": "500ms", "AMEM_ORPHAN": "restore"})
    node.start_broker()
    job = node.job()
    node.ctl("pause", "train")
    job.send("step 1")
    node.broker.kill()
    for rank in job.ranks:
        line = rank.wait_for("cannot restore its memory itself")
        assert "other processes may share it" in line and "allocation" in line
        rank.wait_for("It waits for a broker")
    next_broker(node, *job.ranks)
    node.ctl("resume", "train")
    job.answers()
    job.check()
