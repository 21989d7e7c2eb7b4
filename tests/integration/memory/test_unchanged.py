"""Unchanged blocks: a pause copies only what has changed since the last one, and every byte comes back."""
import pathlib
import random

import pytest

from sim_node.flipped import FlippedMemory as Memory
from sim_node.node import eventually

KIB = 1 << 10
MIB = 1 << 20
BLOCK = 64 * KIB


def start(node, *flags, **options):
    node.start_broker(*flags, **options)
    return node


def saves(node, group="train"):
    """What the last pause did with each tag."""
    last = [each for each in node.ctl("history", group).json["operations"] if each["operation"] == "pause"][-1]
    assert last["code"] == 0, last
    return {each["tag"]: each for each in last.get("saves", [])}


def copied(node, group="train"):
    return sum(int(each["copied_bytes"]) for each in saves(node, group).values())


def unchanged(node, group="train"):
    return sum(int(each["unchanged_bytes"]) for each in saves(node, group).values())


def retained(node):
    return int(node.ctl.status()["pool"]["retained_bytes"])


def cycle(node, group="train"):
    node.ctl("pause", group)
    node.ctl("resume", group)


def test_a_second_pause_copies_nothing(node):
    memory = Memory(node, 8 * MIB, 3 * MIB)
    cycle(node)
    assert copied(node) == 11 * MIB and unchanged(node) == 0
    assert retained(node) >= 11 * MIB and int(node.ctl.status()["pool"]["used_bytes"]) == 0
    for _ in range(3):
        cycle(node)
        memory.verify()
        assert copied(node) == 0 and unchanged(node) == 11 * MIB
        assert saves(node)["heap"]["compared_bytes"] == saves(node)["heap"]["kept_bytes"]


