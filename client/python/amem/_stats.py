"""The GPU memory of a process, as dataclasses that are made from the shim's JSON. Plain values; any thread."""
from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Brokered:
    """Brokered memory with one tag on one device.

    Attributes:
        tag: "nccl", or the tag of a region.
        device: The device's CUDA ordinal in this process.
        resident_bytes: Bytes of this process's allocations that are on the device.
        paused_bytes: Bytes of this process's allocations that are paused.
        imported_bytes: Bytes of other ranks' allocations that this process has opened.
        allocations: The number of these allocations.
    """

    tag: str = ""
    device: int = 0
    resident_bytes: int = 0
    paused_bytes: int = 0
    imported_bytes: int = 0
    allocations: int = 0


@dataclasses.dataclass(frozen=True)
class Unbrokered:
    """Unbrokered memory of one kind on one device. It stays on the GPU through a pause.

    Attributes:
        kind: How the program has allocated it, such as "pool" for cudaMallocAsync.
        device: The device's CUDA ordinal in this process. For host memory: the device that was current.
        bytes: Its size in bytes.
        count: The number of these allocations.
        host: It is pinned host memory and not memory of a device.
    """

    kind: str = ""
    device: int = 0
    bytes: int = 0
    count: int = 0
    host: bool = False


@dataclasses.dataclass(frozen=True)
class Stats:
    """The GPU memory of a process. Its shim counts it and does not ask the broker.

    Attributes:
        group: The group's name. Empty: amem is off.
        rank_id: The rank's number in the broker. 0: the process has not opened its session yet.
        scope: The memory that is brokered: "nccl", "regions" or "heap". "off": amem is off.
        brokered: Brokered memory, by tag and device.
        unbrokered: Unbrokered memory, by kind and device.
    """

    group: str = ""
    rank_id: int = 0
    scope: str = "off"
    brokered: tuple[Brokered, ...] = ()
    unbrokered: tuple[Unbrokered, ...] = ()


def _made(kind: type[_T], fields: dict[str, Any]) -> _T:
    # A shim of another version may have more or fewer.
    known = {field.name for field in dataclasses.fields(cast(Any, kind))}
    return kind(**{name: value for name, value in fields.items() if name in known})


def read(text: str) -> Stats:
    """Makes Stats from the shim's JSON."""
    figures = json.loads(text)
    for name, kind in (("brokered", Brokered), ("unbrokered", Unbrokered)):
        figures[name] = tuple(_made(kind, each) for each in figures.get(name, ()))
    return _made(Stats, figures)
