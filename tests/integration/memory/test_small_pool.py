"""A pool that is smaller than what is paused: the broker has zeros looked for first, and needs space for the rest."""
import os
import signal

import pytest

from sim_node.node import MIB, eventually
from sim_node.program import Program

POOL = 16 * MIB
KEEP, DISCARD = 1, 2  # policies of a region, or of a tag
# Of each of two ranks; most of it is zero.
MOSTLY_ZERO = {"size": "8MiB", "allocations": 4, "arguments": ["--zeros", 90]}


@pytest.fixture
def small(bare_node):
    """A node with a small pool in several segments."""
    node = bare_node
    node.settings["AMEM_SHIM_WITHOUT"] = "slabs"

    def start(*flags, **options):
        node.start_broker("--pool-size", str(POOL), "--pool-segment", "4MiB", *flags, **options)
        return node

    yield start
    assert node.broker.alive()


def phases(answer):
    """What a pause went through."""
    return [each["phase"] for each in answer.json["times"]]


def used(node):
    return node.ctl.status()["pool"]["used_bytes"]


def runs_on(node, job):
    """A pause has been refused: nothing has changed."""
    assert node.ctl.state(job.name) == "running"
    eventually(lambda: used(node) == 0, what="the space is free again")
    job.check()


@pytest.mark.parametrize("env", [{}, {"AMEM_VERIFY": "1"}], ids=["", "verify"])
def test_a_quarter_is_enough(small, env):
    node = small()
    job = node.job(**MOSTLY_ZERO, env=env)
    for _ in range(3):
        checksums = job.ask("checksum")
        answer = node.ctl("pause", "train")
        assert "measure" in phases(answer)
        group = node.ctl.group("train")
        assert group["allocated_bytes"] >= 4 * POOL
        assert 0 < group["saved_bytes"] <= used(node) <= POOL
        node.ctl("resume", "train")
        assert job.ask("checksum") == checksums
        job.check()
        assert used(node) == 0
        job.ask("rewrite")  # other blocks are zero now


def test_what_has_space_is_not_measured(node):
    job = node.job()
    assert "measure" not in phases(node.ctl("pause", "train"))
    node.ctl("resume", "train")
    job.check()


def test_two_engines_at_the_same_time(small):
    node = small()
    jobs = [node.job(name, size="4MiB", allocations=4, arguments=["--zeros", 90]) for name in ("train", "rollout")]
    checksums = [job.ask("checksum") for job in jobs]
    for job in jobs:
        node.ctl("pause", job.name)
    assert sum(node.ctl.group(job.name)["allocated_bytes"] for job in jobs) >= 4 * POOL
    for job in reversed(jobs):
        node.ctl("resume", job.name)
    assert [job.ask("checksum") for job in jobs] == checksums
    for job in jobs:
        job.check()


def test_one_process_with_two_devices(small):
    node = small()
    job = node.job(per_process=2, **MOSTLY_ZERO)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


def test_what_does_not_fit_is_refused_with_the_figures(small):
    node = small()
    job = node.job(size="4MiB", allocations=4)
    checksums = job.ask("checksum")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 7, answer
    for figure in ("too small, even without zeros", "16 MiB of 16 MiB free", "tag 'nccl' ", "a pool.size of "):
        assert figure in answer.error, answer.error
    assert job.ask("checksum") == checksums
    runs_on(node, job)


def test_the_pool_size_that_the_refusal_names_is_enough(small, bare_node):
    node = small()
    job = node.job(size="2MiB", allocations=6)
    error = node.ctl.try_("pause", "train").error
    size = error.split("a pool.size of ")[1].split(" or more")[0]
    job.leave()
    assert node.broker.terminate() == 0
    node.start_broker("--pool-size", size, "--pool-segment", size)
    job = node.job(size="2MiB", allocations=6)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


def test_discarding_helps(small):
    node = small()
    program = Program(node, scope="regions")
    program.ask(f"region begin cache {DISCARD}")
    program.ask(f"alloc 0 {4 * MIB} 5")
    program.ask("region end")
    program.ask(f"policy cache {KEEP}")
    program.ask(f"region begin weights {KEEP}")
    program.ask(f"alloc 0 {4 * MIB} 2")
    program.ask("region end")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 7 and \
        "if the job can lose what its regions mark as a cache, to discard 'cache' (20 MiB)" in answer.error, answer
    assert node.ctl.state("train") == "running"
    program.verify()
    node.ctl("pause", "train", "--discard", "cache")
    node.ctl("resume", "train")
    program.ask("zero cache")
    program.verify()


def test_the_form_of_a_tag_counts(small):
    node = small()
    job = node.job(**MOSTLY_ZERO)
    node.ctl("policy", "train", "nccl", "--save", "dense")
    assert node.ctl.try_("pause", "train").code == 7
    runs_on(node, job)
    node.ctl("policy", "train", "nccl", "--save", "sparse")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


def test_without_kernels_everything_counts(small):
    node = small()
    job = node.job(**MOSTLY_ZERO, env={"AMEM_SIM_FAULTS": "cuModuleLoadData:*:222"})
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 7 and "could not look for zeros" in answer.error, answer
    runs_on(node, job)


