"""A pool that is pinned only while something needs it: pool.reserve stays, the rest comes before a pause and goes when it is idle."""
import signal

import pytest

from sim_node.flipped import FlippedMemory as Memory
from sim_node.node import MIB, eventually

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
