"""amemd and the ranks of deploy/try.py, with their logs."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

MIB = 1 << 20


class Failure(Exception):
    """A check has failed. The text says which."""


def mib(count):
    return f"{count / MIB:,.0f}"


def last_line(done):
    """The last line of a program's output. amemctl writes errors after its progress."""
    return ((done.stderr or "").strip() or (done.stdout or "").strip() or "it wrote nothing").splitlines()[-1]


class Child:
    """A program that was started here, with its log."""

    def __init__(self, name, argv, environment, logs, stdin=None):
        self.name = name
        self.log = logs / f"{name}.log"
        self.argv = [str(a) for a in argv]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.argv, env=environment, stdin=stdin or subprocess.DEVNULL, stderr=log,
                stdout=subprocess.PIPE if stdin else log, start_new_session=True)

    def running(self):
        return self.process.poll() is None

    def require_running(self):
        if not self.running():
            raise Failure(f"{self.name} ended with status {self.process.returncode}")

    def wait(self, seconds):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} did not end within {seconds} s") from None

    def end(self):
        """Whatever is left of it and of what it started."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            if not self.running():
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Workload(Child):
    """One amem-workload: takes a command a line, answers each with one line of JSON."""

    def __init__(self, name, argv, environment, logs):
        super().__init__(name, argv, environment, logs, stdin=subprocess.PIPE)
        self.answers = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def tell(self, command):
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self.process.wait(10)
            self.require_running()
            raise

    def answer(self, what, seconds):
        try:
            line = self.answers.get(timeout=seconds)
        except queue.Empty:
            raise Failure(f"{self.name} did not answer '{what}' within {seconds} s") from None
        if line is None:
            self.process.wait(10)
            raise Failure(f"{self.name} ended with status {self.process.returncode} instead of answering '{what}'")
        answer = json.loads(line)
        if not answer["ok"]:
            raise Failure(f"{self.name} failed to do '{what}': {answer['error']}")
        return answer


class Node:
    """amemd and its ranks in one temporary directory."""

    def __init__(self, bin_dir, programs, folder, environment, pool_mib):
        self.bin = bin_dir  # amemd and amemctl
        self.programs = programs  # the ranks'
        self.folder = folder
        self.runtime = folder / "run"
        self.runtime.mkdir(mode=0o700)
        self.environment = {**environment, "AMEM_RUNTIME_DIR": str(self.runtime)}
        self.children = []
        self.pool_mib = pool_mib

    def start(self, make, name, argv, **changes):
        child = make(name, argv, {**self.environment, **changes}, self.folder)
        self.children.append(child)
        return child

    def start_broker(self, *arguments):
        broker = self.start(Child, "amemd", [self.bin / "amemd", "--pool-size", f"{self.pool_mib}MiB", *arguments])
        why = "it does not answer"
        for _ in deadline(120):
            broker.require_running()
            done = self.amemctl_any("status", "--json")
            if done.returncode == 0:
                pool = json.loads(done.stdout)["pool"]
                if pool["error"]:
                    raise Failure(f"amemd could not make its pool of {self.pool_mib} MiB: {pool['error']}")
                if pool["ready_bytes"] >= pool["configured_bytes"]:
                    return
                why = f"{mib(pool['ready_bytes'])} of {self.pool_mib} MiB of the pool are ready"
        raise Failure(f"amemd was not ready within 120 s: {why}")

    def amemctl_any(self, *arguments):
        command = " ".join(["amemctl", *arguments])
        try:
            return subprocess.run([str(self.bin / "amemctl"), *arguments], env=self.environment, text=True,
                                  check=False, capture_output=True, timeout=180, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise Failure(f"'{command}' did not end within 180 s") from None

    def amemctl(self, *arguments):
        done = self.amemctl_any(*arguments)
        if done.returncode != 0:
            raise Failure(f"'amemctl {' '.join(arguments)}' ended with status {done.returncode}: {last_line(done)}")
        return done.stdout

    def status(self):
        return json.loads(self.amemctl("status", "--json"))

    def as_rank(self, group, *command, stage=None):
        return [self.bin / "amemctl", "run", "--group", group, "--required", *(["--stage", stage] if stage else []), "--", *command]

    def end(self):
        for child in reversed(self.children):
            child.end()

    def show_logs(self):
        for child in self.children:
            with contextlib.suppress(OSError):
                lines = child.log.read_text(errors="replace").splitlines()[-15:]
                if lines:
                    print(f"--- the last lines of {child.log}", *lines, sep="\n", file=sys.stderr)


def deadline(seconds, pause=0.1):
    """Rounds of a wait, until the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(pause)
