"""Regions: memory that a thread allocates within a region gets a tag and a policy."""
from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from amem import _shim
from amem._arguments import tag_name
from amem.errors import FailedPreconditionError, ResourceExhaustedError

_logger = logging.getLogger("amem")

_KEEP, _DISCARD = 1, 2  # amem_policy
_WORTH_EMPTYING = 1 / 32  # of the device's free memory; see _make_space()
_MOST_KEPT = 1 / 32  # of the device's memory; see _give_up()
_AWAITED = ("a task of asyncio has awaited within {}, so it has left it there: what it allocated afterwards is not in it. Let the task "
            "await before or after it, or allocate in a thread (asyncio.to_thread)")


@dataclasses.dataclass(eq=False)
class _Kept:
    """A torch.cuda.MemPool that regions use again: what was freed in one is there for the next."""
    pool: Any
    size: int = 0  # the most device memory that PyTorch can have got for it


# Those that no region is in, by tag, keep and device; what is not brokered has no tag. Two threads cannot allocate into one
# pool at the same time, so a stretch takes a pool and gives it back.
_idle: dict[tuple[str, bool, int], list[_Kept]] = collections.defaultdict(list)
_given_up: set[tuple[Any, ...]] = set()  # pools that no region uses again, by torch's id
_tags: dict[tuple[Any, ...], str] = {}  # of all pools
_observing = False  # _explain_shortage() is attached
_explained = False  # and has spoken
_lock = threading.Lock()


class _Thread(threading.local):
    stretch: _Stretch | None = None


_thread = _Thread()


