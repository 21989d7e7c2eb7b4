"""The shim inside programs that do not expect it: no broker, turned off, forks, programs without CUDA."""
import os
import signal
import socket
import subprocess
import sys

import pytest

from sim_node import Child, Job, eventually, patience


def shim(build):
    return os.path.join(build.directory, "lib", "libamem_shim.so")


# ---- without a broker ----

def test_no_broker_runs_as_if_the_shim_were_not_there(bare_node):
    preload = {"LD_PRELOAD": shim(bare_node.build), "AMEM_LOG": None}
    job = bare_node.job(run=[], env=preload)
    job.check()
    job.ask("loop on")
    job.ask("loop off")
    job.leave()
    for rank in job.ranks:
        said = [line for line in rank.output().splitlines() if line]
        assert len(said) == 1, said
        assert bare_node.runtime_dir in said[0]


def test_no_broker_and_amemctl_run(bare_node):
    job = bare_node.job()
    job.check()
    job.leave()


def test_no_broker_but_required(bare_node):
    job = Job(bare_node, "train", 2, env={"AMEM_REQUIRED": "1"}, arguments=["--peer-timeout", "1"])
    for rank in job.ranks:
        assert "CUDA_ERROR_SYSTEM_NOT_READY" in rank.failure()
        assert rank.wait() == 1


def test_amemctl_run_required_fails_before_the_program_starts(bare_node):
    argv = [bare_node.build.program("amemctl"), "run", "--group", "train", "--required", "--", "echo", "started"]
    done = subprocess.run(argv, env=bare_node.env(), capture_output=True, text=True, timeout=patience(20))
    assert done.returncode == 3
    assert "started" not in done.stdout


def test_ask_to_pause_without_a_broker(bare_node):
    job = bare_node.job()
    for rank in job.ranks:
        rank.send("ncclPause")
        assert "returned" in rank.failure()
    job.check()


@pytest.mark.parametrize("variables", [{"AMEM_DISABLE": "1"}, {"AMEM_ENABLE": "0"}])
def test_turned_off(node, variables):
    job = node.job(env=variables)
    assert node.ctl.status()["groups"] == []
    assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
    job.check()
    job.ask("ncclPause")  # succeeds and does nothing, as AMem's does
    job.ask("ncclResume")
    job.check()
    job.leave()


# ---- the broker goes away, and no other is waited for (test_comeback.py has the others) ----

def test_broker_dies_while_ranks_run(bare_node):
    node = bare_node
    node.settings["AMEM_RECONNECT"] = "0"
    node.start_broker()
    job = node.job()
    job.ask("loop on")
    node.broker.kill()
    for rank in job.ranks:
        rank.wait_for("the broker has ended")
    job.ask("loop off")
    job.check()
    assert node.ctl.try_("status").code == 3
    job.leave()


def test_broker_dies_while_a_group_is_paused(bare_node):
    node = bare_node
    node.settings["AMEM_RECONNECT"] = "0"
    node.start_broker()
    job = node.job()
    node.ctl("pause", "train")
    job.send("step 1")
    node.broker.kill()
    for rank in job.ranks:
        assert "CUDA_ERROR_SYSTEM_NOT_READY" in rank.failure()
        rank.wait_for("Its memory is lost")


def test_broker_dies_in_the_middle_of_a_pause(bare_node):
    node = bare_node
    node.settings["AMEM_RECONNECT"] = "0"
    node.start_broker()
    job = node.job()
    job.ranks[0].faults("cuMemcpyDtoHAsync:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save")
    node.broker.kill()
    assert pause.finish().code == 3
    job.ranks[0].faults()
    job.check()


def test_a_new_broker_serves_new_jobs_beside_those_that_come_back(bare_node):
    node = bare_node
    node.start_broker()
    old = node.job("old")
    node.broker.kill()
    node.start_broker()
    new = node.job("new")
    node.ctl("pause", "new")
    old.check()
    node.ctl("resume", "new")
    new.check()
    assert sorted(group["name"] for group in node.ctl.status()["groups"]) == ["new", "old"]


# ---- forks ----

