"""Finds tensors that own their memory, so that amem can move it into a region and pause it. Any thread."""
from __future__ import annotations

import copy
import functools
import logging
import sys
from collections.abc import Iterable
from typing import Any

_logger = logging.getLogger("amem")

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


def on_cpu(value: Any) -> Any:
    """Copies tensors to the CPU's memory.

    Args:
        value: A tensor, or dicts, lists and tuples of tensors and other values, such as the state_dict() of an optimizer.

    Returns:
        The same, with each tensor on the CPU. Objects of other classes stay as they are.
    """
    if isinstance(value, sys.modules["torch"].Tensor):
        return value if value.device.type == "cpu" else value.detach().cpu()
    if isinstance(value, dict):
        found = copy.copy(value)  # a module's state_dict() has attributes
        for key, each in value.items():
            found[key] = on_cpu(each)
        return found
    if isinstance(value, (list, tuple)):
        made = [on_cpu(each) for each in value]
        return value._make(made) if hasattr(value, "_make") else type(value)(made)
    return value


def _size(tensor: Any) -> int:
    """In bytes. A subclass has the memory of the tensors that it consists of."""
    if hasattr(tensor, "__tensor_flatten__"):
        return sum(_size(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return int(tensor.numel() * tensor.element_size())


@functools.lru_cache(maxsize=None)
def _say(framework: str, tag: str, types: tuple[str, ...], size: int) -> None:
    _logger.warning("amem: amem cannot move %d bytes of the type %s, so %s itself moves the memory of %s, as without amem",
                    size, ", ".join(types), framework, tag)


def left_to(framework: str, tag: str, tensors: Iterable[Any]) -> bool:
    """Tells whether the framework's own code must move these tensors, because some on the GPU are of a subclass. A warning says which.

    Args:
        framework: The framework's name in the warning.
        tag: The tag that the memory would have.
        tensors: Tensors, sharded tensors (DTensor) and other values.

    Returns:
        False: amem can move all of them.
    """
    torch = sys.modules["torch"]
    sizes: dict[str, int] = {}
    for each in tensors:
        each = getattr(each, "_local_tensor", each)
        if isinstance(each, torch.Tensor) and each.device.type == "cuda" and not plain([each]):
            name = type(each).__qualname__
            sizes[name] = sizes.get(name, 0) + _size(each)
    if sizes:
        _say(framework, tag, tuple(sorted(sizes)), sum(sizes.values()))
    return bool(sizes)
