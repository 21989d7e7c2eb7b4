"""turn(): a rank's group has its turn in a stage with the policy lease. Requires grpcio and protobuf.

A Turn belongs to whoever enters it; different ones may be used in different threads.
"""
from __future__ import annotations

from types import TracebackType

from amem import _rank, _timeouts
from amem.aio import Broker as AsyncBroker
from amem.broker import Broker


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
        with Broker() as broker:
            self.waited = broker.lease(self._group, self._timeout)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        with Broker() as broker:
            broker.end_lease(self._group)

    async def __aenter__(self) -> Turn:
        _timeouts.warn_of_short(self._timeout)
        async with AsyncBroker() as broker:
            self.waited = await broker.lease(self._group, self._timeout)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        async with AsyncBroker() as broker:
            await broker.end_lease(self._group)


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
