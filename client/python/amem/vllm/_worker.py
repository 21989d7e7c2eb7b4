"""vLLM's GPU worker with sleep mode by amem. Only vLLM's worker processes import it; the worker's thread."""
from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import vllm.v1.worker.gpu_worker
from vllm.device_allocator.cumem import CuMemAllocator

from amem import _rank, _regions, _shim
from amem.errors import AbortedError, DeadlineExceededError, Error, FailedPreconditionError, NotFoundError
from amem.frameworks import hook
from amem.frameworks._known import known
from amem.vllm import BACKEND, DEFERRABLE, check_sleep_mode, only_tags, sleeps_deep

_logger = logging.getLogger("vllm.amem")
_CACHE, _GRAPHS, _NCCL = "kv_cache", "cudagraph", "nccl"
_NOT_THERE = re.compile(r"no memory of tag '([^']+)'")
_MISSING = "not every rank asked for it in time; missing: "


class Allocator:
    """Replaces vLLM's CuMemAllocator. Its pools are regions, and its sleep is a pause of the whole group.

    So a sleep also pauses NCCL's memory, graphs and workspaces. With only_tags(), a sleep pauses only the pools.

    Attributes:
        asleep: The tags that a sleep or a discard has paused.
        paused: Whether a pause of this allocator has paused something, or may have.
        torn: Whether the last pause has failed midway.
        takes_nccl: With only_tags(): whether a sleep also pauses NCCL's memory.
    """

    def __init__(self) -> None:
        """Makes an allocator without pools."""
        self._tags: set[str] = set()  # of all pools so far
        self._graphs: Any = None  # torch's pool
        self.forget()

    def forget(self) -> None:
        """Forgets all pools, because the engine has ended."""
        self._tags.clear()
        self.asleep: set[str] = set()
        self.paused = False  # a pause of ours has taken something, or may have
        self.torn = False  # it has failed meanwhile
        self._rest_paused = False  # also what is in no pool
        self.takes_nccl = False  # with only_tags(): NCCL's memory leaves with the pools

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Makes a pool of vLLM: a region that keeps its bytes.

        The region keeps them because an operator may pause the group while requests run. A sleep names the tags that it drops.

        Args:
            tag: The pool's tag, such as "weights" or "kv_cache". None: "default".

        Returns:
            A context manager, which belongs to the thread that enters it. Pools can nest.

        Raises:
            FailedPreconditionError: PyTorch is older than 2.6.
            InvalidArgumentError: The tag is not valid.
        """
        tag = tag or "default"
        self._tags.add(tag)
        with _regions.outside(), _regions.region(tag):  # vLLM's pools nest
            yield

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """Makes the pool for the graphs that vLLM captures. If a sleep pauses the whole group, vLLM does not use it.

        Returns:
            A context manager. Its value is the id of torch's pool: two numbers.

        Raises:
            Error: The shim refuses the region.
        """
        if self._graphs is None:
            self._graphs = torch.cuda.MemPool()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._graphs))  # it lives on, as the pools of regions do
        self._tags.add(_GRAPHS)
        with _regions.outside(), _regions.region_of_callers_pool(_GRAPHS, keep=True):
            yield self._graphs.id

    def sleep(self, offload_tags: Iterable[str] | str | None = None) -> None:
        """Pauses the pools, and without only_tags() also the rest of the group. Every worker must call it.

        Args:
            offload_tags: The tags whose bytes the pause keeps. None: "default". It drops the bytes of the other pools, and a wake
                provides zeros for them.

        Raises:
            AbortedError: A rank has died. Some of the memory may be paused.
            DeadlineExceededError: A rank did not call in time. Some of the memory may be paused.
            Error: The errors of amem.pause(). The group is as it was.
            FailedPreconditionError: The engine is already asleep.
        """
        kept = {"default"} if offload_tags is None else {offload_tags} if isinstance(offload_tags, str) else set(offload_tags)
        tags = self._tags | {_NCCL} if self.takes_nccl else self._tags
        going = tags - self.asleep  # the others left by an earlier sleep, or have been discarded
        if not going and (self._rest_paused or only_tags()):
            raise FailedPreconditionError("the engine is already asleep. Wake it up first")
        torch.cuda.empty_cache()  # what torch keeps for later need not be copied
        drop = going - kept - {_NCCL}  # every rank asks for the same
        if _CACHE in drop and os.environ.get("AMEM_VLLM_CACHE_FIRST") == "1":
            # Its space is free for another engine while the rest is being copied.
            self._pause({_CACHE}, {_CACHE})
            going, drop = going - {_CACHE}, drop - {_CACHE}
        self._pause(going, drop, whole=not only_tags())

    def discard(self, tags: Iterable[str] | str) -> None:
        """Drops the bytes of tags, and frees their GPU memory. The rest runs on. Every worker must call it.

        Args:
            tags: One tag, or several tags. Tags that are already asleep, or that no pool has, do not count.

        Raises:
            Error: The errors of sleep().
        """
        going = {tags} if isinstance(tags, str) else set(tags)
        going = going & self._tags - self.asleep
        self._pause(going, going)

    def _pause(self, going: set[str], drop: set[str], whole: bool = False) -> None:
        """Pauses the tags `going`, or everything."""
        try:
            there = _of_those_there(going, lambda tags: _rank.pause(None if whole else tags, discard=sorted(drop.intersection(tags))),
                                    whole)
        except (AbortedError, DeadlineExceededError) as error:
            # Some of it may have left; after other errors the group is as it was.
            self.paused = self.torn = True
            self._rest_paused |= whole
            if _MISSING in str(error):
                raise DeadlineExceededError(f"{error}. If a rank that is missing belongs to another engine or to a trainer, start each "
                                            "of them in its own group (AMEM_GROUP)") from None
            raise
        if there or whole:
            self.paused = True
            self.asleep = self.asleep | there
            self._rest_paused |= whole

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Resumes memory that is asleep. Every worker must call it.

        Args:
            tags: Which of "weights" and "kv_cache" return. All other tags return, too. None: everything returns.

        Raises:
            Error: The errors of amem.resume(). The engine sleeps on.
        """
        self.wake(set() if tags is None else self.asleep.intersection(DEFERRABLE) - set(tags))

    def wake(self, left: set[str]) -> None:
        """Resumes all tags except some. Does nothing if nothing is paused.

        Args:
            left: The tags that stay paused.

        Raises:
            Error: The errors of amem.resume(). The engine sleeps on.
        """
        if not self.paused:
            return  # nothing to bring back
        if not left and not only_tags():
            _rank.resume()
        elif self._rest_paused:
            # NCCL's memory and workspaces are needed to bring new weights.
            _rank.resume(except_tags=sorted(left))
        else:
            _of_those_there((self._tags if self.torn else self.asleep) - left, _rank.resume)
        self.asleep, self.paused, self._rest_paused, self.torn = self.asleep & left, bool(left), False, False

    def get_current_usage(self) -> int:
        """Returns the size of the pools. vLLM uses it to find memory of another engine in this process.

        Returns:
            The number of bytes, on the GPU or paused.
        """
        return sum(each.resident_bytes + each.paused_bytes
                   for each in _rank.stats().brokered if each.tag in self._tags)


