"""The demonstration deploy/vllm_turns.py with engines of fake_vllm on the simulated driver: everything but times."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Mapping
from typing import Any

import pytest
from sim_node import Build, Node, patience

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE.parents[2] / "deploy" / "vllm_turns.py"
# Two engines do not fit beside one another; the cache is most of each.
SIZES = {"FAKE_VLLM_WEIGHTS_MIB": "16", "FAKE_VLLM_CACHE_MIB": "56"}


class Demo:
    def __init__(self, node: Node, build: Build) -> None:
        self.node, self.build = node, build

    def start(self, *arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        self.scratch = pathlib.Path(self.node.dir) / "tmp"
        self.scratch.mkdir()
        environment = self.node.env({"PYTHONPATH": str(HERE / "fake_vllm"), "TMPDIR": str(self.scratch), **SIZES,
                                     **(env or {})})
        return subprocess.run([sys.executable, PROGRAM, "--prefix", self.build.directory, "--turns", "3", *arguments],
                              env=environment, capture_output=True, text=True, timeout=patience(200))


@pytest.fixture
def demo(bare_node: Node, build: Build) -> Demo:
    return Demo(bare_node, build)


def test_engines_take_turns(demo: Demo, tmp_path: pathlib.Path) -> None:
    """It starts a broker of its own, and leaves nothing behind."""
    done = demo.start("--no-own", "--pool", "64MiB", "--json", tmp_path / "times.json",
                      env={"AMEM_RUNTIME_DIR": str(tmp_path / "none")})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("OK: the engines generated the same tokens in all 3 turns of each kind")
    assert "sleep command to the other's first token" in done.stdout
    times = json.loads((tmp_path / "times.json").read_text())
    assert {way: len(figures["turn_ms"]) for way, figures in times.items()} == {"amem": 3, "amem, together": 3}
    assert (len(times["amem"]["first_sleep_ms"]), len(times["amem"]["sleep_ms"])) == (2, 2)  # each engine's first is its own
    assert times["amem"]["left_mib"] == demo.node.CONTEXT_BYTES >> 20  # nothing but the engine's context
    assert list(demo.scratch.iterdir()) == []


def test_beside_vllms_own_sleep_and_with_the_broker_that_runs(demo: Demo, tmp_path: pathlib.Path) -> None:
    """vLLM's own frees nothing here, so these engines are small."""
    demo.node.start_broker()
    done = demo.start("--tp", "2", "--logs", tmp_path / "logs",
                      env={"FAKE_VLLM_WEIGHTS_MIB": "2", "FAKE_VLLM_CACHE_MIB": "4"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vLLM's own  amem  amem, together" in done.stdout
    assert sorted(log.name for log in (tmp_path / "logs").glob("*.log")) == ["amem-A.log", "amem-B.log", "own-A.log",
                                                                            "own-B.log"]
    assert demo.node.ctl.status()["groups"] == []


def test_other_tokens_are_a_failure(demo: Demo) -> None:
    demo.node.start_broker()
    done = demo.start("--no-own", env={"FAKE_VLLM_FORGETS": "1"})
    assert done.returncode == 1
    assert "generates other tokens after turn 1" in done.stderr, done.stderr


def test_an_engine_that_does_not_start(demo: Demo) -> None:
    demo.node.start_broker()
    done = demo.start("--no-own", env={"FAKE_VLLM_LACKS": "vllm.v1.worker.gpu_worker:Worker.wake_up"})
    assert done.returncode == 1
    assert "engine A (amem): FailedPreconditionError: vllm._worker.Worker has no wake_up(), " in done.stderr, done.stderr


def test_without_amems_programs(demo: Demo) -> None:
    environment = demo.node.env({"PATH": "/usr/bin:/bin", "TMPDIR": demo.node.dir})
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "there is no amemctl. Install amem's wheel" in done.stderr, done.stderr


@pytest.fixture
def turns() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("vllm_turns", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_engine_that_ends_or_hangs_is_named(turns: types.ModuleType, tmp_path: pathlib.Path) -> None:
    def engine(script: str) -> Any:
        program = tmp_path / "program.py"
        program.write_text(script)
        return turns.Engine("A", ([], []), dict(os.environ), tmp_path / "log", program)

    gone = engine("")
    with pytest.raises(turns.Failure, match="engine A: has ended"):
        gone.ask("start")
    gone.end()
    deaf = engine("import time; time.sleep(100)")
    with pytest.raises(turns.Failure, match="did not answer within 0.2 s"):
        deaf.ask("start", 0.2)
    deaf.process.kill()
    deaf.end()
