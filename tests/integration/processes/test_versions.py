"""A shim and an amemd of different versions: the shim's user reads both versions and what to do, and the program runs without amem."""
import os
import socket
import threading

import pytest

from sim_node import Program, wire

VERSION, OWN = "0.0.7", wire.PROTOCOL


class OtherVersion:
    """A session socket at which everybody has another version: what comes is passed on to an amemd elsewhere, but for the Hello's number."""

    def __init__(self, folder, amemd, protocol):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "session.sock")
        if os.path.exists(path):
            os.unlink(path)
        self.amemd, self.protocol = amemd, protocol
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(path)
        self.socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            rank, _ = self.socket.accept()
            message = wire.decode(rank.recv(1 << 20))
            hello = {**wire.decode(message[wire.HELLO]), 1: self.protocol, 2: VERSION}
            session = wire.Session(self.amemd)
            session.send(wire.HELLO, hello, message[1])
            rank.send(session.socket.recv(1 << 20))
            rank.close()
            session.close()


SENTENCES = [
    (OWN - 1, "start the program again with the libamem_shim.so of this amemd's version"),
    (OWN + 1, "amemd is older. Restart it when no job runs, or install the version of the shim first")]


def expected(node, protocol, what_to_do):
    version = node.ctl.status()["version"]
    return (f"the shim in this process has version {VERSION} and session protocol {protocol}, "
            f"but amemd has {version} and session protocol {OWN}: {what_to_do}")


@pytest.mark.parametrize("protocol, what_to_do", SENTENCES)
def test_a_shim_of_another_version_is_refused_in_a_sentence(node, protocol, what_to_do):
    folder = os.path.join(node.dir, "other")
    OtherVersion(folder, node.runtime_dir, protocol)
    program = Program(node, env={"AMEM_RUNTIME_DIR": folder, "AMEM_LOG": None})
    program.ask("alloc 0 5000")
    program.verify()
    said = [program.line(stream="err"), *program.rest()]
    assert said == [f"amem: [{program.pid}] warning: {expected(node, protocol, what_to_do)}. This process runs without amem"]
    assert node.ctl.status()["groups"] == []


def test_where_amem_is_required_brokered_calls_fail_with_it(node):
    folder = os.path.join(node.dir, "other")
    OtherVersion(folder, node.runtime_dir, OWN - 1)
    program = Program(node, env={"AMEM_RUNTIME_DIR": folder, "AMEM_REQUIRED": "1"})
    program.send("alloc 0 5000")
    assert "SYSTEM_NOT_READY" in program.failure()
    program.wait_for(expected(node, *SENTENCES[0]) + ". Brokered calls fail, because AMEM_REQUIRED=1 is set")


def test_it_comes_back_to_an_amemd_of_another_version(bare_node):
    """As after a restart with another version beneath a job: refused once, and it runs on."""
    node = bare_node
    node.start_broker()
    program = Program(node)
    program.ask("alloc 0 5000")
    node.broker.kill()
    first, node.runtime_dir = node.runtime_dir, os.path.join(node.dir, "next")
    node.settings["AMEM_RUNTIME_DIR"] = node.runtime_dir
    node.start_broker()
    OtherVersion(first, node.runtime_dir, OWN - 1)
    program.wait_for(expected(node, *SENTENCES[0]))
    program.wait_for("the broker has ended. Mapped memory stays")
    program.ask("alloc 0 5000")
    program.verify()
