"""PyTorch's timeouts for collectives: extends them by paused time, and finds those that are shorter than a turn may take.

ProcessGroupNCCL compares the clock with the time at which a collective was made. A collective that waits at the gate is made
before the resume and starts after it. So PyTorch's watchdog would end the job at its next check. PyTorch extends the timeout of
such a collective if it gets the extension before the launch returns. A thread extends the timeout while the gate is shut. It
checks once a second.
"""
from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from amem import _shim
from amem.errors import FailedPreconditionError

_logger = logging.getLogger("amem")

_LOOK_EVERY = 1.0  # seconds
_AHEAD_MS = 5000  # said in advance: the resume may come at once, and the thread may be late


class Extension:
    """The extensions so far. `shut_ms`: for how long the gate has been shut in total."""

    def __init__(self, shut_ms: int) -> None:
        self._seen = shut_ms
        self._said = shut_ms

    def look(self, shut_ms: int) -> int:
        """By how many milliseconds to extend the timeout now. 0: no collective waits, or the extension is already long enough."""
        shut, self._seen = shut_ms > self._seen, shut_ms
        if not shut:  # what was said for the last pause is not for the next one
            self._said = shut_ms
            return 0
        more = max(0, shut_ms + _AHEAD_MS - self._said)
        self._said += more
        return more


def _extender() -> Callable[[timedelta], Any]:
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    extend = getattr(distributed, "_add_ephemeral_timeout_for_all_pgs", None)
    if extend is None:
        raise FailedPreconditionError(
            "amem cannot extend the timeouts of PyTorch's process groups: torch.distributed is not imported, or this PyTorch has no "
            "_add_ephemeral_timeout_for_all_pgs. Set a timeout= longer than any pause when you make the groups")
    return extend  # type: ignore[no-any-return]


def _watch(extend: Callable[[timedelta], Any]) -> None:
    extension = Extension(_shim.shut_ms())
    while True:
        time.sleep(_LOOK_EVERY)
        more = extension.look(_shim.shut_ms())
        if more == 0:
            continue
        try:
            extend(timedelta(milliseconds=more))
        except Exception as error:  # a group was made meanwhile, or PyTorch has changed: the thread goes on
            _logger.warning("amem: the timeout of PyTorch's collectives includes this pause, because it could not be extended: %s", error)


_lock = threading.Lock()
_started = False


def _forget_thread() -> None:
    """The thread does not exist in a child of fork, and a thread may have held the lock."""
    global _lock, _started
    _lock = threading.Lock()
    _started = False


os.register_at_fork(after_in_child=_forget_thread)


def extend_timeouts() -> None:
    """Keeps paused time out of PyTorch's timeout for collectives: the timeout of its NCCL process groups.

    Call it once in every rank, after the import of torch.distributed. More calls have no effect. From then on, a daemon
    thread extends the timeouts during pauses. A child of fork must call it again.

    It does not cover batch_isend_irecv and other coalesced calls. PyTorch sets their timeout before the launch, and the
    launch waits at the gate. A job that uses them (pipeline parallelism) needs a timeout longer than any pause. It also does
    not cover a wait() with its own timeout, and other backends (docs/frameworks.md, "Time limits of the job").

    Raises:
        FailedPreconditionError: This process has no shim, or a shim of another version, or this PyTorch does not support it.
    """
    global _started
    _shim.shut_ms()
    extend = _extender()
    with _lock:
        if _started:
            return
        threading.Thread(target=_watch, args=(extend,), name="amem-timeouts", daemon=True).start()
        _started = True


def shortest_timeout() -> tuple[float, str] | None:
    """The shortest timeout of this process's process groups, without those that extend_timeouts() extends.

    Returns:
        (seconds, name of the backend). None: it has no process group of several ranks, or this PyTorch does not say.
    """
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    found: list[tuple[float, str]] = []
    try:
        for group in list(distributed._world.pg_map) if distributed is not None else []:
            for device in group._device_types if group.size() > 1 else []:
                backend = group._get_backend(device)
                found.append((backend.options._timeout.total_seconds(), backend.name()))
    except Exception:  # noqa: BLE001: not public, so another PyTorch may not have it. Nobody waits because of a warning
        _logger.debug("amem: this PyTorch does not say what timeouts its process groups have", exc_info=True)
    return min((each for each in found if not (_started and each[1] == "nccl")), default=None)


def warn_of_short(wait: float | None) -> None:
    """Warns in the log if a rank that waits for `wait` seconds can outlast the timeout of a process group. None: without limit."""
    shortest = shortest_timeout()
    if shortest is None or (wait is not None and wait < shortest[0]):
        return
    _logger.warning(
        "amem: the wait for a turn %s, but a process group of this process (%s) has a timeout of %.0f s. Ranks that wait for this rank "
        "in a collective may give up. Call amem.extend_timeouts(), give the process group a longer timeout=, or give the turn a shorter "
        "one (docs/frameworks.md, \"Time limits of the job\")", "has no timeout" if wait is None else f"may take {wait:.0f} s",
        shortest[1], shortest[0])
