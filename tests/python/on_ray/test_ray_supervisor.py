"""The supervisor of amem.ray: amemd lives as long as who wants it, and leaves nothing. It needs neither Ray nor
certificates."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import NoReturn

import pytest

import amem
from amem.ray._kept import Kept
from sim_node.child import Child, eventually, patience, processes
from sim_node.node import Build, Node

FLAGS = ["--pool-size", "64MiB", "--pool-segment", "16MiB", "--pool-chunk", "64KiB"]


@pytest.fixture
def directory(bare_node: Node, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an amemd on a simulated node."""
    for name, value in bare_node.settings.items():
        monkeypatch.setenv(name, value)
    return tempfile.mkdtemp(prefix="kept-", dir=bare_node.dir)


def left(directory: str) -> list[str]:
    """The processes that have to do with the directory, and itself: a name for each."""
    found = [name for name, path in (("directory", directory), ("its holder's", f"{directory}-holder")) if os.path.exists(path)]
    for pid, words in processes():
        if pid != os.getpid() and any(word.startswith(directory.encode()) for word in words):
            line = b" ".join(words).decode()
            found.append(f"{next((name for name in ('amem-holder', '_supervisor.py') if name in line), 'amemd')} {pid}")
    return sorted(found)


def pid_of(program: str, directory: str) -> int:
    [pid] = [each.split()[1] for each in left(directory) if each.startswith(program)]
    return int(pid)


def gone(directory: str, deadline: float = 20) -> None:
    eventually(lambda: not left(directory), deadline, "nothing is left")


def test_end_returns_when_nothing_is_left(directory: str) -> None:
    kept = Kept(directory, FLAGS)
    kept.wait(patience(30))
    assert kept.fault() is None
    assert [each.split()[0] for each in left(directory)] == ["_supervisor.py", "amem-holder", "amemd", "directory", "its"]
    supervisor = pid_of("_supervisor.py", directory)
    # Out of reach of who kills the group.
    assert os.getsid(supervisor) != os.getsid(0) and os.getpgid(supervisor) != os.getpgid(0)
    assert kept.end()
    assert left(directory) == []
    assert kept.end()


@pytest.mark.parametrize("stopped", ("amemd", "amem-holder"))
def test_who_does_not_obey_is_killed(directory: str, monkeypatch: pytest.MonkeyPatch, stopped: str) -> None:
    kept = Kept(directory, FLAGS)
    kept.wait(patience(30))
    os.kill(pid_of(stopped, directory), signal.SIGSTOP)
    assert kept.end()
    assert left(directory) == []


def test_with_ranks_that_live_on(bare_node: Node, directory: str) -> None:
    """What they have stays theirs; the holder, which would wait for them, does not."""
    kept = Kept(directory, FLAGS)
    kept.wait(patience(30))
    bare_node.settings["AMEM_RUNTIME_DIR"] = bare_node.runtime_dir = directory
    job = bare_node.job("train")
    assert kept.end()
    assert left(directory) == []
    job.check()


SCRIPT = """
import os, signal, sys, time
from amem.ray._kept import Kept
kept = Kept(sys.argv[1], sys.argv[2:])
kept.wait(60)
print("ready", flush=True)
time.sleep(600)
"""


def test_it_ends_with_a_process_that_is_killed(build: Build, bare_node: Node, directory: str) -> None:
    env = bare_node.env({"PYTHONPATH": os.path.join(build.directory, "python")})
    process = bare_node.adopt(Child("actor", [sys.executable, "-c", SCRIPT, directory, *FLAGS], env,
                                    bare_node.log_file("actor")))
    process.wait_for("ready", 60, "out")
    os.killpg(process.pid, signal.SIGKILL)  # with all of its group
    process.wait()
    gone(directory)


@pytest.mark.parametrize("number, rest", ((signal.SIGTERM, []), (signal.SIGKILL, ["directory", "its holder's"])))
def test_a_supervisor_that_is_ended(directory: str, number: int, rest: list[str]) -> None:
    """By SIGTERM, as a service manager does, or worse: then only the directories are left."""
    kept = Kept(directory, FLAGS)
    kept.wait(patience(30))
    os.kill(pid_of("_supervisor.py", directory), number)
    eventually(lambda: left(directory) == rest, what="amemd and its holder have ended")
    # A process that ends loses its command line before its pipes.
    assert eventually(kept.fault, what="it is told") == "amemd's supervisor has ended, and amemd ended with it"


def test_amemd_that_is_killed(directory: str) -> None:
    kept = Kept(directory, FLAGS)
    kept.wait(patience(30))
    os.kill(pid_of("amemd", directory), signal.SIGKILL)
    assert str(eventually(kept.fault, what="it is told")).startswith("amemd was killed by signal 9. The last lines of its log:\n")
    assert kept.end()
    assert left(directory) == []


def test_amemd_that_does_not_start(directory: str, tmp_path: pathlib.Path) -> None:
    kept = Kept(directory, ["--pool-size", "much"])
    with pytest.raises(amem.InternalError, match="(?s)amemd has ended with status .*much"):
        kept.wait(patience(30))
    assert kept.end()
    gone(directory)


def test_there_is_no_amemd(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amem._programs.__file__", "/nowhere/_programs.py")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(amem.NotFoundError, match="there is no /nowhere/bin/amemd, and no amemd in PATH"):
        Kept(directory, FLAGS)


def test_ready_or_why_not(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(directory, FLAGS)

    def not_yet(_: amem.Broker) -> NoReturn:  # it may be fast
        raise amem.UnavailableError("nobody is there")

    monkeypatch.setattr(amem.Broker, "status", not_yet)
    with pytest.raises(amem.DeadlineExceededError, match="not ready within 0 s: it does not serve yet"):
        kept.wait(0)
    began = time.monotonic()
    assert kept.end() and time.monotonic() - began < patience(20)
    gone(directory)


def test_the_supervisor_imports_nothing_of_amem() -> None:
    from amem.ray import _supervisor

    script = (f"import runpy, sys; runpy.run_path({_supervisor.__file__!r}); "
              "assert not [name for name in sys.modules if name.startswith('amem')]")
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, timeout=60)
