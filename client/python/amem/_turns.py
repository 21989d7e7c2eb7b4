"""turn(): a rank's group has its turn in a stage with the policy lease. Requires grpcio and protobuf.

A Turn belongs to whoever enters it; different ones may be used in different threads.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any

from amem import _apart, _rank, _timeouts
from amem.aio import Broker as AsyncBroker
from amem.broker import Broker
from amem.errors import Error, OperationCancelledError, UnavailableError

_logger = logging.getLogger("amem")


class Turn:
    """A turn of a group, as a context manager for `with` and for `async with`.

    Attributes:
        waited: How long the group waited for its turn, in seconds. 0 before that.
    """

    def __init__(self, group: str, timeout: float | None) -> None:
        self.waited = 0.0
        self._group = group
        self._timeout = timeout

    def __enter__(self) -> Turn:
        _timeouts.warn_of_short(self._timeout)
        try:
            with Broker() as broker:
                self.waited = broker.lease(self._group, self._timeout)
            return self  # here, because Ctrl-C can come between any two instructions
        except BaseException as error:
            if _may_have_lease(error):
                with contextlib.suppress(Error):  # an amemd that does not answer has no leases
                    _apart.call("end of a turn", self._end, outlives=True)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        with contextlib.nullcontext() if error is None else _logged(self._group):
            _apart.call("end of a turn", self._end, outlives=True)

    def _end(self) -> None:
        with Broker() as broker:
            broker.end_lease(self._group)

    async def __aenter__(self) -> Turn:
        _timeouts.warn_of_short(self._timeout)
        try:
            async with AsyncBroker() as broker:
                self.waited = await broker.lease(self._group, self._timeout)
            return self
        except BaseException as error:
            if _may_have_lease(error):
                with contextlib.suppress(Error):
                    await _finished(self._end_async())
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        with contextlib.nullcontext() if error is None else _logged(self._group):
            await _finished(self._end_async())

    async def _end_async(self) -> None:
        async with AsyncBroker() as broker:
            await broker.end_lease(self._group)


def _may_have_lease(error: BaseException) -> bool:
    """Whether the group may have its turn although the call has failed. Other errors are amemd's answer that it has none."""
    return not isinstance(error, Error) or isinstance(error, (OperationCancelledError, UnavailableError))


@contextlib.contextmanager
def _logged(group: str) -> Iterator[None]:
    """Logs an error of amem instead of raising it, so that the program's own error comes out."""
    try:
        yield
    except Error as error:
        _logger.warning('amem: the turn of group "%s" could not be ended: %s', group, error)


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work to its end, also if this task is cancelled meanwhile. The cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Error:
            break
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            _logger.warning("amem: a cancelled task could not end its turn: %s", failure)
        raise cancelled
    task.result()


def turn(group: str | None = None, timeout: float | None = None) -> Turn:
    """Returns a context manager in which a group has its turn in a stage with the policy lease (docs/turns.md).

    It waits for the turn where it is entered, and ends the turn where it is left. A group has one turn: let one rank enter it, and
    let the others wait for that rank. It logs a warning if a process group of PyTorch has a timeout that the wait can exceed.

    Args:
        group: The group's name. None: the group of this process.
        timeout: How long to wait for the turn, in seconds. None: no limit.

    Returns:
        The context manager, for `with` and for `async with`. Entering raises what Broker.lease() raises.
    """
    return Turn(_rank.group() if group is None else group, timeout)
