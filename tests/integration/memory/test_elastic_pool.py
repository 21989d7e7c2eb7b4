"""A pool that is pinned only while something needs it: pool.reserve stays, the rest comes before a pause and goes when it is idle."""
import os
import pathlib
import signal

import pytest

from sim_node import as_user
from sim_node.flipped import FlippedMemory as Memory
from sim_node.node import MIB, eventually
from sim_node.program import Program
from sim_node.stage import pair, start_stage

RESERVE = 4 * MIB
SEGMENT = 4 * MIB
POOL = 64 * MIB
FLAGS = ("--pool-size", str(POOL), "--pool-segment", str(SEGMENT), "--pool-reserve", str(RESERVE))


@pytest.fixture
def elastic(bare_node):
    """Starts a node with a small reserve."""
    def start(*flags, devices=1, **options):
        bare_node.settings["AMEM_SIM_DEVICES"] = str(devices)  # of one, the driver makes the pool, so its faults keep it from that
        bare_node.start_broker(*FLAGS, *flags, **options)
        eventually(lambda: pinned(bare_node) == RESERVE, what="the reserve is pinned")
        return bare_node

    return start


def pinned(node):
    return int(node.ctl.status()["pool"]["ready_bytes"])


def pause(node, group="train"):
    """Pauses. Returns the bytes that were pinned for it first."""
    answer = node.ctl("pause", group)
    last = next(each for each in answer.lines if each.get("done"))
    return int(last.get("pool_pinned_bytes", 0)), last


def test_a_pause_pins_before_it_begins(elastic):
    node = elastic()
    memory = Memory(node, 24 * MIB)
    assert pinned(node) == RESERVE
    bytes_, last = pause(node)
    assert 20 * MIB <= bytes_ <= 24 * MIB
    assert int(last["pool_pinned_us"]) > 0
    assert any("of host memory first, in" in remark for remark in last["remarks"]), last
    assert pinned(node) == RESERVE + bytes_
    node.ctl("resume", "train")
    memory.verify()
    assert pause(node)[0] == 0, "it is still there"
    node.ctl("resume", "train")
    memory.verify()


@pytest.mark.parametrize("devices", [1, 2], ids=["host_numa", "memfd"])
def test_what_is_idle_is_given_back_while_its_ranks_live(elastic, devices):
    node = elastic("--pool-idle", "1s", devices=devices)
    memory = Memory(node, 24 * MIB)
    for _ in range(3):
        assert pause(node)[0] >= 20 * MIB
        node.ctl("resume", "train")
        eventually(lambda: pinned(node) == RESERVE, what="what nothing needs is given back")
        memory.flip(next(iter(memory.blocks)), 5 * MIB)
        memory.verify()


def test_what_is_saved_stays(elastic):
    node = elastic("--pool-idle", "1s")
    first, second = (Memory(node, 12 * MIB, name=name, group=name) for name in ("first", "second"))
    pause(node, "first")
    pause(node, "second")
    node.ctl("resume", "second")
    eventually(lambda: pinned(node) == 12 * MIB, what="what nothing needs is given back")
    second.verify()
    node.ctl("resume", "first")
    first.verify()
    eventually(lambda: pinned(node) == RESERVE, what="all is given back")


def test_a_host_without_memory_refuses_it_before_it_begins(elastic):
    node = elastic()
    memory = Memory(node, 24 * MIB)
    node.broker.faults("cuMemCreate:3+:2")
    answer = node.ctl.try_("pause", "train")
    assert answer.code != 0
    assert "amemd cannot pin the 12 MiB of host memory that the pause of group 'train' may still need" in answer.error
    assert "Nothing has changed" in answer.error
    assert node.ctl.state("train") == "running"
    memory.verify()
    node.broker.faults()
    assert pause(node)[0] > 0, "another pause tries again"
    node.ctl("resume", "train")
    memory.verify()


