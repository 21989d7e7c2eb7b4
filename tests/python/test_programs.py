"""amemd and amemctl out of the package: `python -m amem.daemon`, `python -m amem` and the console scripts."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from conftest import Python
from sim_node.child import eventually
from sim_node.node import Build, Node

AMEMCTL = [sys.executable, "-c", "from amem._programs import amemctl; amemctl()"]
AMEMD = [sys.executable, "-m", "amem.daemon"]


def run(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)


def modules_alone(build: Build, folder: pathlib.Path) -> None:
    shutil.copytree(os.path.join(build.directory, "python", "amem"), folder / "amem",
                    ignore=shutil.ignore_patterns("bin", "lib"))


def test_daemon_is_amemd(build: Build, python: Python) -> None:
    for argument in ("--help", "--check-config", "--no-such-argument"):  # the second one's first line is the runtime directory
        ours = run([*AMEMD, argument], python.environment())
        amemds = run([build.program("amemd"), argument], python.environment())
        assert (ours.returncode, ours.stdout, ours.stderr) == (
            amemds.returncode, amemds.stdout.replace(build.program("amemd"), "amemd"), amemds.stderr)
    assert "--pool-size" in run([*AMEMD, "--help"], python.environment()).stdout


def test_daemon_keeps_the_process(bare_node: Node, python: Python) -> None:
    settings = {**bare_node.settings, "AMEM_POOL_SIZE": "0"}
    daemon = subprocess.Popen([*AMEMD, "--config", "/dev/null"], env=python.environment(settings))
    try:
        eventually(bare_node.ctl.reachable, what="amemd serves")
        assert os.readlink(f"/proc/{daemon.pid}/exe") == bare_node.build.program("amemd")
        daemon.terminate()
        assert daemon.wait(20) == 0
    finally:
        daemon.kill()
        daemon.wait()


def test_amemctl(python: Python, tmp_path: pathlib.Path) -> None:
    """Its exit codes are amemctl's, and what it runs has the shim and gets its signals."""
    env = python.environment({"AMEM_RUNTIME_DIR": str(tmp_path)})
    assert run([*AMEMCTL, "status"], env).returncode == 3
    done = run([*AMEMCTL, "run", "--group", "train", "--", "sh", "-c",
                "echo $LD_PRELOAD; grep SigIgn /proc/self/status; exit 7"], env)
    assert done.returncode == 7
    shim, ignored = done.stdout.splitlines()
    assert shim.endswith("/libamem_shim.so")
    assert not int(ignored.split()[1], 16) & 1 << signal.SIGPIPE - 1


def test_the_package_as_a_program_is_amemctl(build: Build, python: Python, tmp_path: pathlib.Path) -> None:
    """That of the wheel, else what PATH has: a distribution's package has no programs of its own."""
    package = [sys.executable, "-m", "amem"]
    env = python.environment({"AMEM_RUNTIME_DIR": str(tmp_path)})
    modules_alone(build, tmp_path)
    beside = {**env, "PYTHONPATH": str(tmp_path), "PATH": f"{os.path.join(build.directory, 'bin')}:{env['PATH']}"}
    for argument in ("--help", "status", "no-such-command"):
        theirs = run([build.program("amemctl"), argument], env)
        for each in (env, beside):
            ours = run([*package, argument], each)
            assert (ours.returncode, ours.stdout, ours.stderr) == (
                theirs.returncode, theirs.stdout.replace(build.program("amemctl"), "amemctl"), theirs.stderr)


def test_package_without_programs(build: Build, python: Python, tmp_path: pathlib.Path) -> None:
    modules_alone(build, tmp_path)
    env = python.environment({"PYTHONPATH": str(tmp_path)})
    for name, argv in (("amemd", AMEMD), ("amemctl", AMEMCTL), ("amemctl", [sys.executable, "-m", "amem"])):
        done = run(argv, env)
        assert done.returncode == 1
        assert f"{name}: there is no {tmp_path}/amem/bin/{name}" in done.stderr and "wheel" in done.stderr
        assert "Traceback" not in done.stderr


def test_program_that_cannot_run(build: Build, python: Python, tmp_path: pathlib.Path) -> None:
    modules_alone(build, tmp_path)
    program = tmp_path / "amem" / "bin" / "amemd"
    program.parent.mkdir()
    program.write_text("not a program")
    done = run(AMEMD, python.environment({"PYTHONPATH": str(tmp_path)}))
    assert done.returncode == 1
    assert done.stderr == f"amemd: cannot run {program}: Permission denied\n"
