"""Which tensors have memory of their own, that can be moved into a region and paused. Pure; any thread."""
from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


def plain(tensors: Iterable[Any]) -> list[Any]:
    """Leaves out tensors of classes of their own, such as quantized ones, whose memory is elsewhere.

    Args:
        tensors: Any values.

    Returns:
        Those that are a torch.Tensor or a torch.nn.Parameter, and nothing below these.
    """
    torch = sys.modules["torch"]
    return [each for each in tensors if type(each) in (torch.Tensor, torch.nn.Parameter)]


def parts(tensors: Iterable[Any]) -> list[Any]:
    """Finds this rank's parts of sharded tensors.

    Args:
        tensors: Sharded ones (DTensor), and others.

    Returns:
        The local tensors, as plain() chooses them.
    """
    return plain(getattr(each, "_local_tensor", each) for each in tensors)


def others(tensors: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
    """Leaves out tensors that share memory with those to be kept.

    Args:
        tensors: What may leave.
        kept: What stays.

    Returns:
        The tensors whose memory may leave, as plain() chooses them.
    """
    places = {each.untyped_storage().data_ptr() for each in plain(kept)}
    return [each for each in plain(tensors) if each.untyped_storage().data_ptr() not in places]