def test_who_stops_waiting_ends_the_growth(elastic):
    node = elastic()
    memory = Memory(node, 24 * MIB)
    node.broker.faults("cuMemCreate:3:hold")
    operation = node.ctl.start("pause", "train")
    eventually(lambda: pinned(node) > RESERVE, what="the first segment has come")
    operation.process.send_signal(signal.SIGINT)
    assert operation.finish().code != 0
    node.broker.faults()
    eventually(lambda: pinned(node) == RESERVE + 3 * SEGMENT, what="what was under way has come")
    assert node.ctl.state("train") == "running"
    memory.verify()


def test_prepare_pins_what_a_pause_needs(elastic):
    node = elastic()
    memory = Memory(node, 24 * MIB)
    assert node.ctl("pause", "train", "--dry-run").json["to_pin_bytes"] == 20 * MIB
    told = node.ctl("prepare", "train").json
    assert told["pinned_bytes"] == 20 * MIB == pinned(node) - RESERVE
    assert told["needed_bytes"] == told["available_bytes"] == 24 * MIB
    assert node.ctl("pause", "train", "--dry-run").json["to_pin_bytes"] == 0
    assert node.ctl("prepare", "train").json["pinned_bytes"] == 0
    assert "amemd pinned 0 B of host memory" in node.ctl("prepare", "train", json_output=False).out
    assert pause(node)[0] == 0
    node.ctl("resume", "train")
    memory.verify()
    assert node.ctl.try_("prepare", "nobody").error == "there is no group 'nobody'. The groups are 'train'"


def test_prepare_ends_in_time(elastic):
    node = elastic()
    Memory(node, 24 * MIB)
    node.broker.faults("cuMemCreate:2:hold")
    answer = node.ctl.try_("prepare", "train", "--timeout", "500ms")
    assert "not all of the host memory was pinned within 500ms" in answer.error
    node.broker.faults()


def test_more_than_the_pool_may_have_is_looked_through_for_zeros(elastic):
    """All that may be pinned is, and then the pause goes on as with any pool that is too small."""
    node = elastic(devices=2)
    job = node.job(size="24MiB", allocations=3, arguments=["--zeros", 90])
    told = node.ctl("prepare", "train").json
    assert told["needed_bytes"] > told["available_bytes"] == POOL == pinned(node)
    for _ in range(2):
        checksums = job.ask("checksum")
        answer = node.ctl("pause", "train")
        assert "measure" in [each["phase"] for each in answer.json["times"]]
        node.ctl("resume", "train")
        assert job.ask("checksum") == checksums


def test_a_pause_that_ranks_ask_for_is_served_in_its_save(elastic):
    node = elastic()
    program = Program(node)
    program.ask("alloc 0 25165824")
    program.send("pause")
    program.answer()
    assert pinned(node) >= 24 * MIB
    node.ctl("resume", "train")
    program.verify()


def test_a_broker_that_dies_while_it_pins(elastic):
    node = elastic("--pool-idle", "1s")
    memory = Memory(node, 24 * MIB)
    node.broker.faults("cuMemCreate:3:hold")
    operation = node.ctl.start("pause", "train")
    eventually(lambda: pinned(node) > RESERVE, what="the first segment has come")
    node.broker.kill()
    assert operation.finish().code != 0
    node.start_broker(*FLAGS, "--pool-idle", "1s", name="amemd2")
    memory.puppet.wait_for("has reconnected to the broker")
    memory.verify()
    eventually(lambda: pinned(node) == RESERVE, what="what the dead one had pinned is given back")
    pause(node)
    node.ctl("resume", "train")
    memory.verify()


@pytest.mark.parametrize("call, devices", [("cuMemUnmap", 1), ("cuMemHostUnregister", 2)])
def test_a_broker_that_dies_while_a_rank_unmaps(elastic, call, devices):
    node = elastic("--pool-idle", "1s", devices=devices)
    memory = Memory(node, 24 * MIB)
    pause(node)
    node.ctl("resume", "train")
    memory.puppet.faults(f"{call}:2:hold")
    memory.puppet.held("amem-session")
    node.broker.kill()
    node.start_broker(*FLAGS, name="amemd2")
    memory.puppet.faults()
    memory.puppet.wait_for("has reconnected to the broker")
    assert pinned(node) >= 16 * MIB, "this one gives nothing back yet"
    for _ in range(2):
        pause(node)
        node.ctl("resume", "train")
        memory.verify()
        memory.flip(next(iter(memory.blocks)), 3 * MIB)


