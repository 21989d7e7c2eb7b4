"""A GPU is lost (an Xid, a reset, one that has fallen off the bus): docs/runbooks.md says what follows. The driver's answers are those of a
device that does no more work: every call of the ranks on it that touches memory or waits fails, or amemd's does."""
import pytest

from sim_node import MIB, Program, eventually

UNKNOWN = 999
SIZE = 16 * MIB


def two_jobs(node):
    """A group on each GPU."""
    jobs = Program(node, "lost"), Program(node, "other")
    for device, job in enumerate(jobs):
        job.ask(f"alloc {device} {SIZE}")
    return jobs


def its_job_can_only_end(node, lost):
    """Until then its bytes are in the pool; then nothing of it is left."""
    group = node.ctl.group("lost")
    assert group["state"] == "GROUP_STATE_PAUSED" and group["saved_bytes"] >= SIZE
    lost.kill()
    eventually(lambda: [each["name"] for each in node.ctl.status()["groups"]] == ["other"], what="the group is gone")
    eventually(lambda: node.ctl.status()["pool"]["used_bytes"] == 0, what="its space in the pool is free")


def test_its_ranks_lose_it_while_groups_are_paused(node):
    lost, other = two_jobs(node)
    node.ctl("pause", "lost")
    node.ctl("pause", "other")
    lost.lose_device()
    for _ in range(2):  # another try changes nothing
        answer = node.ctl.try_("resume", "lost")
        assert answer.code == 1, answer
        assert f"pid {lost.pid}" in answer.error and "CUDA_ERROR_ECC_UNCORRECTABLE" in answer.error, answer
    node.ctl("resume", "other")
    other.verify()
    its_job_can_only_end(node, lost)


def test_amemd_loses_it_while_groups_are_paused(node):
    """Its driver refuses to make memory there. Nobody has lost a byte: were the GPU to work again, the group would resume."""
    lost, other = two_jobs(node)
    node.ctl("pause", "lost")
    node.ctl("pause", "other")
    node.broker.faults(f"cuMemCreate:*:{UNKNOWN}")  # rules know no device: what else uses amemd's driver comes after
    answer = node.ctl.try_("resume", "lost")
    node.broker.faults()
    assert answer.code == 1 and "cuMemCreate" in answer.error and "CUDA_ERROR_UNKNOWN" in answer.error, answer
    assert node.ctl.state("lost") == "paused"
    node.ctl("resume", "other")
    other.verify()
    node.ctl("resume", "lost")
    lost.verify()


@pytest.mark.next_broker
def test_the_next_amemd_has_what_is_paused(bare_node):
    node = bare_node
    node.start_broker()
    lost, other = two_jobs(node)
    node.ctl("pause", "lost")
    node.ctl("pause", "other")
    lost.lose_device()
    node.broker.kill()
    node.start_broker(name="next")
    assert node.ctl.try_("resume", "lost").code == 1
    node.ctl("resume", "other")
    other.verify()
    its_job_can_only_end(node, lost)


def test_a_running_group_that_loses_it_cannot_be_paused(node):
    lost, other = two_jobs(node)
    lost.lose_device()
    answer = node.ctl.try_("pause", "lost")
    assert answer.code == 1 and "CUDA_ERROR_ECC_UNCORRECTABLE" in answer.error, answer
    assert node.ctl.state("lost") == "running" and node.ctl.status()["pool"]["used_bytes"] == 0
    node.ctl("pause", "other")
    node.ctl("resume", "other")
    other.verify()
