"""GPUDirect Storage, by the stand-in of libcufile in tests/puppet/rdma. Registered buffers are among those of test_nic.py."""
import os

import pytest

from sim_node import MIB, eventually
from test_nic import SIZE, block, pinned, rank, register, stays

EXPORTED = ["cuFileBufRegister", "cuFileBufDeregister", "cuFileDriverClose", "cuFileDriverClose_v2", "cuFileRead", "cuFileWrite",
            "cuFileBatchIOSubmit", "cuFileBatchIODestroy"]


def opened(node, **more):
    puppet = rank(node, scope="heap", **more)
    puppet.ask("nic open-files")
    return puppet


def test_the_librarys_own_memory_is_not_brokered(node):
    """Its buffers are known to the kernel, so they must not move."""
    puppet = opened(node)
    block(puppet, 1, "plain")
    assert SIZE <= node.ctl.group("train")["resident_bytes"] < 16 * MIB
    node.ctl("pause", "train")
    assert stays(node) >= 16 * MIB
    node.ctl("resume", "train")


def test_closing_the_library_unpins_what_is_left(node):
    puppet = opened(node)
    puppet.ask("nic open-files")
    _, address = block(puppet, 1, "plain")
    register(puppet, address, "file")
    puppet.ask("nic close-files")
    assert pinned(node) >= SIZE, "another user has it open"
    puppet.ask("nic close-files")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")


def test_status_says_why(node):
    puppet = opened(node)
    _, address = block(puppet, 1, "plain")
    register(puppet, address, "file")
    [allocation] = [each for each in node.ctl("allocations").lines if each["pinned"]]
    assert [each["reason"] for each in allocation["pinners"]] == ["GPUDirect Storage"]


def saved(puppet, seed, tmp_path):
    """What a block of 1 MiB has with this seed, by way of a file."""
    mine, address = block(puppet, seed, "plain", MIB)
    puppet.ask(f"nic write {address} {MIB} {tmp_path / 'saved'}")
    puppet.ask(f"free {mine}")
    return (tmp_path / "saved").read_bytes()


def half_read(puppet, address, tmp_path):
    """A read of 1 MiB of which nothing has come yet: the writing end of its file."""
    fifo = tmp_path / "file"
    os.mkfifo(fifo)
    puppet.send(f"nic read {address} {MIB} {fifo}")
    return open(fifo, "wb")


def test_a_pause_waits_for_a_read(node, tmp_path):
    """The bytes go to the memory by DMA that the driver knows nothing of."""
    puppet = opened(node)
    five = saved(puppet, 5, tmp_path)
    mine, address = block(puppet, 1, "plain", MIB)
    with half_read(puppet, address, tmp_path) as file:
        refused = node.ctl.try_("pause", "train", "--timeout", "2s")
        assert refused.code != 0 and "has work running on" in refused.err
        file.write(five)
    puppet.answer()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.ask(f"verify {mine} 5")


def test_a_read_waits_for_the_resume(node, tmp_path):
    puppet = opened(node)
    five = saved(puppet, 5, tmp_path)
    mine, address = block(puppet, 1, "plain", MIB)
    node.ctl("pause", "train")
    with half_read(puppet, address, tmp_path) as file:
        puppet.stands()
        node.ctl("resume", "train")
        file.write(five)
    puppet.answer()
    puppet.ask(f"verify {mine} 5")


def test_a_read_that_may_not_wait(node, tmp_path):
    puppet = opened(node, env={"AMEM_GATE": "error"})
    _, address = block(puppet, 1, "plain", MIB)
    node.ctl("pause", "train")
    with half_read(puppet, address, tmp_path):
        assert "cuFileRead: Resource temporarily unavailable" in puppet.failure()
    node.ctl("resume", "train")


def test_memory_of_a_batch_stays_until_its_end(node):
    puppet = opened(node)
    mine, address = block(puppet, 1, "plain")
    other, _ = block(puppet, 2, "plain")
    for _ in range(3):
        puppet.ask(f"nic submit {address} {SIZE}")
    assert SIZE <= pinned(node) < 2 * SIZE
    node.ctl("pause", "train")
    puppet.ask(f"nic arrive {SIZE} 3")
    node.ctl("resume", "train")
    puppet.ask(f"verify {mine} 3")
    puppet.ask(f"verify {other} 2")
    puppet.ask("nic destroy")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")


@pytest.mark.parametrize("name", EXPORTED)
def test_without_the_library_a_lookup_finds_nothing(node, name):
    puppet = rank(node)
    puppet.send(f"lookup-name {name}")
    assert "nobody's function" in puppet.failure()
