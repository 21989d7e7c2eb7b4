#!/usr/bin/env python3
"""PyTorch's NCCL watchdog across pauses that are longer than the time limit of the process group.

Ranks run collectives all the time, in process groups whose timeout is 5 s. The controller stops the job for 12 s in the
middle of them, again and again, and says of each time what became of the job: it went on, or who ended it and in which
words. A job that has ended is started again. Run the controller, with a broker and amemctl in the PATH:

    AMEM_RUNTIME_DIR=... python3 torch_watchdog.py control --how pause --extend --times 20

`--how pause`: an operator's pause and resume (amemctl). `--how signal`: SIGSTOP and SIGCONT for all ranks, without amem:
what such a stop does to any PyTorch job. `--extend`: the ranks call amem.extend_timeouts(). `--times`: stops of each kind of
collectives (`--kinds`); each takes about 14 s, and up to 35 s more where the job ends. `--timeout`: the time limit, for a job
that has to survive with one that is longer than a stop.
The ranks end themselves soon after a controller that is killed.
Exit status: torch_rank.py; what became of the job is no failure of this program.
"""

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch_rank  # noqa: E402
from torch_rank import CheckFailed, Operator, check, check_equal, own_device, sums, values  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

GROUP = "watchdog"
KINDS = ("async", "barrier", "coalesced")
START_S = 90
# After a stop: the watchdog looks every 100 ms, and gives others 2 s before it ends the process.
GOES_ON_S = 12
LOOK_EVERY_S = 2  # a rank, whether its controller is there
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
ENVIRONMENT = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
# In the order in which they say more.
REASONS = (("the NCCL watchdog", "Watchdog caught collective operation timeout"),
           ("a blocking wait", "timed out in blocking wait"),
           ("the heartbeat monitor", "Heartbeat monitor timed out"),
           ("a CUDA error", "CUDA error"),
           ("a wrong result", "FAILED rank"))


# ---- the ranks --------------------------------------------------------------------------------------------------


class Worker:
    """Collectives without end, until the folder has a file `stop`. Rank 0 says in `progress` how many rounds there were."""

    COUNT = 256 << 10

    def __init__(self, options):
        self.options = options
        self.device = own_device()
        torch.cuda.set_device(self.device)
        limit = datetime.timedelta(seconds=options.timeout)
        dist.init_process_group("nccl", timeout=limit)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.groups = [dist.new_group(timeout=limit) for _ in range(2)]
        self.streams = [torch.cuda.Stream() for _ in self.groups]
        self.stop = torch.zeros(1, device=self.device)
        if options.extend:
            import amem
            amem.extend_timeouts()

    def round_async(self, seed):
        """Bursts in two groups, each on a stream of its own, that are waited for at the end."""
        works = []
        for number in range(16):
            which = number % len(self.groups)
            with torch.cuda.stream(self.streams[which]):
                data = values(self.rank, 0, self.COUNT, seed + number, self.device)
                works.append((seed + number, which, data,
                              dist.all_reduce(data, group=self.groups[which], async_op=True)))
        for number, which, data, work in works:
            with torch.cuda.stream(self.streams[which]):
                work.wait()
                check_equal("all-reduce", data, sums(self.world, 0, self.COUNT, number, self.device))

    def round_barrier(self, seed):
        """The host waits for each collective."""
        dist.barrier(group=self.groups[0])
        data = values(self.rank, 0, self.COUNT, seed, self.device)
        dist.all_reduce(data, group=self.groups[1])
        check_equal("all-reduce", data, sums(self.world, 0, self.COUNT, seed, self.device))
        dist.barrier(group=self.groups[1])

    def round_coalesced(self, seed):
        """Sends round a ring, each with the receive beside it in one launch."""
        ahead, behind = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        for number in range(4):
            mine = values(self.rank, 0, self.COUNT, seed + number, self.device)
            got = torch.empty_like(mine)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, ahead), dist.P2POp(dist.irecv, got, behind)]):
                work.wait()
            check_equal("ring", got, values(behind, 0, self.COUNT, seed + number, self.device))

    def run(self):
        round_ = {"async": self.round_async, "barrier": self.round_barrier,
                  "coalesced": self.round_coalesced}[self.options.kind]
        rounds = 0
        while self.stop.item() == 0:
            round_(100 * rounds)
            rounds += 1
            if self.rank == 0:
                write_whole(self.options.folder / "progress", str(rounds))
                if (self.options.folder / "stop").exists():
                    self.stop.fill_(1)
            dist.all_reduce(self.stop, op=dist.ReduceOp.MAX)
        torch.cuda.synchronize()
        dist.destroy_process_group()


