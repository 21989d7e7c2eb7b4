"""vLLM's GPU worker with sleep mode by amem. Only vLLM's worker processes import it; the worker's thread."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import vllm.v1.worker.gpu_worker
from vllm.device_allocator.cumem import CuMemAllocator

from amem import _rank, _regions, _shim, _together
from amem.errors import AbortedError, DeadlineExceededError, Error, FailedPreconditionError, NotFoundError
from amem.frameworks import hook
from amem.frameworks._known import known
from amem.vllm import BACKEND, DEFERRABLE, _register_backend, check_allocator, check_sleep_mode, only_tags, sleeps_deep

_logger = logging.getLogger("vllm.amem")
_CACHE, _GRAPHS, _NCCL, _WEIGHTS = "kv_cache", "cudagraph", "nccl", "weights"
_EXPANDABLE = "expandable_segments:"
_PATIENCE = 1800.0  # seconds for the other ranks of the group; a rank may first have to end its requests
_LONG = 30.0  # seconds, as amemd then logs which ranks it waits for
_NOT_THERE = re.compile(r"no memory of tag '([^']+)'")
_MISSING = "not every rank asked for it in time; missing: "
_ALONE = "with AMEM_VLLM_SLEEP=tags, or with a group for each engine and trainer (AMEM_GROUP), each sleeps and wakes by itself"


class Allocator:
    """Replaces vLLM's CuMemAllocator. Its pools are regions, and its sleep is a pause of the whole group.

    So a sleep also pauses NCCL's memory, graphs and workspaces. With only_tags(), a sleep pauses only the pools.

    Attributes:
        asleep: The tags that a sleep or a discard has paused.
        paused: Whether a pause of this allocator has paused something, or may have.
        torn: Whether the last pause has failed midway.
        takes_nccl: With only_tags(): whether a sleep also pauses NCCL's memory.
        ranks: The engine's name and the number of its workers on this node. They pause and resume tags as one. None: this worker alone.
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
        self.ranks: tuple[str, int] | None = None

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
        if _regions.is_inside():  # vLLM's pools nest
            with _regions.outside(), _regions.region(tag):
                yield
            return
        with _fixed_segments():
            with _regions.region(tag):
                yield
        if tag == _WEIGHTS:
            # Loading leaves free segments, for example of weights that were quantized. The cache is to have them.
            stay = _regions.give_back(tag)
            if stay:
                _logger.info("amem: the pool %s has %d free bytes that stay on the GPU, because the rest of their segments is in use",
                             tag, stay)

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
            with _watched("sleep", whole):
                there = _of_those_there(going, lambda tags: _rank.pause(None if whole else tags, **self._options(whole),
                                                                        discard=sorted(drop.intersection(tags))), whole)
        except (AbortedError, DeadlineExceededError) as error:
            # Some of it may have left; after other errors the group is as it was.
            self.paused = self.torn = True
            self._rest_paused |= whole
            if whole and _MISSING in str(error):
                raise DeadlineExceededError(f"{error}. If a rank that is missing belongs to another engine or to a trainer: {_ALONE}") from None
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
            with _watched("wake"):
                _rank.resume(**self._options(True))
        elif self._rest_paused:
            # NCCL's memory and workspaces are needed to bring new weights.
            with _watched("wake"):
                _rank.resume(except_tags=sorted(left), **self._options(True))
        else:
            _of_those_there((self._tags if self.torn else self.asleep) - left,
                            lambda tags: _rank.resume(tags, **self._options(False)))
        self.asleep, self.paused, self._rest_paused, self.torn = self.asleep & left, bool(left), False, False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within the context, this worker does not wait for the engine's other workers. One of them may have died.

        Returns:
            A context manager.
        """
        ranks, self.ranks = self.ranks, None
        try:
            yield
        finally:
            self.ranks = ranks

    def _options(self, whole: bool) -> dict[str, Any]:
        """Options of a pause or a resume: with which ranks, and how long it waits for them."""
        if whole:
            return {} if os.environ.get("AMEM_TIMEOUT") else {"timeout": _PATIENCE}
        return {} if self.ranks is None else {"ranks": self.ranks}

    def get_current_usage(self) -> int:
        """Returns the size of the pools. vLLM uses it to find memory of another engine in this process.

        Returns:
            The number of bytes, on the GPU or paused.
        """
        return sum(each.resident_bytes + each.paused_bytes
                   for each in _rank.stats().brokered if each.tag in self._tags)


@contextlib.contextmanager
def _fixed_segments() -> Iterator[None]:
    """Switches PyTorch's expandable segments off for a while, as vLLM's own allocator does: a KV connector cannot register them."""
    try:
        from vllm.device_allocator.alloc_conf import non_expandable_allocations
    except ImportError:
        if _EXPANDABLE + "True" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            yield
            return
        torch.cuda.memory._set_allocator_settings(_EXPANDABLE + "False")
        try:
            yield
        finally:
            torch.cuda.memory._set_allocator_settings(_EXPANDABLE + "True")
        return
    with non_expandable_allocations():
        yield


@contextlib.contextmanager
def _watched(what: str, whole: bool = True) -> Iterator[None]:
    """Logs if a sleep or wake of the whole group takes long. Other engines may be in it, which end their requests later."""
    timer = threading.Timer(_LONG, _say_long, (what,))
    timer.daemon = True
    if whole:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.lru_cache(maxsize=None)
def _say_long(what: str) -> None:
    _logger.warning("amem: this %s has not ended after %g s. All ranks of the group '%s' take part in it, and amemd's log says for which it "
                    "waits. If they belong to another engine or to a trainer: %s", what, _LONG, _rank.group(), _ALONE)


def _engine(config: Any, rank: int, init_method: str) -> tuple[str, int] | None:
    """Allocator.ranks of a worker, from what vLLM gives all workers of one engine. Ray's workers ask each other later."""
    size = 1
    for each in ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size"):
        size *= getattr(config, each, 1)
    here = getattr(config, "local_world_size", size)
    if init_method == "env://":  # torchrun or another launcher has started the ranks, and each has an engine object of its own
        rank = int(os.environ.get("RANK", rank))
        here = min(size, int(os.environ.get("LOCAL_WORLD_SIZE", size)))
        init_method = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}-{rank // size}"
    if size == 1 or here == 1:
        return None
    return "vllm-" + hashlib.sha256(init_method.encode()).hexdigest()[:32], here


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

    _amem_required = True

    def __init__(self, vllm_config: Any, local_rank: int, rank: int, distributed_init_method: str, *args: Any, **options: Any) -> None:
        """Makes the worker, and replaces vLLM's allocator by amem's.

        Args:
            vllm_config: vLLM's VllmConfig.
            local_rank: As for vLLM's worker.
            rank: As for vLLM's worker.
            distributed_init_method: As for vLLM's worker.
            *args: The other arguments of vLLM's worker.
            **options: The other arguments of vLLM's worker, by name.

        Raises:
            FailedPreconditionError: The worker of this vLLM lacks a function that amem needs, or the process has no shim, or the
                memory is not in its scope, or somebody else has replaced vLLM's allocator.
            InvalidArgumentError: The engine's sleep mode is off.
            UnavailableError: There is no broker.
        """
        self._amem_before: set[str] = set()  # what was asleep before the sleep under way
        self._amem_undo = contextlib.ExitStack()
        self._amem_on = True
        self._amem_check(lambda: _check_worker(vllm_config))
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, *args, **options)
        if self._amem_on:
            # All of vLLM's ways to its allocator end there.
            self._amem_undo.callback(setattr, CuMemAllocator, "get_instance", staticmethod(CuMemAllocator.get_instance))
            CuMemAllocator.get_instance = staticmethod(lambda: _allocator)
            _choose_backend(vllm_config.model_config, self._amem_undo)
        self._amem_engine = _engine(vllm_config.parallel_config, rank, distributed_init_method)
        if self._amem_on:
            _allocator.ranks = self._amem_engine

    def _amem_check(self, check: Callable[[], None]) -> None:
        """Raises the errors of the check. An OptionalWorker logs them, and sleeps without amem."""
        try:
            check()
        except Error as error:
            if self._amem_required:
                raise
            self._amem_on = False
            self._amem_undo.close()
            _logger.warning("amem: this worker sleeps without amem: %s", error)

    def init_device(self) -> None:
        """Calls vLLM's method, and then checks that this process has a session with the broker.

        Raises:
            FailedPreconditionError: It has no session.
        """
        super().init_device()
        if self._amem_on:
            self._amem_check(_check_session)
        if getattr(self.vllm_config.parallel_config, "distributed_executor_backend", None) == "ray" and self._amem_engine is not None:
            from vllm.distributed.parallel_state import get_world_group

            # Ray may have put some of them on other nodes, or started some without the shim.
            _allocator.ranks = _together.on_this_node("vllm", get_world_group().cpu_group,
                                                      of=self._amem_engine[0] if self._amem_on else "without amem")

    def sleep(self, level: int = 1) -> None:
        """Puts the worker to sleep. When it returns, the worker's GPU memory is free.

        Args:
            level: 1 keeps the bytes of the weights, 2 drops them. Level 0 only stops the engine's scheduling and does not call it.

        Raises:
            Error: The errors of amem.pause().
            FailedPreconditionError: An operator has paused the group, or the engine is already asleep, or the broker does not
                allow deep pauses and AMEM_VLLM_SLEEP is "deep".
        """
        if not self._amem_on:
            super().sleep(level)
            return
        self._amem_begin()
        try:
            super().sleep(level)
        except AssertionError as error:
            # vLLM compares the device's free memory at the end. Another engine may have taken its turn by then.
            if not _allocator.asleep - self._amem_before:
                raise
            _logger.info("amem: the engine sleeps. %s", error)
        if sleeps_deep():  # not before: vLLM still asks the driver for the free memory, and would wait for the wake
            with _watched("sleep"):
                _rank.pause(deep=True, **_allocator._options(True))

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Resumes the worker's memory.

        Args:
            tags: Which of "weights" and "kv_cache" return. All other tags return, too. None: everything returns.

        Raises:
            Error: The errors of amem.resume(). The worker sleeps on.
        """
        saved: dict[str, Any] = getattr(self, "_sleep_saved_buffers", {})
        later = self._amem_on and saved and tags is not None and "weights" not in tags and "weights" in _allocator.asleep
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
        if self._amem_on:
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
            if isinstance(error, AbortedError):  # if another worker has died, vLLM reads no answers
                _logger.warning("amem: %s failed: %s", method, error)
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
        if not self._amem_on:
            return
        before = self._amem_before
        if _allocator.torn or _allocator.asleep != before:
            with _allocator.alone():
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


class OptionalWorker(Worker):
    """Worker, where amem was asked for and is not required: `AMEM_ON=1`, amem.enable().

    If amem cannot serve it, it logs a warning, and sleeps as vLLM's own worker.
    """

    _amem_required = False


def _register_cache() -> None:
    """Registers the cache again with the KV connector, which vLLM 0.33 and later unregister for a sleep. Does nothing otherwise."""
    worker = vllm.v1.worker.gpu_worker
    if hasattr(worker, "has_kv_transfer_group") and worker.has_kv_transfer_group():
        restore = getattr(worker.get_kv_transfer_group(), "restore_kv_caches", None)
        if restore is not None:
            restore()


def _check_worker(config: Any) -> None:
    """Raises the errors of Worker(). It changes nothing."""
    check_allocator(CuMemAllocator)
    worker = vllm.v1.worker.gpu_worker.Worker
    hook(worker, "init_device", "self")
    hook(worker, "sleep", "self", "level")
    hook(worker, "wake_up", "self", "tags")
    hook(worker, "shutdown", "self")
    hook(CuMemAllocator, "get_instance")
    hook(CuMemAllocator, "use_memory_pool", "self", "tag")
    check_sleep_mode(config.model_config.enable_sleep_mode)
    known()["vllm"].check_process()


def _check_session() -> None:
    """FailedPreconditionError: this process has no session with the broker."""
    if not _rank.is_active():
        raise FailedPreconditionError(
            "this vLLM worker has no session with amemd, so it cannot sleep by amem. The line of its log that begins with "
            "`amem:` says why. A forked worker never has a session: set VLLM_WORKER_MULTIPROC_METHOD=spawn")


def _choose_backend(model_config: Any, undo: contextlib.ExitStack) -> None:
    """Chooses the sleep-mode backend of vLLM 0.25 and later, and handles options of vLLM that concern amem."""
    def choose(name: str) -> None:
        undo.callback(setattr, model_config, "sleep_mode_backend", model_config.sleep_mode_backend)
        model_config.sleep_mode_backend = name

    if getattr(model_config, "enable_nccl_comm_suspend", False):
        # ncclCommSuspend() would be refused in a group that is paused. NCCL's memory leaves in the pause itself.
        _logger.info("amem: amem pauses NCCL's memory with the rest, so vLLM does not suspend its communicators (enable_nccl_comm_suspend)")
        undo.callback(setattr, model_config, "enable_nccl_comm_suspend", True)
        model_config.enable_nccl_comm_suspend = False
        _allocator.takes_nccl = only_tags()
    if not hasattr(model_config, "sleep_mode_backend"):
        return
    if only_tags() and getattr(model_config, "sleep_mode_offload_cudagraph", False):
        # vLLM makes a pool for its graphs if the backend is called cumem. The allocator is amem's in either case. Where
        # everything leaves, graphs leave without a pool.
        choose("cumem")
        return
    importlib.import_module("vllm.device_allocator.sleep_mode_backend")
    _register_backend()
    choose(BACKEND)