class _Stretch:
    """A stretch of one thread's time, which the thread can leave and enter again. Without a shim it has no effect."""

    def __init__(self, name: str, begin: tuple[Any, ...], end: str, pool: Callable[[], _Pool]) -> None:
        self.name = name
        self.awaited = False  # its task has awaited within, so the thread has left it
        self._begin, self._end = begin, end  # calls of the shim
        self._pool = pool
        self._entered = contextlib.ExitStack()
        self._task: Any = None  # the task of asyncio that has entered it

    def enter(self) -> None:
        if not _shim.is_loaded():
            return
        with contextlib.ExitStack() as stack:
            # First, because torch may have to initialise CUDA for it, and what that allocates is not the stretch's.
            allocate = stack.enter_context(self._pool())
            _shim.call(*self._begin)
            stack.callback(_shim.call, self._end)
            stack.enter_context(allocate)
            self._entered = stack.pop_all()

    def leave(self) -> None:
        self._entered.close()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Leaves the stretch when its task awaits, for what other tasks allocate then is not the stretch's.

        The event loop calls back before it goes on with this task. The thread cannot enter the stretch again then: nobody tells when.
        """
        self._task = _current_task()
        if self._task is None:
            yield
            return
        loop = self._task.get_loop()
        handle = loop.call_soon(self._set_aside)
        # Before tasks that are ready already. A loop without this name runs them first.
        ready = getattr(loop, "_ready", None)
        if isinstance(ready, collections.deque) and ready and ready[-1] is handle:
            ready.rotate(1)
        try:
            yield
        finally:
            handle.cancel()

    def set_aside_if_suspended(self) -> None:
        """For a task that runs before the event loop calls back."""
        task = self._task
        if task is not None and task is not _current_task() and not getattr(task.get_coro(), "cr_running", False):
            self._set_aside()

    def _set_aside(self) -> None:
        self.awaited = True
        if _thread.stretch is self:
            _thread.stretch = None
            self.leave()


def _current_task() -> Any:
    """None: this thread runs no task of asyncio."""
    asyncio = sys.modules.get("asyncio")  # never imported here, as torch
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return None


def _present() -> _Stretch | None:
    """The stretch that this thread is in."""
    if _thread.stretch is not None:
        _thread.stretch.set_aside_if_suspended()
    return _thread.stretch


_Pool = contextlib.AbstractContextManager[contextlib.AbstractContextManager[Any]]


def _region(tag: str, keep: bool, pool: Callable[[], _Pool]) -> _Stretch:
    begin = ("amem_shim_region_begin", tag_name(tag).encode(), _KEEP if keep else _DISCARD)
    return _Stretch(f'region "{tag}"', begin, "amem_shim_region_end", pool)


@contextlib.contextmanager
def _pool_of(tag: str, keep: bool, dispose: bool = False) -> Iterator[contextlib.AbstractContextManager[Any]]:
    """A context in which torch allocates from a pool that no other thread uses meanwhile.

    It does nothing without torch or without CUDA. `dispose`: the pool is new and ends with the context.
    """
    torch = sys.modules.get("torch")  # never imported here: a program without torch has no need of it
    if torch is None or not torch.cuda.is_available():
        yield contextlib.nullcontext()
        return
    if not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
        raise FailedPreconditionError(f"regions require PyTorch 2.6 or newer. This is PyTorch {torch.__version__}")
    _make_space(torch)
    _observe_shortages(torch)
    if dispose:
        pool = torch.cuda.MemPool()
        yield torch.cuda.use_mem_pool(pool)
        return
    device = int(torch.cuda.current_device())
    key = (tag, keep, device)
    with _lock:
        kept = _idle[key].pop() if _idle[key] else None
    if kept is None:
        kept = _Kept(torch.cuda.MemPool())
        # Never destroyed, not even with the interpreter: its end would free memory, which fails while the group is
        # paused, and torch throws that error out of the pool's destructor, which aborts the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept.pool))
        _tags[tuple(kept.pool.id)] = tag
    before = _reserved(torch, device)
    try:
        yield torch.cuda.use_mem_pool(kept.pool)
    finally:
        kept.size += max(0, _reserved(torch, device) - before)  # with what other threads have got meanwhile
        with _lock:
            _idle[key].append(kept)
        _give_up(torch, device)


def _reserved(torch: Any, device: int) -> int:
    """How much device memory PyTorch has got and not given back. 0 if its allocator has no numbers."""
    with contextlib.suppress(RuntimeError):
        return int(torch.cuda.memory_stats(device).get("reserved_bytes.all.current", 0))
    return 0


def _give_up(torch: Any, device: int) -> None:
    """Gives up idle pools, the largest first, until the others have at most 1/32 of the device's memory.

    When ordinary memory runs out, or the program empties the cache, PyTorch gives back what is free in its ordinary cache,
    and in pools that nobody will use again, but nothing of other pools: that would be lost to the program until the next
    region with this tag. No place is safe to empty these others at that time, as _make_space() says. So a pool that has
    got much is PyTorch's to empty as soon as its region has ended, whenever its memory is freed. Its price: the next region
    has a new pool, and does not find what was freed in this one. A pool that has little is used again, or each region would
    have segments of 2 and 20 MiB of its own.
    """
    with contextlib.suppress(RuntimeError, AttributeError):  # a device that has failed; a PyTorch without these calls
        spare = int(torch.cuda.get_device_properties(device).total_memory * _MOST_KEPT)
        with _lock:
            idle = sorted(((each, key) for key, all in _idle.items() if key[2] == device for each in all),
                          key=lambda each: each[0].size)
            for kept, key in idle:
                spare -= kept.size
                if spare < 0:
                    torch._C._cuda_releasePool(device, kept.pool.id)  # the last use: all regions have ended
                    _given_up.add(tuple(kept.pool.id))
                    _idle[key].remove(kept)


def give_back(tag: str) -> int:
    """Gives what is free in a tag's idle pools back to the current device. The next region with this tag has a new pool.

    Returns the free bytes that stay, because the rest of their segments is in use.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    with contextlib.suppress(RuntimeError, AttributeError):  # as in _give_up()
        device = int(torch.cuda.current_device())
        with _lock:
            for keep in (True, False):
                idle = _idle[tag, keep, device]
                while idle:
                    torch._C._cuda_releasePool(device, idle[-1].pool.id)
                    _given_up.add(tuple(idle.pop().pool.id))
        torch.cuda.empty_cache()
        return _free_in_segments(device)[1].get(tag, 0)
    return 0


