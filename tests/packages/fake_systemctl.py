#!/usr/bin/python3
"""In the place of systemctl, where no systemd runs: it writes down what it is asked, and keeps in /run/fake which units are active.

amemd starts its socket and its holder. The holder goes on when amemd stops, if there are groups (/run/fake/groups).
"""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

FAKE = pathlib.Path("/run/fake")
UNITS = ("amem-llm-d.service", "amemd.service", "amem-holder.service", "amem-holder.socket")  # in the order in which they stop


def active(unit):
    return (FAKE / unit).exists()


def pid():
    return int((FAKE / "amemd.service").read_text() or 0) if active("amemd.service") else 0


def enabled(unit):
    if (pathlib.Path("/etc/systemd/system") / unit).is_symlink():
        return "masked"
    file = pathlib.Path("/lib/systemd/system") / unit
    if not file.exists():
        return "not-found"
    if "[Install]" not in file.read_text():
        return "static"
    return "enabled" if os.path.lexists(f"/etc/systemd/system/multi-user.target.wants/{unit}") else "disabled"


def start(unit):
    if active(unit):
        return True
    if unit == "amemd.service":
        if enabled(unit) in ("masked", "not-found") or (FAKE / "no-driver").exists():
            return False
        start("amem-holder.socket")
        start("amem-holder.service")
        with open(os.devnull, "r+b") as null:
            (FAKE / unit).write_text(str(subprocess.Popen(["/usr/bin/amemd"], stdin=null, stdout=null, stderr=null, start_new_session=True).pid))
        return True
    if unit == "amem-holder.socket":
        if active("amem-holder.service"):
            return False  # "Socket service already active, refusing."
        path = re.search(r"ListenSequentialPacket=(\S+)", pathlib.Path(f"/lib/systemd/system/{unit}").read_text())[1]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pathlib.Path(path).unlink(missing_ok=True)
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind(path)
    (FAKE / unit).write_text("")
    return True


def stop(unit):
    if active(unit) and unit == "amemd.service":
        os.kill(pid(), signal.SIGKILL)
    (FAKE / unit).unlink(missing_ok=True)
    groups = FAKE / "groups"
    if unit == "amem-holder.service" and not active("amemd.service"):
        groups.unlink(missing_ok=True)  # their memory is lost
    if unit == "amemd.service" and not (groups.exists() and groups.read_text()):
        stop("amem-holder.service")
    return True


def main():
    verb, *units = [word for word in sys.argv[1:] if not word.startswith("-")]
    with (FAKE / "calls").open("a") as calls:
        calls.write(" ".join([verb, *units]) + "\n")
    if verb == "show":
        wanted = next(word.split("=")[1] for word in sys.argv if word.startswith("--property="))
        print({"ActiveState": "active" if active(units[0]) else "inactive", "MainPID": pid() if units[0] == "amemd.service" else 0}[wanted])
    elif verb == "is-active":
        return 0 if active(units[0]) else 3
    elif verb == "is-enabled":
        if "--quiet" not in sys.argv:
            print(enabled(units[0]))
        return 0 if enabled(units[0]) == "enabled" else 1
    elif verb in ("start", "stop", "restart"):
        units.sort(key=UNITS.index)
        if verb != "start":
            for unit in units:
                stop(unit)
        return 0 if verb == "stop" or all([start(unit) for unit in reversed(units)]) else 1
    elif verb == "disable":
        for unit in units:
            pathlib.Path(f"/etc/systemd/system/multi-user.target.wants/{unit}").unlink(missing_ok=True)
            if "--now" in sys.argv:
                stop(unit)
    elif verb == "preset" and "--preset-mode=enable-only" in sys.argv:  # by Debian, whose presets enable all; RHEL's do not
        for unit in units:
            if "enabled" not in enabled(unit):
                pathlib.Path(f"/etc/systemd/system/multi-user.target.wants/{unit}").symlink_to(f"/lib/systemd/system/{unit}")
    elif verb not in ("daemon-reload", "preset", "kill"):
        sys.exit(f"fake systemctl does not know {verb}")
    return 0


sys.exit(main())
