"""Turns by lease: two groups of which one fits on the GPU, and nobody else who says when."""
import os
import signal
import subprocess
import sys
import time

import pytest

from sim_node import MIB, Program, eventually
from sim_node.ctl import DEADLINE, NOT_FOUND, WRONG_STATE
from sim_node.stage import LARGE, next_broker, pair, stage_of, turns
from sim_node.turns import states


def test_two_groups_take_turns_without_a_controller(stage):
    node = stage()
    train, rollout = pair(node)
    jobs = {"train": train, "rollout": rollout}
    for round_ in range(3):
        for name, job in jobs.items():
            node.ctl("lease", name, "--timeout", "20s")
            assert turns(node)[name]["turn"] == "runs" and turns(node)[name]["leased"]
            job.check()
            node.ctl("lease", name, "--yield")
    [night] = node.ctl("turns").json["stages"]
    assert night["switches"] == 5 and night["failed_switches"] == 0
    assert night["last"]["in_groups"] == ["rollout"] and night["last"]["out_groups"] == ["train"]
    assert "group 'rollout' has waited for" in night["last"]["why"]
    last = node.ctl("history").json["operations"][-1]
    assert last["stage"] == "night" and last["why"] == night["last"]["why"] and last["swap"]
    assert "stage night: group 'rollout' has waited" in node.ctl("history", json_output=False).out
    assert "night  policy lease, GPUs 0, 5 switches" in node.ctl("turns", json_output=False).out


def test_an_operators_pause_wins(stage):
    node = stage()
    train, rollout = pair(node)
    node.ctl("lease", "train")
    node.ctl("pause", "rollout")  # which its stage has paused already
    assert not node.ctl.group("rollout")["paused_by_stage"]
    waiting = node.ctl.start("lease", "rollout", "--timeout", "30s")
    node.ctl("lease", "train", "--yield")
    assert node.ctl.try_("lease", "rollout", "--timeout", "1500ms").code == DEADLINE
    assert states(node) == ("running", "paused") and turns(node)["rollout"]["turn"] == "paused"
    node.ctl("pause", "train")
    assert turns(node)["train"]["turn"] == "paused" and node.ctl.state("rollout") == "paused"
    node.ctl("resume", "rollout")
    assert waiting.finish().code == 0
    rollout.verify()
    node.ctl("lease", "rollout", "--yield")
    assert node.ctl.try_("lease", "train", "--timeout", "1s").code == DEADLINE, "an operator has paused it"
    node.ctl("pause", "rollout")
    node.ctl("resume", "train")
    train.verify()


def test_who_is_ready(stage):
    node = stage()
    before = time.time() * 1000
    pair(node)
    answer = node.ctl.try_("ready", "rollout")
    assert answer.code == WRONG_STATE and answer.err == ""
    since = answer.json["paused_since_ms"]
    assert before - 1000 < since < time.time() * 1000
    assert "the group is paused" in answer.json["note"], "how its last resume failed"
    assert answer.json | {"paused_since_ms": 0, "note": ""} == {"group": "rollout", "ready": False, "alive": True, "state": "paused",
                                                                "paused_since_ms": 0, "paused_by_stage": True, "lost": "", "note": ""}
    assert "It resumes at its next turn in stage night" in node.ctl.try_("ready", "rollout", json_output=False).out
    assert node.ctl("ready", "train").json["ready"]
    assert node.ctl.try_("ready", "nobody").code == NOT_FOUND


def test_a_turn_that_ends_drops_what_a_policy_discards(stage):
    node = stage()
    rollout = node.job("rollout", **LARGE)
    node.ctl("pause", "rollout")
    Program(node).ask(f"alloc 0 {2 * MIB} 8")
    assert node.ctl.try_("resume", "rollout").code != 0
    for each in node.ctl.group("train")["tags"]:
        node.ctl("policy", "train", each["tag"], "discard", *(["--force"] if each["tag"] == "heap" else []))
    node.ctl("lease", "rollout", "--timeout", "20s")
    group = node.ctl.group("train")
    assert group["state"] == "GROUP_STATE_PAUSED" and group["dropped_bytes"] >= 16 * MIB and group["saved_bytes"] == 0
    rollout.verify()


