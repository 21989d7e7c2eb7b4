"""The worker's side: vllm.v1.worker.gpu_worker, vllm.device_allocator."""
import contextlib
import ctypes
import hashlib
import importlib
import os

cuda = None
MIB = 1 << 20


def must(result):
    assert result == 0, f"the driver says {result}"


class Block:
    """Memory as a tensor has it."""

    def __init__(self, size):
        self.address, self.size = ctypes.c_uint64(), size
        must(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size)))

    def free(self):
        must(cuda.cuMemFree_v2(self.address))

    def write(self, data, at=0):
        must(cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(self.address.value + at), data, ctypes.c_size_t(len(data))))

    def read(self, size=None, at=0):
        data = ctypes.create_string_buffer(size or self.size)
        must(cuda.cuMemcpyDtoH_v2(data, ctypes.c_uint64(self.address.value + at), ctypes.c_size_t(len(data))))
        return data.raw


def free_memory():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


class CuMemAllocator:
    instance = None

    @staticmethod
    def get_instance():
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    @contextlib.contextmanager
    def use_memory_pool(self, tag=None):
        yield

    def get_current_usage(self):
        return 0

    def sleep(self, offload_tags=None):
        """Its own sleep frees nothing here."""

    def wake_up(self, tags=None):
        pass


def get_mem_allocator_instance():
    return CuMemAllocator.get_instance()


class CuMemBackend:
    def suspend(self, level=1):
        get_mem_allocator_instance().sleep(offload_tags=("weights",) if level == 1 else ())

    def resume(self, tags=None):
        get_mem_allocator_instance().wake_up(tags)


class SleepModeBackendFactory:
    _registry = {"cumem": lambda: CuMemBackend}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_backend(cls, model_config):
        if model_config.sleep_mode_backend not in cls._registry:
            raise ValueError(f"Unsupported sleep-mode backend '{model_config.sleep_mode_backend}'.")
        return cls._registry[model_config.sleep_mode_backend]()()


class Worker:
    """The model is its weights, and a buffer among them; what it has made of a prompt goes into the cache, and through memory
    that is in no pool."""

    WEIGHTS = int(os.environ.get("FAKE_VLLM_WEIGHTS_MIB", 2)) * MIB
    CACHE = int(os.environ.get("FAKE_VLLM_CACHE_MIB", 4)) * MIB
    WORKSPACE = MIB

    def __init__(self, vllm_config, local_rank, rank, distributed_init_method, is_driver_worker=False):
        self.vllm_config, self.local_rank, self.rank = vllm_config, local_rank, rank
        self._sleep_saved_buffers = b""
        self._sleep_mode_backend = None

    def init_device(self):
        global cuda
        cuda = ctypes.CDLL("libcuda.so.1")
        must(cuda.cuInit(0))
        self.context = ctypes.c_void_p()
        must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), self.local_rank))
        must(cuda.cuCtxSetCurrent(self.context))
        self.workspace = Block(self.WORKSPACE)

    def _maybe_get_memory_pool_context(self, tag):
        if not self.vllm_config.model_config.enable_sleep_mode:
            return contextlib.nullcontext()
        allocator = get_mem_allocator_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0, "CuMem allocator can only be used for one instance per process."
        return allocator.use_memory_pool(tag=tag)

    def load_model(self):
        with self._maybe_get_memory_pool_context(tag="weights"):
            self.weights = Block(self.WEIGHTS)
        self.reload_weights()

    def reload_weights(self):
        self.weights.write(bytes(1 + (7 * at + self.rank) % 255 for at in range(4096)) * (self.WEIGHTS // 4096))

    def initialize_cache(self):
        with self._maybe_get_memory_pool_context(tag="kv_cache"):
            self.cache = Block(self.CACHE)

    def sleep(self, level=1):
        must(cuda.cuCtxSynchronize())
        before = free_memory()[0]
        if level == 2:
            self._sleep_saved_buffers = self.weights.read(64)
        self._suspend(level)
        must(cuda.cuCtxSynchronize())
        assert free_memory()[0] - before >= 0, "Memory usage increased after sleeping."

    def wake_up(self, tags=None):
        self._resume(tags)
        if os.environ.get("FAKE_VLLM_FORGETS"):
            self.weights.write(b"forgotten")
        if self._sleep_saved_buffers:
            self.weights.write(self._sleep_saved_buffers)
            self._sleep_saved_buffers = b""
        if tags is None or "kv_cache" in tags:
            self.cache.write(b"layout")  # post_kv_cache_wake_up

    def _get_sleep_mode_backend(self):
        if self._sleep_mode_backend is None:
            self._sleep_mode_backend = SleepModeBackendFactory.create_backend(self.vllm_config.model_config)
        return self._sleep_mode_backend

    def _suspend(self, level):
        self._get_sleep_mode_backend().suspend(level)

    def _resume(self, tags):
        self._get_sleep_mode_backend().resume(tags)

    def execute(self, prompt, count):
        state = hashlib.sha256(self.weights.read(1 << 16) + bytes(prompt)).digest()
        tokens = []
        for at in range(min(count, 8)):
            self.workspace.write(state)
            self.cache.write(self.workspace.read(len(state)), 64 + 32 * at)
            state = hashlib.sha256(self.cache.read(len(state), 64 + 32 * at)).digest()
            tokens.append(state[0])
        return tokens

    def rescale(self):
        """Its weights are of a good size."""

    def keep_weights(self):
        pass

    def restore_weights(self):
        self.reload_weights()

    def cache_first(self, on):
        os.environ["AMEM_VLLM_CACHE_FIRST"] = "1" if on else "0"

    def sums(self):
        """Of weights, and of the cache."""
        return [hashlib.sha256(each.read()).hexdigest() for each in (self.weights, self.cache)]

    def shutdown(self):
        pass


class OldWorker(Worker):
    """Of 0.20 to 0.24."""

    def _suspend(self, level):
        CuMemAllocator.get_instance().sleep(offload_tags=("weights",) if level == 1 else ())

    def _resume(self, tags):
        CuMemAllocator.get_instance().wake_up(tags)
