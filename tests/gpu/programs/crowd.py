"""A crowd: so many processes at a time, one after the other ended replaced, some killed before they end.

What a process does is a function that takes its seed and returns a report, a dict with "outcome": "finished", "crashed" (as it
was meant to) or "wrong", then with "text". It is called in a fork: the program must not have used CUDA before.
"""

import json
import math
import os
import random
import select
import signal
import tempfile
import time
import traceback

KILL_AFTER_S = (1, 6)


class Process:
    """One of them. `kill_after`: seconds; None: it is to end by itself before it hangs."""

    def __init__(self, work, seed, reports, kill_after, hung_s):
        self.due = time.monotonic() + (hung_s if kill_after is None else kill_after)
        self.to_be_killed = kill_after is not None
        self.ended_by_us = False
        self.pid = os.fork()
        if self.pid == 0:
            self.be(work, seed, reports)
        self.handle = os.pidfd_open(self.pid)

    @staticmethod
    def be(work, seed, reports):
        code = 1
        try:
            os.dup2(2, 1)  # standard output is the program's
            os.write(reports.fileno(), json.dumps({"seed": seed, **work(seed)}).encode() + b"\n")
            code = 0
        except BaseException:  # noqa: BLE001: the exit status tells the program
            traceback.print_exc()
        finally:
            os._exit(code)  # without the program's exit handlers

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.due, self.ended_by_us = math.inf, True

    def fileno(self):
        return self.handle

    def collect(self):
        """Of a process that has ended: its exit status, as Popen has it."""
        os.close(self.handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Crowd:
    """`killed_share`: of the processes; `hung_s`: after which one has failed."""

    def __init__(self, work, workers, seed, killed_share, hung_s):
        self.work = work
        self.workers = workers
        self.seed = seed
        self.killed_share = killed_share
        self.hung_s = hung_s
        self.chance = random.Random(seed)
        self.alive = []
        self.started = self.killed = 0
        self.elapsed_s = 0.0
        self.reports = []
        self.deaths = []

    def outcomes(self):
        return {outcome: sum(report["outcome"] == outcome for report in self.reports)
                for outcome in ("finished", "crashed", "wrong")}

    def failures(self):
        """A line for each process that died and for each wrong result."""
        return self.deaths + [f"seed {report['seed']}: {report['text']}" for report in self.reports
                              if report["outcome"] == "wrong"]

    def run(self, seconds):
        """Starts processes for so long and sees all of them to their ends."""
        begin = time.monotonic()
        with tempfile.TemporaryFile("a+b") as reports:  # all append to it
            while True:
                while len(self.alive) < self.workers and time.monotonic() - begin < seconds:
                    self.start(reports)
                if not self.alive:
                    break
                self.wait()
            self.elapsed_s = time.monotonic() - begin
            reports.seek(0)
            self.reports = [json.loads(line) for line in reports]

    def start(self, reports):
        self.started += 1
        kill_after = self.chance.uniform(*KILL_AFTER_S) if self.chance.random() < self.killed_share else None
        self.alive.append(Process(self.work, self.seed * 1_000_003 + self.started, reports, kill_after, self.hung_s))

    def wait(self):
        """Until one ends or is to be ended."""
        due = min(process.due for process in self.alive)
        for process in select.select(self.alive, [], [], min(max(0.0, due - time.monotonic()), self.hung_s))[0]:
            self.bury(process)
        for process in self.alive:
            if process.due <= time.monotonic():
                process.kill()

    def bury(self, process):
        self.alive.remove(process)
        status = process.collect()
        if status == 0:
            return
        if not process.ended_by_us:
            self.deaths.append(f"a process ended with {status}")
        elif process.to_be_killed:
            self.killed += 1
        else:
            self.deaths.append(f"a process had not ended after {self.hung_s} s")