def _make_space(torch: Any) -> None:
    """Empties PyTorch's ordinary cache, so that the stretch that this thread is about to enter has space on the device.

    When an ordinary allocation finds no space, PyTorch empties its cache and tries again. While a pool is in use it does
    not: PyTorch 2.6 to 2.11 take every pool for a graph's capture (c10/cuda/CUDACachingAllocator.cpp). Inside the stretch
    torch.cuda.empty_cache() leaves the ordinary cache alone for the same reason. No later place is safe:
    - Where the shim finds no space, the calling thread holds the lock of PyTorch's allocator.
    - PyTorch calls its FreeMemoryCallbacks with that lock held, too.
    - PyTorch calls its observers of missing memory without the lock, but raises the error whatever they do.
    - A failed call cannot simply be made again: it may have changed memory before it failed.
    For the other direction (_give_up()) MemPool(use_on_oom=True) would do, but ordinary memory would get the region's tag
    and policy. Here no pool is in use by this thread yet, and the thread is in Python, so it holds no lock of PyTorch's.
    empty_cache() takes the allocator's lock itself and releases the interpreter's meanwhile.

    Nobody knows how much the stretch will allocate. Emptying costs a wait for the device, and new segments afterwards. So
    the cache is emptied only where it has more than 1/32 of what the device has free: less would rarely help. Free memory
    in pools that regions use again does not count, because emptying leaves it there.
    """
    device = torch.cuda.current_device()
    if torch.cuda.is_current_stream_capturing():
        return  # giving memory back would break the capture
    # A pluggable allocator has no numbers and raises. A device that has failed raises, too: it says so in the next call.
    with contextlib.suppress(RuntimeError):
        stats = torch.cuda.memory_stats(device)
        # The most that there can be: pools have some of it, and a segment that is partly in use is given back only if it
        # is expandable.
        cached = stats.get("reserved_bytes.all.current", 0) - stats.get("active_bytes.all.current", 0)
        if cached <= 0:
            return
        least = torch.cuda.mem_get_info(device)[0] * _WORTH_EMPTYING
        # While another thread captures or is in a pool, PyTorch 2.6 and 2.7 raise, and newer ones do nothing.
        if cached > least and _would_be_given_back(torch, device) > least:
            torch.cuda.empty_cache()


def _would_be_given_back(torch: Any, device: int) -> float:
    """How many bytes of a device PyTorch would free if it emptied its cache.

    Infinite if the snapshot of this PyTorch lacks the figures.
    """
    free = 0
    try:
        for segment in torch.cuda.memory_snapshot():
            pool = tuple(segment["segment_pool_id"])
            if segment["device"] != device or (pool != (0, 0) and pool not in _given_up):
                continue
            if segment["active_size"] == 0 or segment["is_expandable"]:
                free += segment["total_size"] - segment["active_size"]
    except (KeyError, TypeError):
        return math.inf
    return free


def _observe_shortages(torch: Any) -> None:
    global _observing
    with _lock:
        if _observing:
            return
        _observing = True
    with contextlib.suppress(AttributeError, RuntimeError):  # not every PyTorch and not every allocator of it has observers
        torch._C._cuda_attach_out_of_memory_observer(_explain_shortage)


def _explain_shortage(device: int, wanted: int, _total: int, _free: int) -> None:
    """Logs once where PyTorch has free memory that the failed allocation could not use.

    PyTorch calls it without its allocator's lock, and then raises its own error. An error from here would replace that error.
    """
    global _explained
    if _explained:
        return
    with contextlib.suppress(Exception):
        cached, pools = _free_in_segments(device)
        stretch = _thread.stretch
        if stretch is not None and cached > 0:
            _explained = True
            _logger.warning(
                "amem: device %d has no space for %d bytes in %s. PyTorch's ordinary cache has up to %d free bytes, but PyTorch does "
                "not release them inside a region. Free memory before you enter the region, or leave the region and "
                "enter it again", device, wanted, stretch.name, cached)
        elif stretch is None and pools:
            _explained = True
            _logger.warning(
                "amem: device %d has no space for %d bytes. The pools of regions have free bytes that PyTorch has not released: "
                "%s. It does not release them while a thread is in a region or captures a graph, nor segments that are partly "
                "in use. Allocate this memory in one of these regions, or before the program enters them", device, wanted,
                ", ".join(f"{tag or 'unbrokered'} {size}" for tag, size in sorted(pools.items())))


