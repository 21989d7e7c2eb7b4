"""The services: the driver is loaded before amemd, and each is as systemd understands it."""
import configparser
import os
import shlex
import shutil
import subprocess

import pytest

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy")


def read(name):
    unit = configparser.RawConfigParser(strict=False, allow_no_value=True, delimiters=("=",))
    unit.optionxform = str
    with open(f"{DEPLOY}/{name}.service.in", encoding="utf-8") as file:
        unit.read_string(file.read())
    return unit


def lines(name, key):
    with open(f"{DEPLOY}/{name}.service.in", encoding="utf-8") as file:
        return [line.strip().partition("=")[2] for line in file if line.startswith(key + "=")]


def test_the_driver_comes_before_amemd():
    amemd = read("amemd")
    for key in ("Wants", "After"):
        assert "amem-driver.service" in amemd["Unit"][key].split()
    assert "amemd.service" in read("amem-driver")["Unit"]["Before"].split()
    commands = lines("amem-driver", "ExecStart")
    assert all(command.startswith("-/") for command in commands), "without NVIDIA's driver it is no failure"
    assert [command.split()[0].rsplit("/", 1)[1] for command in commands] == ["modprobe", "nvidia-modprobe"]


def test_amemd_itself_may_load_and_make_nothing():
    service = read("amemd")["Service"]
    assert service["CapabilityBoundingSet"] == "" and service["ProtectKernelModules"] == "yes"
    assert not lines("amemd", "ExecStartPre")
    powers = read("amem-driver")["Service"]["CapabilityBoundingSet"].split()
    assert {"CAP_SYS_MODULE", "CAP_MKNOD"} <= set(powers) and len(powers) == 5


def test_one_that_was_killed_is_back_at_once_and_one_that_cannot_start_waits(tmp_path):
    unit = read("amemd")
    assert unit["Service"]["RestartSec"] == "200ms"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0", "systemd gives up nothing, however often it is killed"
    [*shell, script] = shlex.split(unit["Service"]["ExecStopPost"])
    (tmp_path / "sleep").write_text("#!/bin/sh\necho slept $1\n")
    (tmp_path / "sleep").chmod(0o755)
    said = {result: subprocess.run([*shell, script.replace("$$", "$")], env={"PATH": str(tmp_path), "SERVICE_RESULT": result},
                                   capture_output=True, text=True, timeout=20, check=True).stdout.strip()
            for result in ("signal", "success", "exit-code")}
    assert said == {"signal": "", "success": "", "exit-code": "slept 5"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_them(tmp_path):
    for name in ("amemd", "amem-driver"):
        with open(f"{DEPLOY}/{name}.service.in", encoding="utf-8") as file:
            (tmp_path / f"{name}.service").write_text(file.read().replace("@CMAKE_INSTALL_FULL_BINDIR@/amemd", "/bin/true"))
    said = subprocess.run(["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))], capture_output=True,
                          text=True, timeout=60, check=False).stderr
    assert not [line for line in said.splitlines() if str(tmp_path) in line or "amem" in line and "nknown" in line], said
