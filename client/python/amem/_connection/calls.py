"""Running calls of a broker: their errors, and the iterators that a Broker returns."""
from __future__ import annotations

import asyncio  # which grpc has imported
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import grpc

from amem.errors import (
    OperationCancelledError, DeadlineExceededError, Error, InternalError, PermissionDeniedError, UnavailableError,
    UnimplementedError, error_of)
from amem.messages import Event, Progress, from_wire


@dataclasses.dataclass
class Connection:
    """What calls know about their Broker. `probe`: why a connection would fail, as far as this process can see."""

    name: str
    probe: Callable[[], Error | None]
    closed: bool = False

    def check(self) -> None:
        """Raises the reason why a call would fail.

        gRPC's own error names neither the socket nor a remedy. For another node's broker there is no other error.
        """
        self.check_open()
        error = self.probe()
        if error is not None:
            raise error

    def check_open(self) -> None:
        """Raises OperationCancelledError if close() has been called."""
        if self.closed:
            raise self.closed_error()

    def closed_error(self) -> Error:
        return OperationCancelledError(f"close() has closed the connection to amemd at {self.name}. Make another one")


class Ending:
    """Makes an error of the end of one call. Create it when the call begins. `timeout` None: the call may take any time.

    `with ending:` around what gRPC does for the call raises amem's error in place of gRPC's. It has the one rule of close(): a call
    that fails after close() raises OperationCancelledError, whatever gRPC or the broker says.
    """

    def __init__(self, connection: Connection, timeout: float | None, operation: bool = False) -> None:
        self._connection = connection
        self._timeout = timeout
        self._operation = operation
        self.begin()
        self.answered = False  # the broker has said something
        self.stopped = False  # this side has enough

    def begin(self) -> None:
        """Starts the timeout now."""
        self._began = time.monotonic()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None) -> None:
        instead = None if failure is None else self._instead(failure)
        if instead is not None:
            usual = isinstance(failure, (grpc.RpcError, asyncio.CancelledError))
            raise instead from None if usual else failure  # after close() it may be any error, even a fault of amem

    def _instead(self, failure: BaseException) -> Error | None:
        """The error to raise instead of `failure`. None: `failure` is right."""
        if isinstance(failure, asyncio.CancelledError):
            return self._stop() if self._was_stopped() and not _task_is_cancelled() else None
        if not isinstance(failure, Exception) or isinstance(failure, (StopIteration, StopAsyncIteration, OperationCancelledError)):
            return None
        # gRPC raises ValueError or UsageError for a call that begins on a closed channel.
        return self.error(failure) if self._connection.closed or isinstance(failure, grpc.RpcError) else None

    def _was_stopped(self) -> bool:
        """Whether this side has ended the call."""
        return self.stopped or self._connection.closed

    def _stop(self) -> Error:
        """The error of a call that this side has ended."""
        if self._connection.closed:
            error = self._connection.closed_error()
            tail = ". An operation that has begun continues in the broker. `amemctl groups` shows its state" if self._operation else ""
            return OperationCancelledError(error.text + tail)
        if self._operation:
            return OperationCancelledError("the caller stopped waiting. The operation continues in the broker")
        return OperationCancelledError("the caller stopped the call")

    def error(self, failure: Any) -> Error:
        """`failure`: the grpc.RpcError. After close() it may be any error."""
        if self._connection.closed:
            return self._stop()
        status, text = failure.code(), failure.details() or ""
        if status == grpc.StatusCode.CANCELLED and self.stopped:
            return self._stop()
        if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):  # a broker that ends cancels its calls
            return self._unavailable(text)
        if status == grpc.StatusCode.DEADLINE_EXCEEDED and self._time_is_up():
            return self.too_late()
        if status == grpc.StatusCode.UNIMPLEMENTED:
            return UnimplementedError(
                f"amemd at {self._connection.name} does not support this call. It is probably older than this package")
        if status == grpc.StatusCode.UNAUTHENTICATED:  # the only code that amem lacks
            return PermissionDeniedError(text)
        return error_of(status.value[0], text)

    def _time_is_up(self) -> bool:
        # The broker uses this code too, for a phase that took too long; then its text stands. gRPC's own end of a call
        # may come a little early.
        return self._timeout is not None and time.monotonic() >= self._began + self._timeout - 0.01

    def _unavailable(self, text: str) -> Error:
        # gRPC's own text names neither the socket nor a remedy; looking at the socket does.
        lost = f"the connection to amemd at {self._connection.name} was lost"
        why = self._connection.probe()
        if why is not None:
            return error_of(why.code, f"{lost}: {why.text}") if self.answered else why
        tail = ". `amemctl groups` shows how far it got" if self._operation else ""
        return UnavailableError(f"{lost}: {text}{tail}")

    def too_late(self) -> Error:
        tail = ". The operation may still run there. `amemctl groups` shows its state" if self._operation else ""
        return DeadlineExceededError(
            f"amemd at {self._connection.name} did not answer within {self._timeout:g} s{tail}")


