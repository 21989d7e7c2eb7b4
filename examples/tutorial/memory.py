"""GPU memory: of PyTorch on a real GPU, of the driver's own calls on the simulated driver, which cannot run PyTorch's kernels."""
from __future__ import annotations

import ctypes
import functools
import os
import struct
from typing import Protocol

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Memory(Protocol):
    """A piece of GPU memory."""

    def fill(self, number: int) -> None:
        """The GPU writes the number into each word."""

    def holds(self, number: int) -> bool:
        """Whether each word is the number."""


def allocate(size: int) -> Memory:
    """Allocates `size` bytes, a multiple of 4. RuntimeError: the GPU has no space for them."""
    if "AMEM_SIM_DIR" in os.environ:
        return DriverMemory(size)
    return TorchMemory(size)


class TorchMemory:
    """A tensor."""

    def __init__(self, size: int) -> None:
        import torch

        self._tensor = torch.empty(size // 4, dtype=torch.int32, device="cuda")

    def fill(self, number: int) -> None:
        self._tensor.fill_(number)

    def holds(self, number: int) -> bool:
        return bool((self._tensor == number).all())


class DriverMemory:
    """Memory of cuMemAlloc."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(size))

    def fill(self, number: int) -> None:
        call("cuMemsetD32_v2", self._address, ctypes.c_uint(number), ctypes.c_size_t(self._size // 4))

    def holds(self, number: int) -> bool:
        copy = ctypes.create_string_buffer(self._size)
        call("cuMemcpyDtoH_v2", copy, self._address, ctypes.c_size_t(self._size))
        return copy.raw == struct.pack("<I", number) * (self._size // 4)


def call(name: str, *arguments: object) -> None:
    """One driver call, on GPU 0."""
    result = getattr(driver(), name)(*arguments)
    if result == OUT_OF_MEMORY:
        raise RuntimeError("CUDA out of memory")
    if result != 0:
        raise RuntimeError(f"{name} failed: CUDA error {result}")


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver, with a context on GPU 0 that is current in this thread."""
    library = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    if library.cuInit(0) or library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or library.cuCtxSetCurrent(context):
        raise RuntimeError("the driver has no GPU")
    return library
