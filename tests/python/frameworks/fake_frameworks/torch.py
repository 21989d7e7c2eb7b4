"""Tensors that are nothing but memory, on the simulated driver. CPU tensors are bytes."""
from __future__ import annotations

import contextlib
import ctypes
import types

_driver = None


class OutOfMemoryError(RuntimeError):
    pass


def driver() -> ctypes.CDLL:
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        assert _driver.cuInit(0) == 0 and _driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert _driver.cuCtxSetCurrent(context) == 0
    context = ctypes.c_void_p()
    assert _driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert _driver.cuCtxSetCurrent(context) == 0  # any thread
    return _driver


class Copy:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self) -> bytes:
        return self.data

    def cpu(self) -> Copy:
        return self


class Device:
    index = 0

    def __init__(self, type: str = "cuda") -> None:
        self.type = type


class Storage:
    device = Device()

    def __init__(self, size: int) -> None:
        self.size, self.address = 0, ctypes.c_uint64()
        self.resize_(size)

    def resize_(self, size: int) -> None:
        if self.size:
            assert driver().cuMemFree_v2(self.address) == 0
        self.size, self.address = 0, ctypes.c_uint64()
        if size:
            if driver().cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size)) != 0:
                raise OutOfMemoryError(f"no {size} bytes")
            self.size = size

    def nbytes(self) -> int:
        return self.size

    def resizable(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return self.address.value or 0

    def cpu(self) -> Copy:
        return Copy(self.read())

    clone = cpu  # the tests' devices are small

    def copy_(self, other: Copy | Storage) -> None:
        self.write(other.read())

    def read(self) -> bytes:
        data = ctypes.create_string_buffer(self.size)
        assert driver().cuMemcpyDtoH_v2(data, self.address, ctypes.c_size_t(self.size)) == 0
        return data.raw

    def write(self, data: bytes) -> None:
        assert driver().cuMemcpyHtoD_v2(self.address, data, ctypes.c_size_t(len(data))) == 0


class OnCpu(Storage):
    device = Device("cpu")

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self) -> bytes:
        return self.data


class Tensor:
    def __init__(self, size: int = 0, storage: Storage | None = None) -> None:
        self.storage = storage or Storage(size)
        self.data = self

    def untyped_storage(self) -> Storage:
        return self.storage

    @property
    def device(self) -> Device:
        return self.storage.device

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        """The bytes alone are on the CPU."""
        return Tensor(storage=OnCpu(self.storage.read()))

    def numel(self) -> int:
        return self.storage.nbytes()

    def element_size(self) -> int:
        return 1

    def fill(self, seed: int) -> None:
        self.storage.write(bytes((seed + at) % 251 + 1 for at in range(4096)) * (self.storage.size // 4096))

    def sum(self) -> int:
        return sum(self.storage.read()[::61])


class Parameter(Tensor):
    main_grad: Tensor

    def __init__(self, tensor: Tensor) -> None:
        self.storage, self.data = tensor.storage, tensor


nn = types.SimpleNamespace(Parameter=Parameter)
cuda = types.SimpleNamespace(is_available=lambda: False, synchronize=lambda device=None: driver().cuCtxSynchronize(),
                             empty_cache=lambda: None, device=lambda device: contextlib.nullcontext())