def _of_those_there(tags: set[str], operate: Callable[[list[str]], None], whole: bool = False) -> set[str]:
    """Operates on the tags, without tags that the group has no memory with, such as a pool that nobody used.

    Args:
        tags: The tags.
        operate: A function that pauses or resumes a list of tags.
        whole: Call it also if no tag is left.

    Returns:
        The tags that have memory.
    """
    while tags or whole:
        try:
            operate(sorted(tags))
            break
        except NotFoundError as error:  # all ranks of the group get the same one
            absent = tags.intersection(_NOT_THERE.findall(str(error)))
            if not absent:
                raise
            tags = tags - absent
    return tags


_allocator = Allocator()


class Worker(vllm.v1.worker.gpu_worker.Worker):  # type: ignore[misc]
    """vLLM's GPU worker with sleep mode by amem: --worker-cls amem.vllm.Worker.

    vLLM makes it in each worker process, and calls it in the main thread of that process.
    """

    def __init__(self, vllm_config: Any, *args: Any, **options: Any) -> None:
        """Makes the worker, and replaces vLLM's allocator by amem's.

        Args:
            vllm_config: vLLM's VllmConfig.
            *args: The other arguments of vLLM's worker.
            **options: The other arguments of vLLM's worker, by name.

        Raises:
            FailedPreconditionError: The worker of this vLLM lacks a function that amem needs, or the process has no shim, or the
                memory is not in its scope.
            InvalidArgumentError: The engine's sleep mode is off.
            UnavailableError: There is no broker.
        """
        _check_worker()
        check_sleep_mode(vllm_config.model_config.enable_sleep_mode)
        known()["vllm"].check_process()
        self._amem_before: set[str] = set()  # what was asleep before the sleep under way
        super().__init__(vllm_config, *args, **options)
        # All of vLLM's ways to its allocator end there.
        CuMemAllocator.get_instance = staticmethod(lambda: _allocator)
        _choose_backend(vllm_config.model_config)

    def init_device(self) -> None:
        """Calls vLLM's method, and then checks that this process has a session with the broker.

        Raises:
            FailedPreconditionError: It has no session.
        """
        super().init_device()
        if not _rank.is_active():
            raise FailedPreconditionError(
                "this vLLM worker has no session with amemd, so it cannot sleep by amem. The line of its log that begins with "
                "`amem:` says why. A forked worker never has a session: set VLLM_WORKER_MULTIPROC_METHOD=spawn")

    def sleep(self, level: int = 1) -> None:
        """Puts the worker to sleep. When it returns, the worker's GPU memory is free.

        Args:
            level: 1 keeps the bytes of the weights, 2 drops them. Level 0 only stops the engine's scheduling and does not call it.

        Raises:
            Error: The errors of amem.pause().
            FailedPreconditionError: An operator has paused the group, or the engine is already asleep, or the broker does not
                allow deep pauses and AMEM_VLLM_SLEEP is "deep".
        """
        self._amem_begin()
        try:
            super().sleep(level)
        except AssertionError as error:
            # vLLM compares the device's free memory at the end. Another engine may have taken its turn by then.
            if not _allocator.asleep - self._amem_before:
                raise
            _logger.info("amem: the engine sleeps. %s", error)
        if sleeps_deep():  # not before: vLLM still asks the driver for the free memory, and would wait for the wake
            _rank.pause(deep=True)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Resumes the worker's memory.

        Args:
            tags: Which of "weights" and "kv_cache" return. All other tags return, too. None: everything returns.

        Raises:
            Error: The errors of amem.resume(). The worker sleeps on.
        """
        saved: dict[str, Any] = getattr(self, "_sleep_saved_buffers", {})
        later = saved and tags is not None and "weights" not in tags and "weights" in _allocator.asleep
        if later:  # until 0.26 vLLM restores buffers, which lie among the weights, with any wake
            self._sleep_saved_buffers = {}
        try:
            super().wake_up(tags)
        finally:
            if later:
                self._sleep_saved_buffers = saved

    def discard(self, tags: tuple[str, ...]) -> None:
        """Drops the bytes of tags, and frees their GPU memory. vLLM 0.31 and later call it.

        Args:
            tags: The pools, such as ("kv_cache",).

        Raises:
            Error: The errors of amem.pause().
            FailedPreconditionError: An operator has paused the group.
        """
        self._amem_begin()
        super().discard(tags)

    def _amem_begin(self) -> None:
        """Call it before vLLM touches the GPU or unregisters its cache. FailedPreconditionError: an operator has paused the group."""
        self._amem_before = set(_allocator.asleep)
        if _shim.is_shut():
            raise FailedPreconditionError(f"an operator has paused the group '{_rank.group()}'. Resume it first")

    def amem_call(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
        """Calls a method and returns its error as a text. If a worker raised, vLLM would not read the answers of the other workers.

        Args:
            method: "sleep", "wake_up" or "discard".
            args: The method's arguments.
            options: The method's arguments by name.

        Returns:
            An empty text, or the error, which begins with the method's name.
        """
        try:
            getattr(self, method)(*args, **options)
        except Error as error:
            return f"{method}: {error}"
        except Exception as error:  # noqa: BLE001: the other workers' answers must be read, too
            _logger.exception("amem: %s failed", method)
            return f"{method}: {type(error).__name__}: {error}"
        return ""

    def amem_come_back(self) -> None:
        """Resumes memory after a sleep or a discard has failed, in this or in another worker.

        It does not resume memory that an operator has paused.

        Raises:
            Error: The errors of amem.resume().
        """
        before = self._amem_before
        if _allocator.torn or _allocator.asleep != before:
            if not before:
                super().wake_up()
                return
            _allocator.wake(before)
        for name, saved in vars(self).items():  # what vLLM has saved of the weights, for level 2: it is where it was
            if name.startswith("_sleep_saved_"):
                saved.clear()
        if _CACHE not in before and not _shim.is_shut():
            _register_cache()

    def shutdown(self) -> None:
        """Calls vLLM's method, and forgets the engine's pools."""
        super().shutdown()
        _allocator.forget()


def _register_cache() -> None:
    """Registers the cache again with the KV connector, which vLLM 0.33 and later unregister for a sleep. Does nothing otherwise."""
    worker = vllm.v1.worker.gpu_worker
    if hasattr(worker, "has_kv_transfer_group") and worker.has_kv_transfer_group():
        restore = getattr(worker.get_kv_transfer_group(), "restore_kv_caches", None)
        if restore is not None:
            restore()


def _check_worker() -> None:
    """FailedPreconditionError: the worker of this vLLM lacks a function that amem needs."""
    worker = vllm.v1.worker.gpu_worker.Worker
    hook(worker, "init_device", "self")
    hook(worker, "sleep", "self", "level")
    hook(worker, "wake_up", "self", "tags")
    hook(worker, "shutdown", "self")
    hook(CuMemAllocator, "get_instance")
    hook(CuMemAllocator, "use_memory_pool", "self", "tag")


def _choose_backend(model_config: Any) -> None:
    """Chooses the sleep-mode backend of vLLM 0.25 and later, and handles options of vLLM that concern amem."""
    if getattr(model_config, "enable_nccl_comm_suspend", False):
        # ncclCommSuspend() would be refused in a group that is paused. NCCL's memory leaves in the pause itself.
        _logger.info("amem: amem pauses NCCL's memory with the rest, so vLLM does not suspend its communicators (enable_nccl_comm_suspend)")
        model_config.enable_nccl_comm_suspend = False
        _allocator.takes_nccl = only_tags()
    if not hasattr(model_config, "sleep_mode_backend"):
        return
    if only_tags() and getattr(model_config, "sleep_mode_offload_cudagraph", False):
        # vLLM makes a pool for its graphs if the backend is called cumem. The allocator is amem's in either case. Where
        # everything leaves, graphs leave without a pool.
        model_config.sleep_mode_backend = "cumem"
        return
    backends = importlib.import_module("vllm.device_allocator.sleep_mode_backend")
    if BACKEND not in backends.SleepModeBackendFactory._registry:
        backends.SleepModeBackendFactory.register_backend(BACKEND, "amem.vllm._backend", "Backend")
    model_config.sleep_mode_backend = BACKEND
