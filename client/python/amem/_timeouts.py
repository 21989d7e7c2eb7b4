"""PyTorch's time limit for collectives does not count the time in which their group was paused.

ProcessGroupNCCL compares the clock with the time at which a collective was made. One that waits at the gate is made before
the resume and starts after it, so its watchdog would end the job as soon as it looks. PyTorch gives such a collective more
time if that is said before its launch returns. A thread says so while the gate is shut; it looks once a second.
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
    """How much more time has been asked for. `shut_ms`: for how long the gate has been shut, in all."""

    def __init__(self, shut_ms: int) -> None:
        self._seen = shut_ms
        self._said = shut_ms

    def look(self, shut_ms: int) -> int:
        """How many milliseconds more a collective needs that waits now. 0: none waits, or that has been said."""
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
    """The thread is not in a child of fork, and its lock may have been held."""
    global _lock, _started
    _lock = threading.Lock()
    _started = False


os.register_at_fork(after_in_child=_forget_thread)


def extend_timeouts() -> None:
    """Keeps paused time out of PyTorch's time limit for collectives, the timeout of its NCCL process groups.

    Call it in every rank when torch.distributed has been imported; once is enough, and more often is no error. A daemon
    thread does it from then on; a child of fork has none until it calls this itself.

    Not for batch_isend_irecv and other coalesced calls: PyTorch gives these their limit before the launch, which waits at
    the gate. A job that uses them (pipeline parallelism) needs a timeout that is longer than any pause. Nor for a wait()
    that is given a timeout of its own, nor for other backends: their time limits go on (docs/frameworks.md, "Time limits of
    the job").

    Raises:
        FailedPreconditionError: There is no shim in this process, or one of another version, or PyTorch cannot do it.
    """
    global _started
    _shim.shut_ms()
    extend = _extender()
    with _lock:
        if _started:
            return
        threading.Thread(target=_watch, args=(extend,), name="amem-timeouts", daemon=True).start()
        _started = True
