"""Job control: Ctrl-Z, `kill -TSTP` and a scheduler's SIGSTOP free the GPU or say why not; `fg` and SIGCONT bring it back."""
import contextlib
import os
import pathlib
import re
import signal
import sys
import textwrap
import time

import pytest

from sim_node import MIB
from sim_node.child import Told, eventually, patience
from sim_node.puppet import Puppet
from sim_node.stage import start_stage

sys.path.append(str(pathlib.Path(__file__).parents[2] / "gpu" / "programs"))
from terminal import Terminal  # noqa: E402, which the cases on GPUs use, too

SIZE = 20 * MIB
# What torchrun does: each rank in a session of its own. It passes what comes in on to the first.
LAUNCHER = textwrap.dedent("""
    import subprocess, sys
    ranks = [subprocess.Popen([sys.argv[1], "0"], start_new_session=True, stdin=subprocess.PIPE, text=True,
                              stdout=None if n == 0 else subprocess.DEVNULL) for n in range(2)]
    for line in sys.stdin:
        for rank in ranks:
            rank.stdin.write(line)
            rank.stdin.flush()
""")


class Job(Told):
    """A puppet with a filled block below `amemctl run --job-control`."""

    def __init__(self, node, name="train", options=(), command=None, env=None, block=True):
        environment = node.env({"AMEM_LOG": "debug", "AMEM_MODULES": "amem-puppet", **(env or {})}, node.build)
        argv = [*node.launcher(name)[:-1], "--job-control", "--scope", "heap", *options, "--",
                *(command or [node.build.program("amem-puppet"), 0])]
        super().__init__(f"{name}-job", argv, environment, node.log_file(f"{name}-job"))
        self.node, self.group, self.blocks = node, name, []
        node.adopt(self)
        if block:
            self.answer(40)
            self.blocks.append(self.ask(f"plain {SIZE}")["id"])
            self.ask(f"fill {self.blocks[0]} 7")

    def below(self):
        """The pids of all processes below it, as a test sees them."""
        found, parents = [], {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                parents[int(pid)] = int(stat(pid)[1])
        new = [self.pid]
        while new:
            new = [pid for pid, parent in parents.items() if parent in new]
            found += new
        return found

    def all_stopped(self):
        return all(stat(pid)[0] == "T" for pid in [self.pid, *self.below()])

    def stop(self):
        self.signal(signal.SIGTSTP)
        eventually(self.all_stopped, what="it and all below it are stopped")

    def signal(self, number):
        below = self.below() if number == signal.SIGKILL else []
        super().signal(number)
        for pid in below:  # else they would keep the logs open
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def go_on(self):
        self.signal(signal.SIGCONT)

    def resident(self):
        return int(self.node.ctl.group(self.group)["resident_bytes"])

    def verify(self):
        self.ask(f"verify {self.blocks[0]} 7")

    def state(self):
        return self.node.ctl.state(self.group)


def stat(pid):
    """The state and the parent of a process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[:2]


def test_sigtstp_frees_the_gpu_and_sigcont_brings_it_back(node):
    job = Job(node)
    for _ in range(20):
        job.stop()
        assert job.state() == "paused" and job.resident() == 0
        group = node.ctl.group("train")
        assert group["stopped_ranks"] == 1
        job.go_on()
        job.verify()
        assert job.state() == "running"
    assert "1 (1 stopped)" not in node.ctl("groups", json_output=False).out


def test_a_stopped_job_leaves_the_whole_gpu_to_another(bare_node):
    bare_node.settings["AMEM_SIM_MEMORY"] = str(SIZE + 14 * MIB)  # not for both
    bare_node.start_broker()
    job = Job(bare_node)
    job.stop()
    other = Puppet(bare_node, "other", group="other", scope="heap")
    bare_node.adopt(other)
    other.answer()
    other.ask(f"plain {SIZE}")
    job.go_on()
    line = job.wait_for("the GPU memory stays paused")
    assert "amemctl tries again" in line
    assert job.state() == "paused"
    other.kill()
    job.verify()
    assert job.state() == "running"


def test_ranks_in_sessions_of_their_own_stop_and_go_on(node):
    job = Job(node, command=[sys.executable, "-c", LAUNCHER, node.build.program("amem-puppet")])
    eventually(lambda: len(node.ctl.ranks("train")) == 2, what="both ranks are there")
    assert len(job.below()) == 3
    for _ in range(3):
        job.stop()
        assert job.state() == "paused"
        assert node.ctl.group("train")["stopped_ranks"] == 2
        assert "2 (2 stopped)" in node.ctl("groups", json_output=False).out
        assert [each["stopped"] for each in node.ctl.ranks("train")] == [True, True]
        job.go_on()
        job.verify()
        eventually(lambda: job.state() == "running", what="it runs")


def test_what_has_not_paused_a_group_does_not_resume_it(node):
    job = Job(node)
    node.ctl("pause", "train")
    job.stop()
    job.go_on()
    eventually(lambda: node.ctl.group("train")["stopped_ranks"] == 0, what="it goes on")
    time.sleep(0.5)
    assert job.state() == "paused", "an operator has paused it"
    node.ctl("resume", "train")
    job.verify()


def test_what_the_job_has_offloaded_itself_stays_so(node):
    """As a framework that moves its cache out between steps."""
    job = Job(node, command=[node.build.program("amem-workload"), "heap"], block=False)
    job.answer(30)
    job.ask("region begin kv 1")
    job.ask(f"alloc 0 {8 * MIB}")
    job.ask("region end")
    job.ask(f"alloc 0 {8 * MIB}")
    job.ask("pause kv")

    def resident():
        return {each["tag"]: each["resident_bytes"] for each in node.ctl.group("train")["tags"]}

    assert resident() == {"heap": 8 * MIB, "kv": 0}
    job.stop()
    assert resident() == {"heap": 0, "kv": 0}
    job.go_on()
    job.wait_for("the GPU memory is back")
    assert resident() == {"heap": 8 * MIB, "kv": 0}
    job.ask("resume kv")
    job.ask("verify")


def test_a_command_with_two_groups_and_with_a_fork(node):
    """A rank that forks a worker, beside a rank of another group: all of them stop, and both groups leave and return."""
    code = textwrap.dedent(f"""
        import ctypes, os, sys, time
        cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
        assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuMemAlloc_v2(ctypes.byref(memory), {8 * MIB}) == 0
        if os.fork() == 0:  # a data loader
            time.sleep(300)
        sys.stdin.readline()
    """)
    start = f"import os, sys; os.fork() == 0 and os.environ.update(AMEM_GROUP='other'); os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    job = Job(node, command=[sys.executable, "-c", start], block=False, env={"AMEM_MODULES": "*"})
    eventually(lambda: node.ctl.states() == {"train": "running", "other": "running"}, what="both groups have begun")
    eventually(lambda: len(job.below()) == 4, what="each rank has forked")
    for _ in range(2):
        job.stop()
        assert node.ctl.states() == {"train": "paused", "other": "paused"}
        job.go_on()
        eventually(lambda: node.ctl.states() == {"train": "running", "other": "running"}, what="both run")


def test_sigcont_in_the_middle_of_the_pause(node):
    job = Job(node)
    for delay in (0, 0.005, 0.02, 0.05):
        job.signal(signal.SIGTSTP)
        time.sleep(delay)
        job.go_on()
        job.verify()
        eventually(lambda: job.state() == "running", what="it runs")
        assert stat(job.pid)[0] != "T"


def test_asked_twice_it_stops_at_once(node):
    job = Job(node)
    rank = job.below()[0]
    os.kill(rank, signal.SIGSTOP)  # so the pause waits, or is refused
    eventually(job.all_stopped, what="it stops with its command")
    job.wait_for("so its GPU memory stays")
    assert job.state() == "running"
    job.go_on()
    job.verify()


def test_sigstop_at_random_instants_of_a_pause_and_a_resume(node):
    """As a scheduler does whose grace time has passed: to all processes, without asking."""
    job = Job(node)
    for number in range(20):
        job.signal(signal.SIGTSTP if number % 2 == 0 else signal.SIGCONT)
        time.sleep(0.003 * (number % 7))
        for pid in [*job.below(), job.pid]:
            os.kill(pid, signal.SIGSTOP)
        eventually(job.all_stopped, what="all are stopped")
        group = node.ctl.group("train")
        assert group["stopped_ranks"] == 1
        for pid in [job.pid, *job.below()]:
            os.kill(pid, signal.SIGCONT)
        if number % 2 == 1:
            job.verify()
            eventually(lambda: job.state() == "running", deadline=60, what="it runs")


def test_an_operation_says_at_once_who_is_stopped(node):
    job = node.job()
    rank = job.ranks[1]
    rank.signal(signal.SIGSTOP)
    began = time.monotonic()
    answer = node.ctl.try_("pause", "train")
    assert time.monotonic() - began < patience(5)
    assert answer.code == 5
    assert f"stopped, as by Ctrl-Z, SIGSTOP or a frozen cgroup: rank 1 (pid {rank.pid})" in answer.error
    assert f"kill -CONT {rank.pid}" in answer.error
    assert node.ctl.state("train") == "running"
    rank.signal(signal.SIGCONT)
    node.ctl("pause", "train")
    rank.signal(signal.SIGSTOP)
    assert "group 'train' cannot resume: stopped" in node.ctl.try_("resume", "train").error
    rank.signal(signal.SIGCONT)
    node.ctl("resume", "train")
    job.check()


def test_it_ends_as_its_command_ends(node):
    assert Job(node, command=["sh", "-c", "exit 7"], block=False).wait() == 7
    assert Job(node, command=["sh", "-c", "kill -KILL $$"], block=False).wait() == -signal.SIGKILL
    assert Job(node, command=["no-such-command"], block=False).wait() == 127
    assert Job(node, command=["/etc/hostname"], block=False).wait() == 126
    job = Job(node)
    job.signal(signal.SIGINT)  # as Ctrl-C: the terminal sends it to the command, too
    job.verify()
    job.signal(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM


def test_the_command_inherits_what_a_shell_would_give_it(node):
    show = ["sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status; exit 0"]
    job = Job(node, command=show, block=False)
    assert job.wait() == 0
    ignored, blocked = (int(re.search(rf"{name}:\s*(\w+)", job.output("out"))[1], 16) for name in ("SigIgn", "SigBlk"))
    assert ignored >> (signal.SIGTSTP - 1) & 1
    assert not ignored & (1 << signal.SIGINT - 1 | 1 << signal.SIGQUIT - 1 | 1 << signal.SIGTTIN - 1 | 1 << signal.SIGTTOU - 1)
    assert blocked == 0


def test_a_parent_that_is_killed_leaves_a_true_state(node):
    job = Job(node)
    job.stop()
    [rank] = job.below()
    os.kill(job.pid, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert job.state() == "paused"
    assert "cannot resume: stopped" in node.ctl.try_("resume", "train").error
    os.kill(rank, signal.SIGCONT)
    node.ctl("resume", "train")
    assert job.resident() == SIZE
    os.kill(rank, signal.SIGKILL)
    eventually(lambda: node.ctl.group("train") is None, what="the group has ended")


def test_a_stopped_job_that_is_killed(node):
    job = Job(node)
    job.stop()
    job.signal(signal.SIGTERM)
    job.go_on()
    assert job.wait() == -signal.SIGTERM
    eventually(lambda: node.ctl.group("train") is None, what="the group has ended")


def test_a_stopped_job_whose_amemd_is_another_when_it_goes_on(node):
    job = Job(node)
    job.stop()
    node.broker.kill()
    node.start_broker(name="amemd2")
    assert job.state() == "paused"
    job.go_on()
    job.verify()
    eventually(lambda: job.state() == "running", what="it runs")


def test_without_amemd_it_stops_and_goes_on(bare_node):
    job = Job(bare_node, command=["sh", "-c", "read line; exit 3"], block=False)
    eventually(lambda: len(job.below()) == 1, what="the command has begun")
    job.stop()
    job.go_on()
    job.send("go on")
    assert job.wait() == 3


def test_each_rank_has_a_parent_of_its_own(node):
    """As with srun: the second pause finds it done, and the group resumes when all go on."""
    jobs = [Job(node, env={"RANK": str(number)}) for number in range(2)]
    for _ in range(3):
        for job in jobs:
            job.signal(signal.SIGTSTP)
        for job in jobs:
            eventually(job.all_stopped, what="it and all below it are stopped")
        assert jobs[0].state() == "paused"
        for job in jobs:
            job.go_on()
            time.sleep(0.2)
        for job in jobs:
            job.verify()
        eventually(lambda: jobs[0].state() == "running", what="it runs")


def test_ctrl_z_while_it_waits_for_its_first_turn(bare_node):
    node = start_stage(bare_node, start="alone", start_idle="1s")
    first = Job(node, "first", ("--stage", "night"))
    second = Job(node, "second", ("--stage", "night"), block=False)
    second.wait_for("waits for its first turn")
    second.signal(signal.SIGTSTP)
    eventually(lambda: stat(second.pid)[0] == "T", what="it is stopped")
    first.signal(signal.SIGTERM)
    first.wait()
    time.sleep(1)
    assert node.ctl.group("second") is None, "nobody has its turn"
    second.go_on()
    second.answer(60)
    assert node.ctl.state("second") == "running"


def test_in_a_stage_a_stopped_group_waits_for_nobody_and_others_run(bare_node):
    node = start_stage(bare_node, policy="demand", idle="500ms", memory=60 * MIB)
    job = Job(node, "first", ("--stage", "night"))
    job.stop()
    assert job.state() == "paused"
    other = Job(node, "second", ("--stage", "night"))
    other.verify()
    job.go_on()
    job.verify()
    other.verify()


@pytest.fixture
def terminal(node):
    terminal = Terminal(node.env({"AMEM_MODULES": "amem-puppet"}, node.build))
    yield terminal
    terminal.close()


def start_in(terminal, node, folder):
    """A puppet in the foreground, which is told by a FIFO."""
    os.mkfifo(folder / "in")
    out = folder / "out"
    run = " ".join([*node.launcher("train")[:-1], "--job-control", "--scope", "heap", "--", node.build.program("amem-puppet"), "0"])
    terminal.type(f"{run} < {folder}/in > {out}\n")
    return open(folder / "in", "w", buffering=1, encoding="ascii"), out  # opens when the other end does


def lines(path):
    return path.read_text(encoding="ascii").splitlines() if path.exists() else []


def test_in_a_terminal(terminal, node, tmp_path):
    told, out = start_in(terminal, node, tmp_path)
    with told:
        told.write(f"plain {SIZE}\n")
        eventually(lambda: len(lines(out)) == 2, what="it has memory")
        for number in range(3):
            terminal.type("\x1a")
            terminal.expect("Stopped")
            terminal.expect("ready$ ")
            assert node.ctl.state("train") == "paused"
            assert node.ctl.group("train")["resident_bytes"] == 0
            terminal.type("fg\n" if number < 2 else "bg\n")
            terminal.expect("the GPU memory is back")
            assert node.ctl.state("train") == "running"
        terminal.type("kill %1; wait %1; echo status $?\n")
        terminal.expect("status 143")
    eventually(lambda: node.ctl.group("train") is None, what="the group has ended")


def test_a_command_that_reads_a_terminal_in_the_background(terminal, node):
    run = " ".join([*node.launcher("train")[:-1], "--job-control", "--", "cat"])
    terminal.type(f"{run} &\n")
    terminal.expect("so its GPU memory stays")
    terminal.type("\n")
    terminal.expect("Stopped")
    terminal.type("fg\n")
    terminal.expect("-- cat")
    terminal.types_until_answered("hello")
    terminal.type("\x03")
    terminal.expect("ready$ ")


def test_a_terminal_that_goes(node, tmp_path):
    terminal = Terminal(node.env({"AMEM_MODULES": "amem-puppet"}, node.build))
    told, out = start_in(terminal, node, tmp_path)
    with told:
        eventually(lambda: len(lines(out)) == 1, what="it has begun")
        terminal.type("\x1a")
        terminal.expect("Stopped")
        terminal.close()
        eventually(lambda: node.ctl.group("train") is None, what="the job has ended with its terminal")
