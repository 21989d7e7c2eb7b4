"""The types of the package, of these tests and of the tutorial, checked by mypy. Also what programs write that use the package."""
import glob
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Protocol

import pytest
from sim_node.node import Build

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


class Check(Protocol):
    def __call__(self, folder: str | os.PathLike[str], *what: str, **environment: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def mypy() -> Check:
    """Checks what the arguments name, in a folder; gives the process that has ended."""
    program = shutil.which("mypy")
    command = [program] if program is not None else [sys.executable, "-m", "mypy"]
    if program is None and subprocess.run([*command, "--version"], capture_output=True).returncode != 0:
        pytest.skip("mypy is not installed (deploy/deps.sh installs it)")

    def check(folder: str | os.PathLike[str], *what: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, "--strict", "--config-file", CONFIG, "--cache-dir", os.devnull, *what], cwd=folder,
                              env={**os.environ, **environment}, capture_output=True, text=True)

    return check


def test_mypy_strict(build: Build, mypy: Check) -> None:
    package = os.path.join(build.directory, "python")
    done = mypy(package, "-p", "amem")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.add_on("saver")
def test_mypy_strict_of_the_drop_in(build: Build, mypy: Check) -> None:
    package = os.path.abspath(os.path.join(build.directory, "python"))
    done = mypy(os.path.join(build.directory, "dropin"), "-p", "torch_memory_saver", MYPYPATH=package)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorial(build: Build, mypy: Check) -> None:
    """Its programs. The tests below have its test, and what pastes it."""
    package = os.path.abspath(os.path.join(build.directory, "python"))
    folder = os.path.join(HERE, "..", "..", "examples", "tutorial")
    done = mypy(folder, *sorted(name for name in os.listdir(folder) if name.endswith(".py")), MYPYPATH=package)
    assert done.returncode == 0, done.stdout + done.stderr


def test_these_tests(build: Build, mypy: Check) -> None:
    """Every file of this folder but the stand-ins for frameworks, and what the tests import of other folders."""
    tests = os.path.dirname(HERE)
    integration = os.path.join(tests, "integration")
    folders = [".", "frameworks", "frameworks/made_up", "on_ray", "saver"]
    files = [path for folder in folders for path in sorted(glob.glob(f"{folder}/*.py", root_dir=HERE))]
    files += [os.path.join(tests, "pasted.py"), *sorted(glob.glob(os.path.join(integration, "sim_node", "*.py")))]
    assert {"./conftest.py", "./test_types.py"} <= set(files)
    package = os.path.abspath(os.path.join(build.directory, "python"))
    # pytest is the one of the interpreter that runs this. With the cache a second run takes a second.
    done = mypy(HERE, "--config-file", "mypy.ini", "--python-executable", sys.executable, "--cache-dir",
                os.path.join(os.path.abspath(build.directory), "mypy"), *files, MYPYPATH=f"{package}:{tests}:{integration}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.add_on("frameworks")
@pytest.mark.parametrize("folder", ["frameworks/fake_frameworks", "frameworks/fake_vllm"])
def test_stand_ins(build: Build, mypy: Check, folder: str) -> None:
    """Each by itself, as both have a torch of their own, which the package is not checked with."""
    paths = [os.path.join(os.path.abspath(build.directory), each) for each in ("python", "dropin")]
    done = mypy(os.path.join(HERE, folder), "--config-file", os.path.join(HERE, "mypy.ini"), "--follow-imports", "silent", ".",
                MYPYPATH=":".join(paths))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program(build: Build, mypy: Check, tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mypy(tmp_path, "program.py", MYPYPATH=os.path.join(build.directory, "python"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.add_on("frameworks")
def test_a_framework_of_somebody_else(build: Build, mypy: Check) -> None:
    package = os.path.join(build.directory, "python")
    done = mypy(os.path.join(HERE, "frameworks", "made_up"), "--follow-imports", "silent", "amem_made_up.py", MYPYPATH=package)
    assert done.returncode == 0, done.stdout + done.stderr
