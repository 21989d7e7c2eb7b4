"""Sparse saves: only blocks that are not zero go to the pool, and every byte comes back."""
import os
import signal

import pytest

from sim_node.node import eventually

MIB = 1 << 20
WITH_ZEROS = {"size": "4MiB", "allocations": 6, "arguments": ["--zeros", 80]}


@pytest.fixture(autouse=True)
def exact(request):
    """An allocation each, so that the pool's figures are the data's. test_slabs.py has them packed."""
    for name in ("node", "bare_node"):
        if name in request.fixturenames:
            request.getfixturevalue(name).settings["AMEM_SHIM_WITHOUT"] = "slabs"


def pool_used(node):
    return node.ctl.status()["pool"]["used_bytes"]


def cycle(node, job):
    """One pause and resume, every byte looked at; the bytes of the group, and those saved of them."""
    checksums = job.ask("checksum")
    node.ctl("pause", "train")
    group = node.ctl.group("train")
    used = pool_used(node)
    assert group["saved_bytes"] <= used <= group["saved_bytes"] + group["allocation_count"] * 64 * 1024
    node.ctl("resume", "train")
    assert job.ask("checksum") == checksums
    job.check()
    assert pool_used(node) == 0
    return group["allocated_bytes"], group["saved_bytes"]


@pytest.mark.parametrize("flags, share", [((), 0.4), (("--pool-save", "sparse"), 0.4), (("--without", "sparse"), 1)])
def test_each_form(bare_node, flags, share):
    node = bare_node
    node.start_broker(*flags)
    job = node.job(**WITH_ZEROS)
    allocated, saved = cycle(node, job)
    assert saved == allocated if share == 1 else 0 < saved < share * allocated
    job.ask("rewrite")  # other blocks are zero now
    cycle(node, job)


def test_data_without_zeros_are_copied_whole(node):
    job = node.job(size="4MiB", allocations=4)
    allocated, saved = cycle(node, job)
    # But for the buffers of communicators.
    assert 0.9 * allocated < saved <= allocated


def test_the_form_of_a_tag(node):
    job = node.job(**WITH_ZEROS)
    answer = node.ctl("policy", "train", "nccl", "--save", "dense")
    assert answer.json["form"] == "FORM_DENSE"
    assert cycle(node, job)[0] == cycle(node, job)[1]
    node.ctl("policy", "train", "nccl", "--save", "sparse")
    allocated, saved = cycle(node, job)
    assert saved < 0.4 * allocated
    assert node.ctl.group("train")["policies"] == [
        {"tag": "nccl", "policy": "POLICY_UNSPECIFIED", "form": "FORM_SPARSE"}]


def test_one_process_with_several_devices(node):
    job = node.job(ranks=2, per_process=2, **WITH_ZEROS)
    allocated, saved = cycle(node, job)
    assert saved < 0.4 * allocated


def test_many_pieces(node):
    """More than one launch takes, and more than one message names."""
    job = node.job(ranks=1, allocations=300, size="192KiB", shared=0, arguments=["--zeros", 90])
    allocated, saved = cycle(node, job)
    assert saved < 0.7 * allocated


def test_a_pool_of_memfds(bare_node):
    """As it is where the driver has no host memory to share."""
    node = bare_node
    node.start_broker("--without", "host_numa")
    assert node.ctl.status()["pool"]["place"] == "memfd"
    allocated, saved = cycle(node, node.job(**WITH_ZEROS))
    assert saved < 0.4 * allocated


