"""The frameworks that amem knows: its own modules, and modules of other distributions. Any thread."""
from __future__ import annotations

import functools
import importlib.util
import logging
import pkgutil

from amem.frameworks import Framework

GROUP = "amem.frameworks"
"""Other distributions add a module by an entry point in this group."""

OURS = {
    "deepspeed": "amem.deepspeed:DeepSpeed",
    "megatron": "amem.megatron:Megatron",
    "miles": "amem.slime:Miles",
    "sglang": "amem.sglang:Sglang",
    "slime": "amem.slime:Slime",
    "verl": "amem.verl:Verl",
    "vllm": "amem.vllm:Vllm",
}
_logger = logging.getLogger("amem")


def _made(name: str, place: str) -> Framework:
    kind = pkgutil.resolve_name(place)
    if not (isinstance(kind, type) and issubclass(kind, Framework)) or kind.name != name:
        raise TypeError(f"{place} is not a subclass of amem.frameworks.Framework with the name {name!r}")
    return kind()


def _is_there(place: str) -> bool:
    """Whether this amem has the module. Each is an add-on."""
    return importlib.util.find_spec(place.partition(":")[0]) is not None


@functools.lru_cache(maxsize=None)
def known() -> dict[str, Framework]:
    """One instance of each, by name. Leaves out, with a warning, a module of another distribution that cannot be loaded."""
    from importlib import metadata  # slow to import

    found = {name: _made(name, place) for name, place in OURS.items() if _is_there(place)}
    for point in metadata.entry_points(group=GROUP):
        if point.name in OURS:
            _logger.warning("amem: amem ignores the entry point %s of the group %s, because amem has its own module of that name",
                            point.name, GROUP)
            continue
        try:
            found[point.name] = _made(point.name, point.value)
        except Exception as error:  # noqa: BLE001: whatever another distribution does
            _logger.warning("amem: amem cannot use the entry point %s = %s of the group %s: %s: %s", point.name, point.value, GROUP,
                            type(error).__name__, error)
    return found