def _free_in_segments(device: int) -> tuple[int, dict[str, int]]:
    """How much memory of a device PyTorch has free: in its ordinary cache, and in the pools of regions by tag."""
    cached, pools = 0, collections.Counter[str]()
    for segment in sys.modules["torch"].cuda.memory_snapshot():
        size = segment["total_size"] - segment["active_size"]
        if segment["device"] != device or size <= 0:
            continue
        pool = tuple(segment["segment_pool_id"])
        if pool == (0, 0):
            cached += size
        elif pool in _tags:
            pools[_tags[pool]] += size
    return cached, pools


@contextlib.contextmanager
def _within(entered: _Stretch) -> Iterator[None]:
    outer = _present()
    if outer is not None:
        raise FailedPreconditionError(f"regions cannot nest: {entered.name} was entered within {outer.name}")
    entered.enter()
    _thread.stretch = entered
    owner = threading.get_ident()
    well = False
    try:
        with entered.watched():
            yield
        well = True
    finally:
        if threading.get_ident() != owner:  # a suspended generator that another thread's garbage collection has closed
            _logger.warning("amem: a thread that had not entered %s tried to leave it. The thread that entered it is still in it",
                            entered.name)
        elif not entered.awaited:
            _thread.stretch = None
            entered.leave()
        elif well:
            raise FailedPreconditionError(_AWAITED.format(entered.name))
        else:
            _logger.warning("amem: %s", _AWAITED.format(entered.name))


def is_inside() -> bool:
    """Whether this thread is in a region or in an unbrokered stretch."""
    return _thread.stretch is not None


@contextlib.contextmanager
def region(tag: str, keep: bool = True) -> Iterator[None]:
    """Sets the tag and the policy of the device memory that this thread allocates within.

        with amem.region("kv_cache", keep=False):
            cache = torch.empty(size, device="cuda")

    The process must have the scope "regions" or "heap". Without a shim, the region does nothing, so the same program runs
    with and without amem. A region does not affect other threads, such as autograd's. Regions cannot nest.

    PyTorch's caching allocator reuses freed memory, which still has its old tag. So if torch is imported and has CUDA, the region
    also allocates from its own torch.cuda.MemPool, which is of its tag, `keep` and device. The device is the current one; to use
    another: `with torch.cuda.device(1), amem.region(...)`. This thread allocates the pool's segments within the region, so the
    shim gives them the tag. Freed memory returns to the pool, and the next region with that tag uses it again, while all such
    pools together have at most 1/32 of the device's memory. A larger pool is not used again after its region. Its free memory
    then goes back to the device when the ordinary cache's does: when ordinary memory runs out, with torch.cuda.empty_cache(), or
    when a thread enters a region.

    Within a region, torch does not use its ordinary cache. So a thread that enters a region first empties this cache, if the
    cache has more than 1/32 of the device's free memory. Memory that the program frees later, within the region, stays in
    the cache until a thread enters a region again.

    With torch before 2.8, a pool also takes what other threads allocate during a region. Use regions there only while no
    other thread allocates.

    Args:
        tag: 1 to 31 characters of [A-Za-z0-9._-], not "nccl".
        keep: A pause keeps the bytes. False: a pause drops them, and a resume provides zeros.

    Returns:
        A context manager, which belongs to the thread that enters it.

    Raises:
        FailedPreconditionError: The thread is already in a region, or PyTorch is older than 2.6, which has no such pools. At the
            end: the task has awaited within, and has left the region there.
        InvalidArgumentError: The tag is not valid.
    """
    with _within(_region(tag, keep, lambda: _pool_of(tag, keep))):
        yield


@contextlib.contextmanager
def region_of_callers_pool(tag: str, keep: bool) -> Iterator[None]:
    """A region without a pool: the caller chooses where torch allocates, for example in a graph's pool."""
    with _within(_region(tag, keep, lambda: contextlib.nullcontext(contextlib.nullcontext()))):
        yield


