"""As much of torch as the package touches, with notes of what happens, in order with the shim's."""
import contextlib
import types


class OutOfMemoryError(RuntimeError):
    pass


class Cache:
    """PyTorch's caching allocator, for device 0: each allocation has a segment of its own. As in 2.6 to 2.11, nothing is given
    back while a pool is in use, and pools keep what they have."""
    TOTAL = 1000

    def __init__(self, pool_in_use, note):
        self.pool_in_use, self.note = pool_in_use, note
        self.segments = []  # [pool, bytes, in use]
        self.observers = []
        self.raises = False

    def device_free(self):
        return self.TOTAL - sum(size for _, size, _ in self.segments)

    def allocate(self, size):
        pool = self.pool_in_use()
        found = next((each for each in self.segments if each[0] == pool and not each[2] and each[1] >= size), None)
        if found is None and self.device_free() < size:
            self._release()
        if found is None and self.device_free() >= size:
            found = [pool, size, False]
            self.segments.append(found)
        if found is None:
            for observer in self.observers:
                observer(0, size, self.TOTAL, self.device_free())
            raise OutOfMemoryError(f"no {size} bytes")
        found[2] = True
        return found

    @staticmethod
    def free(segment):
        segment[2] = False

    def _release(self):
        if self.pool_in_use() == (0, 0):
            self.segments = [each for each in self.segments if each[0] != (0, 0) or each[2]]

    def empty(self):
        self.note("empty_cache")
        if self.raises:
            raise RuntimeError("captures_underway")
        self._release()

    def stats(self):
        if not self.segments:
            return {}
        return {"reserved_bytes.all.current": sum(size for _, size, _ in self.segments),
                "active_bytes.all.current": sum(size for _, size, used in self.segments if used)}

    def snapshot(self):
        return [{"device": 0, "total_size": size, "active_size": size if used else 0, "segment_pool_id": pool,
                 "is_expandable": False}
                for pool, size, used in self.segments]


def make(note, available=True):
    """A module to be put in sys.modules. `device`, an attribute of its `cuda`, is the current one."""
    made = []

    class MemPool:
        def __init__(self):
            made.append(self)
            self.name = f"pool{len(made)}"
            self.id = (0, len(made))
            self.entered = False
            note(f"make {self.name}")

    @contextlib.contextmanager
    def use_mem_pool(pool):
        assert not pool.entered, "two regions allocate into one pool"
        pool.entered = True
        note(f"use {pool.name}")
        try:
            yield
        finally:
            note(f"leave {pool.name}")
            pool.entered = False

    @contextlib.contextmanager
    def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        note(f"graph {cuda_graph} {pool} {stream} {capture_error_mode}")
        yield
        note("graph ends")

    cache = Cache(lambda: next((pool.id for pool in made if pool.entered), (0, 0)), note)
    cuda = types.SimpleNamespace(is_available=lambda: available, current_device=lambda: cuda.device, device=0,
                                 MemPool=MemPool, use_mem_pool=use_mem_pool, graph=graph, cache=cache, capturing=False,
                                 is_current_stream_capturing=lambda: cuda.capturing, memory_stats=lambda _: cache.stats(),
                                 mem_get_info=lambda _: (cache.device_free(), cache.TOTAL),
                                 memory_snapshot=cache.snapshot, empty_cache=cache.empty)
    torch = types.ModuleType("torch")
    torch.cuda = cuda
    torch._C = types.SimpleNamespace(_cuda_attach_out_of_memory_observer=cache.observers.append)
    torch.__version__ = "stub"
    torch.version = types.SimpleNamespace(hip=None)
    return torch
