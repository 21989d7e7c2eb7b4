"""Pause, resume and swap: bytes, addresses, and what the driver says of the memory."""
from sim_node import Job
from sim_node.node import MIB
from sim_node.program import Program


def assert_gone(node, *jobs):
    """The driver's figures show nothing but contexts."""
    for device in node.ctl.devices():
        assert device["usage_known"]
        assert device["brokered_bytes"] == 0
        assert device["used_bytes"] == node.context_bytes(device["ordinal"], *jobs)


def pause_and_resume(node, job):
    """One cycle of a group, looked at from all sides."""
    before = job.addresses()
    used = [device["used_bytes"] for device in node.ctl.devices()]
    checksums = job.ask("checksum")

    node.ctl("pause", job.name)
    group = node.ctl.group(job.name)
    assert group["state"] == "GROUP_STATE_PAUSED"
    assert group["resident_bytes"] == 0
    assert group["allocated_bytes"] >= group["saved_bytes"] > 0  # zeros are not saved
    assert_gone(node, job)

    node.ctl("resume", job.name)
    group = node.ctl.group(job.name)
    assert group["state"] == "GROUP_STATE_RUNNING"
    assert group["resident_bytes"] == group["allocated_bytes"] > 0
    assert group["saved_bytes"] == 0
    assert node.ctl.status()["pool"]["used_bytes"] == 0
    assert [device["used_bytes"] for device in node.ctl.devices()] == used

    assert job.addresses() == before
    assert job.ask("checksum") == checksums
    job.check()


def test_memory_of_a_device_without_a_context_makes_none(node):
    puppet = node.puppet("puppet")
    block = puppet.ask(f"alloc-on 1 {MIB}")["id"]
    puppet.ask(f"fill {block} 1")
    assert node.ctl.devices()[1]["used_bytes"] == MIB
    for _ in range(2):
        node.ctl("pause", "train")
        assert node.ctl.devices()[1]["used_bytes"] == 0
        node.ctl("resume", "train")
        puppet.ask(f"verify {block} 1")
    assert node.ctl.devices()[1]["used_bytes"] == MIB
    puppet.leave()


def test_bytes_addresses_and_figures(node):
    job = node.job()
    job.check()
    pause_and_resume(node, job)
    job.ask("rewrite")  # a second save must not bring back the first one's bytes
    job.check()
    pause_and_resume(node, job)
    job.leave()
    assert node.ctl.group("train") is None
    assert_gone(node)


def test_four_ranks_in_two_processes_with_several_communicators(node):
    job = node.job(ranks=4, per_process=2, arguments=["--communicators", 3])
    pause_and_resume(node, job)


def test_memory_allocated_after_a_cycle(node):
    job = node.job()
    pause_and_resume(node, job)
    ids = [answer["ids"][0] for answer in job.ask("alloc 300000")]
    pause_and_resume(node, job)
    for rank, each in zip(job.ranks, ids):
        rank.ask(f"free {each}")
    pause_and_resume(node, job)


def test_swap_of_two_groups_that_fit_only_in_turn(bare_node):
    node = bare_node
    # Either group fills more than half of a device: only a real release makes space for the other.
    big = {"allocations": 5, "size": "10MiB", "shared": 0.4}
    node.start_broker("--pool-size", "256MiB")
    train = node.job("train", **big)
    node.ctl("pause", "train")
    rollout = node.job("rollout", **big)
    rollout.check()
    for _ in range(3):
        node.ctl("swap", "rollout", "train")
        assert (node.ctl.state("rollout"), node.ctl.state("train")) == ("paused", "running")
        train.check()
        node.ctl("swap", "train", "rollout")
        assert (node.ctl.state("rollout"), node.ctl.state("train")) == ("running", "paused")
        rollout.check()
    for device in node.ctl.devices():
        contexts = node.context_bytes(device["ordinal"], train, rollout)
        assert device["used_bytes"] == contexts + device["brokered_bytes"]


def test_nccls_bytes_are_never_discarded(node):
    job = node.job()
    answer = node.ctl.try_("policy", "train", "nccl", "discard")
    assert answer.code == 2
    assert "nccl" in answer.error
    node.ctl("policy", "train", "weights", "discard")
    assert {"tag": "weights", "policy": "POLICY_DISCARD",
            "form": "FORM_UNSPECIFIED"} in node.ctl.group("train")["policies"]
    pause_and_resume(node, job)


def test_a_rank_that_joins_a_paused_group_waits_for_its_resume(node):
    job = node.job()
    node.ctl("pause", "train")
    late = Job(node, "late", 1, group="train")
    [rank] = late.ranks
    rank.wait_for("waits for its resume")
    node.ctl("resume", "train")
    late.ready()
    late.verify()
    job.check()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    late.verify()
    job.check()


def test_a_rank_whose_thread_is_held_in_the_driver_answers(node):
    """That thread has the lock on the process's memory, and may wait for work that only the cut lets through."""
    program = Program(node)
    program.ask(f"expand 0 {2 * MIB} 1")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    program.faults("cuMemUnmap:1:hold")
    program.send("drop")
    program.held()
    answer = node.ctl.try_("pause", "train", "--timeout", "1s")
    assert answer.code == 6
    assert "has work running" in answer.error, answer.error
    program.faults()
    program.answer()
    node.ctl("pause", "train")
    node.ctl("resume", "train")


def test_a_resume_counts_its_bytes_once(node):
    """They are mapped, then loaded: a person who watches sees how much there is, not twice as much."""
    job = node.job()

    def counted(verb, phase):
        return [line["bytes"] for line in node.ctl(verb, "train").lines if line["phase"] == phase][-1]

    assert counted("pause", "release") == counted("resume", "map+load") > 0
    job.check()
