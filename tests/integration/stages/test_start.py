"""A group's first turn: it starts alone on the stage's GPUs, when its turn comes, and nobody says when."""
import os
import signal
import time

import pytest

from sim_node import MIB, eventually
from sim_node.child import patience
from sim_node.ctl import DEADLINE, NOT_FOUND, WRONG_STATE
from sim_node.job import Job
from sim_node.stage import LARGE, MEMORY, Lazy, Tenant, next_broker, stage_of, turns
from sim_node.turns import states

ALONE = {"start": "alone", "start_idle": "500ms", "idle": "300ms", "grace": "100ms", "slice": "2s"}
SMALL = {"ranks": 1, "allocations": 2, "size": "1MiB", "shared": 0.0}


def begin(node, name, **options):
    """A job that is not up yet."""
    return Job(node, name, **(LARGE | options))


def turn_of(node, name):
    return turns(node).get(name, {"turn": "none", "call": ""})["turn"]


def waits(node, name):
    eventually(lambda: turn_of(node, name) == "waits", what=f"{name} waits")


def busy(node, **settings):
    """A stage, and in it train, which is never idle and has had its first turn."""
    node = node(**(ALONE | {"policy": "demand"} | settings))
    train = node.job("train", **LARGE)
    eventually(lambda: turn_of(node, "train") == "runs", what="its first turn has ended")
    train.ask("loop on")
    time.sleep(patience(2))  # amemd hears of its work within a second
    return node, train


@pytest.mark.parametrize("policy", ["lease", "slice"])
def test_three_groups_start_and_nobody_decides_when(stage, policy):
    node = stage(policy=policy, **ALONE)
    jobs = {name: begin(node, name) for name in ("a", "b", "c")}
    for job in jobs.values():
        job.ready(90)
    for _ in range(2):
        for name, job in jobs.items():
            if policy == "lease":
                node.ctl("lease", name, "--timeout", "30s")
            for command in ("verify", "step 2", "verify"):
                job.send(command)
                job.answers(60)
            if policy == "lease":
                node.ctl("lease", name, "--yield")
    assert stage_of(node)["failed_switches"] == 0
    for job in jobs.values():
        job.send("exit")
        assert [rank.wait() for rank in job.ranks] == [0]


def test_a_group_that_starts_sees_the_whole_gpu(stage):
    node = stage(policy="demand", **ALONE)
    node.job("train", **LARGE)
    late = node.puppet("late", 0, group="rollout")
    assert late.ask("meminfo")["free"] >= MEMORY - 3 * node.CONTEXT_BYTES
    assert turn_of(node, "rollout") == "starts"
    assert node.ctl.state("train") == "paused" and node.ctl.group("train")["paused_by_stage"]
    why = stage_of(node)["last"]["why"]
    assert "group 'rollout' has waited for" in why and "to start" in why


def test_groups_that_fit_run_beside_each_other_once_they_have_started(stage):
    node = stage(policy="demand", **ALONE)
    a = begin(node, "a", **SMALL)
    a.ready()
    b = begin(node, "b", **SMALL)
    b.ready(30)
    a.send("step")
    a.answers(30)
    eventually(lambda: turn_of(node, "a") == turn_of(node, "b") == "runs", what="both run")
    a.check()
    b.check()


def test_a_group_starts_though_one_is_never_idle(stage):
    node, train = busy(stage, max_hold="2s")
    rollout = begin(node, "rollout").ready(60)
    rollout.send("verify")
    rollout.answers(60)
    train.ask("loop off", 60)


def test_a_first_turn_ends_by_max_hold(stage):
    """And then its group leaves as any other."""
    node = stage(**(ALONE | {"policy": "demand", "max_hold": "2s", "start_idle": "1h"}))
    train = node.job("train", **LARGE)
    rollout = begin(node, "rollout").ready(60)
    assert states(node) == ("paused", "running")
    train.send("verify")
    train.answers(60)
    rollout.send("verify")
    rollout.answers(60)


@pytest.mark.parametrize("policy", ["demand", "lease"])
def test_whoever_has_started_says_so(stage, policy):
    node = stage(**(ALONE | {"policy": policy, "start_idle": "1h"}))
    node.job("train", **LARGE)
    rollout = begin(node, "rollout")
    waits(node, "rollout")
    assert turn_of(node, "train") == "starts"
    assert turns(node)["rollout"]["call"] == "its start"
    rollout.ranks[0].wait_for("group 'rollout' waits for its first turn in stage 'night'")
    node.ctl("lease", "train", "--yield")
    rollout.ready(30)
    rollout.verify()
    if policy == "demand":
        node.ctl("lease", "rollout", "--yield")
        assert node.ctl.try_("lease", "rollout", "--yield").code == WRONG_STATE, "it has no first turn any more"


