"""What amemd reports to systemd by sd_notify(3): that it is ready, what it does, that its loop runs, and when systemd must not kill it."""
import os
import signal
import socket
import threading
import time

import pytest

from sim_node import Broker, eventually
from sim_node.fixtures import install


class Manager:
    """systemd's end of the socket. Reads all the time, since the kernel keeps only a few messages."""

    def __init__(self, node):
        self.path = os.path.join(node.dir, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.all = []
        self.heard = []  # since what was waited for last
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def env(self, watchdog=None):
        return {"NOTIFY_SOCKET": self.path, "WATCHDOG_USEC": watchdog and str(int(watchdog * 1e6))}

    def read(self):
        while message := self.socket.recv(4096):
            lines = message.decode().splitlines()
            self.all += lines
            self.heard += lines

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.path)
        self.reader.join()
        self.socket.close()

    def wait_for(self, line):
        """Until the next such line, which may have come already; forgets it and what came before."""
        def there():
            return any(each.startswith(line) for each in self.heard)
        eventually(there, what=f"amemd reports {line}; it has reported {self.heard}")
        at = next(i for i, each in enumerate(self.heard) if each.startswith(line))
        found = self.heard[at]
        del self.heard[:at + 1]
        return found


@pytest.fixture
def manager(bare_node):
    heard = Manager(bare_node)
    yield heard
    heard.close()


def test_ready_means_that_the_sockets_are_there(bare_node, manager):
    broker = bare_node.adopt(Broker(bare_node, env=manager.env()))
    assert int(manager.wait_for("EXTEND_TIMEOUT_USEC=").partition("=")[2]) >= 90e6, "systemd's limit for a start, before the first slow call"
    manager.wait_for("STATUS=initialises the driver")
    manager.wait_for("READY=1")
    assert bare_node.ctl.reachable(), "systemctl start has returned, and amemctl is refused"
    manager.wait_for("STATUS=serves 0 groups; pool: 64 MiB")
    job = bare_node.job()
    manager.wait_for("STATUS=serves 1 group;")
    job.check()
    assert broker.terminate() == 0
    manager.wait_for("STOPPING=1")
    assert not any("WATCHDOG" in line for line in manager.all), "systemd has no watchdog for it"


def test_the_loop_reports_that_it_runs(bare_node, manager):
    """That systemd restarts one that does not is shown by tests/packages/systemd.sh."""
    bare_node.start_broker(env=manager.env(watchdog=0.4))
    for _ in range(3):
        manager.wait_for("WATCHDOG=1")


def test_systemd_does_not_kill_an_amemd_without_a_complete_holder(bare_node, manager):
    program = install(bare_node)
    bare_node.start_broker(program=program, env=manager.env(watchdog=30))
    assert manager.wait_for("WATCHDOG_USEC=") == "WATCHDOG_USEC=30000000"
    job = bare_node.job()
    bare_node.ctl("pause", "train")
    holder = os.path.join(os.path.dirname(program), "amem-holder")
    os.rename(holder, holder + ".away")  # so that another one cannot start yet
    os.kill(bare_node.holder_pid(), signal.SIGKILL)
    assert manager.wait_for("WATCHDOG_USEC=") == "WATCHDOG_USEC=0"
    os.rename(holder + ".away", holder)
    assert manager.wait_for("WATCHDOG_USEC=") == "WATCHDOG_USEC=30000000"
    bare_node.ctl("resume", "train")
    job.check()


def test_without_a_holder_the_watchdog_stays_off(bare_node, manager):
    bare_node.start_broker("--holder", "off", env=manager.env(watchdog=0.4))
    assert manager.wait_for("WATCHDOG_USEC=") == "WATCHDOG_USEC=0"
    manager.wait_for("WATCHDOG=1")
    manager.wait_for("WATCHDOG=1")
    assert "WATCHDOG_USEC=400000" not in manager.all

def test_an_upgrade_is_a_reload(bare_node, manager):
    bare_node.start_broker(program=install(bare_node), env=manager.env(watchdog=30))
    job = bare_node.job()
    bare_node.ctl("upgrade")
    manager.wait_for("RELOADING=1")
    assert int(manager.wait_for("MONOTONIC_USEC=").partition("=")[2]) > 0
    manager.wait_for("EXTEND_TIMEOUT_USEC=")
    assert manager.wait_for("WATCHDOG_USEC=") == "WATCHDOG_USEC=0", "the next one may take longer than the watchdog has patience"
    manager.wait_for("READY=1")
    assert manager.wait_for("WATCHDOG_USEC=") == "WATCHDOG_USEC=30000000"
    job.check()


@pytest.mark.parametrize("main", [True, False])
def test_it_warns_of_a_holder_that_would_end_with_its_unit(bare_node, main):
    """As the main process of a unit whose holder somebody else does not start. The package's unit has AMEM_HOLDER=external."""
    program = os.path.join(bare_node.dir, "unit")
    with open(program, "w") as file:
        file.write(f"#!/bin/sh\nSYSTEMD_EXEC_PID={'$$' if main else '1'} exec {bare_node.build.program('amemd')} \"$@\"\n")
    os.chmod(program, 0o755)
    broker = bare_node.start_broker(program=program)
    with open(broker.log_path) as log:
        assert ("amemd starts amem-holder in the control group of its unit" in log.read()) == main


@pytest.mark.parametrize("holder", ["auto", "off"])
def test_without_a_manager_it_ends_itself_if_that_loses_nothing(bare_node, holder):
    """As in a container, where WATCHDOG_USEC is set and nobody listens."""
    broker = bare_node.start_broker("--holder", holder, env={"WATCHDOG_USEC": "1000000"})
    job = bare_node.job()
    bare_node.ctl("pause", "train")
    time.sleep(1.5)
    assert broker.alive(), "its loop runs"
    broker.signal(signal.SIGSTOP)
    if holder == "off":
        time.sleep(1.5)
        broker.signal(signal.SIGCONT)
    else:
        assert broker.wait() == -signal.SIGKILL
        bare_node.start_broker(name="next")
    eventually(lambda: bare_node.ctl.state("train") == "paused", what="both ranks have reconnected")
    bare_node.ctl("resume", "train")
    job.check()
