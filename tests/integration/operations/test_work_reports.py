"""What a rank tells the broker of calls that wait at its gate and of its work. The test plays the broker."""
import contextlib
import os
import socket
import time

import pytest

from sim_node import patience, wire
from sim_node.puppet import Puppet

CREATE_REFUSED = {1: 8, 2: "no memory"}
RANK_PHASE_OPEN = 7
EPOCH = 1


class Broker:
    """The broker's end of one session. It has no memory to give."""

    def __init__(self, runtime_dir):
        os.makedirs(runtime_dir, exist_ok=True)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(os.path.join(runtime_dir, "session.sock"))
        self.listening.listen()
        self.rank = None

    def accept(self):
        """The next rank, until its first allocation is refused."""
        self.listening.settimeout(patience(20))
        self.rank, _ = self.listening.accept()
        self.rank.settimeout(patience(20))
        self._reply(self._expect(wire.HELLO), {10: {1: 7, 4: bytes(16)}})
        self._reply(self._expect(wire.CREATE), CREATE_REFUSED)

    def _receive(self):
        data, descriptors, _, _ = socket.recv_fds(self.rank, 1 << 20, 256)
        for each in descriptors:
            os.close(each)
        return wire.decode(data)

    def _expect(self, body):
        while True:
            message = self._receive()
            if body in message:
                return message

    def _reply(self, request, fields):
        self.rank.sendmsg([wire.encode({1: request[1], wire.REPLY: fields})])

    def command(self, body, fields):
        self.rank.sendmsg([wire.encode({body: fields})])

    def quiesce(self):
        """Shuts the rank's gate: it tells that nothing holds it up."""
        self.command(wire.QUIESCE, {1: EPOCH})
        self._expect(wire.CUT_STATUS)

    def work(self, seconds=20):
        """The next Work: whether a call waits, its name, and whether there is work. None: nothing comes in time."""
        end = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while True:
                self.rank.settimeout(max(end - time.monotonic(), 0.001))
                message = self._receive()
                if wire.WORK in message:
                    work = wire.decode(message[wire.WORK])
                    return bool(work.get(1)), work.get(2, b"").decode(), bool(work.get(3))
        return None

    def close(self):
        for each in (self.rank, self.listening):
            if each is not None:
                each.close()


IDLE = (False, "", False)
WORKS = (False, "", True)


@pytest.fixture
def rank(bare_node):
    """A broker that hears of work, and a rank that has nothing to do."""
    broker = Broker(bare_node.runtime_dir)
    puppet = Puppet(bare_node, "rank")
    puppet.answer()
    puppet.send("alloc 1000")
    broker.accept()
    puppet.failure()
    assert broker.work(1.5) is None, "the broker has not asked"
    broker.command(wire.TURN_REPORTS, {1: 1})
    first = broker.work()
    assert first in (IDLE, WORKS)
    if first == WORKS:  # the allocation
        assert broker.work() == IDLE
    yield broker, puppet
    broker.close()


def test_work_is_told_once_and_its_end(rank):
    broker, puppet = rank
    puppet.ask("loop linked")
    began = time.monotonic()
    assert broker.work() == WORKS
    assert time.monotonic() - began < patience(1.5)
    assert broker.work(2.5) is None
    puppet.ask("loop off")
    assert broker.work() == IDLE
    assert broker.work(2.5) is None


def test_a_call_that_waits_is_told_at_once_and_its_end(rank):
    broker, puppet = rank
    broker.command(wire.QUIESCE, {1: EPOCH})
    assert broker.work(1.5) is None
    began = time.monotonic()
    puppet.ask("loop linked")
    assert broker.work() == (True, "cuLaunchKernel", False)
    assert time.monotonic() - began < patience(0.5)
    assert broker.work(1.5) is None, "a group that is paused has no work"
    broker.command(wire.OPEN, {1: EPOCH, 2: RANK_PHASE_OPEN})
    told = broker.work()
    if told == (True, "cuLaunchKernel", True):  # the gate is open, and the thread that waited has not run yet
        told = broker.work()
    assert told in (IDLE, WORKS)
    if told == IDLE:
        assert broker.work() == WORKS


def test_an_allocation_that_waits_is_told(rank):
    """It may be the first call of a program that has never had a turn."""
    broker, puppet = rank
    broker.quiesce()
    puppet.send("alloc 1000")
    assert broker.work() == (True, "cuMemCreate", False)


def test_a_monitoring_program_is_told_nothing_of(rank):
    broker, puppet = rank
    end = time.monotonic() + 3
    while time.monotonic() < end:
        puppet.ask("meminfo")
    assert broker.work(0.1) is None
    broker.command(wire.QUIESCE, {1: EPOCH})
    puppet.ask("meminfo")  # it does not wait either
    assert broker.work(1.5) is None


def test_work_that_a_device_still_has_is_told(rank):
    broker, puppet = rank
    puppet.ask("loop linked")
    assert broker.work() == WORKS
    puppet.ask("loop off")
    began = time.monotonic()
    puppet.ask("busy 4000")
    assert broker.work(3) is None
    assert broker.work() == IDLE
    assert time.monotonic() - began > 3.5


def test_a_capture_is_not_broken(rank):
    broker, puppet = rank
    puppet.ask("capture begin")
    assert broker.work() == WORKS
    assert broker.work(3.5) is None, "the device cannot be asked meanwhile"
    assert puppet.ask("capture end")["result"] == 0
    assert broker.work() == IDLE
