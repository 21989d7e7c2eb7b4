"""amem.aio: the same calls as coroutines, against a broker that only takes notes, and against real amemds."""
import asyncio
import inspect
import pathlib
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import grpc
import pytest

import amem
import amem.aio
from amem.broker import GroupState
from conftest import Python, Shim, fake_shim_path
from fake_broker import FakeBroker
from sim_node.node import Build, Node

SECONDS = 60
T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result; a hang is a failure."""
    return asyncio.run(asyncio.wait_for(coroutine, SECONDS))


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Iterator[FakeBroker]:
    fake = FakeBroker(tmp_path / "control.sock")
    yield fake
    fake.server.stop(0).wait()


# ---- the same as amem.Broker ----

DONE = [{"group": "b", "done": True}, {"group": "a", "done": True}]
CALLS: dict[str, Callable[[Any], Any]] = {
    "status": lambda broker: broker.status(),
    "groups": lambda broker: broker.groups(),
    "quotas": lambda broker: broker.quotas(),
    "metrics": lambda broker: broker.metrics("prometheus"),
    "history": lambda broker: broker.history("a", transaction=3, most=2, spans=True),
    "upgrade": lambda broker: broker.upgrade(),
    "ranks": lambda broker: broker.ranks("a"),
    "allocations": lambda broker: broker.allocations("a", "weights"),
    "set_policy": lambda broker: broker.set_policy("a", "heap", "discard", save=amem.Form.SPARSE, force=True),
    "turns": lambda broker: broker.turns("night"),
    "prepare": lambda broker: broker.prepare(["a", "b"], 2.5),
    "lease": lambda broker: broker.lease("a", 2.5),
    "end_lease": lambda broker: broker.end_lease("a"),
    "set_turn": lambda broker: broker.set_turn("a", stage="night", weight=2, priority=-3, longest_wait=60),
    "pause": lambda broker: broker.pause(["a", "b"], "weights", 2.5, discard="kv", guests="pin", force=True),
    "resume": lambda broker: broker.resume(["a", "b"], except_tags=["kv"]),
    "swap": lambda broker: broker.swap("a", "b", 1, discard=["kv"], guests=amem.GuestPolicy.REFUSE, deep=True, force=True),
}
ANSWERS = {
    "GetStatus": {"version": "9.8.7"}, "ListGroups": {"groups": [{"name": "a", "state": 3}]}, "ListQuotas": {"owners": [{"uid": 7}]},
    "GetMetrics": {"text": "amem_up 1"}, "ListHistory": {"operations": [{"operation": "pause"}]},
    "Upgrade": {"from_version": "1", "to_version": "2"}, "ListRanks": {"ranks": [{"id": 3}]},
    "Turns": {"stages": [{"name": "night"}]}, "Prepare": {"pinned_bytes": 7}, "Lease": {"waited_us": 7},
    "ListAllocations": [{"tag": "weights", "size": 5}, {"tag": "kv", "size": 6}], "Pause": DONE, "Resume": DONE, "Swap": DONE}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_requests_and_answers(fake: FakeBroker, tmp_path: pathlib.Path, name: str) -> None:
    fake.answers = ANSWERS
    with amem.Broker(str(tmp_path)) as broker:
        theirs = CALLS[name](broker)

    async def ask() -> object:
        async with amem.aio.Broker(str(tmp_path)) as broker:
            return await CALLS[name](broker)

    assert run(ask()) == theirs
    assert len(fake.asked) == (0 if name == "groups" else 2) and fake.asked[:1] == fake.asked[1:]


@pytest.mark.parametrize("kind", ["Broker", "Cluster"])
def test_every_method_with_the_same_parameters(kind: str) -> None:
    ours, theirs = getattr(amem.aio, kind), getattr(amem, kind)
    names = [name for name in vars(theirs) if not name.startswith("_")]
    assert {"close", "status", "pause", "resume", "swap", "pausing"} <= set(names)
    for name in ["__init__", *names]:
        assert inspect.signature(getattr(ours, name)).parameters == inspect.signature(getattr(theirs, name)).parameters, name
    assert all(inspect.iscoroutinefunction(getattr(ours, name)) for name in set(names) - {"pausing", "resuming", "swapping", "watch"})


def test_arguments_are_checked(tmp_path: pathlib.Path) -> None:
    broker = amem.aio.Broker(str(tmp_path))
    calls: tuple[Callable[[], object], ...] = (
        lambda: broker.pausing("a", []), lambda: broker.swapping("a", "a"), lambda: broker.watch("a b"))
    for call in calls:
        with pytest.raises(ValueError):
            call()
    with pytest.raises(amem.InvalidArgumentError):
        run(broker.set_policy("a", "weights"))


@pytest.mark.parametrize("status, error", [
    (grpc.StatusCode.RESOURCE_EXHAUSTED, amem.ResourceExhaustedError),
    (grpc.StatusCode.DEADLINE_EXCEEDED, TimeoutError),
    (grpc.StatusCode.CANCELLED, amem.UnavailableError),
    (grpc.StatusCode.UNAUTHENTICATED, PermissionError),
])
def test_errors_come_through(fake: FakeBroker, tmp_path: pathlib.Path, status: grpc.StatusCode, error: type[Exception]) -> None:
    fake.end = (status, "need 3 GiB, pool has 1 GiB")

    async def ask(call: Callable[[amem.aio.Broker], Awaitable[object]]) -> None:
        async with amem.aio.Broker(str(tmp_path)) as broker:
            await call(broker)

    async def first_event(broker: amem.aio.Broker) -> object:
        async for event in broker.watch():
            return event
        return None

    for call in (lambda broker: broker.pause("a"), lambda broker: broker.status(), lambda broker: broker.allocations(), first_event):
        with pytest.raises(error, match="need 3 GiB, pool has 1 GiB"):
            run(ask(call))


def test_an_operation_without_a_result(fake: FakeBroker, tmp_path: pathlib.Path) -> None:
    fake.answers = {"Swap": DONE[:1]}

    async def swap() -> None:
        async with amem.aio.Broker(str(tmp_path)) as broker:
            await broker.swap("a", "b")

    with pytest.raises(amem.InternalError, match="without a result"):
        run(swap())


def test_an_operation_begins_with_its_first_step(fake: FakeBroker, tmp_path: pathlib.Path) -> None:
    fake.answers = {"Pause": DONE}

    async def pause() -> None:
        async with amem.aio.Broker(str(tmp_path)) as broker:
            dropped, operation = broker.pausing(["a", "b"]), broker.pausing(["a", "b"])
            dropped.cancel()
            with pytest.raises(amem.OperationCancelledError, match="before it began"):
                await dropped.result()
            assert fake.asked == []
            assert [progress.group async for progress in operation] == ["b", "a"]
            assert [progress async for progress in operation] == []

    run(pause())
    assert len(fake.asked) == 1


def test_a_broker_that_hangs(tmp_path: pathlib.Path) -> None:
    """Somebody listens, and nobody answers."""
    path = str(tmp_path / "control.sock")

    async def ask() -> None:
        async with amem.aio.Broker(socket=path, query_timeout=0.5) as broker:
            with pytest.raises(amem.DeadlineExceededError, match="within 0.5 s"):
                await broker.status()
            with pytest.raises(amem.DeadlineExceededError, match="within 0.5 s"):
                await broker.pause("train")
            with pytest.raises(amem.DeadlineExceededError, match="within 0.5 s"):
                async with broker.watch():
                    pass

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        run(ask())


def test_no_broker(tmp_path: pathlib.Path) -> None:
    async def ask() -> None:
        async with amem.aio.Broker(str(tmp_path)) as broker:
            for call in (broker.status(), broker.pause("train"), broker.watch().__aenter__()):
                with pytest.raises(amem.UnavailableError, match="control.sock"):
                    await call
        with pytest.raises(amem.UnavailableError, match="control.sock"):
            await amem.aio.swap("a", "b", runtime_dir=str(tmp_path))

    run(ask())


# ---- with a real broker ----


def test_pause_resume_and_swap(node: Node) -> None:
    _, rollout = node.job("train"), node.job("rollout")

    async def steer() -> None:
        async with amem.aio.Broker(node.runtime_dir) as broker:
            seen: list[amem.messages.Progress] = []
            last = await broker.pause("train", timeout=20, on_progress=seen.append)
            assert last.done and seen[-1] == last and {each.phase for each in seen} > {"save"}
            with pytest.raises(amem.FailedPreconditionError, match="train"):
                await broker.pause("train")
            paused, resumed = await broker.swap("rollout", "train")
            assert (paused.group, resumed.group) == ("rollout", "train")
            phases = [progress.phase async for progress in broker.resuming("rollout")]
            assert "create" in phases
            assert [each.state for each in await broker.groups()] == [GroupState.RUNNING] * 2
            both = await asyncio.gather(broker.ranks("train"), broker.ranks("rollout"))
            assert [len(ranks) for ranks in both] == [2, 2]
            await broker.pause("rollout")
        await amem.aio.swap("train", "rollout", runtime_dir=node.runtime_dir)

    run(steer())
    rollout.check()
    assert (node.ctl.state("train"), node.ctl.state("rollout")) == ("paused", "running")


def test_a_watch(node: Node) -> None:
    job = node.job()

    async def watch() -> None:
        async with amem.aio.Broker(node.runtime_dir) as broker:
            states = []
            async with broker.watch("train") as events:
                await broker.pause("train")
                async for event in events:
                    if event.kind == "state":
                        states.append(event.state)
                    if event.state is GroupState.PAUSED:
                        break
            assert states == [GroupState.PAUSING, GroupState.PAUSED]
            assert [event async for event in events] == []  # it was closed
            await broker.resume("train")
            async with broker.watch("train") as events:
                asyncio.get_running_loop().call_later(0.1, events.close)
                assert [event async for event in events] == []

    run(watch())
    job.check()


def test_waiting_can_be_stopped(node: Node) -> None:
    job = node.job()

    async def quiesce(broker: amem.aio.Broker) -> amem.aio.Operation:
        """An operation that waits for a rank."""
        operation = broker.pausing("train", timeout=20)
        assert (await operation.__anext__()).phase == "quiesce"
        return operation

    async def stop() -> None:
        async with amem.aio.Broker(node.runtime_dir) as broker:
            operation = await quiesce(broker)
            waiting = asyncio.ensure_future(operation.result())
            await asyncio.sleep(0)
            operation.cancel()
            with pytest.raises(amem.OperationCancelledError, match="continues in the broker"):
                await waiting
            with pytest.raises(amem.FailedPreconditionError):
                await broker.pause("train")  # that one is under way

    job.ranks[0].ask("capture begin")
    run(stop())
    job.ranks[0].ask("capture end")


def test_a_task_that_is_cancelled_gets_asyncios_error(node: Node) -> None:
    job = node.job()

    async def stop() -> None:
        async with amem.aio.Broker(node.runtime_dir) as broker:
            begun = asyncio.Event()
            waiting = asyncio.ensure_future(broker.pause("train", timeout=20, on_progress=lambda progress: begun.set()))
            await begun.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await broker.groups())[0].state is GroupState.PAUSING

    job.ranks[0].ask("capture begin")
    run(stop())
    job.ranks[0].ask("capture end")


def test_closing_ends_what_is_under_way(node: Node) -> None:
    job = node.job()

    async def close() -> None:
        broker = amem.aio.Broker(node.runtime_dir)
        begun = asyncio.Event()
        operation = asyncio.ensure_future(broker.pause("train", timeout=20, on_progress=lambda progress: begun.set()))
        events = broker.watch("rollout")
        await events.__aenter__()
        event = asyncio.ensure_future(events.__anext__())
        await begun.wait()
        await broker.close()
        with pytest.raises(amem.OperationCancelledError, match="continues in the broker"):
            await operation
        with pytest.raises(amem.OperationCancelledError):
            await event
        for call in (broker.status(), broker.watch().__aenter__(), broker.resuming("train").result()):
            with pytest.raises(amem.OperationCancelledError, match="has closed the connection"):
                await call

    job.ranks[0].ask("capture begin")
    run(close())
    job.ranks[0].ask("capture end")


def test_a_broker_that_goes_and_comes_back(node: Node) -> None:
    async def ask() -> None:
        async with amem.aio.Broker(node.runtime_dir) as broker:
            async with broker.watch() as events:
                assert node.broker.terminate() == 0
                with pytest.raises(amem.UnavailableError):
                    await events.__anext__()
            with pytest.raises(amem.UnavailableError, match="control.sock"):
                await broker.status()
            node.start_broker(name="amemd-again")
            assert (await broker.status()).pid == node.broker.pid

    run(ask())


def test_a_cluster(build: Build, tmp_path: pathlib.Path) -> None:
    nodes = []
    for number in range(2):
        (tmp_path / f"node{number}").mkdir()
        nodes.append(Node(build, str(tmp_path / f"node{number}")))
        nodes[-1].start_broker()
    try:
        jobs = [node.job("train") for node in nodes]

        async def steer() -> None:
            async with amem.aio.Cluster([f"unix:{node.runtime_dir}/control.sock" for node in nodes], nodes[0].runtime_dir) as cluster:
                assert len(await cluster.pause("train")) == 2
                groups = await cluster.groups()
                assert list(groups) == list(cluster.nodes)
                assert [answer.result()[0].state for answer in groups.values()] == [GroupState.PAUSED] * 2
                assert len({progress.node async for progress in cluster.resuming("train")}) == 2
                nodes[1].broker.kill()
                first, second = (await cluster.status()).values()
                assert len(first.result().devices) == 2 and isinstance(second.error, amem.UnavailableError)

        for job in jobs:
            job.check()
        run(steer())
    finally:
        for node in nodes:
            node.close()


# ---- in a rank ----


def test_a_rank_pauses_itself(shim: Shim) -> None:
    async def turn() -> None:
        with shim.held():
            waiting = asyncio.ensure_future(amem.aio.pause(["weights"], 2, discard="kv_cache", guests="pin"))
            while not shim.library.fake_inside():  # the event loop runs on
                await asyncio.sleep(0.001)
            assert not waiting.done()
        await waiting
        await amem.aio.resume(except_tags="kv_cache", timeout=1)

    run(turn())
    assert shim.notes == ["guests 1", "discard kv_cache", "pause [weights] 2000", "except kv_cache", "resume [] 1000"]
    shim.answer(amem.Code.ABORTED, "rank 1 died")
    with pytest.raises(amem.AbortedError, match="rank 1 died"):
        run(amem.aio.pause())
    with pytest.raises(amem.InvalidArgumentError):
        run(amem.aio.pause([]))


def test_a_rank_needs_no_grpc(build: Build, python: Python) -> None:
    script = """
        import sys, amem
        assert "asyncio" not in sys.modules
        import asyncio
        asyncio.run(amem.aio.pause())
        assert not {"torch", "grpc", "google"} & set(sys.modules), sorted(sys.modules)
        amem.aio.Broker
        assert "grpc" in sys.modules
        try:
            amem.aio.nothing
        except AttributeError:
            print("good")
    """
    assert python.run(script, {"LD_PRELOAD": fake_shim_path(build)}) == "good\n"
