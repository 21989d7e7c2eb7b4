"""Broker: amem.Broker's calls as coroutines, over grpc.aio."""
from __future__ import annotations

import asyncio
import weakref
from types import TracebackType
from typing import Any, overload

import grpc
import grpc.aio

from amem import _requests, _wire
from amem._arguments import FormatChoice, FormChoice, Groups, Guests, PolicyChoice, Several, Tags
from amem._connection import target
from amem._connection.calls import Course, Ending
from amem._requests import Answer, Command, Question
from amem.aio._calls import Operation, Watch, stop_of
from amem.broker import OnProgress
from amem.messages import AllocationInfo, GroupInfo, NodeStatus, OwnerQuotas, PastOperation, Progress, RankInfo


class Broker:
    """A connection to amemd's control socket, made with the first call and again after a loss.

    It has the methods of amem.Broker, with the same arguments, results and errors. Several tasks of one event loop may use
    it at a time. A task that is cancelled, for example by asyncio.timeout(), stops waiting; what it has asked for goes on in
    the broker. Arguments are checked when a coroutine begins, those of pausing(), resuming(), swapping() and watch() at once.
    """

    def __init__(self, runtime_dir: str | None = None, *, socket: str | None = None, address: str | None = None,
                 tls: str | None = None, query_timeout: float = 5.0) -> None:
        """Says which broker is meant; nothing is asked of it yet.

        Args:
            runtime_dir: The broker's; None: AMEM_RUNTIME_DIR, else the default.
            socket: The control socket's path, when it is elsewhere.
            address: Instead of these, "host:port" of another node's broker.
            tls: With `address`: the directory of ca.crt, tls.crt and tls.key; None: AMEM_TLS.
            query_timeout: Seconds that the broker may take to answer calls that ask or set, and to begin a watch.

        Raises:
            InvalidArgumentError: The arguments name no broker, or its certificates cannot be read.
        """
        self._query_timeout = query_timeout
        self._target = target.find(runtime_dir, socket, address, tls)
        self.socket = self._target.socket
        self._channel: grpc.aio.Channel | None = None
        self._calls: Any = None
        # gRPC's own close() finds only calls that a task awaits directly.
        self._under_way: weakref.WeakSet[Any] = weakref.WeakSet()

    async def close(self) -> None:
        """Ends the connection and every call under way with OperationCancelledError; operations go on in the broker."""
        self._target.connection.closed = True
        for call in list(self._under_way):
            call.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        await self.close()

    # ---- queries ----
    async def status(self) -> NodeStatus:
        """As amem.Broker.status()."""
        return await self._ask(_requests.status())

    async def groups(self) -> list[GroupInfo]:
        """As amem.Broker.groups()."""
        return await self._ask(_requests.groups())

    async def quotas(self) -> list[OwnerQuotas]:
        """As amem.Broker.quotas()."""
        return await self._ask(_requests.quotas())

    async def metrics(self, format: FormatChoice = "openmetrics") -> str:
        """As amem.Broker.metrics()."""
        return await self._ask(_requests.metrics(format))

    async def history(self, group: str = "", *, transaction: int = 0, most: int = 0, spans: bool = False) -> list[PastOperation]:
        """As amem.Broker.history()."""
        return await self._ask(_requests.history(group, transaction, most, spans))

    async def upgrade(self) -> tuple[str, str]:
        """As amem.Broker.upgrade()."""
        return await self._ask(_requests.upgrade())

    async def ranks(self, group: str = "") -> list[RankInfo]:
        """As amem.Broker.ranks()."""
        return await self._ask(_requests.ranks(group))

    async def allocations(self, group: str = "", tag: str | None = None) -> list[AllocationInfo]:
        """As amem.Broker.allocations()."""
        return await self._ask(_requests.allocations(group, tag))

    async def set_policy(self, group: str, tag: str, policy: PolicyChoice | None = None, *, save: FormChoice | None = None) -> None:
        """As amem.Broker.set_policy()."""
        await self._ask(_requests.set_policy(group, tag, policy, save))

    # ---- operations ----
    @overload
    async def pause(self, group: str, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                    except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> Progress: ...
    @overload
    async def pause(self, group: Several, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                    except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> list[Progress]: ...
    async def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                    except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> Progress | list[Progress]:
        """As amem.Broker.pause(). `on_progress` is a plain function, which is called in the event loop."""
        command = _requests.pause(group, tags, timeout, except_tags, discard, guests)
        last = await self._operate(command).result(on_progress)
        return last[0] if isinstance(group, str) else command.ordered(last)

    @overload
    async def resume(self, group: str, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                     except_tags: Tags = None) -> Progress: ...
    @overload
    async def resume(self, group: Several, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                     except_tags: Tags = None) -> list[Progress]: ...
    async def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                     except_tags: Tags = None) -> Progress | list[Progress]:
        """As amem.Broker.resume(). `on_progress` is a plain function, which is called in the event loop."""
        command = _requests.resume(group, tags, timeout, except_tags)
        last = await self._operate(command).result(on_progress)
        return last[0] if isinstance(group, str) else command.ordered(last)

    async def swap(self, out: Groups, into: Groups, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                   discard: Tags = None, guests: Guests | None = None) -> tuple[Progress, ...]:
        """As amem.Broker.swap(). `on_progress` is a plain function, which is called in the event loop."""
        command = _requests.swap(out, into, timeout, discard, guests)
        return tuple(command.ordered(await self._operate(command).result(on_progress)))

    def pausing(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: Guests | None = None) -> Operation:
        """As amem.Broker.pausing(): the progress of pause(), for `async for`, whose first step begins it."""
        return self._operate(_requests.pause(group, tags, timeout, except_tags, discard, guests))

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> Operation:
        """As amem.Broker.resuming(): the progress of resume(), for `async for`, whose first step begins it."""
        return self._operate(_requests.resume(group, tags, timeout, except_tags))

    def swapping(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
                 guests: Guests | None = None) -> Operation:
        """As amem.Broker.swapping(): the progress of swap(), for `async for`, whose first step begins it."""
        return self._operate(_requests.swap(out, into, timeout, discard, guests))

    def watch(self, group: str = "") -> Watch:
        """As amem.Broker.watch(): events, for `async for`, from the moment on when `async with` has entered the Watch."""
        fields = _requests.watch(group)

        def begin() -> Any:
            self._reach()
            return self._call("Watch", fields)

        return Watch(begin, self._target.connection, self._query_timeout)

    # ---- how ----
    def _reach(self) -> None:
        # gRPC's own error names neither the socket nor a remedy. Looking at the socket does not wait.
        error = self._target.connection.probe()
        if error is not None:
            raise error

    def _call(self, name: str, fields: dict[str, Any], timeout: float | None = None) -> Any:
        if self._channel is None:  # here, because a channel belongs to the event loop that runs when it is made
            found = self._target
            self._channel = (grpc.aio.insecure_channel(found.name, options=target.OPTIONS) if found.credentials is None
                             else grpc.aio.secure_channel(found.name, found.credentials, options=target.OPTIONS))
            self._calls = _wire.Calls(self._channel)
        call = self._calls(name, fields, timeout=timeout, wait_for_ready=self._target.waits)
        self._under_way.add(call)
        return call

    async def _ask(self, question: Question[Answer]) -> Answer:
        # A second try, because gRPC may notice by the first that its connection is to a broker that is gone, and asking
        # or setting twice does no harm.
        for last in (False, True):
            self._reach()
            ending = Ending(self._target.connection, self._query_timeout)
            if ending.was_stopped():
                raise ending.stop()
            try:
                call = self._call(question.name, question.fields, self._query_timeout)
                if question.name in _wire.STREAMS:
                    return question.read([message async for message in call])
                return question.read(await call)
            except grpc.RpcError as failure:
                if last or failure.code() != grpc.StatusCode.UNAVAILABLE:
                    raise ending.error(failure) from None
            except asyncio.CancelledError:
                stopped = stop_of(ending)
                if stopped is None:
                    raise
                raise stopped from None
        raise AssertionError

    def _operate(self, command: Command) -> Operation:
        # The call's own deadline is long: it would wait as long for a broker that ends before it is connected. A question
        # does not.
        async def ready() -> None:
            if self._target.waits:
                await self._ask(_requests.groups())

        return Operation(ready, lambda: self._call(command.name, command.fields, command.wait),
                         Course(command.count, self._target.connection, command.wait))


async def swap(out: Groups, into: Groups, timeout: float | None = None, *, runtime_dir: str | None = None) -> None:
    """Pauses the group `out` and resumes the group `into`, as amem.swap() does. To swap more than once, keep a Broker.

    Args:
        out: One group or several, which are paused.
        into: One group or several, which are resumed.
        timeout: Seconds for each of the two; None: as the broker is configured.
        runtime_dir: The broker's; None: AMEM_RUNTIME_DIR, else the default.

    Raises:
        Error: As amem.Broker.swap().
    """
    async with Broker(runtime_dir) as broker:
        await broker.swap(out, into, timeout)
