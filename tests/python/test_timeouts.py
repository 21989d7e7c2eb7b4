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
    _world: types.SimpleNamespace


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


class Backend(NamedTuple):
    kind: str
    seconds: float

    def name(self) -> str:
        return self.kind

    @property
    def options(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(_timeout=datetime.timedelta(seconds=self.seconds))


class Group:
    """As much of a ProcessGroup as is asked."""

    def __init__(self, ranks: int, **backends: Backend) -> None:
        self.ranks, self.backends = ranks, backends
        self._device_types = list(backends)

    def size(self) -> int:
        return self.ranks

    def _get_backend(self, device: str) -> Backend:
        return self.backends[device]


def has_groups(torch: Torch, *groups: Group) -> None:
    torch.module._world = types.SimpleNamespace(pg_map={group: None for group in groups})


@pytest.mark.parametrize("wait, warned", [(None, True), (600.0, True), (599.0, False), (3600.0, True)])
def test_a_wait_that_can_exceed_a_timeout_is_in_the_log(
        torch: Torch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wait: float | None, warned: bool) -> None:
    monkeypatch.setattr(_timeouts, "_started", False)
    has_groups(torch, Group(2, cpu=Backend("gloo", 1800), cuda=Backend("nccl", 600)), Group(1, cuda=Backend("nccl", 5)))
    _timeouts.warn_of_short(wait)
    assert ("(nccl) has a timeout of 600 s" in caplog.text) == warned
    assert bool(caplog.records) == warned


def test_what_is_extended_counts_no_more(torch: Torch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_timeouts, "_started", True)
    has_groups(torch, Group(2, cpu=Backend("gloo", 1800), cuda=Backend("nccl", 600)))
    _timeouts.warn_of_short(1000)
    assert not caplog.records
    _timeouts.warn_of_short(1800)
    assert "may take 1800 s, but a process group of this process (gloo) has a timeout of 1800 s" in caplog.text


def test_a_turn_looks_at_the_timeouts(torch: Torch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_timeouts, "_started", False)
    monkeypatch.setenv("AMEM_ADDRESS", "")
    monkeypatch.setenv("AMEM_RUNTIME_DIR", "/nowhere")
    has_groups(torch, Group(2, cuda=Backend("nccl", 600)))
    try:
        with amem.turn("train", timeout=700):
            pass
    except (amem.Error, ImportError):  # there is no broker, or no grpcio
        pass
    assert "may take 700 s" in caplog.text


def test_without_process_groups_nothing_is_said(
        torch: Torch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_timeouts, "_started", False)
    _timeouts.warn_of_short(None)  # this PyTorch has no such table
    has_groups(torch)
    _timeouts.warn_of_short(None)
    monkeypatch.delitem(sys.modules, torch.module.__name__)
    _timeouts.warn_of_short(None)
    assert [each for each in caplog.records if each.levelname != "DEBUG"] == []
