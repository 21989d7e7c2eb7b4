"""Child: a process of a test, whose output is logged and waited for line by line, always with a deadline."""
from __future__ import annotations

import collections
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

T = TypeVar("T")


# Calls that touch a device's memory, or wait for its work.
OF_A_DEVICE = ("cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuCtxSynchronize")


class Died(Exception):
    """The process ended while something was expected of it."""


def patience(seconds: float) -> float:
    """Deadlines grow where everything is slow, e.g. under sanitizers."""
    return seconds * float(os.environ.get("AMEM_TEST_SLOWNESS", "1"))


def eventually(condition: Callable[[], T], deadline: float = 20, what: str = "condition") -> T:
    """Asks until the answer is true, and returns it. For what nobody announces."""
    end = time.monotonic() + patience(deadline)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {deadline} s"
        time.sleep(0.01)


def processes() -> Iterator[tuple[int, list[bytes]]]:
    """Of all that there are: the pid, and the words of the command line."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                yield int(pid), file.read().split(b"\0")
        except OSError:
            continue


def sanitized(pid: int) -> bool:
    """Sanitizers keep what has been freed for a while, and their own memory beside it: how much there is says nothing."""
    with open(f"/proc/{pid}/maps") as file:
        return any("libasan.so" in line or "libtsan.so" in line for line in file)


# System calls in which a thread waits, by their numbers on x86-64.
LOCK, SLEEP = 202, 230
SERVICE_THREAD = "amem-session"  # of a rank: it carries out what the broker says


class Child:
    """Standard output and standard error go to one log, marked; lines of output can be waited for."""

    def __init__(self, name: str, argv: Sequence[object], env: dict[str, str], log: str) -> None:
        self.name = name
        self.log_path = log
        self._fault_file = f"{log}.faults"
        env["AMEM_SIM_FAULT_FILE"] = self._fault_file
        self._log = open(log, "a", buffering=1)
        self._log_lock = threading.Lock()
        self._log.write("$ " + " ".join(map(str, argv)) + "\n")
        self.process = subprocess.Popen(
            [str(each) for each in argv], env=env, text=True, errors="replace", bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self._lines: dict[str, queue.Queue[str | None]] = {"out": queue.Queue(), "err": queue.Queue()}
        self._seen: dict[str, list[str]] = {"out": [], "err": []}
        self._readers = [threading.Thread(target=self._read, args=(stream, pipe), daemon=True)
                         for stream, pipe in (("out", self.process.stdout), ("err", self.process.stderr))]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: str, pipe: IO[str]) -> None:
        for line in pipe:
            with self._log_lock:
                self._log.write(f"{stream}: {line}")
            self._lines[stream].put(line.rstrip("\n"))
        self._lines[stream].put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, line: str) -> None:
        with self._log_lock:
            self._log.write(f"in: {line}\n")
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Died(f"{self.name} has ended") from error

    def faults(self, *rules: str) -> None:
        """Rules of the simulated driver (tests/sim/manual.md), counted from now on; none: the end of them."""
        if not rules:
            os.unlink(self._fault_file)
            return
        with open(self._fault_file + ".new", "w") as file:
            file.write("\n".join(rules))
        os.rename(self._fault_file + ".new", self._fault_file)

    def lose_device(self) -> None:
        """Its calls fail from now on as those on a lost device do, with CUDA_ERROR_ECC_UNCORRECTABLE."""
        self.faults(*[f"{call}:*:214" for call in OF_A_DEVICE])

    def line(self, deadline: float = 20, stream: str = "out") -> str:
        """The next line."""
        try:
            line = self._lines[stream].get(timeout=patience(deadline))
        except queue.Empty:
            raise TimeoutError(f"{self.name} said nothing for {deadline} s") from None
        if line is None:
            self._lines[stream].put(None)
            raise Died(f"{self.name} has ended: {self.wait()}")
        self._seen[stream].append(line)
        return line

    def json_line(self, deadline: float = 20) -> Any:
        return json.loads(self.line(deadline))

    def wait_for(self, text: str, deadline: float = 20, stream: str = "err") -> str:
        """The first line, of those not read yet, that contains the text."""
        end = time.monotonic() + deadline
        while True:
            line = self.line(max(0.01, end - time.monotonic()), stream)
            if text in line:
                return line

    def rest(self, stream: str = "err") -> list[str]:
        """The lines so far that nobody has read."""
        lines: list[str] = []
        while True:
            try:
                line = self._lines[stream].get_nowait()
            except queue.Empty:
                return lines
            if line is None:
                self._lines[stream].put(None)
                return lines
            lines.append(line)

    def output(self, stream: str = "err") -> str:
        """Everything that was printed. REQUIRES: the process has ended."""
        for reader in self._readers:
            reader.join(patience(10))
        self._seen[stream] += self.rest(stream)
        return "\n".join(self._seen[stream])

    def wait(self, deadline: float = 20) -> int:
        """The exit status; negative: killed by that signal."""
        try:
            return self.process.wait(patience(deadline))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} did not end in {deadline} s") from None

    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        if self.alive():
            self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        if self.alive():
            self.signal(signal.SIGCONT)
            self.kill()
        for reader in self._readers:
            reader.join(patience(10))
        if self.process.stdin:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        self._log.close()

    # ---- what the kernel says of it ----
    def descriptors(self, pool: bool = True) -> collections.Counter[str]:
        """How many descriptors are open, by what they refer to; anonymous files by their kind. Without `pool` not its segments."""
        counts: collections.Counter[str] = collections.Counter()
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                target = os.readlink(f"/proc/{self.pid}/fd/{name}")
            except OSError:
                continue  # closed meanwhile
            if pool or ":host" not in target:
                counts[target.split(":")[0]] += 1
        return counts

    def _status(self, name: str) -> int:
        """The number in a line of the kernel's account of the process."""
        with open(f"/proc/{self.pid}/status") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1])
        raise Died(f"{self.name} has ended")

    def rss_bytes(self) -> int:
        """Anonymous resident memory: what the process itself has allocated. 0 under a sanitizer."""
        return 0 if sanitized(self.pid) else self._status("RssAnon") * 1024

    def peak_bytes(self) -> int:
        """The most memory that was ever resident, shared memory too. 0 under a sanitizer."""
        return 0 if sanitized(self.pid) else self._status("VmHWM") * 1024

    def descriptor_space(self) -> int:
        """How many descriptors there can be before the kernel makes the table larger."""
        return self._status("FDSize")

    def sleeps(self) -> bool:
        """Its main thread waits for another thread, as at the gate."""
        with open(f"/proc/{self.pid}/syscall") as file:
            return file.read().startswith("202 ")  # futex on x86-64

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def system_call(self, thread: str | None = None) -> int | None:
        """The number of the one in which the main thread is, or that of this name; None while it runs."""
        folder = f"/proc/{self.pid}/task/{thread and self._thread(thread) or self.pid}"
        with open(f"{folder}/syscall") as file:
            word = file.read().split()[0]
        return None if word == "running" else int(word)

    def _thread(self, name: str) -> str:
        for each in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{each}/comm") as file:
                if file.read().strip() == name:
                    return each
        raise Died(f"{self.name} has no thread {name}")

    def held(self, thread: str | None = None) -> None:
        """Returns when a fault of the kind `hold` holds its main thread, or that of this name."""
        mark = f"{self._fault_file}.held.{thread and self._thread(thread) or self.pid}"
        eventually(lambda: os.path.exists(mark), deadline=40, what=f"{self.name} is held")


class Told(Child):
    """A child that obeys commands, a line each, and answers each with a line of JSON."""

    def answer(self, deadline: float = 20) -> Any:
        """The answer to the oldest command that has none yet; it must be a success."""
        answer = self.json_line(deadline)
        assert answer["ok"], f"{self.name}: {answer['error']}"
        return answer

    def failure(self, deadline: float = 20) -> str:
        """The error text of the answer, which must be a failure."""
        answer = self.json_line(deadline)
        assert not answer["ok"], f"{self.name} was to fail: {answer}"
        return str(answer["error"])

    def ask(self, command: str, deadline: float = 20) -> Any:
        self.send(command)
        return self.answer(deadline)

    def stands(self, where: int = LOCK) -> None:
        """Returns when the command that was sent waits: at the gate or for the device, unless `where` says otherwise."""
        eventually(lambda: self.system_call() == where, what=f"{self.name} waits")
        assert self.rest("out") == [], f"{self.name} waits for the next command: it has answered"

    def leave(self) -> None:
        """Ends the process the regular way."""
        self.send("exit")
        self.answer()
        status = self.wait()
        assert status == 0, f"{self.name} ended with {status}"