def test_all_ranks_of_a_group_start_together(stage):
    node = stage(policy="demand", **ALONE)
    node.job("train", **LARGE)
    rollout = Job(node, "rollout", ranks=2, allocations=4, size="1MiB", env={"AMEM_SIM_DEVICES": "1"})
    rollout.ready(60)
    rollout.check()
    late = node.puppet("late", 0, group="rollout", env={"RANK": "7"})
    assert late.ask("meminfo")["total"] == MEMORY


def test_beside_is_as_before(stage):
    node = stage(**(ALONE | {"start": "beside", "policy": "lease"}))
    node.job("train", **SMALL)
    rollout = node.job("rollout", **SMALL)
    assert states(node) == ("running", "running") and turn_of(node, "rollout") == "runs"
    rollout.check()


def test_a_program_without_amemctl_waits_at_the_gate(stage):
    node, train = busy(stage)
    shim = os.path.join(node.build.directory, "lib", "libamem_shim.so")
    rollout = begin(node, "rollout", run=["env", f"LD_PRELOAD={shim}", "AMEM_GROUP=rollout"])
    waits(node, "rollout")
    assert node.ctl.state("rollout") == "paused" and node.ctl.group("rollout")["paused_by_stage"]
    train.ask("loop off")
    rollout.ready(60)
    rollout.verify()


@pytest.mark.next_broker
def test_amemd_killed_while_a_group_waits_for_its_first_turn(stage):
    node, train = busy(stage)
    rollout = begin(node, "rollout")
    waits(node, "rollout")
    node.broker.signal(signal.SIGKILL)
    node.broker.wait()
    next_broker(node)
    waits(node, "rollout")
    assert train.ranks[0].ask("loop status")["rounds"] > 0
    train.ask("loop off")
    rollout.ready(60)
    rollout.verify()


@pytest.mark.next_broker
def test_a_first_turn_outlives_amemd(stage):
    node = stage(**(ALONE | {"policy": "demand", "start_idle": "1h"}))
    node.job("train", **LARGE)
    assert turn_of(node, "train") == "starts"
    node.broker.signal(signal.SIGKILL)
    node.broker.wait()
    next_broker(node)
    node.ctl("wait", "idle", "--timeout", "20s")
    assert turn_of(node, "train") == "starts"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_start_that_is_interrupted(stage, how):
    node, _train = busy(stage)
    rollout = begin(node, "rollout")
    waits(node, "rollout")
    rollout.ranks[0].signal(how)
    assert rollout.ranks[0].wait() == (-how if how == signal.SIGKILL else 130)
    eventually(lambda: turn_of(node, "rollout") == "none", what="nobody waits")
    if how != signal.SIGKILL:
        assert "The command has not started" in rollout.ranks[0].output()


def test_a_start_that_takes_too_long(stage):
    node, _train = busy(stage)
    launcher = node.launcher("rollout")
    rollout = begin(node, "rollout", run=[*launcher[:-1], "--timeout", "1s", "--"])
    assert rollout.ranks[0].wait(20) == DEADLINE
    assert "has not got its first turn in stage 'night' within 1s" in rollout.ranks[0].output()
    assert turn_of(node, "rollout") == "none"


def test_a_stage_that_is_not_there(stage):
    node = stage(policy="demand", **ALONE)
    launcher = node.launcher("rollout")
    job = begin(node, "rollout", run=[*launcher[:-1], "--stage", "day", "--"]).ready()
    job.ranks[0].wait_for("there is no stage 'day'")
    job = begin(node, "other", run=[*launcher[:-1], "--stage", "day", "--required", "--"])
    assert job.ranks[0].wait(20) == NOT_FOUND


def test_a_program_that_ends_before_it_has_a_rank(stage):
    node = stage(policy="demand", **ALONE)
    launcher = node.launcher("rollout")
    rollout = begin(node, "rollout", run=[*launcher, "sh", "-c", "sleep 3"])
    eventually(lambda: turn_of(node, "rollout") == "starts", what="it has its turn")
    train = begin(node, "train")
    waits(node, "train")
    rollout.ranks[0].wait(20)
    train.ready(30)
    assert turn_of(node, "rollout") == "none"


def test_the_program_is_as_without_a_wait(stage):
    """Nothing of amemctl's wait is left in it."""
    node = stage(policy="demand", **ALONE)
    shows = "ls -l /proc/self/fd >&2; grep -E 'Sig(Blk|Ign)' /proc/self/status >&2"
    said = []
    for name in ("night", ""):
        launcher = node.launcher("rollout")
        job = begin(node, f"with-{name}", run=[*launcher, "sh", "-c", shows], env={"AMEM_STAGE": name, "LD_PRELOAD": None})
        job.ranks[0].wait(20)
        said.append([line.split()[-3:] if "->" in line else line for line in job.ranks[0].output().splitlines()])
    sizes = [len([line for line in each if "->" in line]) for each in said]
    assert sizes[0] == sizes[1] and [line for line in said[0] if "Sig" in line] == [line for line in said[1] if "Sig" in line], said


