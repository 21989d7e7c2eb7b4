"""amemctl doctor without a command: each broken node is found, and what is said helps."""
import json
import os
import resource
import signal
import subprocess

import pytest

from sim_node import MIB, Program, eventually, patience


def doctor(node, env=None, options=(), limits=()):
    """What it says by the names of its checks, and its exit code."""
    def limit():
        for which, value in limits:
            resource.setrlimit(which, (value, value))
    argv = [node.build.program("amemctl"), "doctor", "--json", "--runtime-dir", node.runtime_dir, *options]
    done = subprocess.run(argv, env=node.env(env), capture_output=True, text=True, timeout=patience(30), preexec_fn=limit)
    answer = json.loads(done.stdout)
    findings = {each["check"]: each for each in answer["findings"]}
    assert answer["healthy"] == (not any(each["blocks"] for each in findings.values())) == (done.returncode == 0), done
    assert all(each["what"] and each["why"] and each["remedy"] for each in findings.values())
    return findings


def test_a_node_that_is_in_order(node):
    findings = doctor(node)
    # What this machine's own limits are is not the node's.
    assert set(findings) <= {"open-files", "locked-memory", "broker-files"}, findings
    text = subprocess.run([node.build.program("amemctl"), "doctor", "--runtime-dir", node.runtime_dir], env=node.env(),
                          capture_output=True, text=True, timeout=patience(30), check=True).stdout
    assert text.splitlines()[-1].startswith("amemd ") and "serves 2 GPUs, pool" in text
    assert node.ctl.status()["groups"] == [], "looking makes no rank"


# What is broken by the driver's answers: the fault, the check that finds it, whether it is a problem, and the remedy.
DRIVERS = {
    "no GPU": ("cuInit:*:100", "driver", True, "CUDA_VISIBLE_DEVICES"),
    "an upgrade without a restart": ("cuInit:*:803", "driver", True, "Restart the node"),
    "no fabric manager": ("cuInit:*:802", "driver", True, "nvidia-fabricmanager"),
    "devices that this user may not open": ("cuInit:*:304", "driver", True, "/dev/nvidiactl"),
    "a driver that hangs": ("cuInit:*:delay=60000", "driver-hangs", True, "xid"),
    "GPUs without cuMem": ("cuDeviceGetAttribute:*:801", "cumem", True, "vGPU"),
    "GPUs without host memory": ("cuDeviceGetAttribute:*:801", "host-memory", False, "newer driver"),
    "GPUs that do not reach each other": ("cuDeviceCanAccessPeer:*:801", "peers", False, "topo -p2p"),
}


@pytest.mark.parametrize("what", DRIVERS)
def test_a_driver_that_will_not_do(node, what):
    fault, check, blocks, remedy = DRIVERS[what]
    finding = doctor(node, {"AMEM_SIM_FAULTS": fault}, ["--timeout", "3s"] if "delay" in fault else [])[check]
    assert finding["blocks"] == blocks and remedy in finding["remedy"], finding


def test_no_driver(node, tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    finding = doctor(node, {"LD_LIBRARY_PATH": str(tmp_path)})["driver"]
    assert finding["blocks"] and "libcuda.so.1" in finding["what"] and "install NVIDIA's driver" in finding["remedy"]


def test_no_broker(bare_node):
    finding = doctor(bare_node)["broker"]
    assert finding["blocks"] and f"{bare_node.runtime_dir}/session.sock" in finding["remedy"]


def test_a_broker_that_hangs(node):
    os.kill(node.broker.pid, signal.SIGSTOP)
    try:
        finding = doctor(node, options=["--timeout", "1s"])["broker-hangs"]
    finally:
        os.kill(node.broker.pid, signal.SIGCONT)
    assert finding["blocks"] and "does not answer" in finding["what"]


def test_a_gpu_that_amemd_does_not_have(node, tmp_path):
    """As after one was added: here this process is on another node's."""
    findings = doctor(node, {"AMEM_SIM_DIR": str(tmp_path)})
    assert findings["device-unknown"]["blocks"] and "restart amemd" in findings["device-unknown"]["remedy"]


def test_a_pool_without_space(bare_node):
    bare_node.start_broker("--pool-place", "host_numa", env={"AMEM_SIM_FAULTS": "cuMemCreate:2+:2"})
    finding = doctor(bare_node)["pool"]
    assert not finding["blocks"] and "16.0 MiB of the" in finding["what"] and "pool.size" in finding["remedy"], finding


def test_few_open_files_for_amemd(node):
    resource.prlimit(node.broker.pid, resource.RLIMIT_NOFILE, (4096, 4096))
    finding = doctor(node)["broker-files"]
    assert not finding["blocks"] and "4096" in finding["what"] and "LimitNOFILE" in finding["remedy"]


@pytest.mark.parametrize("limit, value, check, remedy", [
    (resource.RLIMIT_NOFILE, 512, "open-files", "ulimit -n"), (resource.RLIMIT_MEMLOCK, 65536, "locked-memory", "memlock")])
def test_small_limits(node, limit, value, check, remedy):
    finding = doctor(node, limits=[(limit, value)])[check]
    assert not finding["blocks"] and remedy in finding["remedy"]


def test_multicast_that_is_untried(node):
    assert "unset it" in doctor(node, {"AMEM_NVLS": "1"})["multicast"]["remedy"]


def test_memory_that_stays_is_named_by_rank_and_device(node):
    """As doctor says it of all groups, so does advise of one."""
    programs = [Program(node, rank=rank, env={"CUDA_VISIBLE_DEVICES": str(rank)}) for rank in range(2)]
    for rank, program in enumerate(programs):
        program.ask(f"unbrokered own_pool {(1 + rank) * 32 * MIB}")
    uuids = {device["ordinal"]: device["uuid"] for device in node.ctl.status()["devices"]}

    def named():
        advice = node.ctl("advise", "train").json["advice"]
        return advice if advice and advice[0]["bytes"] == 96 * MIB else None
    [advice] = eventually(named)
    assert advice["check"] == "stream-ordered" and "--scope heap" in advice["text"]
    assert advice["parts"] == [{"rank": f"rank {rank} (pid {programs[rank].pid})", "pid": programs[rank].pid, "uuid": uuids[rank],
                                "kind": "pool", "bytes": (1 + rank) * 32 * MIB} for rank in (1, 0)]
    finding = doctor(node)["stays"]
    assert not finding["blocks"] and finding["what"].startswith("group 'train': 96.0 MiB of the driver's stream-ordered pools stays")
    for rank in range(2):
        assert f"rank {rank} (pid {programs[rank].pid}) on {uuids[rank][:12]} {(1 + rank) * 32}.0 MiB" in finding["what"]
    paused = node.ctl("pause", "train").json
    assert paused["unbrokered_bytes"] == 96 * MIB, "and it does stay"


def test_a_shell_whose_jobs_will_not_be_brokered(node):
    finding = doctor(node, {"TF_FORCE_UNIFIED_MEMORY": "1"})["allocator"]
    assert not finding["blocks"] and "TF_FORCE_UNIFIED_MEMORY" in finding["what"]