@pytest.mark.parametrize("command", ["fork", "fork exec"])
def test_children_of_a_rank(node, command):
    job = node.job()
    ranks = node.ctl.ranks("train")
    for answer in job.ask(command):
        assert answer["status"] == 0
        assert answer.get("create_result", 3) == 3  # CUDA_ERROR_NOT_INITIALIZED
    assert node.ctl.ranks("train") == ranks
    job.check()
    node.ctl("pause", "train")
    job.ask(command)  # a paused parent's child needs no driver and no broker either
    node.ctl("resume", "train")
    job.check()


def test_children_while_collectives_run(node):
    job = node.job()
    job.ask("loop on")
    for _ in range(3):
        job.ask("fork")
        node.ctl("pause", "train")
        node.ctl("resume", "train")
    job.ask("loop off")
    job.check()


def test_descriptors_are_close_on_exec(node):
    job = node.job()
    for rank in job.ranks:
        open_ones = []
        for name in os.listdir(f"/proc/{rank.pid}/fdinfo"):
            with open(f"/proc/{rank.pid}/fdinfo/{name}") as file:
                flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
            if int(name) > 2 and not flags & os.O_CLOEXEC:
                open_ones.append(os.readlink(f"/proc/{rank.pid}/fd/{name}"))
        assert open_ones == []


FORKS_WHILE_IT_CONNECTS = """
import ctypes, os, signal, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
everything = ctypes.CDLL(None)
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0

def allocate():
    assert cuda.cuCtxSetCurrent(context) == 0
    address = ctypes.c_uint64()
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 21))

threading.Thread(target=allocate, daemon=True).start()
sys.stdin.readline()  # it has come to connect
child = os.fork()
if child == 0:
    signal.alarm(5)
    group = ctypes.c_int()
    active = everything.amem_shim_active()
    name = ctypes.create_string_buffer(64)
    everything.amem_shim_group(name, ctypes.c_size_t(64))
    error = ctypes.create_string_buffer(512)
    everything.amem_shim_resume(None, ctypes.c_size_t(0), 1000, error, ctypes.c_size_t(512))
    sockets = sum(os.readlink("/proc/self/fd/" + each).startswith("socket:")
                  for each in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + each))
    print(active, name.value.decode(), sockets, error.value.decode(), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


def test_a_fork_while_another_thread_connects(bare_node):
    """To a broker that does not answer."""
    node = bare_node
    os.makedirs(node.runtime_dir, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(os.path.join(node.runtime_dir, "session.sock"))
        mute.listen(1)
        environment = node.env({"LD_PRELOAD": shim(node.build), "AMEM_SCOPE": "heap", "AMEM_GROUP": "train"})
        with subprocess.Popen([sys.executable, "-c", FORKS_WHILE_IT_CONNECTS], env=environment, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            mute.settimeout(patience(20))
            rank, _ = mute.accept()
            with rank:
                out, _ = program.communicate("go\n", timeout=patience(20))
    child, parent = out.splitlines()
    assert child.startswith("0 train 0 "), "it is on its own, and has nothing of the session"
    assert "child of fork()" in child and "start amemd" not in child, child
    assert parent == "0"


FORKS_WHILE_A_THREAD_IS_HELD = """
import ctypes, os, signal, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
everything = ctypes.CDLL(None)
context = ctypes.c_void_p()
stream = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuStreamCreate(ctypes.byref(stream), 0) == 0

def allocate():
    cuda.cuCtxSetCurrent(context)
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4 << 20))

def in_child():
    signal.alarm(10)
    length = everything.amem_shim_stats(None, ctypes.c_size_t(0))
    stats = ctypes.create_string_buffer(length + 1)
    everything.amem_shim_stats(stats, ctypes.c_size_t(length + 1))
    print(stats.value.decode(), flush=True)
    count, graph = ctypes.c_size_t(), ctypes.c_void_p()
    print(everything.ncclMemStats(), allocate(),
          cuda.cuMemFree_v2(ctypes.c_uint64(1 << 21)),
          cuda.cuMemGetInfo_v2(ctypes.byref(count), ctypes.byref(count)),
          cuda.cuStreamBeginCapture_v2(stream, 0), cuda.cuStreamEndCapture(stream, ctypes.byref(graph)),
          cuda.cuStreamDestroy_v2(stream), flush=True)

if sys.argv[1] == "connected":
    assert allocate() == 0
