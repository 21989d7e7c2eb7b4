"""amem.turn(): a lease ends with it, whatever comes between; and the program's own error comes out."""
import asyncio
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_broker import FakeBroker

grpc = pytest.importorskip("grpc", reason="grpcio is not installed (Debian: python3-grpcio)")

import amem  # noqa: E402
from sim_node.child import eventually  # noqa: E402


class OwnError(Exception):
    """The program's."""


@pytest.fixture
def fake(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    monkeypatch.setenv("AMEM_RUNTIME_DIR", str(tmp_path))
    made = FakeBroker(tmp_path / "control.sock")
    yield made
    made.server.stop(0)


def asked(fake: FakeBroker) -> list[str]:
    return ["end" if getattr(request, "yield") else "lease" for _, request in fake.asked]


def first(does: Callable[[], object]) -> Callable[[Any], None]:
    """What a broker does during the first call alone."""
    todo = [does]

    def once(_: Any) -> None:
        if todo:
            todo.pop()()

    return once


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_as_the_answer_comes(fake: FakeBroker) -> None:
    fake.during["Lease"] = first(interrupt)
    with pytest.raises(KeyboardInterrupt), amem.turn("train"):
        raise AssertionError("the body runs")
    assert asked(fake) == ["lease", "end"]


@pytest.mark.parametrize("times", (1, 3))
def test_ctrl_c_as_the_lease_is_there(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Also where it comes again and again."""
    lease = amem.Broker.lease

    def leased(*arguments: Any) -> float:
        waited = lease(*arguments)
        interrupt()
        return waited

    monkeypatch.setattr(amem.Broker, "lease", leased)
    left = [interrupt] * (times - 1)
    fake.during["Lease"] = lambda context: left.pop()() if left and len(fake.asked) > 1 else None
    with pytest.raises(KeyboardInterrupt), amem.turn("train"):
        raise AssertionError("the body runs")
    eventually(lambda: asked(fake) == ["lease", "end"], what="the lease ends")


def test_an_answer_that_says_no_ends_no_turn(fake: FakeBroker) -> None:
    """It may be that of another rank of the group."""
    fake.end = grpc.StatusCode.DEADLINE_EXCEEDED, "no turn in time"
    with pytest.raises(amem.DeadlineExceededError), amem.turn("train"):
        raise AssertionError("the body runs")
    assert asked(fake) == ["lease"]


def test_the_bodys_error_wins(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OwnError), amem.turn("train"):
        fake.end = grpc.StatusCode.UNAVAILABLE, "the broker ends"
        raise OwnError
    assert 'the turn of group "train" could not be ended: the connection to amemd' in caplog.text
    fake.end = None
    with pytest.raises(amem.UnavailableError), amem.turn("train"):
        fake.end = grpc.StatusCode.UNAVAILABLE, "without another error this one comes out"


def test_the_bodys_error_wins_in_a_coroutine(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with amem.turn("train"):
            fake.end = grpc.StatusCode.UNAVAILABLE, "the broker ends"
            raise OwnError

    with pytest.raises(OwnError):
        asyncio.run(main())
    assert 'the turn of group "train" could not be ended: the connection to amemd' in caplog.text


def test_a_task_that_is_cancelled_while_it_waits(fake: FakeBroker) -> None:
    came, go = threading.Event(), threading.Event()
    fake.during["Lease"] = first(lambda: came.set() or go.wait(20))  # type: ignore[func-returns-value]

    async def enter() -> None:
        async with amem.turn("train"):
            raise AssertionError("the body runs")

    async def main() -> None:
        task = asyncio.ensure_future(enter())
        await asyncio.to_thread(came.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()

    asyncio.run(main())
    assert asked(fake) == ["lease", "end"]


def test_a_task_that_is_cancelled_while_it_ends_its_turn(fake: FakeBroker) -> None:
    """Twice, and the broker answers late."""
    came, go, ended = threading.Event(), threading.Event(), []

    def late(context: Any) -> None:
        if len(fake.asked) == 2:
            came.set()
            go.wait(20)
            ended.append(context.is_active())

    fake.during["Lease"] = late

    async def turn() -> None:
        async with amem.turn("train"):
            pass

    async def main() -> None:
        task = asyncio.ensure_future(turn())
        await asyncio.to_thread(came.wait, 20)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert asked(fake) == ["lease", "end"] and ended == [True]