def end_with(controller):
    """Ends this process when the controller has gone, also one that was killed."""
    def watch():
        while pathlib.Path(f"/proc/{controller}").exists():
            time.sleep(LOOK_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def dies_with_parent():
    """This process is killed when the thread that started it ends."""
    if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        os._exit(1)


def write_whole(path, text):
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


# ---- the controller ---------------------------------------------------------------------------------------------


def reason(log):
    """Who ended the job by its log, and the line that says so."""
    for who, words in REASONS:
        for line in log.splitlines():
            if words in line:
                return who, line.strip()[:300]
    lines = [line for line in log.splitlines() if line.strip()]
    return "nobody says", lines[-1].strip()[:300] if lines else ""


class Job:
    def __init__(self, options, kind, folder, number):
        self.folder = folder
        self.log = folder / f"{kind}.{number}.log"
        for name in ("stop", "progress"):
            (folder / name).unlink(missing_ok=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks),
                   "--max-restarts", "0", __file__, "worker", "--kind", kind, "--folder", str(folder), "--timeout",
                   str(options.timeout), "--controller", str(os.getpid())]
        if options.extend:
            command.append("--extend")
        if options.how == "pause":
            command = ["amemctl", "run", "--group", GROUP, "--scope", "heap", "--", *command]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            start_new_session=True, preexec_fn=dies_with_parent,
                                            env={**os.environ, **ENVIRONMENT})

    def running(self):
        return self.process.poll() is None

    def rounds(self):
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "progress").read_text())
        return 0

    def goes_on(self, seconds, rounds=20):
        """So many more rounds come in time."""
        wanted = self.rounds() + rounds
        end = time.monotonic() + seconds
        while self.running() and time.monotonic() < end:
            if self.rounds() >= wanted:
                return True
            time.sleep(0.05)
        return False

    def workers(self):
        """The pids of the ranks."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                at_work = b"worker" in words and str(self.folder).encode() in words
                if at_work and b"torch.distributed.run" not in words and b"--nproc-per-node" not in words:
                    found.append(int(entry.name))
        return found

    def text(self):
        return self.log.read_text(errors="replace")

    def end(self):
        (self.folder / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.kill()

    def kill(self):
        for pid in self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Controller:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.outcomes = []
        self.starts = 0

    @contextlib.contextmanager
    def stopped(self, job):
        if self.options.how == "pause":
            Operator.run("pause", GROUP)
            yield
            resumed = Operator.call("resume", GROUP)
            check(resumed.returncode == 0 or not job.running(), f"no resume: {Operator.said(resumed)}")
            return
        ranks = job.workers()
        check(len(ranks) == self.options.ranks, f"{len(ranks)} ranks are found, not {self.options.ranks}")
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        yield
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)

    def stop_once(self, job, kind):
        """One stop. The outcome is noted; False: the job has ended."""
        time.sleep(random.random() / 2)  # somewhere in a round
        before = job.rounds()
        with self.stopped(job):
            time.sleep(self.options.seconds)
            survived_stop = job.running()
        went_on = survived_stop and job.goes_on(GOES_ON_S)
        outcome = {"kind": kind, "survived": went_on, "rounds_before": before}
        if not went_on:
            outcome["when"] = "after the stop" if survived_stop else "during the stop"
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(20)
            outcome["by"], outcome["text"] = reason(job.text())
        self.outcomes.append(outcome)
        print(json.dumps(outcome), file=sys.stderr, flush=True)
        return went_on

    def run(self):
        for kind in self.options.kinds:
            left = self.options.times
            while left > 0:
                self.starts += 1
                job = Job(self.options, kind, self.folder, self.starts)
                with contextlib.ExitStack() as cleanup:
                    cleanup.callback(job.kill)
                    check(job.goes_on(START_S), f"the job does not start: {job.text()[-8000:]}")
                    while left > 0:
                        left -= 1
                        if not self.stop_once(job, kind):
                            break
                    else:
                        job.end()
        print(json.dumps({"program": "torch_watchdog", "torch": torch.__version__, "how": self.options.how,
                          "extend": self.options.extend, "timeout_s": self.options.timeout, "stop_s": self.options.seconds,
                          "starts": self.starts, "outcomes": self.outcomes}), flush=True)


def control(options):
    if torch.cuda.device_count() < options.ranks:
        print(json.dumps({"skipped": f"{torch.cuda.device_count()} GPUs, {options.ranks} needed"}))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with the ranks it has started
    with tempfile.TemporaryDirectory(prefix="amem-watchdog-") as folder:
        try:
            Controller(options, pathlib.Path(folder)).run()
        except CheckFailed as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("role", choices=("control", "worker"))
    parser.add_argument("--how", choices=("pause", "signal"), default="pause")
    parser.add_argument("--extend", action="store_true", help="the ranks call amem.extend_timeouts()")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--times", type=int, default=10, help="stops of each kind")
    parser.add_argument("--timeout", type=float, default=5, help="of the process groups, in seconds")
    parser.add_argument("--seconds", type=float, default=12, help="that a stop lasts")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:2])
    parser.add_argument("--kind", choices=KINDS, help="of a worker")
    parser.add_argument("--folder", type=pathlib.Path, help="where they meet")
    parser.add_argument("--controller", type=int, help="its pid, for a worker")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    if options.role == "control":
        return control(options)
    dies_with_parent()  # also where it stands still after a signal
    end_with(options.controller)
    return torch_rank.run_main(lambda: Worker(options).run())


if __name__ == "__main__":
    sys.exit(main())