def test_a_group_outside_every_stage_is_not_touched(stage):
    node = stage()
    node.settings["AMEM_STAGE"] = ""
    stranger = node.job("stranger", **LARGE)
    node.settings["AMEM_STAGE"] = "night"
    small = node.job("small", ranks=1, allocations=1, size="1MiB", shared=0.0)
    node.ctl("lease", "small")
    answer = node.ctl.try_("lease", "stranger")
    assert answer.code == WRONG_STATE and "is in no stage" in answer.error
    assert node.ctl.group("stranger")["stage"] == "" and "stranger" not in turns(node)
    stranger.check()
    small.check()


def test_a_group_that_is_too_large_stays_as_it_is(stage):
    node = stage(margin="10MiB")
    train = node.job("train", **LARGE)
    eventually(lambda: turns(node)["train"]["turn"] == "apart")
    assert "needs 16.1 MiB" in turns(node)["train"]["note"]
    answer = node.ctl.try_("lease", "train")
    assert answer.code == WRONG_STATE and "takes no turns" in answer.error
    train.check()


def test_the_lease_of_a_group_that_ends(stage):
    node = stage()
    _train, rollout = pair(node)
    node.ctl("lease", "train")
    waiting = node.ctl.start("lease", "rollout")
    eventually(lambda: turns(node)["rollout"]["turn"] == "waits")
    rollout.kill()
    answer = waiting.finish()
    assert answer.code != 0 and "group 'rollout' has ended" in answer.error
    assert node.ctl.try_("lease", "rollout").code == NOT_FOUND
    assert list(turns(node)) == ["train"]


def test_who_has_the_turn_ends(stage):
    node = stage()
    train, rollout = pair(node)
    node.ctl("lease", "train")
    waiting = node.ctl.start("lease", "rollout", "--timeout", "30s")
    eventually(lambda: turns(node)["rollout"]["turn"] == "waits")
    train.kill()
    assert waiting.finish().code == 0
    rollout.verify()


def test_a_stage_that_is_not_there(stage):
    node = stage()
    node.settings["AMEM_STAGE"] = "day"
    job = node.job("train", **LARGE)
    assert node.ctl.group("train")["stage"] == "" and turns(node) == {}
    answer = node.ctl.try_("stage", "train", "noon")
    assert answer.code == NOT_FOUND and "This node's stages are 'night'" in answer.error
    node.ctl("stage", "train", "night", "--priority", "3", "--weight", "2")
    assert (turns(node)["train"]["priority"], turns(node)["train"]["weight"]) == (3, 2)
    node.ctl("lease", "train")
    job.check()
    answer = node.ctl.try_("stage", "train", "--longest-wait", "10s")
    assert answer.code == WRONG_STATE or turns(node)["train"]["longest_wait_ms"] == 10_000
    node.ctl("stage", "train", "none")
    assert turns(node) == {} and node.ctl.state("train") == "running"


@pytest.mark.next_broker
@pytest.mark.parametrize("phase", ["quiesce", "save", "release", "load"])
def test_amemd_killed_in_a_switch(stage, phase):
    node = stage()
    train, rollout = pair(node)
    node.ctl("lease", "train")
    call = {"quiesce": None, "save": "cuMemcpyDtoHAsync:1:hold", "release": "releaseBegins:1:hold",
            "load": "cuMemcpyHtoDAsync:1:hold"}[phase]
    victim = rollout if phase == "load" else train
    if call:
        victim.ranks[0].faults(call)
    watch = node.ctl.start("watch")
    waiting = node.ctl.start("lease", "rollout", "--timeout", "30s")
    eventually(lambda: turns(node)["rollout"]["turn"] == "waits")
    node.ctl("lease", "train", "--yield")
    if call:
        eventually(lambda: node.ctl.group("train" if victim is train else "rollout")["phase"].endswith(phase))
    node.broker.signal(signal.SIGKILL)
    node.broker.wait()
    if call:
        victim.ranks[0].faults()
    waiting.finish()
    watch.wait()
    next_broker(node)
    eventually(lambda: node.ctl("wait", "idle", "--timeout", "20s").code == 0)
    assert sorted(turns(node)) == ["rollout", "train"]
    assert states(node).count("running") <= 1
    for name, job in [("rollout", rollout), ("train", train), ("rollout", rollout)]:
        node.ctl("lease", name, "--timeout", "20s")
        job.check()
        assert states(node).count("running") == 1
        node.ctl("lease", name, "--yield")


