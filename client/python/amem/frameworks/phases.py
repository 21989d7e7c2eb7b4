"""Tags of this rank's group that leave and come back around a phase of a training step.

Every rank asks for the same. Callers' threads, and the package's own for what comes back late.
"""
from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from amem import _background
from amem.frameworks import replace
from amem._rank import pause, resume
from amem.errors import Error, NotFoundError


__all__ = ["State", "bring", "idle", "take"]


def _each(operation: Callable[..., None], tags: list[str], timeout: float | None) -> None:
    """Of all at once, unless the group has no memory of some of them yet: then of each that there is."""
    if not tags:
        return
    try:
        operation(tags, timeout)
    except NotFoundError:
        for tag in tags if len(tags) > 1 else ():
            with contextlib.suppress(NotFoundError):
                operation([tag], timeout)


def take(tags: list[str], timeout: float | None = None) -> None:
    """Pauses tags of this rank's group: those of which there is memory. idle() comes before. Every rank asks for the same.

    Args:
        tags: What leaves the GPU.
        timeout: Seconds, as of amem.pause().

    Raises:
        Error: As amem.pause(). Everything is on the GPU then, as far as it can come back.
    """
    try:
        _each(pause, tags, timeout)
    except Error:
        with contextlib.suppress(Error):
            _each(resume, tags, timeout)
        raise


def bring(tags: list[str], timeout: float | None = None) -> None:
    """Resumes tags, as take() pauses them, in the thread that uses the GPU. While an operator has paused the group it waits.

    Args:
        tags: What comes back.
        timeout: Seconds, as of amem.resume().

    Raises:
        Error: As amem.resume().
    """
    _gate()
    _each(resume, tags, timeout)


def _gate() -> None:
    """Waits while an operator has paused the group, as all GPU work of this thread does.

    It is a memset of no bytes, which touches nothing. A resume of some tags would set the group running without the rest.
    """
    with contextlib.suppress(OSError):  # no driver
        ctypes.CDLL("libcuda.so.1").cuMemsetD8Async(ctypes.c_uint64(0), ctypes.c_ubyte(0), ctypes.c_size_t(0), None)


class State:
    """Keeps count of tags whose memory the methods of an object touch, such as an optimizer's state.

    These methods wait for what is on its way back, and bring back what is paused.

    Attributes:
        paused: The memory is off the GPU, or on its way back.
    """

    def __init__(self, tags: list[str], owner: Any, methods: Iterable[str]) -> None:
        """Puts itself before the methods.

        Args:
            tags: Of the memory.
            owner: The object.
            methods: The names of its methods that touch the memory; of these, those that it has.
        """
        self._tags = tags
        self._coming: Future[None] | None = None
        self.paused = False
        for name in methods:
            if hasattr(owner, name):
                replace(owner, name, self._after)

    def leave(self) -> None:
        """Pauses the memory. idle() comes before.

        Raises:
            Error: As take().
        """
        self.here()
        take(self._tags)
        self.paused = True

    def come(self, timeout: float | None = None) -> None:
        """Begins to resume the memory, in the background.

        Args:
            timeout: Seconds, as of amem.resume().
        """
        if self.paused and self._coming is None:
            _gate()
            self._coming = _background.submit(lambda: _each(resume, self._tags, timeout))

    def here(self) -> None:
        """Returns when the memory is on the GPU.

        Raises:
            Error: As amem.resume(). The memory is paused still, and the next call tries again.
        """
        coming, self._coming = self._coming, None
        if self.paused and (coming is None or coming.exception() is not None):
            bring(self._tags)
        self.paused = False

    def _after(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.here()
        return original(*arguments, **options)


def idle() -> None:
    """Waits until nothing that runs on the GPU can touch what is to leave, and frees what torch keeps for later.

    While an operator has paused the group it waits.
    """
    torch = sys.modules["torch"]
    _gate()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
