"""Running calls of a broker, as asynchronous iterators. For one event loop."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from amem._connection.calls import Connection, Course, Ending
from amem.errors import Error, OperationCancelledError, UnavailableError
from amem.messages import Event, Progress, from_wire


class Operation(AsyncIterator[Progress]):
    """A pause, resume or swap, as an iterator over its progress. For one task, except cancel().

    The operation begins with the first step of the iteration, or with result(). The iteration ends after the last Progress
    of each group, which has `done`, or it raises the error of the operation. A cancelled task stops waiting, and the
    operation continues in the broker. If you stop iterating, the operation also continues, and you do not learn how it ends.
    """

    def __init__(self, ready: Callable[[], Awaitable[object]], begin: Callable[[], Any], course: Course) -> None:
        """`ready` returns when a broker has answered. `begin` makes the call."""
        self._ready = ready
        self._begin = begin
        self._course = course
        self._stream: Any = None
        self._ended = False

    async def __anext__(self) -> Progress:
        if self._ended:
            raise StopAsyncIteration
        ending = self._course.ending
        try:
            with ending:
                if self._stream is None:
                    if not ending.stopped:
                        await self._ready()
                    if ending.stopped:
                        raise OperationCancelledError("the operation was stopped before it began")
                    ending.begin()
                    self._stream = self._begin()
                message = await self._stream.read()
                if message is grpc.aio.EOF:
                    self._ended = True
                    self._course.end()
                    raise StopAsyncIteration
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._course.step(message)

    async def result(self, on_progress: Callable[[Progress], object] | None = None) -> list[Progress]:
        """Waits for the end.

        Args:
            on_progress: A plain function that the event loop calls for each step. If it raises, the call stops waiting and
                raises the same.

        Returns:
            The last Progress of each group, in the order in which the groups ended.

        Raises:
            Error: The operation failed. OperationCancelledError: the program called cancel(), or closed the Broker.
        """
        try:
            async for progress in self:
                if on_progress is not None:
                    on_progress(progress)
        except BaseException:
            self.cancel()
            raise
        return self._course.done

    def cancel(self) -> None:
        """Stops waiting: the iteration then raises OperationCancelledError. For the event loop's thread.

        If the operation has begun, it continues in the broker.
        """
        self._course.ending.stopped = True
        if self._stream is not None:
            self._stream.cancel()


class Watch(AsyncIterator[Event]):
    """An iterator over events. For one task, except close(), which ends the iteration.

    The watch begins when `async with` has entered it, or with the first step of the iteration. UnavailableError: the
    connection was lost. A new watch does not have the events in between, so ask for the status after you reconnect.
    """

    def __init__(self, begin: Callable[[], Any], connection: Connection, timeout: float) -> None:
        """`timeout`: seconds until the watch must be in effect. Otherwise it raises DeadlineExceededError."""
        self._begin = begin
        self._connection = connection
        self._timeout = timeout
        self._ending = Ending(connection, None)
        self._stream: Any = None

    async def _open(self) -> None:
        if self._stream is not None or self._ending.stopped:
            return
        self._stream = self._begin()
        try:
            with self._ending:
                try:
                    await asyncio.wait_for(self._stream.initial_metadata(), self._timeout)  # sent when the watch is in effect
                except asyncio.TimeoutError:
                    raise Ending(self._connection, self._timeout).too_late() from None
                self._connection.check_open()  # the metadata is empty then, which gRPC does not report as an error
        except BaseException:
            self._stream.cancel()
            raise

    async def __anext__(self) -> Event:
        await self._open()
        if self._ending.stopped:
            raise StopAsyncIteration
        try:
            with self._ending:
                message = await self._stream.read()
                if message is grpc.aio.EOF:
                    raise UnavailableError(f"amemd at {self._connection.name} ended the stream of events")
        except Error:
            if self._ending.stopped:
                raise StopAsyncIteration from None
            raise
        self._ending.answered = True
        return from_wire(Event, message)

    def close(self) -> None:
        """Ends the watch. For the event loop's thread."""
        self._ending.stopped = True
        if self._stream is not None:
            self._stream.cancel()

    async def __aenter__(self) -> Watch:
        await self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        self.close()
