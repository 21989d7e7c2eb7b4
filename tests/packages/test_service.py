"""The services: the driver is loaded before amemd, and each is as systemd understands it."""
import configparser
import os
import re
import shlex
import shutil
import subprocess

import pytest

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy")


def file_of(unit):
    return f"{DEPLOY}/{unit}" if unit.endswith(".socket") else f"{DEPLOY}/{unit}.service.in"


def read(name):
    unit = configparser.RawConfigParser(strict=False, allow_no_value=True, delimiters=("=",))
    unit.optionxform = str
    with open(file_of(name), encoding="utf-8") as file:
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


def test_the_holder_is_in_a_folder_of_its_own_that_root_alone_may_enter():
    holder, socket = read("amem-holder"), read("amem-holder.socket")
    folder = "/run/" + holder["Service"]["RuntimeDirectory"]
    assert folder == "/run/amem-holder" and holder["Service"]["RuntimeDirectoryMode"] == socket["Socket"]["DirectoryMode"] == "0700"
    assert holder["Service"]["RuntimeDirectoryPreserve"] == "yes", "the socket stays when a holder ends"
    assert socket["Socket"]["ListenSequentialPacket"] == folder + "/holder.sock"
    assert shlex.split(holder["Service"]["ExecStart"])[1:] == ["--socket", folder + "/holder.sock"]


def test_amemd_starts_no_holder_of_its_own():
    """It would be in amemd's control group, and systemd would end it with amemd."""
    assert lines("amemd", "Environment") == ["AMEM_HOLDER=external"]
    text = open(file_of("amemd"), encoding="utf-8").read()
    assert text.index("\nEnvironment=") < text.index("\nEnvironmentFile="), "an administrator's file comes after it"


def test_a_reload_with_wrong_settings_fails():
    [check, hangup] = lines("amemd", "ExecReload")
    assert "amemd --check-config" in check and "kill -HUP" in hangup


def test_a_holder_sees_an_amemd_with_more_capabilities():
    assert read("amem-holder")["Service"]["ProtectProc"] == "default", "it looks at the namespaces of who connects"


def test_systemd_brings_a_holder_however_often_amemd_is_killed():
    for unit in ("amemd", "amem-holder", "amem-holder.socket"):
        assert read(unit)["Unit"]["StartLimitIntervalSec"] == "0", unit
    assert read("amem-holder.socket")["Socket"]["TriggerLimitIntervalSec"] == "0"


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


def test_amemd_has_the_time_to_wait_for_what_is_under_way(build):
    """systemd kills it only after deadlines.end, which it reads here as the service does, and after the 2 s that a device has."""
    known = subprocess.run([f"{build}/bin/amemd", "--check-config", "--config", "/dev/null"], env={}, capture_output=True, text=True, timeout=20,
                           check=True).stdout
    [end] = re.findall(r'^end = "(\d+)s"', known.partition("[deadlines]")[2].partition("\n[")[0], re.MULTILINE)
    assert int(read("amemd")["Service"]["TimeoutStopSec"]) >= int(end) + 10


def test_systemd_waits_until_it_serves_and_ends_one_that_hangs():
    service = read("amemd")["Service"]
    assert service["Type"] == "notify" and "NotifyAccess" not in service, "only amemd itself reports"
    assert int(service["WatchdogSec"]) == 60
    assert service["WatchdogSignal"] == "SIGKILL", "a core would be as large as the pool"
    assert service["Restart"] == "on-failure", "which a watchdog's kill is"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_them(tmp_path):
    for name in ("amemd", "amem-driver", "amem-holder"):
        with open(f"{DEPLOY}/{name}.service.in", encoding="utf-8") as file:
            text = re.sub("@CMAKE_INSTALL_FULL_BINDIR@/amem[a-z-]*", "/bin/true", file.read())
        (tmp_path / f"{name}.service").write_text(text)
    shutil.copy(f"{DEPLOY}/amem-holder.socket", tmp_path)
    units = sorted(map(str, tmp_path.iterdir()))
    (tmp_path / "amemd.service.d").mkdir()
    shutil.copy(f"{DEPLOY}/pool.conf", tmp_path / "amemd.service.d")

    def faults():
        said = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False).stderr
        return [line for line in said.splitlines() if str(tmp_path) in line or "amem" in line and "nknown" in line]

    assert not faults()
    with open(tmp_path / "amemd.service.d" / "pool.conf", "a", encoding="utf-8") as file:
        file.write("NoSuchSetting=1\n")
    assert faults(), "the drop-in is not looked at"


def test_the_drop_in_sets_what_amemd_knows(build):
    with open(f"{DEPLOY}/pool.conf", encoding="utf-8") as file:
        variables = dict(re.findall(r"^#?Environment=(AMEM_\w+)=(\S+)$", file.read(), re.M))
    assert set(variables) == {"AMEM_POOL_SIZE", "AMEM_ISOLATION_BY"}
    for name, value in variables.items():
        done = subprocess.run([build / "bin" / "amemd", "--config", "/dev/null", "--check-config"], env={**os.environ, name: value},
                              capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and f'= "{value}"' in done.stdout, done


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="no systemd-tmpfiles here")
def test_tmpfiles_makes_the_folders_of_the_sockets(tmp_path):
    (tmp_path / "root").mkdir()
    done = subprocess.run(["systemd-tmpfiles", "--create", f"--root={tmp_path}/root", os.path.abspath(f"{DEPLOY}/amemd.tmpfiles")], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    assert {made.name: made.stat().st_mode & 0o7777 for made in (tmp_path / "root" / "run").iterdir()} == {"amem": 0o755, "amem-holder": 0o700}