def test_a_rank_killed_in_the_measurement(small):
    node = small()
    job = node.job(**MOSTLY_ZERO)
    job.ranks[1].faults("cuLaunchKernel:1:kill")
    answer = node.ctl.try_("pause", "train")
    assert answer.code != 0 and "measure" in answer.error, answer
    assert job.ranks[1].wait() == -signal.SIGKILL
    assert node.ctl.state("train") == "running"
    assert job.ranks[0].ask("verify")["wrong"] == 0
    eventually(lambda: used(node) == 0)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    assert job.ranks[0].ask("verify")["wrong"] == 0


def test_a_look_that_fails_calls_the_pause_off(small):
    node = small()
    job = node.job(**MOSTLY_ZERO)
    job.ranks[1].faults("cuLaunchKernel:1")
    answer = node.ctl.try_("pause", "train")
    assert answer.code != 0 and "measure: rank 1" in answer.error, answer
    job.ranks[1].faults()
    runs_on(node, job)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


def test_the_deadline_passes_in_the_measurement(small):
    node = small("--deadlines-save", "2s")
    job = node.job(**MOSTLY_ZERO)
    job.ranks[1].faults("cuLaunchKernel:1:hold")
    answer = node.ctl.try_("pause", "train")
    assert answer.code == 6 and "measure: not done within 2s: rank 1" in answer.error, answer
    assert node.ctl.state("train") == "running"
    job.ranks[1].faults()
    runs_on(node, job)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


def write_to_devices(node, size):
    """What a NIC or another process may do: every byte of the allocations of this size, behind the ranks' backs."""
    descriptors = f"/proc/{node.broker.pid}/fd"
    written = 0
    for name in os.listdir(descriptors):
        path = os.path.join(descriptors, name)
        try:
            if ":gpu" not in os.readlink(path) or os.stat(path).st_size != size:
                continue
        except FileNotFoundError:
            continue
        with open(path, "r+b", buffering=0) as memory:
            memory.write(b"\1" * size)
            written += 1
    assert written > 0


def test_what_has_become_more_since_fails_before_anything_leaves(small):
    """The place is as large as what was measured. It is never written beyond, and the group runs on."""
    node = small()
    other = node.job("other", size="256KiB", allocations=2)
    node.ctl("pause", "other")
    before = used(node)
    job = node.job(ranks=1, shared=0, size="12MiB", allocations=5, arguments=["--zeros", 95])
    job.ranks[0].faults("cuLaunchKernel:2:hold")  # the first is the measurement's
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("measure", 1)
    pause.wait_phase("save", 0)
    write_to_devices(node, 12 * MIB)
    job.ranks[0].faults()
    answer = pause.finish()
    assert answer.code != 0 and "has changed while it was paused" in answer.error, answer
    assert node.ctl.state("train") == "running"
    assert node.ctl.group("train")["resident_bytes"] == node.ctl.group("train")["allocated_bytes"]
    eventually(lambda: used(node) == before, what="its places are free again")
    job.ask("rewrite")
    job.check()
    node.ctl("resume", "other")
    other.check()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()


def test_a_swap_in_waves(bare_node):
    """No space for both on the devices, and a pool for neither as they are."""
    node = bare_node
    node.settings.update({"AMEM_SHIM_WITHOUT": "slabs", "AMEM_SIM_MEMORY": str(24 * MIB)})
    node.start_broker("--swap-wave", "256KiB", "--pool-size", str(POOL), "--pool-segment", "4MiB")
    size = {"allocations": 9, "size": "2MiB", "shared": 0.4, "arguments": ["--zeros", 90]}
    rollout = node.job("rollout", **size)
    node.ctl("pause", "rollout")
    train = node.job("train", **size)
    for out, back, job in (("train", "rollout", rollout), ("rollout", "train", train)) * 2:
        answer = node.ctl("swap", out, back)
        said = [(each["group"], each.get("phase")) for each in answer.lines]
        assert (out, "measure") in said
        assert said.index((out, "measure")) < said.index((out, "release"))
        assert said.count((out, "drop")) > 3, "waves"
        job.check()
    node.ctl("swap", "train", "rollout")
    rollout.check()


@pytest.mark.parametrize("duplex", ["true", "false"])
def test_a_swap_beside_each_other(small, duplex):
    node = small("--swap-duplex", duplex)
    size = {"size": "4MiB", "allocations": 4, "arguments": ["--zeros", 90]}
    rollout = node.job("rollout", **size)
    node.ctl("pause", "rollout")
    train = node.job("train", **size)
    for out, back, job in (("train", "rollout", rollout), ("rollout", "train", train)):
        node.ctl("swap", out, back)
        job.check()


def test_a_swap_that_does_not_fit_leaves_both_as_they_were(small):
    node = small()
    rollout = node.job("rollout", size="4MiB", allocations=4, arguments=["--zeros", 90])
    node.ctl("pause", "rollout")
    train = node.job("train", size="2MiB", allocations=6)
    answer = node.ctl.try_("swap", "train", "rollout")
    assert answer.code == 7 and "Remedies: to restart amemd with a pool.size of " in answer.error, answer
    assert "to resume or end" not in answer.error, "rollout's bytes would not be enough"
    assert (node.ctl.state("train"), node.ctl.state("rollout")) == ("running", "paused")
    train.check()
    node.ctl("resume", "rollout")
    rollout.check()


def test_chosen_tags(small):
    node = small()
    job = node.job(**MOSTLY_ZERO)
    node.ctl("pause", "train", "--tag", "nccl")
    assert node.ctl.state("train") == "running"
    node.ctl("resume", "train")
    job.check()
