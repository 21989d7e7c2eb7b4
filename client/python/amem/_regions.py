"""Regions: memory that this thread allocates within one gets a tag and says whether a pause keeps its bytes."""
from __future__ import annotations

import collections
import contextlib
import ctypes
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from amem import _shim
from amem._arguments import tag_name
from amem.errors import FailedPreconditionError

_KEEP, _DISCARD = 1, 2  # amem_policy

# Idle torch.cuda.MemPools by tag, keep and device. Two threads cannot allocate into one pool at the same time, so a
# region takes a pool and gives it back. Pools live as long as the process: what was freed in one is there for the next.
_idle: dict[tuple[str, bool, int], list[Any]] = collections.defaultdict(list)
_lock = threading.Lock()


class _Thread(threading.local):
    region: _Region | None = None


_thread = _Thread()


class _Region:
    """A region of one thread, which can leave it and come back."""

    def __init__(self, tag: str, keep: bool, pooled: bool) -> None:
        self.tag = tag_name(tag)
        self._keep = keep
        self._pooled = pooled
        self._entered = contextlib.ExitStack()

    def enter(self) -> None:
        with contextlib.ExitStack() as stack:
            # First, because torch may have to initialise CUDA for it, and what that allocates is not the region's.
            allocate = stack.enter_context(_pool(self.tag, self._keep)) if self._pooled else contextlib.nullcontext()
            _shim.call("amem_shim_region_begin", self.tag.encode(), _KEEP if self._keep else _DISCARD)
            stack.callback(_shim.call, "amem_shim_region_end")
            stack.enter_context(allocate)
            self._entered = stack.pop_all()

    def leave(self) -> None:
        self._entered.close()


@contextlib.contextmanager
def _pool(tag: str, keep: bool) -> Iterator[contextlib.AbstractContextManager[Any]]:
    """A context in which torch allocates from a pool that nobody else uses meanwhile; one that does nothing without
    torch or without CUDA."""
    torch = sys.modules.get("torch")  # never imported here: a program without torch has no need of it
    if torch is None or not torch.cuda.is_available():
        yield contextlib.nullcontext()
        return
    if not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
        raise FailedPreconditionError(f"regions need PyTorch 2.6 or newer; this is {torch.__version__}")
    key = (tag, keep, int(torch.cuda.current_device()))
    with _lock:
        pool = _idle[key].pop() if _idle[key] else None
    if pool is None:
        pool = torch.cuda.MemPool()
        # Never destroyed, not even with the interpreter: its end would free memory, which fails while the group is
        # paused, and torch throws that error out of the pool's destructor, which aborts the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    try:
        yield torch.cuda.use_mem_pool(pool)
    finally:
        with _lock:
            _idle[key].append(pool)


@contextlib.contextmanager
def _within(entered: _Region) -> Iterator[None]:
    outer = _thread.region
    if outer is not None:
        raise FailedPreconditionError(f'region "{entered.tag}" within region "{outer.tag}": regions do not nest')
    if not _shim.is_loaded():
        entered = _Nowhere(entered.tag)
    entered.enter()
    _thread.region = entered
    owner = threading.get_ident()
    try:
        yield
    finally:
        if threading.get_ident() == owner:
            _thread.region = None
            entered.leave()
        else:  # a suspended generator that another thread's garbage collection has closed
            warnings.warn(f'region "{entered.tag}" was left by a thread that is not in it: its own thread is in it '
                          "still", RuntimeWarning, stacklevel=2)


class _Nowhere(_Region):
    """A region without a shim: it only counts as one."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag, keep=True, pooled=False)

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass


@contextlib.contextmanager
def region(tag: str, keep: bool = True) -> Iterator[None]:
    """Device memory that this thread allocates within has the tag (1 to 31 of [A-Za-z0-9._-], not "nccl"), and a pause keeps its bytes, or
    drops them and brings the memory back zeroed.

        with amem.region("kv_cache", keep=False):
            cache = torch.empty(size, device="cuda")

    Needs a process started with scope "regions" or "heap". Without a shim it does nothing, so that the same program
    runs with and without amem. Other threads are not affected: autograd's, for example. Regions do not nest.

    PyTorch's caching allocator hands out memory that was freed elsewhere, with that memory's tag. So when torch has
    been imported and has CUDA, the region also allocates from a torch.cuda.MemPool of its own for each tag, keep and
    device (the current one; for another: `with torch.cuda.device(1), amem.region(...)`). The pool's segments are then
    allocated by this thread within the region, which is where the shim gives them the tag. That is all it takes: a
    pluggable allocator would only be told of the same segments by another way. What is freed goes back to the pool,
    for the next region of that tag.

    With torch before 2.8 a pool takes what all threads allocate while a region is entered: use regions there only
    while no other thread allocates.

    FailedPreconditionError: within a region, or torch is older than 2.6, which has no such pools.
    InvalidArgumentError: the tag.
    """
    with _within(_Region(tag, keep, pooled=True)):
        yield


@contextlib.contextmanager
def region_of_callers_pool(tag: str, keep: bool) -> Iterator[None]:
    """A region that leaves it to the caller where torch allocates, e.g. in a graph's pool."""
    with _within(_Region(tag, keep, pooled=False)):
        yield


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Leaves this thread's region, when it is in one, for a while: what is allocated then is ordinary memory."""
    left = _thread.region
    if left is None:
        yield
        return
    left.leave()
    _thread.region = None
    try:
        yield
    finally:
        left.enter()
        _thread.region = left
