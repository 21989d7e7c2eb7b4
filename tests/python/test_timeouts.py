"""PyTorch's time limit for collectives during a pause, with a PyTorch and a shim that only take notes."""
import ctypes
import datetime
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import NamedTuple

import pytest

import amem
from amem import _timeouts
from conftest import Shim

AHEAD = _timeouts._AHEAD_MS


def test_more_time_is_asked_for_as_long_as_a_pause_lasts() -> None:
    extension = _timeouts.Extension(0)
    assert extension.look(0) == 0, "the group runs"
    assert extension.look(1000) == 1000 + AHEAD
    assert extension.look(2000) == 1000
    assert extension.look(12000) == 10000
    assert extension.look(12400) == 400, "the last second of the pause"
    assert extension.look(12400) == 0, "it runs again"
    assert extension.look(12400) == 0
    assert extension.look(13400) == 1000 + AHEAD, "another pause needs as much again"



class Distributed(types.ModuleType):
    _add_ephemeral_timeout_for_all_pgs: Callable[[datetime.timedelta], None]


class Torch(NamedTuple):
    asked: list[float]
    module: Distributed


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    """What is asked of PyTorch, as a list of seconds."""
    asked: list[float] = []
    module = Distributed("torch.distributed.distributed_c10d")
    module._add_ephemeral_timeout_for_all_pgs = lambda more: asked.append(more / datetime.timedelta(seconds=1))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Torch(asked, module)


def shut(shim: Shim, milliseconds: int) -> None:
    shim.library.fake_shut(ctypes.c_uint64(milliseconds))


def test_a_thread_asks_while_the_gate_is_shut(shim: Shim, torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timeouts, "_LOOK_EVERY", 0.02)
    monkeypatch.setattr(_timeouts, "_started", False)
    amem.extend_timeouts()
    amem.extend_timeouts()
    assert sum(thread.name == "amem-timeouts" for thread in threading.enumerate()) == 1
    time.sleep(0.2)
    assert torch.asked == []
    shut(shim, 3000)
    end = time.monotonic() + 10
    while not torch.asked and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2)
    assert torch.asked == [3 + AHEAD / 1000], "once for one pause"


def test_what_pytorch_refuses_is_in_the_log(
        shim: Shim, torch: Torch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_timeouts, "_LOOK_EVERY", 0.02)
    monkeypatch.setattr(_timeouts, "_started", False)

    def refuses(more: datetime.timedelta) -> None:
        torch.asked.append(more / datetime.timedelta(seconds=1))
        raise RuntimeError("no such group")

    torch.module._add_ephemeral_timeout_for_all_pgs = refuses
    amem.extend_timeouts()
    time.sleep(0.2)
    for milliseconds in (3000, 6000):  # the thread goes on after the first
        asked = len(torch.asked)
        shut(shim, milliseconds)
        end = time.monotonic() + 10
        while len(torch.asked) == asked and time.monotonic() < end:
            time.sleep(0.01)
        assert len(torch.asked) > asked
    time.sleep(0.2)
    assert "could not be extended: no such group" in caplog.text


def test_a_child_of_fork_starts_a_thread_of_its_own(shim: Shim, torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timeouts, "_started", False)
    amem.extend_timeouts()
    with _timeouts._lock:  # as another thread may have it
        child = os.fork()
        if child == 0:
            threads = []
            try:
                lock = _timeouts._lock.acquire(timeout=10)
                if lock:
                    _timeouts._lock.release()
                    amem.extend_timeouts()
                    threads = [thread for thread in threading.enumerate() if thread.name == "amem-timeouts"]
            finally:
                os._exit(0 if len(threads) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_cannot_be_extended_is_an_error(shim: Shim, torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timeouts, "_started", False)
    del torch.module._add_ephemeral_timeout_for_all_pgs
    with pytest.raises(amem.FailedPreconditionError, match="longer than any pause"):
        amem.extend_timeouts()