@contextlib.contextmanager
def unbrokered() -> Iterator[None]:
    """Keeps the device memory that this thread allocates within unbrokered, so it belongs to the driver.

        with amem.unbrokered():
            staging = torch.empty(size, device="cuda")

    This memory stays on the GPU through a pause, and the pause reports its size. Use it for memory that must stay, and for memory
    that a NIC or another group uses. Any thread may free it at any time. You may use unbrokered() within a region, which
    continues afterwards. A second unbrokered() within the first changes nothing, and a region within it raises an error. NCCL's
    memory is still brokered. With torch, the memory comes from its own pool, and freed memory goes where a region's goes. Without
    a shim, it does nothing.

    Returns:
        A context manager, which belongs to the thread that enters it.

    Raises:
        FailedPreconditionError: torch is older than 2.6, or the shim of this process is older than this call.
    """
    with unbrokered_stretch(dispose=False):
        yield


@contextlib.contextmanager
def unbrokered_stretch(dispose: bool) -> Iterator[None]:
    """As unbrokered().

    `dispose`: torch allocates from a new pool. At the end, the pool's free memory returns to the driver. The rest returns
    when the program frees it.
    """
    stretch = _Stretch("an unbrokered stretch", ("amem_shim_unbrokered_begin",), "amem_shim_unbrokered_end",
                       lambda: _pool_of("", True, dispose))
    with outside(), _within(stretch):
        yield


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Leaves this thread's region or unbrokered stretch for a while, if the thread is in one.

    Memory that the thread allocates then is ordinary memory.
    """
    left = _present()
    if left is None:
        yield
        return
    left.leave()
    _thread.stretch = None
    owner = threading.get_ident()
    try:
        yield
    finally:
        # Not in a generator that another thread's garbage collection has closed.
        if threading.get_ident() == owner and not left.awaited:
            left.enter()
            _thread.stretch = left


def move(tensors: Iterable[Any], tag: str, keep: bool = True) -> int:
    """Moves the memory of CUDA tensors into a region. Use it for memory that a library has allocated outside of regions.

        amem.move(optimizer_state, "optimizer")

    The tensors and all their views stay valid and keep their bytes, but their addresses change. So call it before the
    program captures CUDA graphs, registers buffers with NCCL, or shares memory by CUDA IPC. The call skips memory that is
    already in such a region, so a second call is cheap. It also skips tensors on the CPU, and memory that torch cannot
    resize. If the device has no space for one more copy of the largest tensor, the copy goes through the CPU's memory. The
    call waits for the device. It requires the scope "regions" or "heap". Without a shim, it does nothing.

    Args:
        tensors: Tensors of torch, of any shapes and devices. They stay the caller's.
        tag: As for region().
        keep: As for region().

    Returns:
        The number of bytes that the call has moved.

    Raises:
        ResourceExhaustedError: The device has no space for the region. No bytes are lost. Tensors that the call has already
            moved stay in the region.
        FailedPreconditionError: The errors of region().
        InvalidArgumentError: The tag is not valid.
    """
    tag_name(tag)
    if not _shim.is_loaded():
        return 0
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.device.type == "cuda" and storage.nbytes() > 0 and storage.resizable():
            storages[storage.data_ptr()] = storage
    # A mark goes with the storage, and says at which address it was made: others may resize it, too.
    todo = [each for at, each in storages.items() if getattr(each, "_amem_region", None) != (tag, keep, at)]
    if not todo:
        return 0
    torch = sys.modules["torch"]
    for device in {each.device for each in todo}:
        torch.cuda.synchronize(device)
    for storage in todo:
        with torch.cuda.device(storage.device):
            _move_one(torch, storage, tag, keep)
    for device in {each.device for each in todo}:
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # where they were
    return sum(int(each.nbytes()) for each in todo)


def _move_one(torch: Any, storage: Any, tag: str, keep: bool) -> None:
    size = storage.nbytes()
    with outside():
        try:
            copy = storage.clone()
        except torch.OutOfMemoryError:
            copy = storage.cpu()
        storage.resize_(0)
        for _ in range(2):
            try:
                with region(tag, keep):
                    storage.resize_(size)
                break
            except torch.OutOfMemoryError:
                copy = copy.cpu()
                torch.cuda.empty_cache()  # with the space that it had
        else:
            storage.resize_(size)
            storage.copy_(copy)
            raise ResourceExhaustedError(f'device {storage.device} has no space for a tensor of {size} bytes in the region "{tag}"')
        storage.copy_(copy)
    storage._amem_region = (tag, keep, storage.data_ptr())
