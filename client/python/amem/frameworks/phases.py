"""Pauses and resumes tags of this rank's group around a phase of a training step.

Every rank must make the same calls. The calls run in the threads of the callers. Only State.come() uses the package's own thread.
"""
from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from amem import _background
from amem.frameworks import replace
from amem._rank import pause, resume
from amem.errors import Error, NotFoundError


__all__ = ["State", "Tags", "bring", "idle", "take", "taking"]


class Tags:
    """Names the tags of a framework's objects. A process may have several, such as an actor and a critic.

    Every rank must make the objects in the same order.
    """

    def __init__(self, framework: str) -> None:
        """Begins to number.

        Args:
            framework: The tags begin with it.
        """
        self._framework = framework
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = itertools.count()

    def __call__(self, what: str, owner: Any) -> str:
        """Returns the tag of one object's memory.

        Args:
            what: What the memory is for, such as "params".
            owner: The object. It must have a hash and take weak references.

        Returns:
            The tag, such as "verl.params.0".
        """
        if owner not in self._numbers:
            self._numbers[owner] = next(self._next)
        return f"{self._framework}.{what}.{self._numbers[owner]}"


def _each(operation: Callable[..., None], tags: list[str], timeout: float | None) -> None:
    """Operates on all tags at once. If the group has no memory with some of them yet: on each of the other tags."""
    if not tags:
        return
    try:
        operation(tags, timeout)
    except NotFoundError:
        for tag in tags if len(tags) > 1 else ():
            with contextlib.suppress(NotFoundError):
                operation([tag], timeout)


def take(tags: list[str], timeout: float | None = None) -> None:
    """Pauses tags of this rank's group. Tags without memory do not count. Call idle() first. Every rank must pass the same tags.

    Args:
        tags: The tags to pause.
        timeout: Timeout in seconds, as for amem.pause().

    Raises:
        Error: The errors of amem.pause(). Afterwards everything is on the GPU, if the resume has succeeded.
    """
    try:
        _each(pause, tags, timeout)
    except Error:
        with contextlib.suppress(Error):
            _each(resume, tags, timeout)
        raise


@contextlib.contextmanager
def taking(tags: list[str], timeout: float | None = None) -> Iterator[None]:
    """Pauses tags as take() does, while the body runs. At the end it waits for the pause.

    The body may not touch the memory. If it fails, the tags are resumed. Call idle() first. Every rank must pass the same tags.

    Args:
        tags: The tags to pause.
        timeout: Timeout in seconds, as for amem.pause().

    Returns:
        A context manager.

    Raises:
        Error: The errors of take(), at the end.
    """
    begun = threading.Event()

    def work() -> None:
        begun.set()
        take(tags, timeout)

    done = _background.submit(work)
    begun.wait()  # a body that keeps the interpreter, such as a garbage collection, would delay it. Earlier jobs have timeouts
    try:
        yield
    except BaseException:
        with contextlib.suppress(Error):
            done.result()
            bring(tags, timeout)
        raise
    done.result()


def bring(tags: list[str], timeout: float | None = None) -> None:
    """Resumes tags after take(). Call it in the thread that uses the GPU. While an operator has paused the group, it waits.

    Args:
        tags: The tags to resume.
        timeout: Timeout in seconds, as for amem.resume().

    Raises:
        Error: The errors of amem.resume().
    """
    _gate()
    _each(resume, tags, timeout)


def _gate() -> None:
    """Waits while an operator has paused the group, like all GPU work of this thread.

    It is a memset of no bytes, which touches no memory. Without it, a resume of some tags would let the group run without the rest.
    """
    with contextlib.suppress(OSError):  # no driver
        ctypes.CDLL("libcuda.so.1").cuMemsetD8Async(ctypes.c_uint64(0), ctypes.c_ubyte(0), ctypes.c_size_t(0), None)


class State:
    """Tracks the memory that the methods of an object touch, such as an optimizer's state.

    These methods first resume the memory if it is paused, or wait for a running resume.

    Attributes:
        paused: Whether the memory is paused, or its resume is still running.
    """

    def __init__(self, tags: list[str], owner: Any, methods: Iterable[str]) -> None:
        """Makes the methods wait for the memory.

        Args:
            tags: The tags of the memory.
            owner: The object.
            methods: The names of its methods that touch the memory. Names that the object lacks do not count.
        """
        self._tags = tags
        self._coming: Future[None] | None = None
        self.paused = False
        for name in methods:
            if hasattr(owner, name):
                replace(owner, name, self._after)

    def leave(self) -> None:
        """Pauses the memory. Call idle() first.

        Raises:
            Error: The errors of take().
        """
        self.here()
        take(self._tags)
        self.paused = True

    def come(self, timeout: float | None = None) -> None:
        """Starts to resume the memory in the background.

        Args:
            timeout: Timeout in seconds, as for amem.resume().
        """
        if self.paused and self._coming is None:
            _gate()
            self._coming = _background.submit(lambda: _each(resume, self._tags, timeout))

    def here(self) -> None:
        """Waits until the memory is on the GPU.

        Raises:
            Error: The errors of amem.resume(). The memory is still paused, and the next call retries.
        """
        coming, self._coming = self._coming, None
        if self.paused and (coming is None or coming.exception() is not None):
            bring(self._tags)
        self.paused = False

    def _after(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.here()
        return original(*arguments, **options)


def idle() -> None:
    """Waits until the GPU is idle, and empties torch's cache. Call it before take().

    While an operator has paused the group, it waits.
    """
    torch = sys.modules["torch"]
    _gate()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
