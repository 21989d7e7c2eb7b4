"""What makes a process a rank: variables, a command started with them, the real shim in it."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import amem
from conftest import Python
from sim_node import Build, Node, eventually
from sim_node.job import Job


def test_environment(build: Build, tmp_path: pathlib.Path) -> None:
    shim = os.path.join(build.directory, "python", "amem", "lib", "libamem_shim.so")
    other_name = tmp_path / "link.so"
    other_name.symlink_to(shim)
    hook = tmp_path / "torch_memory_saver_hook_mode_preload.abi3.so"
    shutil.copy(shim, hook)
    base = {"LD_PRELOAD": f"/x.so:{shim} /y.so:{other_name}::/elsewhere/libamem_shim.so:{hook} ${{LD_PRELOAD}}"}
    assert amem.environment("train", runtime_dir=str(tmp_path), base=base) == {
        "AMEM_GROUP": "train", "AMEM_RUNTIME_DIR": str(tmp_path), "LD_PRELOAD": f"{shim}:/x.so:/y.so:${{LD_PRELOAD}}",
        "NCCL_CUMEM_ENABLE": "1"}
    more = amem.environment("train", "heap", runtime_dir="here/../there", required=True, base={})
    assert more["AMEM_SCOPE"] == "heap"
    assert more["AMEM_REQUIRED"] == "1"
    assert more["AMEM_RUNTIME_DIR"] == os.path.join(os.getcwd(), "there")
    assert more["LD_PRELOAD"] == shim
    with pytest.raises(amem.InvalidArgumentError, match="nccl, regions or heap"):
        amem.environment("train", "all")  # type: ignore[arg-type]


def test_nccls_choice_is_kept() -> None:
    for choice in "01":
        assert "NCCL_CUMEM_ENABLE" not in amem.environment("train", base={"NCCL_CUMEM_ENABLE": choice})


def test_the_shim_is_where_amem_shim_says(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    named = tmp_path / "my_shim.so"
    monkeypatch.setenv("AMEM_SHIM", str(named))
    with pytest.raises(amem.NotFoundError, match="my_shim.so"):
        amem.shim_path()
    named.touch()
    assert amem.shim_path() == str(named)
    odd = tmp_path / "a b"
    odd.mkdir()
    (odd / "shim.so").touch()
    monkeypatch.setenv("AMEM_SHIM", str(odd / "shim.so"))
    with pytest.raises(amem.InvalidArgumentError, match="AMEM_SHIM"):
        amem.environment("train")


def test_launch_without_a_broker(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(amem.UnavailableError, match="session.sock"):
        amem.launch(["true"], group="train", runtime_dir=str(tmp_path), required=True)
    process = amem.launch(["sh", "-c", "echo $AMEM_GROUP $MORE $HOME"], group="train", runtime_dir=str(tmp_path),
                          env={"MORE": "more"}, stdout=subprocess.PIPE, text=True)
    [line] = caplog.records
    assert (line.name, line.levelname) == ("amem", "WARNING") and f"{tmp_path}/session.sock" in line.getMessage()
    out, _ = process.communicate(timeout=20)
    assert out == "train more\n"  # nothing of this process's environment but what `env` has
    assert process.returncode == 0


def test_a_launched_process_is_a_rank(node: Node, python: Python) -> None:
    script = """
import ctypes, sys, amem
# Too early, which is no harm for later.
assert not amem.is_active()
try:
    amem.pause()
except amem.FailedPreconditionError as error:
    assert "CUDA" in error.text, error
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
assert amem.is_active()
print(amem.group(), flush=True)
try:
    amem.set_group("other")
except amem.FailedPreconditionError:
    print("too late", flush=True)
sys.stdin.readline()
amem.pause(timeout=20)
print("paused", flush=True)
sys.stdin.readline()
amem.resume_async(timeout=20).result(40)
print("resumed", flush=True)
sys.stdin.readline()
"""
    env = python.environment(node.env())
    process = amem.launch([sys.executable, "-c", script], group="train", runtime_dir=node.runtime_dir, env=env,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "train\n"
        assert process.stdout.readline() == "too late\n"
        [rank] = node.ctl.ranks("train")
        assert rank["pid"] == process.pid
        process.stdin.write("\n")
        assert process.stdout.readline() == "paused\n"
        assert node.ctl.state("train") == "paused"
        process.stdin.write("\n")
        assert process.stdout.readline() == "resumed\n"
        assert node.ctl.state("train") == "running"
    finally:
        process.stdin.close()
        assert process.wait(20) == 0
        process.stdout.close()


def test_the_real_shims_errors(node: Node, python: Python) -> None:
    script = """
        import ctypes, amem
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        amem.set_group("chosen")
        assert amem.is_active()
        for call in (lambda: amem.pause(["x"] * 64 + ["y"]), lambda: amem.pause("")):
            try:
                call()
                raise SystemExit("nothing was raised")
            except amem.InvalidArgumentError:
                pass
        print(amem.group())
    """
    env = node.env(amem.environment("train", runtime_dir=node.runtime_dir, base={}))
    assert python.run(script, python.environment(env)) == "chosen\n"


def test_environment_makes_ranks_of_a_job(node: Node) -> None:
    env = amem.environment("train", runtime_dir=node.runtime_dir, base={})
    job = Job(node, "train", 2, run=[], env=env).ready()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()
    eventually(lambda: len(node.ctl.ranks("train")) == 2)
