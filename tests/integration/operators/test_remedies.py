"""What an error recommends: a stranger follows it to the letter, and afterwards every byte of the job is there."""
import re

import pytest

from sim_node import eventually
from sim_node.ctl import RESOURCES, USAGE, WRONG_STATE
from sim_node.flipped import FlippedMemory as Memory
from sim_node.node import MIB
from sim_node.program import Program

KEEP, DISCARD, FORCED = 1, 2, 3  # policies of a region, or of a tag
POOL = ("--pool-size", "32MiB")


class Job:
    """A program with memory in no region, in a region of weights, and in one of a cache whose tag is kept all the same."""

    def __init__(self, node):
        self.node = node
        self.program = Program(node)
        self.program.ask(f"alloc 0 {4 * MIB} 3")
        for tag, policy, blocks in (("weights", KEEP, 2), ("cache", DISCARD, 3)):
            self.program.ask(f"region begin {tag} {policy}")
            self.program.ask(f"alloc 0 {4 * MIB} {blocks}")
            self.program.ask("region end")
        self.program.ask(f"policy cache {KEEP}")

    def refusal(self):
        answer = self.node.ctl.try_("pause", "train")
        assert answer.code == RESOURCES, answer
        self.verify()
        assert self.node.ctl.state("train") == "running"
        return answer.error

    def verify(self):
        self.program.verify()

    def turns(self, *options):
        """A pause and a resume."""
        self.node.ctl("pause", "train", *options)
        self.node.ctl("resume", "train")


@pytest.fixture
def small(bare_node):
    """A pool in which a job does not find the space that it has beside another's bytes."""
    bare_node.start_broker(*POOL)
    other = Program(bare_node, "rollout")
    other.ask(f"alloc 0 {4 * MIB} 3")
    bare_node.ctl("pause", "rollout")
    yield Job(bare_node), other
    assert bare_node.broker.alive()


def remedies(error):
    """Each that a refusal by the pool names."""
    return error.split("Remedies: ")[1].removesuffix("; the group is running").split("; ")


# ---- each remedy of a pool that is too small, by what it says ----

def restarts_with_a_larger_pool(job, other, said):
    job.node.broker.terminate()
    job.node.start_broker("--pool-size", said[1])
    for group in ("train", "rollout"):
        eventually(lambda: job.node.ctl.group(group), what="the next amemd continues the jobs")
    job.turns()
    job.verify()


def discards(job, other, said):
    job.turns("--discard", said[1])
    job.program.ask(f"zero {said[1]}")
    job.verify()


def resumes(job, other, said):
    job.node.ctl("resume", said[1])
    other.verify()
    job.turns()
    job.verify()


def ends(job, other, said):
    other.kill()
    eventually(lambda: job.node.ctl.group(said[1]) is None, what="the other group has ended")
    job.turns()
    job.verify()


REMEDIES = {
    r"to restart amemd with a pool\.size of (\w+) or more": [restarts_with_a_larger_pool],
    r"if the job can lose what its regions mark as a cache, to discard '(\w+)' \(12 MiB\)": [discards],
    r"to resume or end '(\w+)' \(12 MiB\), whose bytes are in the pool": [resumes, ends],
}


@pytest.mark.next_broker
@pytest.mark.parametrize("follow", [each for ways in REMEDIES.values() for each in ways], ids=lambda follow: follow.__name__)
def test_a_pool_that_is_too_small(small, follow):
    job, other = small
    said = remedies(job.refusal())
    matches = [next(filter(None, (re.fullmatch(pattern, each) for pattern in REMEDIES)), None) for each in said]
    assert all(matches) and len(matches) == len(REMEDIES), f"each of {said} is followed here"
    [match] = [each for each in matches if follow in REMEDIES[each.re.pattern]]
    follow(job, other, match)
    if other.alive():
        if job.node.ctl.state("rollout") == "paused":
            job.node.ctl("resume", "rollout")
        other.verify()


