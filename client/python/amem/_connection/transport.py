"""How a Broker makes its calls: over a channel of gRPC, whose calls block. Several threads may use it at the same time."""
from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc

from amem import _requests, _wire
from amem._connection.calls import Course, Ending, Operation, Watch
from amem._connection.target import OPTIONS, Target
from amem._requests import Answer, Command, Question

Item = TypeVar("Item")


class Transport:
    """The calls of one Broker. Each raises OperationCancelledError after close()."""

    def __init__(self, target: Target, query_timeout: float) -> None:
        self.target = target
        self.channel = (grpc.insecure_channel(target.name, options=OPTIONS) if target.credentials is None
                        else grpc.secure_channel(target.name, target.credentials, options=OPTIONS))
        self._calls = _wire.Calls(self.channel)
        self._query_timeout = query_timeout

    def close(self) -> None:
        self.target.connection.closed = True
        self.channel.close()

    def ask(self, question: Question[Answer]) -> Answer:
        """Asks, and reads the answer."""
        # A second try, because gRPC may notice by the first that its connection is to a broker that is gone, and asking
        # or setting twice does no harm.
        for last in (False, True):
            limit = question.limit(self._query_timeout)
            with Ending(self.target.connection, limit):
                self.target.connection.check()
                try:
                    answer = self._calls(question.name, question.fields, timeout=limit, wait_for_ready=self.target.waits)
                    return question.read(list(answer) if question.name in _wire.STREAMS else answer)
                except grpc.RpcError as failure:
                    if last or failure.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
        raise AssertionError

    def operate(self, command: Command) -> Operation:
        """Begins an operation."""
        # Its own deadline is long: it would wait as long for a broker that ends before it is connected. A question does not.
        if self.target.waits:
            self.ask(_requests.Question("ListGroups", {}, lambda answer: None))
        else:
            self.target.connection.check()
        stream = self._begin(command.name, command.fields, command.wait)
        return Operation(stream, Course(command.count, self.target.connection, command.wait))

    def watch(self, fields: dict[str, Any]) -> Watch:
        """Begins a watch, which is in effect then."""
        self.target.connection.check()
        return Watch(self._begin("Watch", fields), self.target.connection, self._query_timeout)

    def _begin(self, name: str, fields: dict[str, Any], timeout: float | None = None) -> Any:
        with Ending(self.target.connection, None):
            return self._calls(name, fields, timeout=timeout, wait_for_ready=self.target.waits)


def of_each(ask: Callable[[Item], Answer], items: Sequence[Item], most: int) -> list[Answer]:
    """The answers in the order of the items, `most` at a time."""
    with concurrent.futures.ThreadPoolExecutor(min(most, len(items))) as pool:
        return list(pool.map(ask, items))
