"""Turns by demand: nobody asks for a turn but the calls that wait at the gate."""
import random
import signal
import time

import pytest

from sim_node import eventually, patience
from sim_node.ctl import WRONG_STATE
from sim_node.stage import next_broker, pair, stage_of, turns
from sim_node.turns import states

DEMAND = {"policy": "demand", "grace": "100ms", "idle": "1s"}


def launches(job):
    return job.ranks[0].ask("loop status")["rounds"]


def quiet(node, seconds):
    """That the stage does not switch for so long, once it has come to rest."""
    eventually(lambda: not stage_of(node)["switching"])
    before = stage_of(node)["switches"]
    time.sleep(seconds)
    assert stage_of(node)["switches"] == before


def test_a_call_that_waits_gets_its_group_a_turn(stage):
    node = stage(**DEMAND)
    train, rollout = pair(node)
    for name, job, other in [("rollout", rollout, "train"), ("train", train, "rollout"), ("rollout", rollout, "train")]:
        job.send("step 2")
        job.answers(60)
        eventually(lambda name=name: turns(node)[name]["turn"] == "runs")
        assert node.ctl.state(other) == "paused" and node.ctl.group(other)["paused_by_stage"]
        job.verify()
        last = stage_of(node)["last"]
        assert (last["in_groups"], last["out_groups"]) == ([name], [other])
        assert f"group '{name}' has waited for" in last["why"] and " waits" in last["why"], last
    assert stage_of(node)["switches"] == 3 and stage_of(node)["failed_switches"] == 0
    quiet(node, 2)  # nobody wants anything
    assert node.ctl.try_("lease", "train").code == WRONG_STATE


def test_a_busy_group_stays_until_it_is_idle(stage):
    node = stage(**DEMAND | {"idle": "3s"})
    train, rollout = pair(node)
    train.ask("loop on")
    time.sleep(patience(2))  # amemd hears of its work within a second
    rollout.send("step")
    eventually(lambda: turns(node)["rollout"]["turn"] == "waits" and turns(node)["rollout"]["since_ms"] > 5000, deadline=60, what="it has waited")
    assert turns(node)["rollout"]["call"] and states(node) == ("running", "paused")
    train.ask("loop off")
    rollout.answers(60)
    assert states(node) == ("paused", "running")
    rollout.verify()


def test_a_busy_group_leaves_after_max_hold(stage):
    # A rank that gets no CPU for a second is not idle.
    node = stage(**DEMAND | {"idle": "30s"}, max_hold="2s")
    train, rollout = pair(node)
    train.ask("loop on")
    before = launches(train)
    rollout.send("step")
    rollout.answers(60)
    rollout.verify()
    # Its loop waits at the gate, so it gets the next turn.
    eventually(lambda: states(node) == ("running", "paused") and launches(train) > before, deadline=60, what="train runs again")
    assert turns(node)["train"]["ran_ms"] >= 2000
    train.ask("loop off")
    train.verify()


@pytest.mark.next_broker
def test_amemd_killed_at_random(stage):
    """No turn is lost for good, and there are never two groups on a GPU that has space for one. They leave in waves."""
    waves = ("--swap-wave", "4MiB")
    node = stage(*waves, **DEMAND | {"idle": "300ms"})
    train, rollout = pair(node)
    chance = random.Random(51)
    for kill in range(10):
        job = train if kill % 2 else rollout
        job.send("step 2")
        time.sleep(chance.uniform(0, 1.2))
        assert states(node).count("running") <= 1
        node.broker.signal(signal.SIGKILL)
        node.broker.wait()
        next_broker(node, *waves)
        job.answers(60)
        assert states(node).count("running") <= 1
    for job in (train, rollout):
        job.send("verify")
        for answer in job.answers(60):
            assert answer["wrong"] == 0 and answer["bytes"] > 0, f"{job.name}: {answer}"