def test_a_rank_cannot_change_the_size_of_a_pool_of_memfds(bare_node):
    bare_node.start_broker("--without", "host_numa")
    directory = f"/proc/{bare_node.broker.pid}/fd"
    segments = [f"{directory}/{name}" for name in os.listdir(directory)
                if "/memfd:amem-pool" in os.readlink(f"{directory}/{name}")]
    assert segments
    for segment in segments:  # the same file that ranks are given
        size = os.stat(segment).st_size
        for other in (0, size // 2, size * 2):
            with pytest.raises(PermissionError):
                os.truncate(segment, other)


@pytest.mark.parametrize("victim", [0, 1])
def test_the_keeper_dies_while_paused(node, victim):
    """Another sharer loads what it has saved: index and blocks lie in the pool."""
    job = node.job(shared=1, **WITH_ZEROS)
    node.ctl("pause", "train")
    assert node.ctl.group("train")["saved_bytes"] < 0.5 * node.ctl.group("train")["allocated_bytes"]
    job.ranks[victim].kill()
    job.ranks[victim].wait()
    eventually(lambda: node.ctl.group("train")["rank_count"] == 1, what="the broker notices")
    node.ctl("resume", "train")
    answer = job.ranks[1 - victim].ask("verify")
    assert answer["wrong"] == 0 and answer["bytes"] > 0, answer


def test_a_driver_without_kernels(bare_node):
    """It copies everything, and says so once."""
    node = bare_node
    node.start_broker("--pool-save", "sparse")
    job = node.job(**WITH_ZEROS, env={"AMEM_SIM_FAULTS": "cuModuleLoadData:*:222"})  # UNSUPPORTED_PTX_VERSION
    allocated, saved = cycle(node, job)
    assert saved == allocated
    job.leave()
    warnings = [line for line in job.ranks[0].output("err").splitlines() if "with the zeros" in line]
    assert len(warnings) == 1 and "UNSUPPORTED_PTX_VERSION" in warnings[0], warnings


@pytest.mark.parametrize("rule", ["cuLaunchKernel:*", "cuStreamSynchronize:1"])
def test_a_kernel_that_fails_calls_the_pause_off(node, rule):
    job = node.job(**WITH_ZEROS)
    job.ranks[0].faults(rule)
    answer = node.ctl.try_("pause", "train")
    assert answer.code != 0, answer
    assert node.ctl.state("train") == "running"
    eventually(lambda: pool_used(node) == 0, what="the other rank ends its copies, and its part of the pool is free again")
    job.ranks[0].faults()
    cycle(node, job)


def find_saved_byte(node):
    """Where the pool has a byte of a large allocation: a file and an offset.

    It is in the segment that holds the most. The last byte of another may be of a communicator's buffer, which has no
    zeros and is saved whole in either form. Which segment has the lowest descriptor is chance: a thread makes them."""
    descriptors = f"/proc/{node.broker.pid}/fd"
    most, place = 0, None
    for name in os.listdir(descriptors):
        path = os.path.join(descriptors, name)
        try:
            if "amem-pool" not in os.readlink(path):
                continue
        except FileNotFoundError:
            continue
        with open(path, "rb", buffering=0) as memory:
            data = memory.read()
        used = len(data) - data.count(0)
        if used > most:
            most, place = used, (path, len(data.rstrip(b"\0")) - 1)
    assert place, "nothing in the pool"
    return place


def flip_bit(place):
    path, offset = place
    with open(path, "r+b", buffering=0) as memory:
        memory.seek(offset)
        byte = memory.read(1)[0]
        memory.seek(offset)
        memory.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_verify_finds_a_flipped_bit(bare_node, form):
    node = bare_node
    node.start_broker("--pool-save", form)
    job = node.job(**WITH_ZEROS, ranks=1, shared=0, env={"AMEM_VERIFY": "1"})
    cycle(node, job)
    node.ctl("pause", "train")
    place = find_saved_byte(node)
    flip_bit(place)
    answer = node.ctl.try_("resume", "train")
    assert answer.code != 0
    assert "AMEM_VERIFY: allocation " in answer.error and "tag 'nccl'" in answer.error, answer
    assert f"({form})" in answer.error and "bytes 0 to " in answer.error, answer
    assert node.ctl.state("train") == "paused"
    flip_bit(place)  # back: the bytes are still there
    node.ctl("resume", "train")
    job.check()


def test_verify_after_the_keeper_has_died(node):
    """The checksums are not lost with the rank that took them."""
    job = node.job(shared=1, **WITH_ZEROS, env={"AMEM_VERIFY": "1"})
    node.ctl("pause", "train")
    job.ranks[0].signal(signal.SIGKILL)
    job.ranks[0].wait()
    eventually(lambda: node.ctl.group("train")["rank_count"] == 1, what="the broker notices")
    place = find_saved_byte(node)
    flip_bit(place)
    answer = node.ctl.try_("resume", "train")
    assert answer.code != 0 and "AMEM_VERIFY" in answer.error, answer
    flip_bit(place)
    node.ctl("resume", "train")
    assert job.ranks[1].ask("verify")["wrong"] == 0


def test_without_verify_nobody_notices(node):
    """What the check is for: the same flipped bit comes back silently."""
    job = node.job(ranks=1, shared=0, **WITH_ZEROS)
    node.ctl("pause", "train")
    flip_bit(find_saved_byte(node))
    node.ctl("resume", "train")
    with pytest.raises(AssertionError, match="wrong (word|result)"):
        job.ask("verify")
