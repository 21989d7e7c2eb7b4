"""The pool or a device is too small: nothing is lost, the error has both numbers, and it works when there is space."""
import re
import resource

from sim_node import eventually


def sizes_in(text):
    """What reads like sizes in a message."""
    return re.findall(r"\d+(?:\.\d+)? (?:[KMGT]i)?B", text)


def test_pool_too_small(bare_node):
    node = bare_node
    node.start_broker("--pool-size", "2MiB", "--pool-segment", "2MiB")
    job = node.job()
    job.ask("loop on")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 7, answer
    assert len(set(sizes_in(answer.error))) >= 2, answer.error
    assert node.ctl.state("train") == "running"
    job.ask("loop off")
    job.check()
    assert node.ctl.status()["pool"]["used_bytes"] == 0


def test_a_segment_of_the_pool_that_did_not_arrive_is_sent_again(bare_node):
    node = bare_node
    node.start_broker("--pool-size", "32MiB", "--pool-segment", "16MiB", "--pool-place", "host_numa")
    size = {"ranks": 1, "allocations": 5, "size": "2MiB"}
    # They are given segments in turn: the third's bytes fill most of that of the first, which needs both then.
    train, _, other = node.job("train", **size), node.job("second", **size), node.job("other", **size)
    node.ctl("pause", "other")
    train.ranks[0].faults("cuMemImportFromShareableHandle:1+:2")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 1 and "CUDA_ERROR_OUT_OF_MEMORY" in answer.error, answer
    assert "pool segment" in answer.error and "sends it again" in answer.error, answer
    train.check()
    train.ranks[0].faults()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    train.check()
    node.ctl("resume", "other")
    other.check()


def test_no_pool_at_all(bare_node):
    node = bare_node
    node.start_broker("--pool-size", "0", "--pool-segment", None, "--pool-chunk", None)
    job = node.job()
    assert node.ctl.try_("pause", "train").code == 7
    job.check()


def test_device_full_at_resume(bare_node):
    node = bare_node
    node.start_broker("--pool-size", "128MiB")
    job = node.job(allocations=4, size="8MiB")
    node.ctl("pause", "train")
    saved = node.ctl.group("train")["saved_bytes"]
    hog = node.job("hog", ranks=1, shared=0, allocations=8, size="8MiB")
    answer = node.ctl.try_("resume", "train")
    assert answer.code == 7, answer
    assert len(set(sizes_in(answer.error))) >= 2, answer.error
    full, roomy = node.ctl.devices()
    assert full["uuid"] in answer.error
    assert roomy["uuid"] not in answer.error
    group = node.ctl.group("train")
    assert group["state"] == "GROUP_STATE_PAUSED"
    assert group["saved_bytes"] == saved
    assert group["resident_bytes"] == 0
    hog.check()
    hog.leave()
    node.ctl("resume", "train")
    job.check()


def test_swap_into_a_full_device_leaves_both_paused(bare_node):
    node = bare_node
    node.start_broker("--pool-size", "192MiB")
    train = node.job("train", allocations=4, size="12MiB")
    node.ctl("pause", "train")
    small = node.job("small")
    hog = node.job("hog", ranks=1, shared=0, allocations=7, size="8MiB")
    answer = node.ctl.try_("swap", "small", "train")
    assert answer.code == 7, answer
    assert (node.ctl.state("small"), node.ctl.state("train")) == ("paused", "paused")
    hog.leave()
    node.ctl("resume", "train")
    node.ctl("resume", "small")
    train.check()
    small.check()


def test_a_rank_asks_for_more_than_the_device_has(node):
    job = node.job()
    used = [device["used_bytes"] for device in node.ctl.devices()]
    job.ranks[0].send(f"alloc {2 * node.MEMORY}")
    assert "OUT_OF_MEMORY" in job.ranks[0].failure()
    assert [device["used_bytes"] for device in node.ctl.devices()] == used
    job.check()


def test_figures_add_up(node):
    """What status says of groups, devices and allocations is one story."""
    train = node.job("train")
    rollout = node.job("rollout", allocations=3)
    status = node.ctl.status()
    by_group = {group["name"]: group for group in status["groups"]}
    assert set(by_group) == {"train", "rollout"}
    for device in status["devices"]:
        mine = sum(usage["resident_bytes"] for group in status["groups"] for usage in group["devices"]
                   if usage["uuid"] == device["uuid"])
        assert device["brokered_bytes"] == mine
        assert device["used_bytes"] == mine + node.context_bytes(device["ordinal"], train, rollout)
        assert device["total_bytes"] == node.MEMORY
    for job in (train, rollout):
        allocations = node.ctl("allocations", job.name).lines
        own = sum(answer["own_bytes"] for answer in job.ask("meminfo"))
        group = by_group[job.name]
        # NCCL's buffers lie in slabs, which are never full to the last byte.
        assert sum(each["size"] for each in allocations) == group["allocated_bytes"]
        assert own <= group["allocated_bytes"] < 1.5 * own
        assert len(allocations) == group["allocation_count"]
        assert all(each["resident"] and each["tag"] == "nccl" for each in allocations)
        ranks = node.ctl.ranks(job.name)
        assert [each["rank"] for each in ranks] == [0, 1]
        assert [each["pid"] for each in ranks] == [rank.pid for rank in job.ranks]
        assert sum(each["owned_bytes"] for each in ranks) == group["allocated_bytes"]


def test_no_resume_waits_for_the_table_of_descriptors(node):
    """In a process with threads the kernel takes its time to make the table larger: it is large from the start."""
    job = node.job()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for rank in job.ranks:
        eventually(lambda: rank.descriptor_space() >= min(1024, soft), what="space for a resume's descriptors")
    assert node.broker.descriptor_space() >= min(65536, hard)


def test_no_descriptor_is_left_for_an_allocation(node):
    """The error says what to do, and the group comes back once that is done."""
    job = node.job()
    node.ctl("pause", "train")
    node.broker.faults("cuMemExportToShareableHandle:3:304")
    answer = node.ctl.try_("resume", "train")
    assert answer.code != 0
    assert "LimitNOFILE" in answer.error, answer.error
    for device in node.ctl.devices():
        assert device["used_bytes"] == node.context_bytes(device["ordinal"], job)
    node.ctl("resume", "train")
    job.check()