# ---- a group that has no rank yet ----------------------------------------------------------------


@pytest.fixture
def two_that_start(stage):
    """A stage in which `lazy` has its first turn and `late` waits for its own. Neither has used a GPU."""
    node = stage(policy="demand", **ALONE)
    lazy = Lazy(node, "lazy").is_at("starts")
    return node, lazy, Lazy(node, "late").is_at("waits")


def test_a_group_that_only_starts_is_a_group(two_that_start):
    node, lazy, late = two_that_start
    for program in (lazy, late):
        group = node.ctl.group(program.name)
        assert (group["rank_count"], group["stage"], group["allocated_bytes"]) == (0, "night", 0)
        answer = node.ctl.try_("ready", program.name)
        assert answer.code == WRONG_STATE and not answer.json["ready"], answer
        assert turns(node)[program.name]["pids"] == [program.pid]
        assert str(program.pid) in node.ctl("turns", json_output=False).out
    assert node.ctl("stage", "late", "--priority", "3").code == 0 and turns(node)["late"]["priority"] == 3
    lazy.kill()
    eventually(lambda: node.ctl.group("lazy") is None, what="it has gone with its process")
    late.is_at("starts").go()
    late.ask(f"plain {MIB}")
    assert node.ctl.group("late")["rank_count"] == 1
    assert turns(node)["late"]["pids"] == []


@pytest.mark.parametrize("command", [["pause", "lazy"], ["lease", "lazy", "--yield"]])
def test_a_command_ends_a_first_turn_without_a_rank(two_that_start, command):
    """Its program waits for another one then, and gets it."""
    node, lazy, late = two_that_start
    node.ctl(*command)
    late.is_at("starts")
    lazy.go()
    lazy.send(f"plain {MIB}")
    if command[0] == "pause":
        assert lazy.turn["turn"] == "paused" and not node.ctl.group("lazy")["paused_by_stage"]
        lazy.stands()
        node.ctl.try_("resume", "lazy")
    else:
        lazy.is_at("waits").stands()
    node.ctl("lease", "late", "--yield")
    assert lazy.answer()["id"]


def test_a_group_that_only_starts_leaves_its_stage(two_that_start):
    node, lazy, late = two_that_start
    node.ctl("stage", "lazy", "none")
    late.is_at("starts")
    assert "lazy" not in turns(node) and node.ctl.group("lazy")["stage"] == ""
    assert lazy.alive()


def test_a_group_that_was_taken_out_before_its_first_rank_starts_without_a_turn(two_that_start):
    node, _lazy, late = two_that_start
    node.ctl("stage", "late", "none")
    another = Lazy(node, "late")
    for program in (another, late):
        program.go()
        assert program.ask(f"plain {MIB}")["id"]


def test_a_second_program_may_start_a_group_whose_first_one_ends(two_that_start):
    node, lazy, _late = two_that_start
    second = Lazy(node, "lazy")
    eventually(lambda: turns(node)["lazy"]["pids"] == [lazy.pid, second.pid], what="amemd knows both")
    lazy.kill()
    second.go()
    assert second.ask(f"plain {MIB}")["id"] and turn_of(node, "lazy") == "starts"


def test_a_pause_holds_for_a_group_that_waits_for_its_start(two_that_start):
    node, lazy, late = two_that_start
    node.ctl("pause", "late")
    late.is_at("paused")
    lazy.kill()
    eventually(lambda: node.ctl.group("lazy") is None, what="the first turn is free")
    assert late.turn["turn"] == "paused"
    node.ctl.try_("resume", "late")
    late.is_at("starts").go()


@pytest.mark.next_broker
def test_amemd_killed_while_groups_only_start(two_that_start):
    """Who had its first turn gets another one when it uses the GPU, and who waits gets its own."""
    node, lazy, late = two_that_start
    node.broker.kill()
    next_broker(node)
    eventually(lambda: late.turn["turn"] in ("starts", "waits"), what="it waits again")
    lazy.go()
    lazy.send(f"plain {MIB}")
    late.is_at("starts")
    late.kill()
    assert lazy.answer(40)["id"]


def test_a_first_turn_without_a_rank_ends_by_its_limit(stage):
    """Its program waits for a new one as soon as it asks how much memory there is, so that it sees the whole GPU."""
    node = stage(**(ALONE | {"policy": "demand", "start_limit": "1s"}))
    lazy = Lazy(node, "lazy").is_at("starts")
    busy = Tenant(node, "busy", 12 * MIB, device=0)
    busy.stays_busy()
    lazy.is_at("idle").go()
    lazy.send("meminfo")
    lazy.is_at("waits").stands()
    assert turns(node)["lazy"]["call"]
    busy.puppet.ask("loop off")
    answer = lazy.answer()
    assert answer["free"] >= MEMORY - 3 * node.CONTEXT_BYTES and turn_of(node, "lazy") == "starts"
    assert lazy.ask(f"plain {12 * MIB}")["id"]