def _task_is_cancelled() -> bool:
    """Whether somebody has cancelled the current task and expects the asyncio.CancelledError."""
    # Before Python 3.11 there is no cancelling(). Then a task that is both cancelled and stopped counts as stopped.
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0


class Course:
    """What an operation has reported so far. Operation and amem.aio.Operation share it."""

    def __init__(self, count: int, connection: Connection, timeout: float) -> None:
        """`count`: how many groups must report its end."""
        self.ending = Ending(connection, timeout, operation=True)
        self.done: list[Progress] = []
        self._count = count
        self._broker = connection.name

    def step(self, message: Any) -> Progress:
        self.ending.answered = True
        progress = from_wire(Progress, message)
        if progress.done:
            self.done.append(progress)
        return progress

    def end(self) -> None:
        """InternalError: not every group has reported its end."""
        if len(self.done) < self._count:
            raise InternalError(f"amemd at {self._broker} ended the call without a result")


class Operation(Iterator[Progress]):
    """A pause, resume or swap that has begun, as an iterator over its progress. For one thread, except cancel().

    The iteration ends after the last Progress of each group, which has `done`, or it raises the error of the operation. If
    you stop iterating, the operation continues, and you do not learn how it ends.
    """

    def __init__(self, stream: Any, course: Course) -> None:
        self._stream = stream
        self._course = course

    def __next__(self) -> Progress:
        with self._course.ending:
            try:
                message = next(self._stream)
            except StopIteration:
                self._course.end()
                raise
        return self._course.step(message)

    def result(self, on_progress: Callable[[Progress], object] | None = None) -> list[Progress]:
        """Waits for the end.

        Args:
            on_progress: A function that this thread calls for each step. If it raises, the call stops waiting and raises the same.

        Returns:
            The last Progress of each group, in the order in which the groups ended.

        Raises:
            OperationCancelledError: The program called cancel(), or closed the Broker.
            Error: The operation failed.
        """
        try:
            for progress in self:
                if on_progress is not None:
                    on_progress(progress)
        except BaseException:
            self.cancel()
            raise
        return self._course.done

    def cancel(self) -> None:
        """Stops waiting: the iterator then raises OperationCancelledError. Any thread may call it.

        The operation continues in the broker.
        """
        self._course.ending.stopped = True
        self._stream.cancel()


class Watch(Iterator[Event]):
    """An iterator over events. For one thread, except close(), which ends the iteration.

    UnavailableError: the connection was lost. A new watch does not have the events in between, so ask for the status after you
    reconnect.
    """

    def __init__(self, stream: Any, connection: Connection, timeout: float) -> None:
        """`timeout`: seconds until the watch must be in effect. Otherwise it raises DeadlineExceededError."""
        self._stream = stream
        self._broker = connection.name
        self._ending = Ending(connection, None)
        late = threading.Event()

        def give_up() -> None:
            late.set()
            stream.cancel()

        timer = threading.Timer(timeout, give_up)
        timer.daemon = True
        timer.start()
        with self._ending:
            try:
                stream.initial_metadata()  # the broker sends it when the watch is in effect
            finally:
                timer.cancel()
                timer.join()  # it has given up, or never will
            connection.check_open()  # the metadata is empty then, which gRPC does not report as an error
            if late.is_set():
                raise Ending(connection, timeout).too_late()

    def __next__(self) -> Event:
        with self._ending:
            try:
                message = next(self._stream)
            except StopIteration:
                if self._ending.stopped:
                    raise
                raise UnavailableError(f"amemd at {self._broker} ended the stream of events") from None
            except grpc.RpcError:
                if self._ending.stopped:
                    raise StopIteration from None
                raise
        self._ending.answered = True
        return from_wire(Event, message)

    def close(self) -> None:
        """Ends the watch. Any thread may call it."""
        self._ending.stopped = True
        self._stream.cancel()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()
