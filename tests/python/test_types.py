"""The package's types, checked by mypy. Also what programs write that use them."""
import os
import shutil
import subprocess
import sys

import pytest


HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = os.path.join(HERE, "..", "..", "client", "python", "pyproject.toml")
# A line with an `ignore` is refused if nothing is wrong in it.
PROGRAM = """
import amem

amem.environment("train", "heap")
amem.environment("train", "all")  # type: ignore[arg-type]
amem.pause(guests="pin", timeout=3)
amem.pause(guests=amem.GuestPolicy.PIN)
amem.pause(guests="wait")  # type: ignore[arg-type]
amem.set_policy("kv_cache", amem.Policy.DISCARD)
amem.set_policy("kv_cache", "drop")  # type: ignore[arg-type]


def ask(broker: amem.Broker) -> str:
    broker.set_policy("train", "kv_cache", "discard", save="sparse")
    broker.set_policy("train", "kv_cache", save=amem.Form.DENSE)
    broker.set_policy("train", "kv_cache", save="zip")  # type: ignore[arg-type]
    return broker.metrics(amem.MetricsFormat.PROMETHEUS) + broker.metrics("openmetrics")


async def steer(cluster: amem.Cluster) -> list[str]:
    async with amem.aio.Broker() as broker:
        last = await broker.pause("train")
        phases = [progress.phase async for progress in broker.resuming("train")]
    versions = [answer.result().version for answer in cluster.status().values()]
    await amem.aio.resume(timeout="3")  # type: ignore[arg-type]
    return [*phases, *versions, last.phase, amem.stats().brokered[0].tag]
"""


@pytest.fixture
def mypy():
    """Checks what the arguments name, in a folder; gives the process that has ended."""
    command = [shutil.which("mypy")]
    if command == [None]:
        found = subprocess.run([sys.executable, "-m", "mypy", "--version"], capture_output=True)
        if found.returncode != 0:
            pytest.skip("mypy is not installed (deploy/deps.sh installs it)")
        command = [sys.executable, "-m", "mypy"]

    def check(folder, *what, **environment):
        return subprocess.run([*command, "--strict", "--config-file", CONFIG, "--cache-dir", os.devnull, *what], cwd=folder,
                              env={**os.environ, **environment}, capture_output=True, text=True)

    return check


def test_mypy_strict(build, mypy):
    package = os.path.join(build.directory, "python")
    done = mypy(package, "-p", "amem")
    assert done.returncode == 0, done.stdout + done.stderr
    done = mypy(os.path.join(build.directory, "dropin"), "-p", "torch_memory_saver", MYPYPATH=package)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorial(build, mypy):
    """Its programs, its test, and what pastes it."""
    package = os.path.abspath(os.path.join(build.directory, "python"))
    folder = os.path.join(HERE, "..", "..", "examples", "tutorial")
    done = mypy(folder, *sorted(name for name in os.listdir(folder) if name.endswith(".py")), MYPYPATH=package)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = os.path.dirname(HERE)
    done = mypy(HERE, "--follow-imports", "silent", "test_tutorial.py", os.path.join(tests, "pasted.py"),
                MYPYPATH=f"{tests}:{os.path.join(tests, 'integration')}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program(build, mypy, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mypy(tmp_path, "program.py", MYPYPATH=os.path.join(build.directory, "python"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_framework_of_somebody_else(build, mypy):
    package = os.path.join(build.directory, "python")
    done = mypy(os.path.join(HERE, "made_up"), "--follow-imports", "silent", "amem_made_up.py", MYPYPATH=package)
    assert done.returncode == 0, done.stdout + done.stderr
