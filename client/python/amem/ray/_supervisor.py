"""The supervisor: a process that starts amemd. It outlives the actor that started it, and then removes everything of amemd.

    python -I -S _supervisor.py DIRECTORY amemd ARGUMENTS...

SIGKILL may end an actor of Ray, and Ray kills the child processes of a worker. So the supervisor is a grandchild of the actor, in its own
session. Its standard input is a pipe, and the actor has the other end. When the pipe closes, or on SIGTERM, the supervisor ends amemd
and amem-holder, each by SIGTERM and after a while by SIGKILL. It removes DIRECTORY, and ends. It reports on standard output, one
line each: amemd was started (its pid), amemd has ended (its status), amemd cannot be started (why).

This script imports nothing of amem, so it is small and does not fail if amem fails.
"""
from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

PATIENCE = 10.0  # seconds after SIGTERM, for amemd and for what it has left
LOG = "amemd.log"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK = 0.02


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _say(line: str) -> None:
    try:
        os.write(sys.stdout.fileno(), line.encode() + b"\n")
    except OSError:  # nobody listens any more
        pass


def children() -> list[int]:
    """The child processes of this process, including ended ones that it has not waited for."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent == own:
                found.append(int(name))
    return found


def _reap() -> bool:
    """Reaps ended child processes. Returns whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return False
    return True


def _end_children(patience: float) -> None:
    """Ends all child processes. This process is a subreaper, so they include amem-holder."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + patience
        told: set[int] = set()
        while time.monotonic() < end:
            for pid in set(children()) - told:  # those that come late get it, too
                told.add(pid)
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            if not _reap():
                return
            time.sleep(_LOOK)


def _remove(directory: str) -> None:
    """Removes amemd's runtime directory, and amem-holder's folder beside it."""
    for each in (directory, f"{directory}-holder"):
        shutil.rmtree(each, ignore_errors=True)


def end(daemon: subprocess.Popen[bytes], directory: str, patience: float = PATIENCE) -> None:
    """Ends amemd first, so that it can hand over to amem-holder in good order."""
    if daemon.poll() is None:
        daemon.terminate()
        try:
            daemon.wait(patience)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()  # SIGKILL's; whoever hangs in the driver is waited for
    _end_children(patience)
    _remove(directory)


def _start(directory: str, command: list[str]) -> subprocess.Popen[bytes]:
    def before() -> None:
        # A supervisor that is killed takes amemd with it; amem-holder ends then with the last rank.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    with open(os.path.join(directory, LOG), "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", preexec_fn=before)


def keep(directory: str, command: list[str]) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    stop = False

    def told(number: int, frame: object) -> None:
        nonlocal stop
        stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, told)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # wakes
    try:
        daemon = _start(directory, command)
    except OSError as error:
        _say(f"cannot start {error.strerror}")
        _remove(directory)
        return
    _say(f"started {daemon.pid}")
    ended = False
    while not stop:
        if not ended and daemon.poll() is not None:
            ended = True
            _say(f"ended {daemon.returncode}")
        ready, _, _ = select.select([sys.stdin.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 512)
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 512):
            break
    end(daemon, directory)


def main() -> None:
    if os.fork() == 0:
        os.setsid()
        keep(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
