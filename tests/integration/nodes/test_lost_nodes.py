"""Brokers and ranks of an operation over several nodes die at random instants, and ways between them break or fall silent, from a
seed. By hand, more often:

    AMEM_NODE_KILLS=1000 AMEM_NODE_SILENCES=100 python3 -m pytest tests/integration/nodes/test_lost_nodes.py --build-dir build/release
    AMEM_NODE_COUNT=16 AMEM_NODE_LEADER_KILLS=50 python3 -m pytest -s tests/integration/nodes/test_lost_nodes.py \
        --build-dir build/release -k leaders
"""
import os
import random
import time

import pytest

from sim_node.child import eventually
from spread import Nodes

KILLS = int(os.environ.get("AMEM_NODE_KILLS", "12"))
SILENCES = int(os.environ.get("AMEM_NODE_SILENCES", "3"))  # some take 10 s and more
COUNT = int(os.environ.get("AMEM_NODE_COUNT", "4"))  # of nodes that lose their leader
LEADER_KILLS = int(os.environ.get("AMEM_NODE_LEADER_KILLS", "8"))
SEED = int(os.environ.get("AMEM_NODE_SEED", "1"))
AT_REST = ("running", "paused")


def bring_to(nodes, group, state):
    """By each node's own operator, where the nodes are not at one."""
    for node in nodes.all:
        if node.ctl.state(group) != state:
            node.ctl("pause" if state == "paused" else "resume", group)


def begin_somewhere(nodes, chance):
    """A pause, swap or resume that is under way, or not begun yet, or over: what dies when is chance, and nothing here waits for
    a time."""
    asked = chance.choice((("pause", "train"), ("swap", "train", "rollout"), ("resume", "rollout")))
    bring_to(nodes, "rollout", "paused")
    bring_to(nodes, "train", "running" if asked[-1] != "rollout" or asked[0] == "swap" else "paused")
    operation = nodes.start(*asked, lead=chance.randrange(3))
    time.sleep(chance.uniform(0, 0.12))
    return operation


def takes_turn(nodes, job, group, other):
    """The group runs in place of the other one, and has its bytes."""
    bring_to(nodes, other, "paused")
    bring_to(nodes, group, "running")
    job.check()


def test_kills_of_brokers(build, tmp_path):
    """Whatever has been killed when: each node ends running or paused, with all its bytes, and what was asked for is
    answered within its deadline."""
    chance = random.Random(SEED)
    nodes = Nodes(build, tmp_path, 3)
    parted = 0
    try:
        train, rollout = nodes.job("train"), nodes.job("rollout")
        nodes("pause", "rollout")
        for kill in range(KILLS):
            what = f"seed {SEED}, kill {kill}"
            operation = begin_somewhere(nodes, chance)
            lost = nodes[chance.randrange(3)]
            lost.broker.kill()
            operation.finish()
            lost.start_broker(name=f"amemd-{kill}")
            for group in ("train", "rollout"):
                eventually(lambda group=group: all(state in AT_REST for state in nodes.states(group)),
                           what=f"{what}: {group} is at rest")
            parted += any(len(set(nodes.states(group))) > 1 for group in ("train", "rollout"))
            takes_turn(nodes, train, "train", "rollout")
        takes_turn(nodes, rollout, "rollout", "train")
        print(f"{KILLS} kills; {parted} times the nodes were not at one afterwards")
    finally:
        nodes.close()


def test_kills_of_leaders(build, tmp_path):
    """All that have lost their leader end alike, as they can ask each other. Its own node may have asked and not heard."""
    chance = random.Random(SEED)
    nodes = Nodes(build, tmp_path, COUNT)
    went_on = behind = 0
    try:
        train, rollout = nodes.job("train"), nodes.job("rollout")
        nodes("pause", "rollout")
        longest = 0.12
        for kill in range(LEADER_KILLS):
            what = f"seed {SEED}, kill {kill}"
            bring_to(nodes, "rollout", "paused")
            bring_to(nodes, "train", "running")
            began = time.monotonic()
            if kill == 0:  # how long one takes here
                nodes("swap", "train", "rollout")
                longest = time.monotonic() - began
                nodes("swap", "rollout", "train")
            asked = ("swap", "train", "rollout") if chance.random() < 0.7 else ("pause", "train")
            lead = chance.randrange(COUNT)
            operation = nodes.start(*asked, lead=lead)
            time.sleep(chance.uniform(0, longest))
            nodes[lead].broker.kill()
            operation.finish()
            nodes[lead].start_broker(name=f"amemd-{kill}")
            for group in ("train", "rollout"):
                eventually(lambda group=group: all(state in AT_REST for state in nodes.states(group)), deadline=60,
                           what=f"{what}: {group} is at rest")
                states = nodes.states(group)
                own = states.pop(lead)
                assert len(set(states)) == 1, f"{what}: {group} of the other nodes than {lead}: {states}"
                behind += own != states[0]
            went_on += nodes[(lead + 1) % COUNT].ctl.state("train") == "paused"
        takes_turn(nodes, train, "train", "rollout")
        takes_turn(nodes, rollout, "rollout", "train")
        print(f"{COUNT} nodes, {LEADER_KILLS} kills of the leader: train left in {went_on}; a group of its own node was behind in {behind}")
    finally:
        nodes.close()


