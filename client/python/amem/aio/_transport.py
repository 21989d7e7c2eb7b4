"""How a Broker makes its calls: over a channel of grpc.aio. For one event loop."""
from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from amem import _requests, _wire
from amem._connection.calls import Course, Ending
from amem._connection.target import OPTIONS, Target
from amem._requests import Answer, Command, Question
from amem.aio._calls import Operation, Watch

Item = TypeVar("Item")


class Transport:
    """The calls of one Broker. Each raises OperationCancelledError after close()."""

    def __init__(self, target: Target, query_timeout: float) -> None:
        self.target = target
        self.channel: grpc.aio.Channel | None = None
        self._calls: Any = None
        self._query_timeout = query_timeout
        # gRPC's own close() finds only calls that a task awaits directly.
        self._under_way: weakref.WeakSet[Any] = weakref.WeakSet()

    async def close(self) -> None:
        self.target.connection.closed = True
        for call in list(self._under_way):
            call.cancel()
        if self.channel is not None:
            await self.channel.close()

    async def ask(self, question: Question[Answer]) -> Answer:
        """Asks, and reads the answer."""
        # A second try, because gRPC may notice by the first that its connection is to a broker that is gone, and asking
        # or setting twice does no harm.
        for last in (False, True):
            limit = question.limit(self._query_timeout)
            with Ending(self.target.connection, limit):
                try:
                    call = self._begin(question.name, question.fields, limit)
                    if question.name in _wire.STREAMS:
                        return question.read([message async for message in call])
                    return question.read(await call)
                except grpc.RpcError as failure:
                    if last or failure.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
        raise AssertionError

    def operate(self, command: Command) -> Operation:
        """Prepares an operation."""
        # The call's own deadline is long: it would wait as long for a broker that ends before it is connected. A question
        # does not.
        async def ready() -> None:
            if self.target.waits:
                await self.ask(_requests.Question("ListGroups", {}, lambda answer: None))

        return Operation(ready, lambda: self._begin(command.name, command.fields, command.wait),
                         Course(command.count, self.target.connection, command.wait))

    def watch(self, fields: dict[str, Any]) -> Watch:
        """Prepares a watch."""
        return Watch(lambda: self._begin("Watch", fields), self.target.connection, self._query_timeout)

    def _begin(self, name: str, fields: dict[str, Any], timeout: float | None = None) -> Any:
        with Ending(self.target.connection, None):
            self.target.connection.check()  # a look at the socket, which does not wait
            if self.channel is None:  # here, because a channel belongs to the event loop that runs when it is made
                target = self.target
                self.channel = (grpc.aio.insecure_channel(target.name, options=OPTIONS) if target.credentials is None
                                else grpc.aio.secure_channel(target.name, target.credentials, options=OPTIONS))
                self._calls = _wire.Calls(self.channel)
            call = self._calls(name, fields, timeout=timeout, wait_for_ready=self.target.waits)
        self._under_way.add(call)
        return call


async def of_each(ask: Callable[[Item], Awaitable[Answer]], items: Sequence[Item], most: int) -> list[Answer]:
    """The answers in the order of the items, `most` at a time."""
    turns = asyncio.Semaphore(most)

    async def one(item: Item) -> Answer:
        async with turns:
            return await ask(item)

    return list(await asyncio.gather(*map(one, items)))
