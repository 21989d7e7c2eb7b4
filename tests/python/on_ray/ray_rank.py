"""Rank: an actor that holds device memory and knows each byte of it."""
import ctypes
import os
from typing import Any

CHUNK = 64 << 10


def must(code: int) -> None:
    assert code == 0, f"CUDA error {code}"


def pattern(seed: int, size: int) -> bytes:
    """Bytes in which no two chunks are alike, whatever the seed."""
    words = (ctypes.c_uint32 * (size // 4))()
    value = (seed * 2654435761 + 12345) & 0xFFFFFFFF
    for at in range(0, len(words), CHUNK // 4):
        value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
        block = b"".join(((value + step * 40503) & 0xFFFFFFFF).to_bytes(4, "little") for step in range(64))
        ctypes.memmove(ctypes.byref(words, at * 4), block * (CHUNK // len(block)), CHUNK)
    return bytes(words)


class Rank:
    """`blocks` allocations of `size` bytes on the first device that this process sees."""

    def __init__(self, name: str, blocks: int = 4, size: int = 1 << 20) -> None:
        self.seed = sum(name.encode()) * 1000
        self.size = size
        self.step = 0
        self.cuda = cuda = ctypes.CDLL("libcuda.so.1")
        must(cuda.cuInit(0))
        self.context = ctypes.c_void_p()
        must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0))
        self.blocks = []
        self._enter()
        for _ in range(blocks):
            address = ctypes.c_uint64()
            must(cuda.cuMemAlloc_v2(ctypes.byref(address), size))
            self.blocks.append(address)
        self.fill(0)

    def _enter(self) -> None:
        must(self.cuda.cuCtxSetCurrent(self.context))  # an actor's calls need not come on one thread

    def _expected(self, number: int) -> bytes:
        return pattern(self.seed + self.step * 10 + number, self.size)

    def fill(self, step: int) -> int:
        """New bytes everywhere, which depend on the step."""
        self._enter()
        self.step = step
        for number, block in enumerate(self.blocks):
            must(self.cuda.cuMemcpyHtoD_v2(block, self._expected(number), ctypes.c_size_t(self.size)))
        return step

    def check(self) -> int:
        """The step of the last fill(), when every byte is as that has left it."""
        self._enter()
        for number, block in enumerate(self.blocks):
            held = ctypes.create_string_buffer(self.size)
            must(self.cuda.cuMemcpyDtoH_v2(held, block, ctypes.c_size_t(self.size)))
            assert held.raw == self._expected(number), f"block {number} is not as step {self.step} left it"
        return self.step

    def about(self) -> dict[str, Any]:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            shim = any("libamem_shim" in line for line in maps)
        return {"pid": os.getpid(), "shim": shim, "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "directory": os.environ.get("AMEM_RUNTIME_DIR"), "group": os.environ.get("AMEM_GROUP")}

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)