print("ready", flush=True)
sys.stdin.readline()

def another_thread():
    everything.prctl(15, b"another")  # PR_SET_NAME
    print("begun", flush=True)
    allocate()

threading.Thread(target=another_thread, daemon=True).start()
sys.stdin.readline()  # it is held
child = os.fork()
if child == 0:
    in_child()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("how_far, held_in", [("connected", "cuMemMap"), ("alone", "cuDeviceGetUuid")])
def test_a_fork_while_another_thread_is_in_the_driver(node, how_far, held_in):
    """And has locks that the child's calls would want."""
    code = [sys.executable, "-c", FORKS_WHILE_A_THREAD_IS_HELD, how_far]
    preload = {"LD_PRELOAD": shim(node.build), "AMEM_SCOPE": "heap", "AMEM_GROUP": "train"}
    program = node.adopt(Child("forks", code, node.env(preload), node.log_file("forks")))
    assert program.line() == "ready"
    program.faults(f"{held_in}:*:hold")
    program.send("")
    assert program.line() == "begun"
    program.held("another")
    program.send("")
    stats = program.json_line()
    assert stats["brokered"] == [] and stats["group"] == "train", "it has none of its parent's memory"
    ours, *drivers = program.line().split()
    assert ours == "0"
    assert set(drivers) == {"3"}, "CUDA_ERROR_NOT_INITIALIZED"
    assert program.line() == "0"


# ---- programs that are none of our business ----

def run(node, *argv, **options):
    # With a scope of its own, so that amemctl has nothing to say either.
    return subprocess.run([*node.launcher("train"), *argv], env=node.env({"AMEM_LOG": "debug", "AMEM_SCOPE": "nccl"}), text=True,
                          capture_output=True, timeout=patience(30), **options)


def test_programs_without_cuda(node):
    done = run(node, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert run(node, "no-such-program").returncode == 127
    assert run(node, "/").returncode == 126
    code = "import os; os.fork() or os._exit(3); print(os.waitstatus_to_exitcode(os.wait()[1]))"
    done = run(node, sys.executable, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    assert node.ctl.status()["groups"] == []


def test_a_program_killed_by_a_signal(node):
    assert run(node, "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_standard_input_reaches_the_program(node):
    done = run(node, "cat", input="hello")
    assert done.stdout == "hello"


# ---- the gate's policies ----

def test_gate_that_refuses(node):
    job = node.job(env={"AMEM_GATE": "error"})
    node.ctl("pause", "train")
    job.send("step 1")
    for rank in job.ranks:
        assert "CUDA_ERROR_NOT_READY" in rank.failure()
    node.ctl("resume", "train")
    job.check()


def test_gate_that_waits_only_so_long(node):
    job = node.job(env={"AMEM_GATE": "1s"})
    node.ctl("pause", "train")
    job.send("step 1")
    for rank in job.ranks:
        assert "CUDA_ERROR_TIMEOUT" in rank.failure()
    node.ctl("resume", "train")
    job.check()


def test_calls_wait_for_the_resume(node):
    job = node.job()
    node.ctl("pause", "train")
    job.send("step 5")
    job.send("alloc 100000")
    job.send("verify")
    for rank in job.ranks:
        rank.stands()
    node.ctl("resume", "train")
    job.answers()
    job.answers()
    assert all(answer["wrong"] == 0 for answer in job.answers())
    job.check()


def test_a_rank_ends_while_paused(node):
    job = node.job()
    node.ctl("pause", "train")
    job.leave()
    eventually(lambda: node.ctl.group("train") is None, what="the group is gone")
    assert node.ctl.status()["pool"]["used_bytes"] == 0


def test_a_program_does_not_wait_for_a_broker_that_does_not_read(node):
    puppet = node.puppet()
    blocks = [puppet.ask("alloc 65536 whole")["id"] for _ in range(600)]
    node.broker.signal(signal.SIGSTOP)
    for block in blocks:  # more Frees than the socket holds
        puppet.ask(f"free {block}")
    node.broker.signal(signal.SIGCONT)
    eventually(lambda: all(device["brokered_bytes"] == 0 for device in node.ctl.devices()))
    assert len(node.ctl.ranks("train")) == 1
