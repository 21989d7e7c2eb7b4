"""The worker's side: vllm.v1.worker.gpu_worker, vllm.device_allocator."""
from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import hashlib
import importlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from vllm._shapes import since

cuda: Any = None
MIB = 1 << 20


def must(result: int) -> None:
    assert result == 0, f"the driver says {result}"


class Block:
    """Memory as a tensor has it."""

    def __init__(self, size: int) -> None:
        self.address, self.size = ctypes.c_uint64(), size
        must(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size)))

    def free(self) -> None:
        must(cuda.cuMemFree_v2(self.address))

    def write(self, data: bytes, at: int = 0) -> None:
        must(cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(self.address.value + at), data, ctypes.c_size_t(len(data))))

    def read(self, size: int | None = None, at: int = 0) -> bytes:
        data = ctypes.create_string_buffer(size or self.size)
        must(cuda.cuMemcpyDtoH_v2(data, ctypes.c_uint64(self.address.value + at), ctypes.c_size_t(len(data))))
        return data.raw


def free_memory() -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


class CuMemAllocator:
    instance = None
    calls: list[str] = []

    @staticmethod
    def get_instance() -> CuMemAllocator:
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        yield

    def get_current_usage(self) -> int:
        return 0

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Its own sleep frees nothing here."""
        self.calls.append("sleep")

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append("wake_up")


def get_mem_allocator_instance() -> Any:
    return CuMemAllocator.get_instance()


class CuMemBackend:
    def __init__(self) -> None:
        self._state = "RUNNING"

    def suspend(self, level: int = 1) -> None:
        self._state = "SUSPENDED"
        kept = ("runtime", "cudagraph") if since(32) else ()
        get_mem_allocator_instance().sleep(offload_tags=("weights", *kept) if level == 1 else kept)

    def resume(self, tags: list[str] | None = None) -> None:
        self._state = "RESUMING"
        get_mem_allocator_instance().wake_up(tags)
        self._state = "RUNNING"

    if since(31):
        def discard(self, tags: tuple[str, ...]) -> None:
            get_mem_allocator_instance().discard(tags)
            self._state = "SUSPENDED"

    def state(self) -> str:
        return self._state


class SleepModeBackendFactory:
    _registry: dict[str, Callable[[], Any]] = {"cumem": lambda: CuMemBackend}

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_backend(cls, model_config: Any) -> Any:
        if model_config.sleep_mode_backend not in cls._registry:
            raise ValueError(f"Unsupported sleep-mode backend '{model_config.sleep_mode_backend}'.")
        backend = cls._registry[model_config.sleep_mode_backend]()
        if hasattr(backend, "is_supported") and not backend.is_supported():
            raise ValueError(f"Sleep-mode backend '{model_config.sleep_mode_backend}' is not supported on this platform.")
        return backend()


# ---- KV connectors: one whose NIC has the cache registered, for `more={"connector": True}` ----
class Connector:
    """By the stand-in for libibverbs. A transfer that `transfers_until` says is waited for before the cache is unregistered."""

    def __init__(self, cache: Block) -> None:
        self.verbs = ctypes.CDLL("libibverbs.so.1")
        self.verbs.ibv_reg_mr.restype = ctypes.c_void_p
        self.cache, self.region, self.transfers_until = cache, None, 0.0
        self.calls: list[str] = []
        self.restore_kv_caches()

    def unregister_kv_caches(self) -> None:
        self.calls.append("unregister")
        if self.region is None:
            return
        time.sleep(max(0, self.transfers_until - time.monotonic()))
        assert self.verbs.ibv_dereg_mr(ctypes.c_void_p(self.region)) == 0
        self.region = None

    def restore_kv_caches(self) -> None:
        self.calls.append("restore")
        if self.region is None:
            self.region = self.verbs.ibv_reg_mr(None, self.cache.address, ctypes.c_size_t(self.cache.size), 1)
            assert self.region, "the NIC does not take the cache"


_connector: Connector | None = None


def has_kv_transfer_group() -> bool:
    return _connector is not None


def get_kv_transfer_group() -> Connector:
    assert _connector is not None
    return _connector


def connectors() -> dict[str, Callable[[], object]]:
    """What gpu_worker imports of them."""
    return {"has_kv_transfer_group": has_kv_transfer_group, "get_kv_transfer_group": get_kv_transfer_group} if since(33) else {}


# ---- NCCL's own suspend, which fails where amem has paused the group ----
def suspend_device_comms() -> None:
    raise RuntimeError("ncclCommSuspend: invalid usage")


resume_device_comms = suspend_device_comms


class Worker:
    """The model is its weights, and a buffer among them; what it has made of a prompt goes into the cache, and through memory
    that is in no pool."""

    WEIGHTS = int(os.environ.get("FAKE_VLLM_WEIGHTS_MIB", 2)) * MIB
    CACHE = int(os.environ.get("FAKE_VLLM_CACHE_MIB", 4)) * MIB
    WORKSPACE = MIB

    def __init__(self, vllm_config: Any, local_rank: int, rank: int, distributed_init_method: str, is_driver_worker: bool = False) -> None:
        self.vllm_config, self.local_rank, self.rank = vllm_config, local_rank, rank
        self._sleep_saved_buffers: dict[str, bytes] = {}
        self._sleep_saved_parameters: dict[str, bytes] = {}
        self._sleep_mode_backend: Any = None
        self.more = getattr(vllm_config, "more", None) or {}

    def init_device(self) -> None:
        global cuda
        cuda = ctypes.CDLL("libcuda.so.1")
        must(cuda.cuInit(0))
        self.context = ctypes.c_void_p()
        must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), self.local_rank))
        must(cuda.cuCtxSetCurrent(self.context))
        self.workspace = Block(self.WORKSPACE)

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        if not self.vllm_config.model_config.enable_sleep_mode:
            return contextlib.nullcontext()
        allocator = get_mem_allocator_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0, "CuMem allocator can only be used for one instance per process."
        return allocator.use_memory_pool(tag=tag)

    def load_model(self) -> None:
        with self._maybe_get_memory_pool_context(tag="weights"):
            self.weights = Block(self.WEIGHTS)
            if since(33) and "lora" in self.more:
                with self._maybe_get_memory_pool_context(tag="runtime"):
                    self.adapter = Block(self.WORKSPACE) if self.more["lora"] else None
        self.reload_weights()

    def reload_weights(self) -> None:
        self.weights.write(bytes(1 + (7 * at + self.rank) % 255 for at in range(4096)) * (self.WEIGHTS // 4096))

    def initialize_cache(self) -> None:
        global _connector
        with self._maybe_get_memory_pool_context(tag="kv_cache"):
            self.cache = Block(self.CACHE)
        if self.more.get("connector"):
            _connector = Connector(self.cache)
        config = self.vllm_config.model_config
        if since(32) and config.sleep_mode_offload_cudagraph and config.sleep_mode_backend == "cumem":
            with get_mem_allocator_instance().cudagraph_pool():
                self.graphs = Block(self.WORKSPACE)
            self.graphs.write(b"a graph")

    def sleep(self, level: int = 1) -> None:
        must(cuda.cuCtxSynchronize())
        before = free_memory()[0]
        if level == 2:
            self._save_parameters()
            self._sleep_saved_buffers = {"buffer": self.weights.read(64)}
        if since(33) and has_kv_transfer_group():
            get_kv_transfer_group().unregister_kv_caches()
        self._suspend(level)
        if since(30) and self.vllm_config.model_config.enable_nccl_comm_suspend:
            suspend_device_comms()
        must(cuda.cuCtxSynchronize())
        assert free_memory()[0] - before >= 0, "Memory usage increased after sleeping."

    def _save_parameters(self) -> None:
        """The model has one, after its buffer."""
        for pattern in getattr(self.vllm_config.model_config, "sleep_preserve_parameter_names", ()):
            if not fnmatch.filter(["table.weight"], pattern):
                raise ValueError(f"No parameter matches sleep retention: {pattern}")
            self._sleep_saved_parameters = {"table.weight": self.weights.read(64, 64)}

    def wake_up(self, tags: list[str] | None = None) -> None:
        self._resume(tags)
        if since(33) and has_kv_transfer_group() and (tags is None or "kv_cache" in tags):
            get_kv_transfer_group().restore_kv_caches()
        if since(30) and self.vllm_config.model_config.enable_nccl_comm_suspend:
            resume_device_comms()
        if os.environ.get("FAKE_VLLM_FORGETS"):
            self.weights.write(b"forgotten")
        wake_weights = not since(27) or tags is None or "weights" in tags
        if wake_weights and self._sleep_saved_parameters:
            self.weights.write(self._sleep_saved_parameters["table.weight"], 64)
            self._sleep_saved_parameters.clear()
        if wake_weights and self._sleep_saved_buffers:
            self.weights.write(self._sleep_saved_buffers["buffer"])
            self._sleep_saved_buffers = {}
        if tags is None or "kv_cache" in tags:
            self.cache.write(b"layout")  # post_kv_cache_wake_up

    if since(31):
        def discard(self, tags: tuple[str, ...]) -> None:
            if since(33) and has_kv_transfer_group() and "kv_cache" in tags:
                get_kv_transfer_group().unregister_kv_caches()
            self._backend().discard(tags)

    def _backend(self) -> Any:
        if self._sleep_mode_backend is None:
            self._sleep_mode_backend = SleepModeBackendFactory.create_backend(self.vllm_config.model_config)
        return self._sleep_mode_backend

    def _suspend(self, level: int) -> None:
        if since(25):
            self._backend().suspend(level)
        else:
            get_mem_allocator_instance().sleep(offload_tags=("weights",) if level == 1 else ())

    def _resume(self, tags: list[str] | None) -> None:
        if since(25):
            self._backend().resume(tags)
        else:
            get_mem_allocator_instance().wake_up(tags)

    def execute(self, prompt: list[int], count: int) -> list[int]:
        state = hashlib.sha256(self.weights.read(1 << 16) + bytes(prompt)).digest()
        tokens = []
        for at in range(min(count, 8)):
            self.workspace.write(state)
            self.cache.write(self.workspace.read(len(state)), 64 + 32 * at)
            state = hashlib.sha256(self.cache.read(len(state), 64 + 32 * at)).digest()
            tokens.append(state[0])
        return tokens

    def rescale(self) -> None:
        """Its weights are of a good size."""

    def keep_weights(self) -> None:
        pass

    def restore_weights(self, but: str = "") -> None:
        self.reload_weights()

    def cache_first(self, on: bool) -> None:
        os.environ["AMEM_VLLM_CACHE_FIRST"] = "1" if on else "0"

    def own_calls(self) -> list[str]:
        """Those of vLLM's own allocator, and the variable that Ray copies."""
        return [*CuMemAllocator.calls, os.environ.get("AMEM_VLLM_SLEEP", "")]

    def sums(self) -> list[str]:
        """Of weights, and of the cache."""
        return [hashlib.sha256(each.read()).hexdigest() for each in (self.weights, self.cache)]

    def shutdown(self) -> None:
        pass
