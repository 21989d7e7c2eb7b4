"""Ctrl-C, and each other signal handler that raises, ends the wait of a blocking call within a second."""
import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Python, Shim, fake_shim_path
from fake_broker import FakeBroker

pytest.importorskip("grpc", reason="grpcio is not installed (Debian: python3-grpcio)")

import amem  # noqa: E402
from sim_node.child import eventually  # noqa: E402
from sim_node.node import Build  # noqa: E402

AFTER, AT_MOST = 0.3, 1.0  # seconds until the signal comes, and until the call has ended


@contextlib.contextmanager
def interrupted(error: type[BaseException] = KeyboardInterrupt) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    threading.Timer(AFTER, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(error) as raised:
        yield raised
    assert AFTER - 0.05 <= time.monotonic() - began < AFTER + AT_MOST


# ---- a rank ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("call, what", (
    (lambda: amem.pause(), "pause"), (lambda: amem.resume("w"), "resume"), (lambda: amem.pause(except_tags="w"), "pause"),
    (lambda: amem.pause(deep=True), "pause"), (lambda: amem.pause(discard="heap", force=True, deep=True), "pause"),
))
def test_a_rank_that_waits_for_others(shim: Shim, caplog: pytest.LogCaptureFixture, call: Callable[[], None], what: str) -> None:
    """The call goes on, and the log says how it ends."""
    with shim.held():
        with interrupted():
            call()
        assert f"the wait for the {what} was interrupted. The {what} goes on" in caplog.text
    eventually(lambda: f"the {what} whose wait was interrupted has succeeded" in caplog.text, what="the log has the end")


def test_the_error_of_a_call_that_nobody_waits_for(shim: Shim, caplog: pytest.LogCaptureFixture) -> None:
    shim.answer(amem.Code.DEADLINE_EXCEEDED, "rank #2 has not asked")
    with shim.held(), interrupted():
        amem.pause()
    eventually(lambda: "the pause whose wait was interrupted has failed: rank #2 has not asked" in caplog.text, what="the log has it")


def test_an_error_of_the_programs_handler(shim: Shim) -> None:
    """It comes out of the call, with the error that the program handles as its context."""
    class OwnError(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise OwnError

    before = signal.signal(signal.SIGINT, handler)
    try:
        with shim.held(), interrupted(OwnError) as raised:
            try:
                raise ZeroDivisionError
            finally:
                amem.pause()
        assert isinstance(raised.value.__context__, ZeroDivisionError)
    finally:
        signal.signal(signal.SIGINT, before)


def test_errors_and_other_threads_as_before(shim: Shim) -> None:
    shim.answer(amem.Code.NOT_FOUND, "there is no such tag")
    with pytest.raises(amem.NotFoundError, match="no such tag"):
        amem.pause("w")
    with pytest.raises(amem.NotFoundError, match="no such tag"):
        amem.pause_async("w").result(20)


def test_a_pause_in_an_atexit_function(build: Build, python: Python) -> None:
    """Python starts no threads then."""
    script = """
        import atexit, amem
        atexit.register(lambda: print(amem.pause()))
    """
    assert python.run(script, {"LD_PRELOAD": fake_shim_path(build)}, deadline=20) == "None\n"


# ---- a controller ---------------------------------------------------------------------------------------------------
def turn() -> None:
    with amem.turn("train"):
        raise AssertionError("the body runs")


def watch(broker: amem.Broker) -> None:
    for _ in broker.watch():
        pass


CALLS: dict[str, Callable[[amem.Broker], object]] = {
    "status": lambda broker: broker.status(), "ranks": lambda broker: broker.ranks(), "pause": lambda broker: broker.pause("train"),
    "resume": lambda broker: broker.resume("train"), "swap": lambda broker: broker.swap("rollout", "train"),
    "swapping": lambda broker: list(broker.swapping("rollout", "train")), "lease": lambda broker: broker.lease("train"),
    "watch": watch, "turn": lambda broker: turn(), "amem.swap": lambda broker: amem.swap("rollout", "train"),
    "future": lambda broker: amem.swap_async("rollout", "train").result(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_controller_that_waits_for_amemd(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMEM_RUNTIME_DIR", str(tmp_path))
    fake = FakeBroker(tmp_path / "control.sock")
    go = threading.Event()

    def hang(context: Any) -> None:
        # As amemd's calls that end with their caller. The end of a turn gets its answer.
        if not getattr(fake.asked[-1][1], "yield", False):
            eventually(lambda: go.is_set() or not context.is_active(), what="the test is over")

    fake.during = {each: hang for each in ("GetStatus", "ListRanks", "Pause", "Resume", "Swap", "Lease", "Watch")}
    try:
        with amem.Broker() as broker, interrupted():
            CALLS[name](broker)
    finally:
        go.set()
        fake.server.stop(0)