def test_what_has_changed_is_copied(node):
    memory = Memory(node, 8 * MIB, 4 * MIB)
    first, second = memory.blocks
    cycle(node)
    changes = random.Random(49)
    for _ in range(10):
        blocks = set()
        for block, size in memory.blocks.items():
            offsets = {changes.randrange(size) for _ in range(changes.randrange(5))}
            if offsets:
                memory.flip(block, *offsets)
            blocks |= {(block, offset // BLOCK) for offset in offsets}
        cycle(node)
        memory.verify()
        assert copied(node) == len(blocks) * BLOCK
    memory.flip(first, 0)
    memory.flip(second, 4 * MIB - 1)
    cycle(node)
    memory.verify()
    assert copied(node) == 2 * BLOCK


@pytest.mark.parametrize("verify", ["0", "1"])
def test_long_runs_and_scattered_blocks(node, verify):
    """Long runs are copied by the copy engine, and scattered blocks by a kernel, of pieces that have some of both too."""
    memory = Memory(node, 12 * MIB, 6 * MIB, 5 * MIB + 8192, env={"AMEM_VERIFY": verify})
    cycle(node)
    changes = random.Random(4910)
    for _ in range(8):
        blocks = set()
        for block, size in memory.blocks.items():
            offsets = [at for at in range(0, size, BLOCK) if changes.random() < 0.1]
            if changes.random() < 0.5:
                offsets += range(MIB, 4 * MIB, BLOCK)
            memory.flip(block, *set(offsets))
            blocks |= {(block, offset) for offset in offsets}
        cycle(node)
        memory.verify()
        assert copied(node) == sum(min(BLOCK, memory.blocks[block] - offset) for block, offset in blocks)


@pytest.mark.parametrize("seed", range(2))
def test_one_random_byte_is_never_missed(node, seed):
    memory = Memory(node, 2 * MIB)
    [(block, size)] = memory.blocks.items()
    changes = random.Random(seed)
    cycle(node)
    for _ in range(100):
        memory.flip(block, changes.randrange(size))
        cycle(node)
        assert copied(node) == BLOCK
    memory.verify()


def test_a_job_of_several_ranks(node):
    """NCCL's buffers of the workload: what its steps change is copied, and all of it is right."""
    job = node.job(ranks=2, size="4MiB", allocations=4)
    for _ in range(4):
        sums = job.ask("checksum")
        cycle(node)
        assert job.ask("checksum") == sums
        job.check()
    cycle(node)
    assert unchanged(node) > 0


def test_off(bare_node):
    node = start(bare_node, "--without", "retain")
    memory = Memory(node, 4 * MIB)
    for _ in range(3):
        cycle(node)
        memory.verify()
        assert copied(node) == 4 * MIB and retained(node) == 0
        assert saves(node)["heap"]["compared_bytes"] == 0


def test_a_tag_that_changes_is_copied_plainly(node):
    """Nobody pays for a comparison that finds nothing; every eighth pause looks again."""
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    hashed = []
    for seed in range(20):
        memory.puppet.ask(f"fill {block} {seed}")
        cycle(node)
        memory.puppet.ask(f"verify {block} {seed}")
        hashed.append(saves(node)["heap"]["hashed"])
        assert copied(node) == 4 * MIB
    looks = [i for i, each in enumerate(hashed) if each]
    assert looks == [0, 1, 2, 10, 11, 19]


def test_a_tag_that_changes_in_each_second_turn_is_compared(node):
    """As a trainer's parameters: they change in a step, and not while it computes probabilities."""
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    cycle(node)
    for turn in range(6):
        if turn % 2:
            memory.puppet.ask(f"fill {block} {100 + turn}")
        cycle(node)
        assert copied(node) == (4 * MIB if turn % 2 else 0)
        if turn % 2:
            memory.puppet.ask(f"verify {block} {100 + turn}")


def test_always(bare_node):
    node = start(bare_node, "--pool-retain", "always")
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    for seed in range(4):
        memory.puppet.ask(f"fill {block} {seed}")
        cycle(node)
        assert saves(node)["heap"]["hashed"]


def test_a_freed_block_is_not_retained(node):
    memory = Memory(node, 4 * MIB, 2 * MIB)
    first, second = memory.blocks
    cycle(node)
    assert retained(node) == 6 * MIB
    memory.puppet.ask(f"free {first}")
    eventually(lambda: retained(node) == 2 * MIB, what="the broker forgets what was saved of the block")
    del memory.flipped[first]
    cycle(node)
    memory.verify()
    assert copied(node) == 0


def test_what_its_keeper_frees_is_not_retained(node):
    owner, importer = (node.puppet(name, i, scope="heap") for i, name in enumerate(("owner", "importer")))
    mine = owner.ask(f"plain {4 * MIB}")["id"]
    owner.ask(f"fill {mine} 4")
    theirs = importer.ask(f"open {owner.ask(f'share {mine}')['handle']} 1")["id"]
    cycle(node)
    assert retained(node) == 4 * MIB
    owner.ask(f"free {mine}")
    eventually(lambda: retained(node) == 0, what="the broker forgets what the owner had saved")
    for expected in (0, 4 * MIB):
        cycle(node)
        importer.ask(f"verify {theirs} 4")
        assert unchanged(node) == expected


def test_what_is_dropped_is_not_retained(node):
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    cycle(node)
    node.ctl("pause", "train", "--discard", "heap", "--force")
    assert retained(node) == 0
    node.ctl("resume", "train")
    memory.puppet.ask(f"zero {block}")
    memory.puppet.ask(f"fill {block} {block}")
    cycle(node)
    memory.verify()
    assert copied(node) == 4 * MIB


def test_pauses_of_a_tag(node):
    """What another tag has retained stays; what was saved with one tag compares in a pause of everything."""
    memory = Memory(node, 4 * MIB)
    cycle(node)
    node.ctl("pause", "train", "--tag", "heap")
    node.ctl("resume", "train", "--tag", "heap")
    memory.verify()
    assert copied(node) == 0
    cycle(node)
    memory.verify()
    assert copied(node) == 0


def test_a_group_that_needs_the_space_gets_it(bare_node):
    """Retained bytes are free: of the same owner the oldest go first."""
    node = start(bare_node, "--pool-size", "16MiB", "--pool-segment", "16MiB")
    first = Memory(node, 8 * MIB, name="a", group="a")
    second = Memory(node, 12 * MIB, name="b", group="b", device=1)
    cycle(node, "a")
    assert retained(node) == 8 * MIB
    node.ctl("pause", "b")  # all of the pool but 4 MiB
    assert retained(node) == 4 * MIB, "a block of 8 MiB has parts"
    assert copied(node, "b") == 12 * MIB
    node.ctl("resume", "b")
    second.verify()
    cycle(node, "a")
    first.verify()
    assert copied(node, "a") == 4 * MIB
    third = Memory(node, 4 * MIB, name="c", group="c")
    cycle(node, "c")
    cycle(node, "c")
    third.verify()
    assert copied(node, "c") == 0


def test_a_pause_that_is_called_off(node):
    """Before anybody was told to save, what is retained stays; after that nothing counts but what a rank has saved anew."""
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    cycle(node)
    memory.puppet.ask("busy 3000")
    assert node.ctl.try_("pause", "train", "--timeout", "0.2").code != 0
    assert retained(node) == 4 * MIB
    memory.puppet.faults("cuMemcpyDtoHAsync:1:999")
    memory.flip(block, 5)
    eventually(lambda: node.ctl.try_("pause", "train").code != 0 or node.ctl("resume", "train"), what="the copy fails")
    memory.puppet.faults()
    assert node.ctl.state("train") == "running"
    memory.verify()
    memory.flip(block, 7)
    cycle(node)
    memory.verify()


def test_memory_that_becomes_zero_is_saved_sparsely(node):
    """What is shorter without its zeros takes less of the pool, and has nothing to compare with afterwards."""
    memory = Memory(node, 4 * MIB, 4 * MIB)
    cycle(node)
    second = list(memory.blocks)[1]
    memory.puppet.ask(f"clear {second}")
    node.ctl("pause", "train")
    assert int(node.ctl.status()["pool"]["used_bytes"]) < 7 * MIB
    node.ctl("resume", "train")
    memory.puppet.ask(f"zero {second}")
    memory.puppet.ask(f"fill {second} {second}")
    cycle(node)
    memory.verify()
    assert copied(node) == 4 * MIB and unchanged(node) == 4 * MIB


@pytest.mark.parametrize("form, copies", [("dense", BLOCK), ("sparse", 4 * MIB)])
def test_the_form_of_a_tag(node, form, copies):
    """Dense bytes are compared; what an operator wants sparse is looked at for zeros each time."""
    memory = Memory(node, 4 * MIB)
    node.ctl("policy", "train", "heap", "--save", form)
    cycle(node)
    memory.flip(*memory.blocks, 70000)
    cycle(node)
    memory.verify()
    assert copied(node) == copies


POINTS = ["blocksHashed", "changesQueued"]


@pytest.mark.parametrize("point", POINTS)
def test_a_rank_that_dies_between_hash_and_copy(node, point):
    memory = Memory(node, 4 * MIB)
    other = Memory(node, 2 * MIB, name="other", group="other", device=1)
    cycle(node)
    cycle(node, "other")
    memory.flip(*memory.blocks, 9)
    memory.puppet.faults(f"{point}:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save")
    memory.puppet.held("amem-session")
    memory.puppet.kill()
    memory.puppet.wait()
    assert pause.finish().code != 0
    eventually(lambda: node.ctl.group("train") is None, what="the group has gone")
    cycle(node, "other")
    other.verify()
    assert int(node.ctl.status()["pool"]["used_bytes"]) == 0


@pytest.mark.parametrize("point", POINTS)
def test_a_pause_called_off_between_hash_and_copy(bare_node, point):
    """The rank goes on with a Save that nobody waits for. Afterwards nothing is compared with what it has overwritten."""
    node = start(bare_node, "--deadlines-save", "1s")
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    cycle(node)
    memory.flip(block, 9)
    memory.puppet.faults(f"{point}:1:hold")
    assert node.ctl.try_("pause", "train").code != 0
    memory.puppet.faults()
    eventually(lambda: node.ctl.state("train") == "running", what="it is called off")
    memory.flip(block, 9)  # as the retained bytes were
    cycle(node)
    memory.verify()
    cycle(node)
    memory.verify()


@pytest.mark.next_broker
@pytest.mark.parametrize("point", POINTS)
def test_amemd_dies_between_hash_and_copy(node, point):
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    cycle(node)
    memory.flip(block, 9)
    memory.puppet.faults(f"{point}:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save")
    memory.puppet.held("amem-session")
    node.broker.kill()
    node.broker.wait()
    memory.puppet.faults()
    assert pause.finish().code != 0
    node.start_broker()
    eventually(lambda: node.ctl.group("train") is not None and node.ctl.state("train") == "running", what="the rank reconnects")
    memory.verify()
    cycle(node)
    memory.verify()


def test_a_rank_that_dies(node):
    memory = Memory(node, 4 * MIB)
    cycle(node)
    memory.puppet.kill()
    memory.puppet.wait()
    eventually(lambda: node.ctl.group("train") is None, what="the group has gone")
    assert retained(node) == 0 and int(node.ctl.status()["pool"]["used_bytes"]) == 0


@pytest.mark.next_broker
def test_a_restart_of_amemd(node):
    """The next amemd retains nothing, and knows nothing of what the last one did."""
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    cycle(node)
    node.broker.kill()
    node.broker.wait()
    node.start_broker()
    eventually(lambda: node.ctl.group("train") is not None, what="the rank reconnects")
    assert retained(node) == 0
    memory.flip(block, 77)
    cycle(node)
    memory.verify()
    assert copied(node) == 4 * MIB
    cycle(node)
    memory.verify()
    assert copied(node) == 0


@pytest.mark.next_broker
def test_a_restart_while_paused(node):
    memory = Memory(node, 4 * MIB)
    [block] = memory.blocks
    cycle(node)
    memory.flip(block, 9)
    node.ctl("pause", "train")
    node.broker.kill()
    node.broker.wait()
    node.start_broker()
    eventually(lambda: node.ctl.group("train") is not None, what="the rank reconnects")
    node.ctl("resume", "train")
    memory.verify()
    cycle(node)
    memory.verify()


@pytest.mark.parametrize("retain", ["auto", "off"])
def test_a_driver_without_kernels(bare_node, retain):
    node = start(bare_node, "--pool-retain", retain)
    memory = Memory(node, 4 * MIB, env={"AMEM_SIM_FAULTS": "cuModuleLoadData:*:222"})
    for _ in range(2):
        cycle(node)
        memory.verify()
        assert copied(node) == 4 * MIB and retained(node) == 0
    said = pathlib.Path(memory.puppet.log_path).read_text()
    assert said.count("the kernels of sparse copies") == 1
    assert said.count("the kernels that find unchanged blocks") == (0 if retain == "off" else 1)  # off: nobody would use them


def test_verify_finds_a_hash_that_lies(node):
    """All blocks have the same hash. Without AMEM_VERIFY nobody could notice; with it the pause says so and the job runs on."""
    memory = Memory(node, 4 * MIB, env={"AMEM_SIM_HASH_LIES": "1", "AMEM_VERIFY": "1"})
    [block] = memory.blocks
    cycle(node)
    memory.flip(block, 3 * BLOCK + 5)
    answer = node.ctl.try_("pause", "train")
    assert answer.code != 0
    assert "AMEM_VERIFY" in answer.error and f"from byte {3 * BLOCK} on" in answer.error and 'without = ["retain"]' in answer.error, answer
    assert node.ctl.state("train") == "running"
    memory.verify()
    cycle(node)  # all of it is copied
    memory.verify()


def test_verify(node):
    memory = Memory(node, 4 * MIB, env={"AMEM_VERIFY": "1"})
    [block] = memory.blocks
    for offset in (5, 9 * BLOCK, 4 * MIB - 1):
        cycle(node)
        memory.verify()
        memory.flip(block, offset)
    cycle(node)
    memory.verify()
    assert copied(node) == BLOCK


