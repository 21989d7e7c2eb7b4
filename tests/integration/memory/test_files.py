"""GPUDirect Storage, with the stand-in for libcufile in tests/workload/rdma. test_nic.py tests registered buffers."""
import os

import pytest

from sim_node import MIB, eventually
from test_nic import SIZE, block, pinned, rank, register, stays

READS = (0, 17)  # the system calls read and pread64
EXPORTED = ["cuFileBufRegister", "cuFileBufDeregister", "cuFileDriverClose", "cuFileDriverClose_v2", "cuFileRead", "cuFileWrite",
            "cuFileReadAsync", "cuFileWriteAsync", "cuFileBatchIOSubmit", "cuFileBatchIODestroy"]


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


def half_read(puppet, address, tmp_path, how="read"):
    """A read of 1 MiB of which nothing has come yet: the writing end of its file."""
    fifo = tmp_path / "file"
    os.mkfifo(fifo)
    puppet.send(f"nic {how} {address} {MIB} {fifo}")
    return open(fifo, "wb")


def test_a_pause_waits_for_a_read(node, tmp_path):
    """The bytes go to the memory by DMA that the driver knows nothing of."""
    puppet = opened(node)
    five = saved(puppet, 5, tmp_path)
    mine, address = block(puppet, 1, "plain", MIB)
    with half_read(puppet, address, tmp_path) as file:
        eventually(lambda: puppet.system_call() in READS, what="it reads: it has only opened the file before")
        refused = node.ctl.try_("pause", "train", "--timeout", "2s")
        assert refused.code != 0 and "has work running on" in refused.err
        file.write(five)
    puppet.answer()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.ask(f"verify {mine} 5")


def test_a_pause_waits_for_a_streams_read(node, tmp_path):
    puppet = opened(node)
    five = saved(puppet, 5, tmp_path)
    mine, address = block(puppet, 1, "plain", MIB)
    with half_read(puppet, address, tmp_path, "begin-read") as file:
        puppet.answer()
        refused = node.ctl.try_("pause", "train", "--timeout", "2s")
        assert refused.code != 0 and "has work running on" in refused.err
        file.write(five)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.ask("nic end-read")
    puppet.ask(f"verify {mine} 5")


def test_a_streams_read_waits_for_the_resume(node, tmp_path):
    """Before it is the stream's: nothing would hold the stream up while the group is paused."""
    puppet = opened(node)
    five = saved(puppet, 5, tmp_path)
    mine, address = block(puppet, 1, "plain", MIB)
    node.ctl("pause", "train")
    with half_read(puppet, address, tmp_path, "begin-read") as file:
        puppet.stands()
        node.ctl("resume", "train")
        file.write(five)
    puppet.answer()
    puppet.ask("nic end-read")
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


def paused(node, tmp_path, **env):
    """A running program with a block whose tag is paused, and what a read is to bring."""
    puppet = opened(node, env={"AMEM_MODULES": None, **env})
    five = saved(puppet, 5, tmp_path)
    mine, address = block(puppet, 1, "plain", MIB)
    node.ctl("pause", "train", "--tag", "heap")
    return puppet, five, mine, address


def test_a_read_waits_for_its_tag(node, tmp_path):
    puppet, five, mine, address = paused(node, tmp_path)
    with half_read(puppet, address, tmp_path) as file:
        puppet.stands()
        assert "paused with its tag 'heap'" in puppet.wait_for("cuFileRead: 0x")
        node.ctl("pause", "train")  # the call is not inside the gate
        node.ctl("resume", "train")
        file.write(five)
    puppet.answer()
    puppet.ask(f"verify {mine} 5")


def test_a_streams_read_waits_for_its_tag(node, tmp_path):
    puppet, five, mine, address = paused(node, tmp_path)
    with half_read(puppet, address, tmp_path, "begin-read") as file:
        puppet.stands()
        assert "paused with its tag 'heap'" in puppet.wait_for("cuFileReadAsync: 0x")
        node.ctl("resume", "train", "--tag", "heap")
        file.write(five)
    puppet.answer()
    puppet.ask("nic end-read")
    puppet.ask(f"verify {mine} 5")


def test_a_streams_read_that_may_not_wait(node, tmp_path):
    puppet = opened(node, env={"AMEM_GATE": "error"})
    _, address = block(puppet, 1, "plain", MIB)
    node.ctl("pause", "train")
    with half_read(puppet, address, tmp_path, "begin-read"):
        assert "cuFileReadAsync: 5036" in puppet.failure()
    node.ctl("resume", "train")


def test_a_write_waits_for_its_tag(node, tmp_path):
    puppet, _, _, address = paused(node, tmp_path)
    puppet.send(f"nic write {address} {MIB} {tmp_path / 'again'}")
    puppet.stands()
    node.ctl("resume", "train", "--tag", "heap")
    puppet.answer()
    puppet.ask(f"nic write {address} {MIB} {tmp_path / 'once-more'}")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "once-more").read_bytes()


@pytest.mark.parametrize("settings, error, line", [
    ({"AMEM_GATE": "error"}, "Resource temporarily unavailable", "Resume this tag first (AMEM_GATE=error)"),
    ({"AMEM_GATE": "1s"}, "Connection timed out", "was not resumed within the time of AMEM_GATE")])
def test_a_read_that_may_not_wait_for_its_tag(node, tmp_path, settings, error, line):
    puppet, five, mine, address = paused(node, tmp_path, **settings)
    with half_read(puppet, address, tmp_path):
        assert f"cuFileRead: {error}" in puppet.failure()
    assert "cuFileRead: 0x" in puppet.wait_for(line)
    node.ctl("resume", "train", "--tag", "heap")
    (tmp_path / "again").write_bytes(five)
    puppet.ask(f"nic read {address} {MIB} {tmp_path / 'again'}")
    puppet.ask(f"verify {mine} 5")


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


def test_a_batch_pins_new_memory_at_an_address_that_it_had_before(node):
    puppet = opened(node)
    before = set()
    for _ in range(10):  # what else the process maps may take the address of a freed block
        blocks = [block(puppet, 1, "alloc") for _ in range(4)]
        again = [each for each in blocks if each[1] in before]
        if again:
            break
        for _, address in blocks:
            puppet.ask(f"nic submit {address} {SIZE}")
            before.add(address)
        for mine, _ in blocks:
            puppet.ask(f"free {mine}")
    else:
        pytest.fail("no new block has the address of one that was freed")
    second, address = again[0]
    eventually(lambda: pinned(node) == 0, what="only freed memory was pinned")
    puppet.ask(f"nic submit {address} {SIZE}")
    assert SIZE <= pinned(node) < 2 * SIZE
    node.ctl("pause", "train")
    puppet.ask(f"nic arrive {SIZE} 3")
    node.ctl("resume", "train")
    puppet.ask(f"verify {second} 3")
    puppet.ask("nic destroy")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")


@pytest.mark.parametrize("name", EXPORTED)
def test_without_the_library_a_lookup_finds_nothing(node, name):
    puppet = rank(node)
    puppet.send(f"lookup-name {name}")
    assert "nobody's function" in puppet.failure()