def test_what_no_region_marks_is_never_to_be_discarded(bare_node):
    """Neither the heap nor a tag that the program keeps, whatever its name."""
    bare_node.start_broker("--pool-size", "16MiB")
    program = Program(bare_node)
    program.ask(f"alloc 0 {4 * MIB} 3")
    program.ask(f"region begin kv_cache {KEEP}")
    program.ask(f"alloc 0 {4 * MIB} 3")
    program.ask("region end")
    error = bare_node.ctl.try_("pause", "train").error
    [only] = remedies(error)
    assert only == "to restart amemd with a pool.size of 24MiB or more", error
    assert "discard" not in error


def test_a_pool_that_is_too_small_for_what_is_marked_too(bare_node):
    """A remedy is enough by itself."""
    bare_node.start_broker("--pool-size", "16MiB")
    job = Job(bare_node)
    bare_node.ctl.try_("pause", "train")
    [only] = remedies(job.refusal())
    assert only == "to restart amemd with a pool.size of 32MiB or more"


# ---- the heap ----

def refused(answer):
    """Says what would be lost, and how to lose it."""
    assert answer.code == USAGE, answer
    assert "to discard tag 'heap' would lose 12 MiB: all memory that no region names" in answer.error, answer
    assert "--force in amemctl, force in programs" in answer.error, answer


@pytest.fixture
def job(node):
    return Job(node)


def test_the_heap_is_discarded_only_by_force(node, job):
    refused(node.ctl.try_("pause", "train", "--discard", "heap"))
    refused(node.ctl.try_("policy", "train", "heap", "discard"))
    job.turns()
    job.verify()
    job.turns("--discard", "heap", "--force")
    job.program.ask("zero heap")
    job.verify()


def test_a_swap_discards_the_heap_only_by_force(node, job):
    other = Program(node, "rollout")
    other.ask(f"alloc 1 {4 * MIB} 1")
    node.ctl("pause", "rollout")
    refused(node.ctl.try_("swap", "train", "rollout", "--discard", "heap"))
    assert (node.ctl.state("train"), node.ctl.state("rollout")) == ("running", "paused")
    node.ctl("swap", "train", "rollout", "--discard", "heap", "--force")
    node.ctl("swap", "rollout", "train")
    job.program.ask("zero heap")
    job.verify()
    node.ctl("resume", "rollout")
    other.verify()


def test_a_policy_discards_the_heap_only_by_force(node, job):
    node.ctl("policy", "train", "heap", "discard", "--force")
    job.turns()
    job.program.ask("zero heap")
    job.verify()


def test_ranks_discard_the_heap_only_by_force(node, job):
    program = job.program
    for command in ("pause -heap", f"policy heap {DISCARD}"):
        program.send(command)
        error = program.failure()
        assert "would lose 12 MiB" in error and "force in programs" in error, error
    program.ask("pause")
    program.ask("resume")
    job.verify()
    program.ask("pause -heap +")
    program.ask("resume")
    program.ask("zero heap")
    job.verify()
    program.ask("rewrite")
    program.ask(f"policy heap {FORCED}")
    program.ask("pause")
    program.ask("resume")
    program.ask("zero heap")
    job.verify()


# ---- other errors, each with the sentence that is followed ----

def test_a_tag_that_an_earlier_pause_has_saved(node, job):
    node.ctl("pause", "train", "--tag", "cache")
    answer = node.ctl.try_("pause", "train", "--discard", "cache")
    assert answer.code == WRONG_STATE and "Resume it first, or pause without dropping it" in answer.error, answer
    job.turns()
    job.verify()
    node.ctl("pause", "train", "--tag", "cache")
    node.ctl("resume", "train", "--tag", "cache")
    job.turns("--discard", "cache")
    job.program.ask("zero cache")
    job.verify()


def test_a_policy_of_what_is_paused(node, job):
    node.ctl("pause", "train", "--tag", "cache")
    answer = node.ctl.try_("policy", "train", "cache", "discard")
    assert answer.code == WRONG_STATE and "Resume it before you change its policy" in answer.error, answer
    node.ctl("resume", "train", "--tag", "cache")
    job.verify()
    node.ctl("policy", "train", "cache", "discard")
    job.turns()
    job.program.ask("zero cache")
    job.verify()


