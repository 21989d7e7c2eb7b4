"""The saved bytes of this process's paused memory, as tensors of torch."""
from __future__ import annotations

import ctypes
import warnings
from typing import Any

from amem import _shim
from amem.errors import InvalidArgumentError, NotFoundError


def of_tensor(x: Any, zero_copy: bool) -> Any:
    """A tensor on the CPU with the bytes that `x` had when it was paused. None: `x` is not paused.

    `zero_copy`: a view of the bytes in the pool, if they are dense and in one piece. Otherwise a copy.
    """
    import torch

    if not x.is_cuda:
        raise InvalidArgumentError(f"the tensor is on {x.device}. Only CUDA tensors have saved bytes")
    if not x.is_contiguous():
        raise InvalidArgumentError(f"the tensor is not contiguous: shape {tuple(x.shape)}, strides {x.stride()}")
    size = int(x.nbytes)
    if size == 0:
        return torch.empty(x.shape, dtype=x.dtype, device="cpu")
    try:
        if zero_copy:
            address = ctypes.c_void_p()
            _shim.call("amem_shim_backup_view", x.data_ptr(), size, ctypes.byref(address))
            if address.value is not None:
                # Not to be written: torch knows no such tensors, and warns.
                view = memoryview((ctypes.c_uint8 * size).from_address(address.value)).toreadonly()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return torch.frombuffer(view, dtype=torch.uint8).view(x.dtype).view(x.shape)
        copy = torch.empty(x.shape, dtype=x.dtype, device="cpu")
        _shim.call("amem_shim_backup_read", x.data_ptr(), size, copy.data_ptr())
        return copy
    except NotFoundError:
        return None
