"""Running calls of a broker: their errors, and the iterators that a Broker returns."""
from __future__ import annotations

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
        if self.closed:
            raise OperationCancelledError(f"close() has closed the connection to amemd at {self.name}. Make another one")
        error = self.probe()
        if error is not None:
            raise error


class Ending:
    """Makes an error of the end of one call. Create it when the call begins. `timeout` None: the call may take any time."""

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

    def was_stopped(self) -> bool:
        """Whether this side has ended the call."""
        return self.stopped or self._connection.closed

    def stop(self) -> Error:
        """The error of a call that this side has ended."""
        if self._operation:
            return OperationCancelledError("the caller stopped waiting. The operation continues in the broker")
        return OperationCancelledError("the caller stopped the call")

    def error(self, failure: Any) -> Error:
        """`failure`: the grpc.RpcError."""
        status, text = failure.code(), failure.details() or ""
        if status == grpc.StatusCode.CANCELLED and self.was_stopped():
            return self.stop()
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
        try:
            message = next(self._stream)
        except StopIteration:
            self._course.end()
            raise
        except grpc.RpcError as failure:
            raise self._course.ending.error(failure) from None
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
        try:
            stream.initial_metadata()  # the broker sends it when the watch is in effect
        finally:
            timer.cancel()
            timer.join()  # it has given up, or never will
        if late.is_set():
            raise Ending(connection, timeout).too_late()

    def __next__(self) -> Event:
        try:
            message = next(self._stream)
        except StopIteration:
            if self._ending.stopped:
                raise
            raise UnavailableError(f"amemd at {self._broker} ended the stream of events") from None
        except grpc.RpcError as failure:
            if self._ending.stopped:
                raise StopIteration from None
            raise self._ending.error(failure) from None
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
