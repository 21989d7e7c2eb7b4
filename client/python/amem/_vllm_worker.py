"""vLLM's GPU worker with its sleep mode by amem. Imported in vLLM's worker processes alone; the worker's thread."""
from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import vllm.v1.worker.gpu_worker
from vllm.device_allocator.cumem import CuMemAllocator

from amem import _rank, _regions
from amem.errors import AbortedError, DeadlineExceededError, Error, FailedPreconditionError, NotFoundError
from amem.vllm import BACKEND, check_process, check_sleep_mode, check_version, only_tags

_logger = logging.getLogger("vllm.amem")
_CACHE = "kv_cache"


class Allocator:
    """What vLLM's CuMemAllocator is asked for: its pools are regions, its sleep is a pause of the whole group. So NCCL's
    memory, graphs and workspaces leave, too. With only_tags() it is a pause of the pools alone."""

    def __init__(self) -> None:
        self._tags: set[str] = set()  # of all pools so far
        self.forget()

    def forget(self) -> None:
        """As before the first pool: the engine has ended."""
        self._tags.clear()
        self.asleep: set[str] = set()
        self._dropped: set[str] = set()  # of these, whose bytes do not come back
        self.away = False  # a pause of ours has taken something, or may have
        self._rest_away = False  # also what is in no pool

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Keeps the bytes: an operator may pause the group while requests run. What a sleep drops, it says itself."""
        tag = tag or "default"
        self._tags.add(tag)
        with _regions.outside(), _regions.region(tag):  # vLLM's pools nest
            yield

    def sleep(self, offload_tags: Iterable[str] | str | None = None) -> None:
        if self.asleep:
            raise FailedPreconditionError("the engine is asleep already; wake it up first")
        kept = {"default"} if offload_tags is None else {offload_tags} if isinstance(offload_tags, str) else set(offload_tags)
        drop = sorted(self._tags - kept)  # every rank asks for the same
        torch.cuda.empty_cache()  # what torch keeps for later need not be copied
        try:
            if _CACHE in drop and os.environ.get("AMEM_VLLM_CACHE_FIRST") == "1":
                # Its room is free for another engine while the rest is being copied.
                self._pause([_CACHE], [_CACHE])
                self._pause(self._rest(), [each for each in drop if each != _CACHE])
            else:
                self._pause(self._rest(), drop)
        except NotFoundError:  # a model without a cache
            drop = []
            self._tags.discard(_CACHE)
            self._pause(self._rest(), drop)
        self.asleep, self._dropped, self._rest_away = set(self._tags), set(drop), not only_tags()

    def _rest(self) -> list[str] | None:
        """What a sleep takes, as amem.pause() has it."""
        return sorted(self._tags) if only_tags() else None

    def _pause(self, tags: list[str] | None, drop: list[str]) -> None:
        try:
            _rank.pause(tags, discard=drop)
        except (AbortedError, DeadlineExceededError):
            self.away = True  # some of it may have left; after other errors the group is as it was
            raise
        self.away = True

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        if not self.away:
            return  # nothing to bring back
        left = self.asleep - set(tags) if tags is not None else set()
        if "weights" in left & self._dropped:
            # vLLM restores buffers, which lie there, with any wake.
            raise FailedPreconditionError("the weights have been dropped; wake the tag weights first, or all")
        if not left:
            _rank.resume(self._rest())
        elif self._rest_away:
            # NCCL's memory and workspaces are needed to bring new weights.
            _rank.resume(except_tags=sorted(left))
        elif self.asleep - left:
            _rank.resume(sorted(self.asleep - left))
        self.asleep, self.away, self._rest_away = left, bool(left), False

    def get_current_usage(self) -> int:
        """Bytes of the pools. vLLM asks whether another engine of this process has some."""
        return sum(int(each["resident_bytes"]) + int(each["away_bytes"])
                   for each in _rank.stats()["brokered"] if each["tag"] in self._tags)


_allocator = Allocator()


class Worker(vllm.v1.worker.gpu_worker.Worker):  # type: ignore[misc]
    """--worker-cls amem.vllm.Worker"""

    def __init__(self, vllm_config: Any, *args: Any, **options: Any) -> None:
        check_version()
        check_sleep_mode(vllm_config.model_config.enable_sleep_mode)
        check_process()
        super().__init__(vllm_config, *args, **options)
        # All of vLLM's ways to its allocator end there.
        CuMemAllocator.get_instance = staticmethod(lambda: _allocator)
        _register_backend()

    def init_device(self) -> None:
        super().init_device()
        if not _rank.is_active():
            raise FailedPreconditionError(
                "vLLM is to sleep by amem, but this worker has no session with amemd; the line that begins with `amem:` in "
                "its log says why. A worker that was forked has none: set VLLM_WORKER_MULTIPROC_METHOD=spawn")

    def sleep(self, level: int = 1) -> None:
        try:
            super().sleep(level)
        except AssertionError as error:
            # vLLM compares the device's free memory at the end. Another engine may have taken its turn by then.
            if not _allocator.asleep:
                raise
            _logger.info("amem: the engine sleeps; %s", error)

    def amem_call(self, method: str, options: dict[str, Any]) -> str:
        """Calls sleep or wake_up; the answer is empty, or says what went wrong."""
        try:
            getattr(self, method)(**options)
        except Error as error:
            return f"{method}: {error}"
        except Exception as error:  # noqa: BLE001: the other workers' answers must be read, too
            _logger.exception("amem: %s failed", method)
            return f"{method}: {type(error).__name__}: {error}"
        return ""

    def amem_come_back(self) -> None:
        """After a sleep that failed, here or in another worker. What an operator has paused is the operator's."""
        if _allocator.away:
            self.wake_up()
        else:
            self._sleep_saved_buffers: dict[str, Any] = {}  # of level 2: they are where they were

    def shutdown(self) -> None:
        super().shutdown()
        _allocator.forget()


def _register_backend() -> None:
    """Where vLLM has a choice of sleep-mode backends, 0.25 and later, amem's is vLLM's own over the allocator above."""
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    except ModuleNotFoundError:
        return
    if BACKEND not in SleepModeBackendFactory._registry:
        SleepModeBackendFactory.register_backend(BACKEND, "vllm.device_allocator.sleep_mode_backend", "CuMemBackend")