@pytest.mark.parametrize("way", ["pause the group", "end the process"])
def test_a_device_that_is_too_small(node_with, way):
    node = node_with("--pool-size", "128MiB")
    job = Job(node)
    node.ctl("pause", "train")
    other = Program(node, "rollout")
    other.ask(f"alloc 0 {16 * MIB} 4")
    answer = node.ctl.try_("resume", "train")
    assert answer.code == RESOURCES, answer
    assert "Pause the group or end the process that uses the device" in answer.error, answer
    if way == "end the process":
        other.leave()
        node.ctl("resume", "train")
    else:
        node.ctl("pause", "rollout")
        node.ctl("resume", "train")
        job.verify()
        node.ctl("swap", "train", "rollout")
        other.verify()
        node.ctl("swap", "rollout", "train")
    job.verify()


@pytest.mark.parametrize("way", ["close it there", "guests = pin"])
def test_memory_that_others_have_open(node, way):
    owner = node.puppet("owner", scope="heap")
    mine = owner.ask(f"plain {4 * MIB}")["id"]
    owner.ask(f"fill {mine} 4")
    guest = node.puppet("guest", group="rollout", scope="heap")
    theirs = guest.ask(f"open {owner.ask(f'share {mine}')['handle']} 1")["id"]
    answer = node.ctl.try_("pause", "train", "--guests", "refuse")
    assert answer.code == WRONG_STATE, answer
    assert "Close it there, or pause with guests = pin, which leaves it on its device" in answer.error, answer
    if way == "close it there":
        guest.ask(f"free {theirs}")
        node.ctl("pause", "train", "--guests", "refuse")
    else:
        node.ctl("pause", "train", "--guests", "pin")
        guest.ask(f"verify {theirs} 4")
    node.ctl("resume", "train")
    owner.ask(f"verify {mine} 4")


@pytest.mark.next_broker
def test_deep_pauses_that_are_off(bare_node):
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    bare_node.start_broker()
    memory = Memory(bare_node, 4 * MIB, name="rank", device=0)
    answer = bare_node.ctl.try_("pause", "train", "--deep")
    assert answer.code == WRONG_STATE and "Set deep.enabled = true in amemd's configuration, and restart amemd" in answer.error, answer
    memory.verify()
    bare_node.broker.terminate()
    bare_node.start_broker("--deep-enabled", "true")
    eventually(lambda: bare_node.ctl.group("train"), what="the next amemd continues the job")
    bare_node.ctl("pause", "train", "--deep")
    bare_node.ctl("resume", "train")
    memory.verify()


def test_a_restore_without_space(bare_node):
    """What became free in the checkpoint and a tenth more would be more than the device has."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    bare_node.settings["AMEM_SIM_MEMORY"] = str(200 * MIB)
    bare_node.start_broker("--deep-enabled", "true", "--deadlines-checkpoint", "12s")
    first = Memory(bare_node, 2 * MIB, name="first", group="first")  # with it, the proof has space
    bare_node.ctl("pause", "first", "--deep")
    bare_node.ctl("resume", "first")
    first.puppet.kill()
    first.puppet.wait()
    memory = Memory(bare_node, 4 * MIB, name="rank", device=0, env={"AMEM_SIM_CONTEXT_BYTES": "184MiB"})
    bare_node.ctl("pause", "train", "--deep")
    other = Program(bare_node, "rollout")
    other.ask(f"alloc 0 {8 * MIB} 3")
    answer = bare_node.ctl.try_("resume", "train")
    assert answer.code == RESOURCES, answer
    assert "Pause another group, or end a process on this device, and resume again" in answer.error, answer
    bare_node.ctl("pause", "rollout")
    bare_node.ctl("resume", "train")
    memory.verify()
    bare_node.ctl("pause", "train", "--deep")
    bare_node.ctl("resume", "rollout")
    other.verify()