# ---- starts on several GPUs ----------------------------------------------------------------------


def names_of(node, gpu):
    """As users name a GPU in CUDA_VISIBLE_DEVICES."""
    uuid = node.ctl.devices()[gpu]["uuid"]
    return {"ordinal": str(gpu), "uuid": uuid, "beginning": uuid[:12]}


@pytest.fixture
def two_gpus(stage):
    return stage(gpus=2, devices=[0, 1], policy="demand", **ALONE)


@pytest.mark.parametrize("named", ["ordinal", "uuid", "beginning"])
def test_starts_on_different_gpus_do_not_wait_for_each_other(two_gpus, named):
    node = two_gpus
    first, second, third = (Lazy(node, name, env={"CUDA_VISIBLE_DEVICES": names_of(node, gpu)[named]}).is_at(turn)
                            for name, gpu, turn in [("first", 0, "starts"), ("second", 1, "starts"), ("third", 0, "waits")])
    assert first.turn["turn"] == "starts"
    second.go()
    assert second.ask(f"plain {12 * MIB}")["id"]
    assert third.turn["turn"] == "waits"
    first.kill()
    third.is_at("starts").go()
    assert third.ask(f"plain {12 * MIB}")["id"]


def test_a_start_on_one_gpu_makes_nobody_leave_another_one(two_gpus):
    node = two_gpus
    train = Tenant(node, "train", 12 * MIB, env={"CUDA_VISIBLE_DEVICES": "0"})
    eventually(lambda: train.turn["turn"] == "runs", what="its first turn has ended")
    before = stage_of(node)["switches"]
    other = Lazy(node, "other", env={"CUDA_VISIBLE_DEVICES": "1"}).is_at("starts")
    train.works()
    assert train.turn["turn"] == "runs" and stage_of(node)["switches"] - before <= 1
    both = Lazy(node, "both").is_at("waits")
    other.kill()
    both.is_at("starts")
    assert train.turn["turn"] == "idle", "a start without CUDA_VISIBLE_DEVICES takes all GPUs of the stage"


# ---- an operator's command while its stage switches the group ------------------------------------

def switching(stage, phase="save"):
    """Stage night switches from train to rollout, and is in the middle of that until train has no faults any more."""
    node = stage()
    rollout = node.job("rollout", **LARGE)
    node.ctl("pause", "rollout")
    train = node.job("train", **LARGE)
    assert node.ctl.try_("resume", "rollout").code != 0
    node.ctl("lease", "train")
    train.ranks[0].faults("cuMemcpyDtoHAsync:1:hold")
    lease = node.ctl.start("lease", "rollout", "--timeout", "60s")
    eventually(lambda: turn_of(node, "rollout") == "waits")
    node.ctl("lease", "train", "--yield")
    eventually(lambda: node.ctl.group("train")["phase"].endswith(phase))
    return node, train, rollout, lease


@pytest.mark.parametrize("command", [["pause", "rollout"], ["swap", "rollout", "train"]])
def test_an_operators_command_during_a_switch(stage, command):
    node, train, _rollout, lease = switching(stage)
    waiting = node.ctl.start(*command)
    back = node.ctl.start("lease", "train", "--timeout", "60s")  # the stage would switch back at once
    time.sleep(1)
    assert waiting.alive() and node.ctl.group("train")["phase"].endswith("save")
    train.ranks[0].faults()
    assert waiting.finish().code == 0 and lease.finish().code == 0 and back.finish().code == 0
    assert states(node) == ("running", "paused") and not node.ctl.group("rollout")["paused_by_stage"]
    train.verify()


def test_a_pause_of_a_group_that_leaves(stage):
    """Its stage has paused it then, and from there on the operator has."""
    node, train, rollout, lease = switching(stage)
    waiting = node.ctl.start("pause", "train")
    time.sleep(1)
    assert waiting.alive()
    train.ranks[0].faults()
    assert waiting.finish().code == 0 and lease.finish().code == 0
    assert states(node) == ("paused", "running") and turn_of(node, "train") == "paused"
    rollout.verify()


def test_an_operators_command_that_waits_too_long_for_a_switch(stage):
    node, train, rollout, lease = switching(stage)
    answer = node.ctl.try_("pause", "rollout", "--timeout", "1s")
    assert answer.code == DEADLINE and "stage 'night' has been switching group 'rollout' for all of 1s" in answer.error
    train.ranks[0].faults()
    assert lease.finish().code == 0
    rollout.verify()
