"""close() at every point of a call: one error, for amem.Broker and amem.aio.Broker. The broker is one that answers as it is told."""
import asyncio
import pathlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import grpc
import pytest

import amem
import amem.aio
from amem import _wire
from fake_broker import FakeBroker

SECONDS = 60
CLOSED = r"close\(\) has closed the connection to amemd at .*control.sock. Make another one"
CONTINUES = CLOSED + ". An operation that has begun continues in the broker"
T = TypeVar("T")

# The calls by the name of the method, and what the error of a call that was under way says.
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "GetStatus": (lambda broker: broker.status(), CLOSED + "$"),
    "ListAllocations": (lambda broker: broker.allocations(), CLOSED + "$"),
    "ListGroups": (lambda broker: broker.pause("a"), CLOSED + "$"),  # an operation asks for the groups first
    "Pause": (lambda broker: broker.pause("a"), CONTINUES),
    "Swap": (lambda broker: broker.swap("a", "b"), CONTINUES),
}
ENDS = [None, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.NOT_FOUND]


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Iterator[FakeBroker]:
    fake = FakeBroker(tmp_path / "control.sock")
    yield fake
    fake.server.stop(0).wait()


def before(monkeypatch: pytest.MonkeyPatch, method: str, close: Callable[[], object]) -> None:
    """Calls `close` between the look at the connection and the call."""
    call = _wire.Calls.__call__

    def hooked(self: _wire.Calls, name: str, fields: dict[str, Any], **options: Any) -> Any:
        if name == method:
            close()
        return call(self, name, fields, **options)

    monkeypatch.setattr(_wire.Calls, "__call__", hooked)


def run(tmp_path: pathlib.Path, steps: Callable[[amem.aio.Broker], Awaitable[T]]) -> T:
    """With a Broker. A hang is a failure."""
    async def with_broker() -> T:
        async with amem.aio.Broker(str(tmp_path)) as broker:
            return await asyncio.wait_for(steps(broker), SECONDS)

    return asyncio.run(with_broker())


async def entered(broker: amem.aio.Broker) -> None:
    async with broker.watch():
        pass


# ---- a call that is just beginning ----


@pytest.mark.parametrize("method", [*CALLS, "Watch"])
def test_a_call_that_is_beginning(fake: FakeBroker, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    broker = amem.Broker(str(tmp_path))
    before(monkeypatch, method, broker.close)
    with pytest.raises(amem.OperationCancelledError, match=CLOSED + "$") as raised:
        broker.watch() if method == "Watch" else CALLS[method][0](broker)
    assert isinstance(raised.value.__cause__, ValueError), "gRPC's own error is lost"
    assert fake.asked == []


@pytest.mark.parametrize("method", [*CALLS, "Watch"])
def test_a_coroutine_that_is_beginning(fake: FakeBroker, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    async def steps(broker: amem.aio.Broker) -> None:
        await broker.groups()  # it has a channel
        assert broker._transport.channel is not None
        closing = broker._transport.channel.close()

        def close() -> None:
            """As close() of another task, which has come as far as the channel."""
            broker._transport.target.connection.closed = True
            with pytest.raises(StopIteration):
                closing.send(None)

        before(monkeypatch, method, close)
        with pytest.raises(amem.OperationCancelledError, match=CLOSED + "$"):
            await (entered(broker) if method == "Watch" else CALLS[method][0](broker))

    run(tmp_path, steps)
    assert fake.asked == []


# ---- a call that the broker has, and that ends in any way after close() ----


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("method", CALLS)
def test_a_call_that_the_broker_has(fake: FakeBroker, tmp_path: pathlib.Path, method: str, end: grpc.StatusCode | None) -> None:
    broker = amem.Broker(str(tmp_path))
    call, text = CALLS[method]

    def close(context: grpc.ServicerContext) -> None:
        broker.close()
        if end is not None:
            context.abort(end, "of the broker")

    fake.during[method] = close
    with pytest.raises(amem.OperationCancelledError, match=text):
        call(broker)


@pytest.mark.parametrize("method", CALLS)
def test_a_coroutine_that_the_broker_has(fake: FakeBroker, tmp_path: pathlib.Path, method: str) -> None:
    call, text = CALLS[method]

    async def steps(broker: amem.aio.Broker) -> None:
        loop = asyncio.get_running_loop()
        fake.during[method] = lambda context: asyncio.run_coroutine_threadsafe(broker.close(), loop).result(SECONDS)
        with pytest.raises(amem.OperationCancelledError, match=text):
            await call(broker)

    run(tmp_path, steps)


@pytest.mark.parametrize("end", [each for each in ENDS if each is not None])
def test_a_failure_that_was_there_before_close(fake: FakeBroker, tmp_path: pathlib.Path, end: grpc.StatusCode) -> None:
    """It is read after close()."""
    fake.during["Pause"] = lambda context: context.abort(end, "of the broker")
    broker = amem.Broker(str(tmp_path))
    operation = broker.pausing("a")
    operation._stream.code()  # waits for the end
    broker.close()
    with pytest.raises(amem.OperationCancelledError, match=CONTINUES):
        next(operation)

    async def steps(broker: amem.aio.Broker) -> None:
        operation = broker.pausing("a")
        read = asyncio.ensure_future(operation.__anext__())
        while operation._stream is None:
            await asyncio.sleep(0)
        await operation._stream.code()
        broker._transport.target.connection.closed = True
        with pytest.raises(amem.OperationCancelledError, match=CONTINUES):
            await read

    run(tmp_path, steps)


# ---- watches ----


def test_a_watch_that_is_not_in_effect(fake: FakeBroker, tmp_path: pathlib.Path) -> None:
    broker = amem.Broker(str(tmp_path))
    fake.during["Watch"] = lambda context: broker.close()
    with pytest.raises(amem.OperationCancelledError, match=CLOSED + "$"):
        broker.watch()

    async def steps(broker: amem.aio.Broker) -> None:
        loop = asyncio.get_running_loop()
        fake.during["Watch"] = lambda context: asyncio.run_coroutine_threadsafe(broker.close(), loop).result(SECONDS)
        with pytest.raises(amem.OperationCancelledError, match=CLOSED + "$"):
            await entered(broker)

    run(tmp_path, steps)


# ---- clusters ----


def test_a_cluster_that_is_closed(fake: FakeBroker, tmp_path: pathlib.Path) -> None:
    cluster = amem.Cluster([f"unix:{tmp_path}/control.sock"], str(tmp_path))
    assert len(cluster.status()) == 1
    cluster.close()
    calls: tuple[Callable[[], object], ...] = (cluster.status, cluster.groups, cluster.ranks, lambda: cluster.pause("a"))
    for call in calls:
        with pytest.raises(amem.OperationCancelledError, match=CLOSED + "$"):
            call()

    async def ask() -> None:
        cluster = amem.aio.Cluster([f"unix:{tmp_path}/control.sock"], str(tmp_path))
        await cluster.close()
        for call in (cluster.status(), cluster.groups(), cluster.ranks(), cluster.pause("a")):
            with pytest.raises(amem.OperationCancelledError, match=CLOSED + "$"):
                await call

    asyncio.run(ask())
