"""Two jobs of one user whose groups have one name: each is a group of its own, where a launcher tells them apart."""
import sys
import textwrap

import pytest

from sim_node import eventually
from sim_node.child import Told
from sim_node.ctl import USAGE
from sim_node.evaluator import Evaluator
from sim_node.stage import LARGE, start_stage


def launched(node, run, name="train", **more):
    """A job by torchrun, whose run has this id."""
    return node.job(f"{name}-{run}", group=name, env={"TORCHELASTIC_RUN_ID": run, **more})


def groups(node):
    return {group["name"]: group["state"].removeprefix("GROUP_STATE_").lower() for group in node.ctl.status()["groups"]}


def test_neither_waits_for_the_other(node):
    one, other = launched(node, "a"), launched(node, "b")
    node.broker.wait_for("group 'train:torchrun-b' and group 'train:torchrun-a' are of different jobs")
    assert groups(node) == {"train:torchrun-a": "running", "train:torchrun-b": "running"}
    one.ask("ncclPause")
    assert groups(node) == {"train:torchrun-a": "paused", "train:torchrun-b": "running"}
    other.check()
    one.ask("ncclResume")
    one.check()


def test_a_name_that_two_jobs_have_is_an_error_that_lists_both(node):
    one, other = launched(node, "a"), launched(node, "b")
    for command in (("pause", "train"), ("swap", "train", "train:torchrun-b"), ("ranks", "train")):
        answer = node.ctl.try_(*command)
        assert answer.code == USAGE and "'train:torchrun-a' 'train:torchrun-b'" in answer.error, (command, answer)
    node.ctl("pause", "train:torchrun-a")
    node.ctl("pause", "train:torchrun-b@0")
    assert set(groups(node).values()) == {"paused"}
    node.ctl("resume", "train:torchrun-a", "train:torchrun-b")
    one.check()
    other.leave()
    node.ctl("pause", "train")  # a job whose processes have all ended does not count
    assert groups(node) == {"train": "paused"}
    node.ctl("resume", "train")
    again = launched(node, "c")
    assert set(groups(node)) == {"train:torchrun-a", "train:torchrun-c"}
    one.leave()
    node.ctl("pause", "train")  # a script goes on when the job has been started again
    node.ctl("resume", "train")
    again.check()


def test_a_setting_by_name_holds_for_each_job(node):
    for run in "ab":
        rank = Evaluator(node, f"script-{run}", env={"TORCHELASTIC_RUN_ID": run})
        rank.ask("m = made('cuMemAlloc_v2', 1 << 20)")
    node.ctl("policy", "train", "heap", "discard", "--force")
    for run in "ab":
        assert node.ctl("pause", f"train:torchrun-{run}").json["dropped_bytes"] >= 1 << 20


def test_ranks_that_are_started_one_by_one_and_a_job_by_name(node):
    by_hand = node.job("train")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    slurm = node.job("train-2", group="train", env={"SLURM_JOB_ID": "12"})
    assert set(groups(node)) == {"train@0", "train:slurm-12"}
    node.ctl("pause", "train@0")
    assert groups(node)["train:slurm-12"] == "running"
    node.ctl("resume", "train@0")
    one_job = {"AMEM_JOB": ""}
    third = node.job("train-3", group="train", env={"SLURM_JOB_ID": "13", **one_job})
    assert set(groups(node)) == {"train@0", "train:slurm-12"}, "whoever sets AMEM_JOB says what one job is"
    for job in (by_hand, slurm, third):
        job.check()


def test_they_stay_apart_when_amemd_is_killed(node):
    one, other = launched(node, "a"), launched(node, "b")
    node.ctl("pause", "train:torchrun-a")
    node.broker.kill()
    node.start_broker(name="amemd-2")
    eventually(lambda: groups(node) == {"train:torchrun-a": "paused", "train:torchrun-b": "running"}, what="both groups are back")
    eventually(lambda: node.ctl.try_("resume", "train:torchrun-a").code == 0, what="its ranks have reconnected")
    one.check()
    other.check()


ASKS = textwrap.dedent("""
    import ctypes, os, sys
    driver, client = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1])
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0 and driver.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20) == 0
    print('{"joined": true}', flush=True)
    for line in sys.stdin:
        broker, text = ctypes.c_void_p(), ctypes.c_char_p()
        client.amem_open(None, ctypes.byref(broker), None)
        code = client.amem_ranks(broker, b"train", ctypes.byref(text), None)
        print('{"ok": true, "code": %d, "ranks": %s}' % (code, (text.value or b"null").decode()), flush=True)
""")


def test_a_rank_that_uses_the_name_means_its_own_group(node):
    shim, client = (f"{node.build.directory}/lib/{name}" for name in ("libamem_shim.so", "libamem_client.so"))
    ranks = []
    for run in ("a", "b"):
        env = node.env({"AMEM_GROUP": "train", "AMEM_SCOPE": "heap", "LD_PRELOAD": shim, "TORCHELASTIC_RUN_ID": run})
        ranks.append(node.adopt(Told(f"rank-{run}", [sys.executable, "-c", ASKS, client], env, node.log_file(f"rank-{run}"))))
        ranks[-1].wait_for('"joined"', stream="out")
    for rank in ranks:
        answer = rank.ask("ranks")
        assert answer["code"] == 0
        assert [each["pid"] for each in answer["ranks"]["ranks"]] == [rank.pid]


def test_each_job_of_a_name_has_turns_in_a_stage(bare_node):
    node = start_stage(bare_node, policy="demand", start="alone", start_idle="500ms", idle="300ms", grace="100ms", slice="2s")
    jobs = [node.job(f"train-{run}", group="train", env={"TORCHELASTIC_RUN_ID": run}, **LARGE) for run in ("a", "b")]
    assert set(groups(node)) == {"train:torchrun-a", "train:torchrun-b"}
    for job in jobs * 2:
        job.send("verify")
        assert job.answers(60)[0]["wrong"] == 0


@pytest.mark.parametrize("slurm", ["", "12"])
def test_amemctl_run_waits_for_the_first_turn_of_the_next_job(bare_node, slurm):
    node = start_stage(bare_node, policy="demand", start="alone", start_idle="500ms", idle="300ms", grace="100ms", slice="2s")
    node.settings.pop("AMEM_STAGE")
    jobs = []
    for run in "abc":  # amemctl begins before torchrun, which names the run for its ranks alone
        begin = [*node.launcher("train")[:-1], "--stage", "night", "--", "env", f"TORCHELASTIC_RUN_ID={run}"]
        jobs.append(node.job(f"train-{run}", group="train", run=begin, env={"SLURM_JOB_ID": slurm}, **LARGE))
    before = f"slurm-{slurm}." if slurm else ""
    assert set(groups(node)) == {f"train:{before}torchrun-{run}" for run in "abc"}
    for job in jobs * 2:
        job.send("verify")
        assert job.answers(60)[0]["wrong"] == 0
    for _ in jobs:
        node.broker.wait_for(f"group 'train{':slurm-12' if slurm else ''}' is to start")
