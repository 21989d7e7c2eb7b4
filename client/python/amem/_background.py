"""Pause, resume and swap in the background. Each call returns a concurrent.futures.Future at once."""
from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Optional

from amem._arguments import Groups, Guests, OnProgress, Tags, group_list, guest_policy, milliseconds, optional_tags, selection
from amem._launcher import swap
from amem._rank import pause, resume


_Job = tuple["Future[None]", Callable[[], Any]]


class _Worker:
    """One daemon thread, which the first job starts. It does the jobs one after the other.

    The executors of concurrent.futures have no daemon threads. A pause that waits for a rank that never calls must not keep
    the interpreter from ending.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None

    def submit(self, work: Callable[[], Any]) -> Future[None]:
        future: Future[None] = Future()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="amem", daemon=True)
                thread.start()
                self._thread = thread
        self._jobs.put((future, work))
        return future

    def _run(self) -> None:
        while True:
            future, work = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                work()
            except BaseException as error:  # the future's owner is the one to know
                future.set_exception(error)
            else:
                future.set_result(None)
            del future, work  # what a result refers to does not live until the next job


_worker = _Worker()


def submit(work: Callable[[], Any]) -> Future[None]:
    """Does the work after the earlier jobs. For the package's own modules."""
    return _worker.submit(work)


def _forget_worker() -> None:
    """The thread does not exist in a child of fork, and a thread may have held its lock."""
    global _worker
    _worker = _Worker()


os.register_at_fork(after_in_child=_forget_worker)


def pause_async(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: Guests | None = None, deep: bool = False, force: bool = False) -> Future[None]:
    """Pauses this rank's group as pause() does, in the background.

    A daemon thread of this package runs the jobs of pause_async, resume_async and swap_async one after the other. The
    interpreter does not wait for a running operation when it ends. For asyncio, use amem.aio.pause().

    Args:
        tags: As for pause(). This holds for all arguments.
        timeout: Timeout in seconds for the other ranks to call.
        except_tags: All memory except memory with these tags.
        discard: Tags whose bytes this pause drops.
        guests: What the pause does with memory that other groups have open.
        deep: Nothing of the processes stays on the GPUs.
        force: `discard` may have "heap".

    Returns:
        A Future. Its result is None, or the error that pause() raises. Its cancel() works until the operation begins.

    Raises:
        InvalidArgumentError: An argument is not valid. The call checks this at once.
    """
    chosen, drops = selection(tags, except_tags), optional_tags(discard)
    guest_policy(guests)
    milliseconds(timeout)
    return _worker.submit(lambda: pause(chosen["tags"] or None, timeout, except_tags=chosen["except_tags"],
                                        discard=drops, guests=guests, deep=deep, force=force))


def resume_async(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> Future[None]:
    """Resumes this rank's group as resume() does, in the background. See pause_async().

    Args:
        tags: As for resume(). This holds for all arguments.
        timeout: Timeout in seconds for the other ranks to call.
        except_tags: All memory except memory with these tags.

    Returns:
        A Future. Its result is None, or the error that resume() raises.

    Raises:
        InvalidArgumentError: An argument is not valid. The call checks this at once.
    """
    chosen = selection(tags, except_tags)
    milliseconds(timeout)
    return _worker.submit(lambda: resume(chosen["tags"] or None, timeout, except_tags=chosen["except_tags"]))


def swap_async(out: Groups, into: Groups, timeout: float | None = None, *, runtime_dir: str | None = None,
               on_progress: OnProgress | None = None, discard: Tags = None, guests: Guests | None = None, deep: bool = False,
               force: bool = False) -> Future[None]:
    """Swaps groups as swap() does, in the background. See pause_async(). Requires grpcio.

    Args:
        out: As for swap(). This holds for all arguments.
        into: The group to resume, or a list of groups.
        timeout: Timeout in seconds for the pause, and for the resume.
        runtime_dir: The broker's runtime directory.
        on_progress: A function that the background's thread calls for each step.
        discard: Tags of `out` whose bytes the pause drops.
        guests: What the pause does with memory of `out` that other groups have open.
        deep: The groups of `out` become deep after they have left.
        force: `discard` may have "heap".

    Returns:
        A Future. Its result is None, or the error that swap() raises.

    Raises:
        InvalidArgumentError: An argument is not valid. The call checks this at once.
    """
    milliseconds(timeout)
    group_list(out, into)
    drops = optional_tags(discard)
    guest_policy(guests)
    return _worker.submit(lambda: swap(out, into, timeout, runtime_dir=runtime_dir, on_progress=on_progress, discard=drops,
                                       guests=guests, deep=deep, force=force))
