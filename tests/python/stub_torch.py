"""As much of torch as the package touches, with notes of what happens, in order with the shim's."""
from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any


class OutOfMemoryError(RuntimeError):
    pass


PoolId = tuple[int, int]
ORDINARY: PoolId = (0, 0)


@dataclasses.dataclass
class Segment:
    pool: PoolId
    size: int
    used: bool = False


class Cache:
    """PyTorch's caching allocator, for device 0: each allocation has a segment of its own. As in 2.6 to 2.11, nothing is given
    back while a pool is in use, and pools keep what they have until they are released."""
    TOTAL = 1000

    def __init__(self, pool_in_use: Callable[[], PoolId], note: Callable[[str], None]) -> None:
        self.pool_in_use, self.note = pool_in_use, note
        self.segments: list[Segment] = []
        self.released: list[PoolId] = []
        self.observers: list[Callable[[int, int, int, int], None]] = []
        self.raises = False
        self.refuses_release = False

    def device_free(self) -> int:
        return self.TOTAL - sum(each.size for each in self.segments)

    def allocate(self, size: int) -> Segment:
        pool = self.pool_in_use()
        found = next((each for each in self.segments if each.pool == pool and not each.used and each.size >= size), None)
        if found is None and self.device_free() < size:
            self._release()
        if found is None and self.device_free() >= size:
            found = Segment(pool, size)
            self.segments.append(found)
        if found is None:
            for observer in self.observers:
                observer(0, size, self.TOTAL, self.device_free())
            raise OutOfMemoryError(f"no {size} bytes")
        found.used = True
        return found

    @staticmethod
    def free(segment: Segment) -> None:
        segment.used = False

    def _release(self) -> None:
        if self.pool_in_use() == ORDINARY:
            self.segments = [each for each in self.segments if each.used or each.pool not in [ORDINARY, *self.released]]

    def release_pool(self, device: int, pool: PoolId) -> None:
        if self.refuses_release:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        assert self.pool_in_use() != pool and pool not in self.released
        self.note(f"release {pool[1]} of {device}")
        self.released.append(pool)

    def empty(self) -> None:
        self.note("empty_cache")
        if self.raises:
            raise RuntimeError("captures_underway")
        self._release()

    def stats(self) -> dict[str, int]:
        if not self.segments:
            return {}
        return {"reserved_bytes.all.current": sum(each.size for each in self.segments),
                "active_bytes.all.current": sum(each.size for each in self.segments if each.used)}

    def snapshot(self) -> list[dict[str, object]]:
        return [{"device": 0, "total_size": each.size, "active_size": each.size if each.used else 0, "segment_pool_id": each.pool,
                 "is_expandable": False}
                for each in self.segments]


class Cuda(types.SimpleNamespace):
    """torch.cuda. `device` is the current one; tests put other functions in the places of these."""
    device: int
    cache: Cache
    capturing: bool
    is_available: Callable[[], bool]
    use_mem_pool: Callable[..., contextlib.AbstractContextManager[None]]
    memory_snapshot: Callable[[], list[dict[str, object]]] | None


class Torch(types.ModuleType):
    cuda: Cuda
    version: types.SimpleNamespace
    __version__: str
    _C: types.SimpleNamespace
    # Of tensors; a test that needs them sets them.
    uint8: str
    empty: Callable[..., Any]
    frombuffer: Callable[..., Any]


def make(note: Callable[[str], None], available: bool = True) -> Torch:
    """A module to be put in sys.modules."""
    made: list[MemPool] = []

    class MemPool:
        def __init__(self) -> None:
            made.append(self)
            self.name = f"pool{len(made)}"
            self.id = (0, len(made))
            self.entered = False
            note(f"make {self.name}")

    @contextlib.contextmanager
    def use_mem_pool(pool: MemPool) -> Iterator[None]:
        assert not pool.entered, "two regions allocate into one pool"
        assert pool.id not in cache.released, "an internal assertion of PyTorch"
        pool.entered = True
        note(f"use {pool.name}")
        try:
            yield
        finally:
            note(f"leave {pool.name}")
            pool.entered = False

    @contextlib.contextmanager
    def graph(cuda_graph: object, pool: object = None, stream: object = None, capture_error_mode: str = "global") -> Iterator[None]:
        note(f"graph {cuda_graph} {pool} {stream} {capture_error_mode}")
        yield
        note("graph ends")

    cache = Cache(lambda: next((pool.id for pool in made if pool.entered), ORDINARY), note)
    cuda = Cuda(is_available=lambda: available, device=0, MemPool=MemPool, use_mem_pool=use_mem_pool, graph=graph, cache=cache,
                capturing=False, memory_stats=lambda _: cache.stats(), mem_get_info=lambda _: (cache.device_free(), cache.TOTAL),
                memory_snapshot=cache.snapshot, empty_cache=cache.empty,
                get_device_properties=lambda _: types.SimpleNamespace(total_memory=cache.TOTAL))
    cuda.current_device = lambda: cuda.device
    cuda.is_current_stream_capturing = lambda: cuda.capturing
    torch = Torch("torch")
    torch.cuda = cuda
    torch._C = types.SimpleNamespace(_cuda_attach_out_of_memory_observer=cache.observers.append,
                                     _cuda_releasePool=cache.release_pool)
    torch.__version__ = "stub"
    torch.version = types.SimpleNamespace(hip=None)
    return torch
