"""A pause unmaps what it has saved while it still copies the rest. Until the Release a pause that fails maps the same memory again."""
import pytest

from sim_node import eventually
from sim_node.flipped import FlippedMemory as Memory

MIB = 1 << 20
BLOCK = 3 * MIB  # too small to have parts
BLOCKS = 4


def blocks_of(node, name="puppet", **options):
    return Memory(node, *[BLOCK] * BLOCKS, name=name, **options)


def mapped(puppet, device=0):
    """Bytes of this device's memory that the process has mapped."""
    with open(f"/proc/{puppet.pid}/maps") as file:
        lines = [line.split()[0].split("-") for line in file if f":gpu{device}:{BLOCK}:" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in lines)


def held_pause(node, memory, rule="unmappedAhead:2:hold", group="train"):
    """A pause whose rank is held when it has unmapped something."""
    memory.puppet.faults(rule)
    pause = node.ctl.start("pause", group)
    pause.wait_phase("save")
    memory.puppet.held("amem-session")
    return pause


def is_mapped_again(memory):
    eventually(lambda: mapped(memory.puppet) == BLOCKS * BLOCK, what="all of it is mapped again")


def is_as_before(node, memory):
    """It runs, with all of its bytes, and can be paused."""
    assert node.ctl.state("train") == "running"
    assert mapped(memory.puppet) == BLOCKS * BLOCK
    memory.verify()
    node.ctl("pause", "train")
    assert mapped(memory.puppet) == 0
    node.ctl("resume", "train")
    memory.verify()


def test_what_is_saved_is_unmapped_while_the_rest_is_copied(node):
    memory = blocks_of(node)
    assert mapped(memory.puppet) == BLOCKS * BLOCK
    pause = held_pause(node, memory)
    assert 0 < mapped(memory.puppet) < BLOCKS * BLOCK
    assert node.ctl.devices()[0]["brokered_bytes"] >= BLOCKS * BLOCK  # the memory is there until all is saved
    memory.puppet.faults()
    assert pause.finish().code == 0
    assert mapped(memory.puppet) == 0
    node.ctl("resume", "train")
    is_as_before(node, memory)


@pytest.mark.parametrize("env", [{"AMEM_SHIM_WITHOUT": "unmap_ahead"}, {"AMEM_VERIFY": "1"}], ids=["off", "verify"])
def test_nothing_is_unmapped_ahead(node, env):
    memory = blocks_of(node, env=env)
    memory.puppet.faults("unmappedAhead:1:kill")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    memory.verify()


def test_a_pause_that_is_called_off(bare_node):
    """A peer cannot save: what this rank has unmapped is mapped again, with its bytes."""
    node = bare_node
    node.start_broker()
    memory = blocks_of(node)
    peer = Memory(node, BLOCK, name="peer", device=1)
    peer.puppet.faults("cuMemcpyDtoHAsync:*:999")
    pause = held_pause(node, memory, f"unmappedAhead:{BLOCKS}:hold")
    assert mapped(memory.puppet) < BLOCKS * BLOCK
    memory.puppet.faults()
    assert pause.finish().code != 0
    is_mapped_again(memory)
    peer.puppet.faults()
    peer.puppet.kill()
    peer.puppet.wait()
    is_as_before(node, memory)


def test_a_pause_that_the_broker_no_longer_waits_for(bare_node):
    """The rank unmaps in a save whose deadline has passed."""
    node = bare_node
    node.start_broker("--deadlines-save", "1s")
    memory = blocks_of(node)
    memory.puppet.faults("unmappedAhead:2:hold")
    assert node.ctl.try_("pause", "train").code != 0
    memory.puppet.faults()
    is_mapped_again(memory)
    is_as_before(node, memory)


@pytest.mark.next_broker
@pytest.mark.parametrize("another", [True, False], ids=["another", "none"])
def test_amemd_dies_meanwhile(bare_node, another):
    """The rank maps all of it again, whether or not there is a next amemd."""
    node = bare_node
    node.start_broker()
    memory = blocks_of(node, env={} if another else {"AMEM_RECONNECT": "0"})
    pause = held_pause(node, memory)
    node.broker.kill()
    node.broker.wait()
    memory.puppet.faults()
    assert pause.finish().code != 0
    is_mapped_again(memory)
    if not another:
        memory.verify()
        return
    node.start_broker()
    eventually(lambda: node.ctl.group("train") is not None and node.ctl.state("train") == "running", what="the rank reconnects")
    is_as_before(node, memory)


def test_the_rank_dies_meanwhile(node):
    memory = blocks_of(node)
    other = Memory(node, BLOCK, name="other", group="other")
    pause = held_pause(node, memory)
    memory.puppet.kill()
    memory.puppet.wait()
    assert pause.finish().code != 0
    eventually(lambda: node.ctl.group("train") is None, what="the group has gone")
    node.ctl("pause", "other")
    node.ctl("resume", "other")
    other.verify()


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "called off"])
def test_the_driver_does_not_unmap(bare_node, saved):
    """What it refuses to unmap stays mapped, until it is released or the pause is called off."""
    node = bare_node
    node.start_broker("--deadlines-save", "1s")
    memory = blocks_of(node)
    memory.puppet.faults("cuMemUnmap:1:999", "cuMemUnmap:2:999", "unmappedAhead:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save")
    memory.puppet.held("amem-session")
    if saved:
        memory.puppet.faults()
    assert (pause.finish().code == 0) == saved
    if saved:
        assert mapped(memory.puppet) == 0
        node.ctl("resume", "train")
    else:
        memory.puppet.faults()
        is_mapped_again(memory)
    is_as_before(node, memory)


def test_the_driver_does_not_map_again(bare_node):
    """Nothing is as before, so the process's calls fail, with an error that says why."""
    node = bare_node
    node.start_broker("--deadlines-save", "1s")
    memory = blocks_of(node)
    memory.puppet.faults("unmappedAhead:2:hold")
    assert node.ctl.try_("pause", "train").code != 0
    memory.puppet.faults("cuMemMap:*:2")
    error = memory.puppet.wait_for("This process cannot go on", stream="err")
    assert "mapping allocation " in error and "CUDA_ERROR_OUT_OF_MEMORY" in error and "Restart the job" in error
    memory.puppet.send(f"fill {next(iter(memory.blocks))} 1")
    assert "CUDA_ERROR_SYSTEM_NOT_READY" in memory.puppet.json_line()["error"]
