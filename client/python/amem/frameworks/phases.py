"""Pauses and resumes tags of this rank's group around a phase of a training step.

Ranks that share memory of these tags must make the same calls. The calls run in the threads of the callers. Only State.come() and
taking() use the package's own thread.
"""
from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
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
from amem.frameworks.tensors import on_cpu


__all__ = ["State", "Tags", "bring", "idle", "lent", "reads", "take", "taking"]

_logger = logging.getLogger("amem")


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
    """Pauses tags of this rank's group. Tags without memory do not count. Call idle() first. Ranks that share this memory must call it, too.

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

    The body may not touch the memory. If it fails, the tags are resumed. Call idle() first. Ranks that share this memory must call it, too.

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


@contextlib.contextmanager
def lent(what: str, come: Callable[[], None], leave: Callable[[], None]) -> Iterator[bool]:
    """Brings memory for the body, and pauses it again afterwards, also if the body fails.

    If the memory cannot leave again, it stays on the GPU with a warning: what the body has done, or its error, counts more.

    Args:
        what: The name of the memory in the warning.
        come: Brings the memory.
        leave: Pauses it.

    Returns:
        A context manager. Its value is True: the memory was paused.

    Raises:
        Error: The errors of `come`, before the body runs.
    """
    come()
    try:
        yield True
    finally:
        try:
            leave()
        except Exception as error:  # noqa: BLE001: with a body that broke the GPU's context, torch raises, too
            _logger.warning("amem: %s came back to be read, and cannot leave again: %s", what, error)


def reads(owner: Any, name: str, states: Callable[..., Iterable[contextlib.AbstractContextManager[bool]]]) -> None:
    """Says that a function of a framework reads or writes states, such as a save, a load or a state_dict().

    A call first brings those states that are paused, and they leave again when the function has returned or failed. Tensors in its
    answer are then on the CPU, as they would be if the framework had offloaded them itself. A second call of reads() changes nothing.

    Args:
        owner: The class, module or object that has the function.
        name: The function's name.
        states: Gets the function's arguments, and returns State.borrowed() of each state, always in the same order.
    """
    def call(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            paused = [stack.enter_context(each) for each in states(*arguments, **options)]
            answer = original(*arguments, **options)
            return on_cpu(answer) if any(paused) else answer

    replace(owner, name, call)


class State:
    """Tracks memory that a framework offloads, such as an optimizer's state.

    Attributes:
        paused: Whether the memory is paused, or its resume is still running.
        turn: The lock of this object. A thread that reads the memory holds it, so that another one cannot pause the memory meanwhile.
    """

    def __init__(self, tags: list[str], owner: Any = None, methods: Iterable[str] = (), readers: Iterable[str] = (),
                 prepare: Callable[[], object] | None = None) -> None:
        """Makes methods of an object wait for the memory.

        Args:
            tags: The tags of the memory.
            owner: The object.
            methods: The names of its methods that need the memory. They first bring it, or wait for a running resume, and it stays.
                Names that the object lacks do not count.
            readers: The names of those of its methods that only read or write the memory: reads() with this state.
            prepare: Called before each pause. It moves memory that is not in the region yet, such as what a load has made.
        """
        self.tags = tags
        self.paused = False
        self.turn = threading.RLock()
        self._prepare = prepare or (lambda: None)
        self._coming: Future[None] | None = None
        for name in readers:
            if hasattr(owner, name):
                reads(owner, name, lambda *_, **__: [self.borrowed()])
        for name in methods:
            if hasattr(owner, name):
                replace(owner, name, self._after)

    def prepare(self) -> None:
        """Brings the memory if it is paused, and moves into the region what is not there yet.

        Raises:
            Error: The errors of amem.resume() and amem.move().
        """
        self.here()
        self._prepare()

    def leave(self) -> None:
        """Prepares the memory, waits until the GPU is idle, and pauses the memory.

        Raises:
            Error: The errors of prepare() and take().
        """
        with self.turn:
            self.prepare()
            idle()
            take(self.tags)
            self.paused = True

    def come(self, timeout: float | None = None) -> None:
        """Starts to resume the memory in the background.

        Args:
            timeout: Timeout in seconds, as for amem.resume().
        """
        with self.turn:
            if self.paused and self._coming is None:
                _gate()
                self._coming = _background.submit(lambda: _each(resume, self.tags, timeout))

    def here(self) -> None:
        """Waits until the memory is on the GPU.

        Raises:
            Error: The errors of amem.resume(). The memory is still paused, and the next call retries.
        """
        with self.turn:
            coming, self._coming = self._coming, None
            if self.paused and (coming is None or coming.exception() is not None):
                bring(self.tags)
            self.paused = False

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[bool]:
        """Brings the memory for the body. If it was paused, it leaves again afterwards.

        Returns:
            A context manager. Its value is whether the memory was paused.

        Raises:
            Error: The errors of amem.resume().
        """
        with self.turn:
            if self.paused and self._coming is None:
                with lent(", ".join(self.tags), self.here, lambda: None if self.paused else self.leave()):
                    yield True
            else:
                self.here()
                yield False

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
