"""Mistakes in how a framework's workers are started, and workers that die: one sentence names the worker, and the job ends as without amem."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import pytest
from sim_node import Build, Node, patience
from test_vllm import BEGIN, Vllm

WORKERS = """
import os, signal, sys
import multiprocessing

def preload_of_workers_is_lost():
    "As where a launcher of workers makes their environment anew."
    del os.environ["LD_PRELOAD"]
"""


@pytest.fixture
def vllm(node: Node, build: Build) -> Vllm:
    return Vllm(node, build)


def pid_after(text: str, said: str) -> int:
    found = re.search(re.escape(text) + r"(\d+)", said)
    assert found is not None, said
    return int(found[1])


@contextlib.contextmanager
def another(vllm: Vllm, script: str, group: str) -> Iterator[int]:
    """Another program in this group. Gives its pid. It must end well."""
    launcher = [*vllm.node.launcher(group)[:-1], "--scope", "heap", "--"]
    words = [*launcher, sys.executable, "-c", f"{BEGIN}{WORKERS}{script}\nprint(os.getpid(), flush=True)\nsys.stdin.read()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=vllm.environment()) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate("", timeout=patience(60))
        assert process.returncode == 0


# ---- a worker without the preload ----
@pytest.mark.parametrize("ask", [{}, {"AMEM_ON": "require"}])
def test_workers_without_the_preload(vllm: Vllm, ask: Mapping[str, str]) -> None:
    """The engine ends before it loads a model, and its error names the worker's process. With AMEM_ON amem starts workers with the shim."""
    if ask:
        vllm(WORKERS + """
preload_of_workers_is_lost()
llm = engine(tensor_parallel_size=2)
before = tokens(llm)
llm.sleep(1)
llm.wake_up()
assert tokens(llm) == before
""", env=ask)
        return
    said = vllm(WORKERS + """
preload_of_workers_is_lost()
try:
    engine(tensor_parallel_size=2)
except RuntimeError as error:
    print(error, "of", os.getpid())
""")
    sentence = "vLLM cannot sleep by amem: libamem_shim.so is not loaded in process "
    assert said.count(sentence) == 1 and len(said.splitlines()) == 1 and "Start vLLM with `amemctl run" in said
    assert pid_after(sentence, said) != pid_after(" of ", said)


# ---- a group shared by mistake ----
def test_two_engines_in_one_group(vllm: Vllm) -> None:
    """One wants to sleep. It gets an error that names the other's rank and says what to do, and both serve on."""
    with another(vllm, "llm = engine()", "vllm") as other:
        said = vllm(WORKERS + """
llm = engine()
before = tokens(llm)
try:
    llm.sleep(1)
except RuntimeError as error:
    print(error)
assert not llm.core.is_sleeping() and tokens(llm) == before
""", env={"AMEM_TIMEOUT": "1"})
    assert f"(pid {other}); the group is running. If a rank that is missing belongs to another engine or to a trainer: with " \
           "AMEM_VLLM_SLEEP=tags, or with a group for each engine and trainer (AMEM_GROUP), each sleeps and wakes by itself" in said
    assert vllm.node.ctl.status()["groups"] == []


# ---- workers that are killed while they are paused ----
def test_workers_that_are_killed_asleep(vllm: Vllm) -> None:
    """They end by the signal, as without amem. amemd names each in one line, and nothing of them stays in the pool."""
    said = vllm(WORKERS + """
llm = engine(tensor_parallel_size=2)
llm.sleep(1)
workers = multiprocessing.active_children()
for worker in workers:
    os.kill(worker.pid, signal.SIGKILL)
for worker in workers:
    worker.join()
    print(worker.pid, worker.exitcode)
""")
    ended = {int(pid): int(code) for pid, code in (line.split() for line in said.splitlines())}
    assert list(ended.values()) == [-signal.SIGKILL] * 2
    end = time.monotonic() + patience(20)
    while vllm.node.ctl.status()["groups"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    with open(vllm.node.log_file("amemd"), encoding="utf-8") as log:
        lines = log.read().splitlines()
    for pid in ended:
        assert len([line for line in lines if f"(pid {pid}) left" in line]) == 1
    assert all(device["brokered_bytes"] == 0 for device in vllm.node.ctl.devices())


def test_a_worker_that_is_killed_asleep_leaves_the_other(vllm: Vllm) -> None:
    """The other one has its memory back, and ends when it is told to."""
    assert vllm(WORKERS + """
llm = engine(tensor_parallel_size=2)
llm.sleep(1)
first, second = multiprocessing.active_children()
os.kill(first.pid, signal.SIGKILL)
first.join()
with amem.Broker() as broker:
    broker.resume("vllm")
    [group] = [each for each in broker.groups() if each.name == "vllm"]
    assert group.state.name == "RUNNING" and group.rank_count == 1, group
second.terminate()
second.join()
print(second.exitcode)
""") == f"{-signal.SIGTERM}\n"
