"""amem-holder as a program: clients that are killed, what it keeps for whom, how it ends. It is spoken to by hand."""
import array
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from sim_node import Child, patience

HEADER = struct.Struct("=HHIQ")
HELLO, PUT, DROP, LIST, SETTLE = range(1, 6)
WELCOME, REFUSED, LISTED, SETTLED, LOST = range(16, 21)
VERSION = 1
MEMORY, PROCESS = 2 << 56, 5 << 56
MOST = 253


class Client:
    """An amemd, as the holder sees one."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(patience(20))
        self.socket.connect(path)
        try:
            self.send(HELLO, number=VERSION)
        except BrokenPipeError:
            pass  # it has refused already, and closed its end
        self.answer = self.receive()

    def send(self, message, number=0, keys=(), descriptors=()):
        data = HEADER.pack(message, len(keys), 0, number) + struct.pack(f"={len(keys)}Q", *keys)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self.socket.sendmsg([data], rights if descriptors else [])

    def receive(self):
        """Message, detail, number, {key: descriptor}."""
        while True:
            try:
                data, rights, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(4 * MOST))
                break
            except ConnectionResetError:
                continue
        message, count, detail, number = HEADER.unpack_from(data)
        keys = struct.unpack_from(f"={count}Q", data, HEADER.size)
        got = array.array("i")
        for _, _, part in rights:
            got.frombytes(part)
        return message, detail, number, dict(zip(keys, got))

    def put(self, held):
        items = list(held.items())
        for at in range(0, len(items), MOST):
            part = items[at:at + MOST]
            self.send(PUT, keys=[key for key, _ in part], descriptors=[fd for _, fd in part])

    def list(self):
        self.send(LIST, number=7)
        held, last = {}, 0
        while not last:
            message, last, number, part = self.receive()
            assert (message, number) == (LISTED, 7)
            held.update(part)
        return held

    def settle(self):
        self.send(SETTLE, number=8)
        assert self.receive()[:3] == (SETTLED, 0, 8)

    def close(self):
        self.socket.close()


def some_file(text):
    descriptor = os.memfd_create("held")
    os.write(descriptor, text.encode())
    return descriptor


def text_of(descriptor):
    return os.pread(descriptor, 100, 0).decode()


@pytest.fixture
def path(bare_node):
    return os.path.join(bare_node.dir, "holder.sock")


@pytest.fixture
def holder(bare_node, path):
    """Starts the program."""
    def start(*flags, name="holder"):
        child = bare_node.adopt(Child(name, [bare_node.build.program("amem-holder"), "--socket", path, *flags],
                                      bare_node.env(), bare_node.log_file(name)))
        child.wait_for("serves")
        return child

    return start


@pytest.fixture
def rank():
    """A process that lives until it is killed."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


PUT_AND_DIE = """
import os, signal, sys
sys.path[:0] = sys.argv[1:3]
from test_holder import MEMORY, PROCESS, Client, some_file
client = Client(sys.argv[3])
client.send(2, keys=[PROCESS], descriptors=[os.pidfd_open(int(sys.argv[4]))])
client.send(4, number=1)  # whose answer it does not live to read
client.put({MEMORY + number: some_file(f"memory {number}") for number in range(600)})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_client_put_is_given_to_the_next(holder, path, rank):
    program = holder()
    here = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run([sys.executable, "-B", "-c", PUT_AND_DIE, here, os.path.dirname(here), path, str(rank.pid)],
                          timeout=patience(60))
    assert done.returncode == -signal.SIGKILL
    client = Client(path)
    assert client.answer == (WELCOME, 0, VERSION, {})
    held = client.list()
    assert len(held) == 601
    assert all(text_of(held[MEMORY + number]) == f"memory {number}" for number in range(600))
    for descriptor in held.values():
        os.close(descriptor)

    client.send(DROP, keys=[MEMORY + number for number in range(200)])
    client.settle()
    assert program.descriptors()["/memfd"] == 400
    second = Client(path)
    assert second.answer == (REFUSED, 2, os.getpid(), {})  # it serves the first
    client.close()

    rank.kill()
    rank.wait()
    assert program.wait() == 0
    assert "401 descriptors, which nobody needs" in program.output()
    assert not os.path.exists(path)


def test_nothing_is_left_where_no_process_lives(holder, path):
    program = holder()
    client = Client(path)
    client.put({MEMORY: some_file("memory")})
    client.settle()
    assert program.alive()
    client.close()
    assert program.wait() == 0


def test_a_signal_ends_it_though_it_keeps_something(holder, path, rank):
    program = holder()
    client = Client(path)
    client.put({MEMORY: some_file("memory"), PROCESS: os.pidfd_open(rank.pid)})
    client.settle()
    client.close()
    time.sleep(0.1)
    assert program.alive()
    program.signal(signal.SIGTERM)
    assert program.wait(5) == 0
    assert "has ended with 2 descriptors" in program.output()
    assert not os.path.exists(path)


def activate(bare_node, listener, path, name):
    """As a service manager starts it: the socket that listens is descriptor 3."""
    script = 'exec 3<&"$1"; shift; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
    listener.set_inheritable(True)
    argv = ["bash", "-c", script, "bash", str(listener.fileno()), bare_node.build.program("amem-holder"), "--socket", path]
    child = subprocess.Popen(argv, pass_fds=[listener.fileno()], stderr=open(bare_node.log_file(name), "w"))
    return child


def test_a_service_manager_may_listen_for_it(bare_node, path, rank):
    """It comes when somebody connects, ends when it is worth nothing, and leaves the socket to whoever listens."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    for turn in range(2):
        child = activate(bare_node, listener, path, f"holder{turn}")
        try:
            client = Client(path)
            assert client.answer[0] == WELCOME
            client.put({MEMORY: some_file("memory"), PROCESS: os.pidfd_open(rank.pid)})
            client.settle()
            client.close()
            client = Client(path)
            assert len(client.list()) == 2
            client.send(DROP, keys=[PROCESS])
            client.settle()
            client.close()
            assert child.wait(patience(20)) == 0
        finally:
            child.kill()
            child.wait()
        assert os.path.exists(path)


def test_a_killed_one_is_replaced_and_a_second_is_refused(bare_node, holder, path):
    first = holder()
    second = bare_node.adopt(Child("second", [bare_node.build.program("amem-holder"), "--socket", path], bare_node.env(),
                                   bare_node.log_file("second")))
    assert second.wait() == 1
    assert f"another amem-holder (pid {first.pid}) serves {path}" in second.output()
    assert Client(path).answer[0] == WELCOME
    first.kill()
    holder(name="third")
    assert Client(path).answer[0] == WELCOME


@pytest.mark.parametrize("flags, status", [
    ([], 2), (["--socket"], 2), (["--socket", "/tmp/x", "--no-such-flag"], 2), (["--socket", "/tmp/x", "--log-level", "loud"], 2),
    (["--socket", "/no/such/folder/holder.sock"], 1), (["--socket", "/tmp/" + "x" * 200], 1), (["--help"], 0), (["--version"], 0),
])
def test_usage(bare_node, flags, status):
    done = subprocess.run([bare_node.build.program("amem-holder"), *flags], capture_output=True, text=True, timeout=patience(20))
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr or status == 0