@pytest.mark.next_broker
def test_amemd_killed_between_two_waves(stage):
    """The rest of train is on the GPU, and train asks for nothing. Whoever asks has that space."""
    node = stage("--swap-wave", "4MiB")
    train, rollout = pair(node)
    node.ctl("lease", "train")
    train.ranks[0].faults("cuMemcpyDtoHAsync:3+:hold")  # of the second wave, and later
    waiting = node.ctl.start("lease", "rollout", "--timeout", "30s")
    eventually(lambda: turns(node)["rollout"]["turn"] == "waits")
    node.ctl("lease", "train", "--yield")
    eventually(lambda: 12 * MIB <= node.ctl.group("train")["resident_bytes"] < 13 * MIB)
    node.broker.signal(signal.SIGKILL)
    node.broker.wait()
    train.ranks[0].faults()
    waiting.finish()
    next_broker(node, "--swap-wave", "4MiB")
    eventually(lambda: node.ctl("wait", "idle", "--timeout", "20s").code == 0)
    assert states(node) == ("paused", "paused") and node.ctl.group("train")["resident_bytes"] >= 12 * MIB
    for name, job in [("rollout", rollout), ("train", train)]:
        node.ctl("lease", name, "--timeout", "20s")
        job.check()
        node.ctl("lease", name, "--yield")
    assert node.ctl.group("rollout")["resident_bytes"] == 0


@pytest.mark.next_broker
def test_what_others_have_is_known_after_a_restart(stage):
    """A program without amem has taken the space in which rollout would fit beside train."""
    node = stage()
    train, rollout, other = (Program(node, name, scope) for name, scope in
                             [("train", "heap"), ("rollout", "heap"), ("other", None)])
    for program in (train, rollout):
        program.ask(f"alloc 0 {2 * MIB} 2")
    node.ctl("lease", "train")
    node.ctl("pause", "rollout")
    other.ask(f"alloc 0 {2 * MIB} 6")
    node.ctl.try_("resume", "rollout")
    assert node.ctl.group("rollout")["paused_by_stage"], "who resumes it lets go of it"
    node.broker.signal(signal.SIGKILL)
    node.broker.wait()
    next_broker(node)
    eventually(lambda: node.ctl("wait", "idle", "--timeout", "20s").code == 0)
    for name, program in [("rollout", rollout), ("train", train)]:
        before = "train" if name == "rollout" else "rollout"
        node.ctl("lease", before, "--yield")
        node.ctl("lease", name, "--timeout", "20s")
        program.verify()
    assert stage_of(node)["failed_switches"] == 0


@pytest.mark.next_broker
def test_a_turn_outlives_amemd(stage):
    node = stage()
    train, _rollout = pair(node)
    node.ctl("lease", "train")
    node.ctl("stage", "train", "--priority", "7")
    node.broker.signal(signal.SIGKILL)
    node.broker.wait()
    next_broker(node)
    eventually(lambda: node.ctl("wait", "idle", "--timeout", "20s").code == 0)
    assert turns(node)["train"]["leased"] and turns(node)["train"]["priority"] == 7
    assert node.ctl.group("rollout")["paused_by_stage"]
    assert node.ctl.try_("lease", "rollout", "--timeout", "1500ms").code == DEADLINE
    train.check()
    node.ctl("lease", "train", "--yield")
    node.ctl("lease", "rollout", "--timeout", "20s")
    assert states(node) == ("paused", "running")


def test_turns_in_python(stage):
    node = stage()
    train, rollout = pair(node)
    script = """if True:
        import asyncio, amem
        with amem.turn("rollout", timeout=20) as turn:
            print(turn.waited > 0, [each.group for each in amem.Broker().turns("night")[0].groups if each.turn == "runs"])
        async def main():
            async with amem.turn("train", timeout=20):
                print([(each.group, each.leased) for each in amem.Broker().turns()[0].groups if each.turn == "runs"])
        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", script], env=node.env({"PYTHONPATH": os.path.join(node.build.directory, "python")}),
                          capture_output=True, text=True, timeout=60)
    if "No module named 'grpc'" in done.stderr:
        pytest.skip("needs grpcio")
    assert done.stdout.splitlines() == ["True ['rollout']", "[('train', True)]"], done.stderr
    assert not turns(node)["train"]["leased"]
    train.verify()
    node.ctl("lease", "rollout", "--timeout", "20s")
    rollout.verify()