@pytest.mark.parametrize("count, cuts", ((3, KILLS), (18, KILLS // 4)), ids=("star", "tree"))
def test_cuts_of_ways(build, tmp_path, count, cuts):
    """The way to one node breaks while an operation runs, the leader's to itself among them: all nodes end alike, as all
    brokers live and learn from each other what was decided. Of 18 nodes some are lost with the one that passes on to them."""
    chance = random.Random(SEED)
    nodes = Nodes(build, tmp_path, count, wired=True)
    done = 0
    try:
        train, rollout = nodes.job("train"), nodes.job("rollout")
        nodes("pause", "rollout")
        for cut in range(cuts):
            what = f"seed {SEED}, cut {cut}"
            operation = begin_somewhere(nodes, chance)
            wire = chance.choice(nodes.wires)
            wire.cut()
            if chance.random() < 0.5:  # as a reset: whoever asks again gets through
                wire.mend()
            done += operation.finish().code == 0
            for group in ("train", "rollout"):
                eventually(lambda group=group: len(set(nodes.states(group))) == 1 and nodes[0].ctl.state(group) in AT_REST,
                           what=f"{what}: {group} is at rest, and the nodes are at one: {nodes.states(group)}")
            wire.mend()
            for job in (train, rollout):
                if nodes[0].ctl.state(job.name) == "running":
                    job.check()
        print(f"{cuts} cuts; {done} operations succeeded all the same")
    finally:
        nodes.close()


def test_silent_ways(build, tmp_path):
    """Nothing comes through to one node while an operation runs, and no end is told: for two seconds at most, which nobody
    notices, or until the operation has ended by what the leader waits for at most. Then all nodes end alike."""
    chance = random.Random(SEED)
    nodes = Nodes(build, tmp_path, 3, wired=True)
    failed = 0
    try:
        jobs = [nodes.job(name) for name in ("train", "rollout")]
        nodes("pause", "rollout")
        for hush in range(SILENCES):
            what = f"seed {SEED}, silence {hush}"
            before = hush == 0  # so that one operation at least meets it
            short = not before and chance.random() < 0.5
            wire = chance.choice(nodes.wires)
            if before:
                wire.hush()
            operation = begin_somewhere(nodes, chance)
            wire.hush()
            if short:
                time.sleep(chance.uniform(0, 2))
                wire.mend()
            answer = operation.finish()
            assert (answer.code != 0 if before else answer.code == 0 or not short), f"{what}: {answer!r}"
            failed += answer.code != 0
            wire.mend()
            for job in jobs:
                eventually(lambda job=job: len(set(nodes.states(job.name))) == 1 and nodes[0].ctl.state(job.name) in AT_REST,
                           what=f"{what}: {job.name} is at rest, and the nodes are at one: {nodes.states(job.name)}")
                if nodes[0].ctl.state(job.name) == "running":
                    job.check()
        print(f"{SILENCES} silences; {failed} operations failed")
    finally:
        nodes.close()


def test_kills_of_ranks(build, tmp_path):
    """The job is over then; what is left of it on each node ends running or paused, and goes with its last rank."""
    chance = random.Random(SEED)
    nodes = Nodes(build, tmp_path, 2)
    try:
        other = nodes.job("other")
        for kill in range(max(1, KILLS // 2)):
            what = f"seed {SEED}, kill {kill}"
            train = nodes.job("train")
            asked = chance.choice(("pause", "resume", "swap"))
            if asked == "resume":
                nodes("pause", "train")
            if asked == "swap":
                nodes("pause", "other")
            operation = nodes.start(*(("swap", "train", "other") if asked == "swap" else (asked, "train")), lead=chance.randrange(2))
            time.sleep(chance.uniform(0, 0.12))
            chance.choice(train.ranks).kill()
            operation.finish()
            eventually(lambda: all(group is None or group["state"].removeprefix("GROUP_STATE_").lower() in AT_REST
                                   for group in (node.ctl.group("train") for node in nodes.all)), what=f"{what}: train is at rest")
            for rank in train.ranks:
                rank.kill()
            eventually(lambda: all(node.ctl.group("train") is None for node in nodes.all), what=f"{what}: train has gone")
            bring_to(nodes, "other", "running")
            other.check()
        for node in nodes.all:
            assert node.ctl.status()["pool"]["used_bytes"] == 0
    finally:
        nodes.close()
