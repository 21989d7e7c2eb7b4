"""Finds tensors that own their memory, so that amem can move it into a region and pause it. Pure functions; any thread."""
from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


def plain(tensors: Iterable[Any]) -> list[Any]:
    """Leaves out tensors of subclasses, such as quantized tensors, because their memory is elsewhere.

    Args:
        tensors: Any values.

    Returns:
        The values whose class is torch.Tensor or torch.nn.Parameter, without subclasses.
    """
    torch = sys.modules["torch"]
    return [each for each in tensors if type(each) in (torch.Tensor, torch.nn.Parameter)]


def parts(tensors: Iterable[Any]) -> list[Any]:
    """Finds this rank's parts of sharded tensors.

    Args:
        tensors: Sharded tensors (DTensor), and other tensors.

    Returns:
        The local tensors that plain() chooses.
    """
    return plain(getattr(each, "_local_tensor", each) for each in tensors)


def others(tensors: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
    """Leaves out tensors that share memory with tensors that stay.

    Args:
        tensors: The tensors to pause.
        kept: The tensors that stay.

    Returns:
        The tensors that plain() chooses and that share no memory with `kept`.
    """
    places = {each.untyped_storage().data_ptr() for each in plain(kept)}
    return [each for each in plain(tensors) if each.untyped_storage().data_ptr() not in places]