def test_a_pause_while_a_rank_unmaps_has_the_segment_again(elastic):
    node = elastic("--pool-idle", "1s")
    memory = Memory(node, 24 * MIB)
    pause(node)
    node.ctl("resume", "train")
    memory.puppet.faults("cuMemUnmap:1:hold")
    memory.puppet.held("amem-session")
    operation = node.ctl.start("pause", "train")
    operation.wait_phase("quiesce")
    memory.puppet.faults()
    assert operation.finish().code == 0
    node.ctl("resume", "train")
    memory.verify()
    eventually(lambda: pinned(node) == RESERVE, what="what nothing needs is given back")
    pause(node)
    node.ctl("resume", "train")
    memory.verify()


def test_a_rank_that_dies_while_it_unmaps(elastic):
    node = elastic("--pool-idle", "1s")
    dies, lives = (Memory(node, 12 * MIB, name=name) for name in ("dies", "lives"))
    pause(node)
    node.ctl("resume", "train")
    dies.puppet.faults("cuMemUnmap:1:hold")
    dies.puppet.held("amem-session")
    dies.puppet.kill()
    eventually(lambda: pinned(node) == RESERVE, what="what nothing needs is given back")
    lives.verify()
    pause(node)
    node.ctl("resume", "train")
    lives.verify()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")
def test_each_owner_has_what_was_pinned_for_it(elastic):
    node = elastic("--pool-idle", "1s")
    node.let_others_in()
    hers = Memory(node, 12 * MIB, name="hers", group="hers", prefix=as_user(65531, "nogroup"))
    his = Memory(node, 12 * MIB, name="his", group="his", prefix=as_user(65532, "nogroup"))
    for _ in range(2):
        for group in ("hers", "his"):
            pause(node, group)
        for group in ("hers", "his"):
            node.ctl("resume", group)
        hers.verify()
        his.verify()
        eventually(lambda: pinned(node) == RESERVE, what="what nothing needs is given back")


def test_unequal_ranks_that_take_turns_by_swaps(elastic):
    node = elastic("--pool-idle", "1s")
    large, small = (Memory(node, size * MIB, name=f"train-{size}") for size in (20, 2))
    rollout = Memory(node, 20 * MIB, name="rollout", group="rollout")
    pause(node, "rollout")
    for out, into in (("train", "rollout"), ("rollout", "train")) * 3:
        node.ctl("swap", out, into)
        for memory in (rollout,) if into == "rollout" else (large, small):
            memory.verify()
    eventually(lambda: pinned(node) <= 24 * MIB, what="there is no more than what the paused group has saved")


def test_a_reload_takes_another_time(bare_node):
    node = bare_node
    path = pathlib.Path(node.dir, "amemd.toml")
    path.write_text("[pool]\nidle = '1h'\nreserve = '4MiB'\n")
    node.start_broker(*FLAGS[:4], config=str(path))
    memory = Memory(node, 24 * MIB)
    pause(node)
    node.ctl("resume", "train")
    assert pinned(node) > RESERVE
    path.write_text("[pool]\nidle = '1s'\nreserve = '8MiB'\n")
    node.broker.signal(signal.SIGHUP)
    eventually(lambda: pinned(node) == RESERVE, what="what nothing needs is given back, down to the old reserve")
    memory.verify()


def test_a_stage_pins_for_its_next_switch(bare_node):
    node = start_stage(bare_node, *FLAGS[2:], "--pool-idle", "1s")
    train, rollout = pair(node)
    assert node.ctl("lease", "train").code == 0
    eventually(lambda: pinned(node) <= 20 * MIB, what="there is no more than what the paused group has saved")
    waits = node.ctl.start("lease", "rollout")
    eventually(lambda: pinned(node) >= 32 * MIB, what="what the group that runs has to save is pinned")
    node.ctl("lease", "train", "--yield")
    assert waits.finish().code == 0
    rollout.check()
    node.ctl("lease", "rollout", "--yield")
    assert node.ctl("lease", "train").code == 0
    train.check()
