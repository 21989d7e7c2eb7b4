"""Before the first deep pause of ranks that see certain devices amemd proves with a throwaway process that the driver can do it."""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from sim_node import eventually, patience
from sim_node.child import processes
from sim_node.flipped import FlippedMemory as Memory
from sim_node.wire import Session

MIB = 1 << 20
PROVEN = "deep pauses are proven"
BY_HAND = pathlib.Path(__file__).resolve().parents[3] / "tests/gpu/by_hand/proof.py"


@pytest.fixture
def deep_node(bare_node):
    """A node on which processes can be checkpointed."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    return bare_node


def started(node, *flags, devices=(0,), **options):
    node.start_broker("--deep-enabled", "true", *flags, **options)
    return [Memory(node, 4 * MIB, 2 * MIB, name=f"rank{device}", device=device) for device in devices]


def seeing(node, visible, name="hider"):
    """A rank that sees these devices, and uses the first."""
    return Memory(node, 4 * MIB, 2 * MIB, name=name, env={"CUDA_VISIBLE_DEVICES": visible})


def by_hand(node, *arguments, libraries="", **env):
    """The process without amemd."""
    path = ":".join(filter(None, [libraries, node.build.sim_libraries]))
    done = subprocess.run([sys.executable, "-B", BY_HAND, "--program", node.build.program("amem-checkpoint"), "--library-path", path,
                           *arguments], env=node.env(env), capture_output=True, text=True, timeout=patience(120), check=False)
    return done.returncode, done.stdout + done.stderr


def stand_in(node):
    """The folder of a libnccl.so.2."""
    return os.path.join(node.build.directory, "lib", "stand_in_nccl")


def targets(node):
    """The throwaway processes that live; other nodes' are not counted."""
    def is_ours(pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return node.sim_dir.encode() in file.read()
        except OSError:
            return False
    return [pid for pid, words in processes() if words[1:2] == [b"target"] and is_ours(pid)]


def proofs(node):
    with open(node.broker.log_path) as log:
        return log.read().count(PROVEN)


def refused(node, *words):
    answer = node.ctl.try_("pause", "train", "--deep")
    assert answer.code != 0, answer
    for word in words:
        assert word in answer.error, answer
    eventually(lambda: not targets(node), what="the process for it has ended")
    return answer


def works(node, ranks):
    node.ctl("pause", "train", "--deep")
    assert node.ctl.group("train")["deep"]
    node.ctl("resume", "train")
    for rank in ranks:
        rank.verify()


def still_runs(node, ranks):
    assert node.ctl.state("train") == "running"
    for rank in ranks:
        rank.verify()


@pytest.mark.parametrize("place, visible", [("host_numa", "0"), ("memfd", "1"), ("memfd", "1,0")])
def test_each_set_of_visible_devices_is_proven_once(deep_node, place, visible):
    ranks = [*started(deep_node, "--pool-place", place, devices=(0, 1)), seeing(deep_node, visible)]
    deep_node.ctl("pause", "train")
    deep_node.ctl("resume", "train")
    assert proofs(deep_node) == 0  # a plain pause needs none
    for _ in range(2):
        works(deep_node, ranks)
        assert proofs(deep_node) == 2  # two ranks see all, and one does not
        assert not targets(deep_node)
    seeing(deep_node, "1,0", name="late")
    works(deep_node, ranks)
    assert proofs(deep_node) == (2 if visible == "1,0" else 3)


def test_what_the_driver_would_lose_is_refused(deep_node):
    """The pool belongs to a device that the rank does not see. Nothing has been lost."""
    ranks = [*started(deep_node, "--pool-place", "host_numa"), seeing(deep_node, "1")]
    refused(deep_node, "deep pauses do not work on this node", "restore", "CUDA_ERROR_OPERATING_SYSTEM", "does not see", "host_numa")
    still_runs(deep_node, ranks)


def test_a_rank_whose_shim_is_older(deep_node):
    """It does not say what it sees."""
    ranks = started(deep_node)
    old = Session(deep_node.runtime_dir)
    code, text, _ = old.hello("train", rank=7)
    assert code == 0, text
    refused(deep_node, "rank 7", "does not say which GPUs it sees", "older than amemd", "Restart the job with the shim")
    other = Memory(deep_node, 4 * MIB, name="other", group="other")
    deep_node.ctl("pause", "other")
    answer = deep_node.ctl.try_("swap", "train", "other", "--deep")
    assert answer.code != 0 and "does not say which GPUs it sees" in answer.error, answer
    assert deep_node.ctl.state("train") == "running" and deep_node.ctl.state("other") == "paused"
    old.close()
    eventually(lambda: len(deep_node.ctl.ranks("train")) == 1, what="it has left")
    works(deep_node, ranks)
    deep_node.ctl("swap", "train", "other")
    other.verify()


def test_ranks_say_again_what_they_see(deep_node):
    """To an amemd that has begun again."""
    ranks = [*started(deep_node, "--pool-place", "memfd"), seeing(deep_node, "1")]
    deep_node.broker.kill()
    deep_node.start_broker("--deep-enabled", "true", "--pool-place", "memfd")
    for _ in ranks:
        deep_node.broker.wait_for("has reconnected")
    works(deep_node, ranks)
    assert proofs(deep_node) == 2


def test_the_first_deep_pause_of_a_group_says_what_its_proof_is_worth(deep_node):
    ranks = started(deep_node)
    for first in (True, False):
        done = deep_node.ctl("pause", "train", "--deep").json
        remarks = done.get("remarks", [])
        assert len(remarks) == first, done
        if first:
            assert "first deep pause" in remarks[0] and "with" in remarks[0] and "NCCL" in remarks[0], remarks
            assert "no guarantee" in remarks[0] and "lock" in remarks[0], remarks
            assert deep_node.ctl("history").json["operations"][-1]["remarks"] == remarks
        deep_node.ctl("resume", "train")
    other = Memory(deep_node, 4 * MIB, name="other", group="other")
    text = deep_node.ctl.try_("pause", "other", "--deep", json_output=False).out
    assert "note: this is the group's first deep pause" in text, text
    deep_node.ctl("resume", "other")
    for rank in [*ranks, other]:
        rank.verify()


@pytest.mark.parametrize("pool", ["none", "memfd", "host_numa"])
def test_the_process_has_the_nodes_nccl(deep_node, pool):
    """Before and after each cycle there is an all-reduce."""
    code, text = by_hand(deep_node, "--pool", pool, "0", "1,0", libraries=stand_in(deep_node))
    assert code == 0 and text.count("right, NCCL 2.27.3") == 2, text


def test_the_process_goes_on_without_an_nccl_that_does_not_work(deep_node):
    code, text = by_hand(deep_node, "0", libraries=stand_in(deep_node), STAND_IN_NCCL_FAILS="1")
    assert code == 0 and "right, NCCL none" in text, text
    assert "without NCCL: NCCL 2.27.3: ncclCommInitAll: unhandled error" in text, text


def test_the_process_loads_no_library_of_a_job(deep_node):
    """Whatever amemd's environment has: amemd may have been started in somebody's shell."""
    library = os.path.join(stand_in(deep_node), "libnccl.so.2")
    os.makedirs(deep_node.sim_dir)  # where the library writes, from amemd's beginning on
    ranks = started(deep_node, env={"LD_PRELOAD": library, "NCCL_NET_PLUGIN": library,
                                    "LD_LIBRARY_PATH": f"{stand_in(deep_node)}:{deep_node.build.sim_libraries}"})
    works(deep_node, ranks)
    with open(os.path.join(deep_node.sim_dir, "nccl_loaded_by"), "rb") as file:
        programs = file.read().splitlines()
    assert any(words.startswith(deep_node.build.program("amemd").encode()) for words in programs), "amemd has loaded it"
    assert not [words for words in programs if b"target" in words.split(b"\0")], programs


def test_a_proof_serves_all_that_wait_for_it(deep_node):
    ranks = started(deep_node)
    other = Memory(deep_node, 4 * MIB, name="other", group="other")
    deep_node.broker.faults("cuCheckpointProcessLock:*:delay=500")
    operations = [deep_node.ctl.start("pause", group, "--deep") for group in ("train", "other")]
    assert all(operation.finish().code == 0 for operation in operations)
    assert proofs(deep_node) == 1
    deep_node.broker.faults()
    deep_node.ctl("resume", "train")
    deep_node.ctl("resume", "other")
    for rank in [*ranks, other]:
        rank.verify()


def test_a_refusal_stays(deep_node):
    """The driver has said that it cannot. Plain pauses do not care."""
    ranks = started(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:801")
    refused(deep_node, "deep pauses do not work on this node", "devices GPU-", "checkpoint", "CUDA_ERROR_NOT_SUPPORTED",
            "Pause without --deep")
    deep_node.broker.faults()
    still_runs(deep_node, ranks)
    refused(deep_node, "CUDA_ERROR_NOT_SUPPORTED")
    deep_node.ctl("pause", "train")
    refused(deep_node, "CUDA_ERROR_NOT_SUPPORTED")
    assert deep_node.ctl.state("train") == "paused"
    deep_node.ctl("resume", "train")
    still_runs(deep_node, ranks)


@pytest.mark.parametrize("mode, words", [("lose_all", ["restore", "failed"]), ("forget", ["other bytes than before"])])
def test_a_driver_that_does_harm(bare_node, mode, words):
    """It loses processes, or their memory."""
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = mode
    ranks = started(bare_node)
    refused(bare_node, "deep pauses do not work on this node", *words)
    still_runs(bare_node, ranks)


def test_a_driver_without_these_calls(bare_node):
    bare_node.settings["AMEM_SIM_DRIVER"] = "12.4"
    ranks = started(bare_node)
    refused(bare_node, "deep pauses do not work on this node", "CUDA 12.4 lacks cuCheckpointProcess", "570")
    still_runs(bare_node, ranks)


@pytest.mark.parametrize("call, step", [("cuGraphLaunch", "using what it has on its devices"), ("cuInit", "cuInit")])
def test_a_call_that_hangs_is_tried_again(deep_node, call, step):
    """The error names the step."""
    ranks = started(deep_node, "--deadlines-checkpoint", f"{patience(8):.0f}s")
    deep_node.broker.faults(f"{call}:1:hold")
    refused(deep_node, "amemd could not prove", step, "Try again")
    still_runs(deep_node, ranks)
    deep_node.broker.faults()
    works(deep_node, ranks)


@pytest.mark.parametrize("idle", ["0s", "60s"])
def test_a_device_without_space_is_tried_again(deep_node, idle):
    """A plain pause makes space for the process, also where memory would wait for a resume."""
    ranks = [*started(deep_node, "--spare-idle", idle), Memory(deep_node, 24 * MIB, name="big")]
    crowd = deep_node.puppet("crowd", group=None)
    device = deep_node.ctl.devices()[0]
    crowd.ask(f"plain {device['total_bytes'] - device['used_bytes'] - MIB}")
    refused(deep_node, "amemd could not prove", "OUT_OF_MEMORY", "without --deep first")
    still_runs(deep_node, ranks)
    deep_node.ctl("pause", "train")
    works(deep_node, ranks)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_amemd_ends_meanwhile(deep_node, end):
    """No process is left behind."""
    started(deep_node)
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:delay=3000")
    operation = deep_node.ctl.start("pause", "train", "--deep")
    eventually(lambda: targets(deep_node), what="the proof has begun")
    getattr(deep_node.broker, end)()
    assert operation.finish().code != 0
    eventually(lambda: not targets(deep_node), what="the process for it has ended")


def test_the_group_ends_meanwhile(deep_node):
    ranks = started(deep_node)
    deep_node.broker.faults("cuCheckpointProcessLock:*:delay=500")
    operation = deep_node.ctl.start("pause", "train", "--deep")
    eventually(lambda: targets(deep_node), what="the proof has begun")
    ranks[0].puppet.kill()
    ranks[0].puppet.wait()
    answer = operation.finish()
    assert answer.code != 0 and "has ended in the meantime" in answer.error, answer


def test_a_deep_pause_goes_with_its_caller(deep_node):
    """Nothing has begun before the proof is over."""
    ranks = started(deep_node)
    deep_node.broker.faults("cuCheckpointProcessLock:1:delay=2000")
    operation = deep_node.ctl.start("pause", "train", "--deep")
    eventually(lambda: targets(deep_node), what="the proof has begun")
    operation.kill()
    eventually(lambda: proofs(deep_node) == 1, what="it is over")
    still_runs(deep_node, ranks)
    assert not deep_node.ctl("history").json["operations"]
    works(deep_node, ranks)
    assert proofs(deep_node) == 1


def test_the_proof_of_a_swap_comes_before_its_checkpoint(deep_node):
    """The group has left by then: it is paused, and the other runs."""
    ranks = started(deep_node)
    other = Memory(deep_node, 4 * MIB, name="other", group="other")
    deep_node.ctl("pause", "other")
    deep_node.broker.faults("cuCheckpointProcessCheckpoint:1:801")
    answer = deep_node.ctl.try_("swap", "train", "other", "--deep")
    assert answer.code != 0 and "deep pauses do not work on this node" in answer.error, answer
    assert deep_node.ctl.state("train") == "paused" and not deep_node.ctl.group("train")["deep"]
    other.verify()
    assert not targets(deep_node)
    deep_node.ctl("swap", "other", "train")
    still_runs(deep_node, ranks)


def test_what_amemd_makes_deep_by_itself_is_proven(deep_node):
    ranks = started(deep_node, "--deep-after", "1s")
    deep_node.ctl("pause", "train")
    eventually(lambda: len(deep_node.ctl("history").json["operations"]) == 2, what="amemd makes it deep")
    assert deep_node.ctl.group("train")["deep"] and proofs(deep_node) == 1
    deep_node.ctl("resume", "train")
    still_runs(deep_node, ranks)


def test_what_the_proof_refuses_is_not_tried_for_ever(deep_node):
    started(deep_node, "--deep-after", "1s")
    deep_node.broker.faults("cuCheckpointProcessLock:1:999")
    deep_node.ctl("pause", "train")
    deep_node.broker.wait_for("amemd makes it deep")
    deep_node.broker.wait_for("deep pause of group 'train': checkpoint")
    time.sleep(2.5)
    assert not [line for line in deep_node.broker.rest() if "amemd makes it deep" in line]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
@pytest.mark.parametrize("parent", ["1", ""], ids=["named", "of an earlier amemd"])
def test_a_program_whose_parent_is_pid_1(build, parent):
    """As in a container whose first process is amemd: the parent lives."""
    program = build.program("amem-checkpoint")
    done = subprocess.run(["unshare", "--pid", "--fork", "sh", "-c", f"{program} state 1 --with-parent {parent}; exit $?"],
                          env={**os.environ, "LD_LIBRARY_PATH": build.sim_libraries}, capture_output=True, text=True, timeout=patience(30))
    assert "has started it has ended" not in done.stderr and json.loads(done.stdout)["action"] == "state", done


def test_a_program_ends_if_another_process_has_started_it(build):
    done = subprocess.run([build.program("amem-checkpoint"), "state", "1", "--with-parent", "1"], env={**os.environ, "LD_LIBRARY_PATH": build.sim_libraries},
                          capture_output=True, text=True, timeout=patience(30))
    assert done.returncode == 1 and "the program that has started it has ended" in done.stderr and not done.stdout, done
