"""What a process holds, as dataclasses, and how they are made of the shim's JSON. Plain values; any thread."""
from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Brokered:
    """Memory of one tag on one device that the broker owns.

    Attributes:
        tag: "nccl", or the tag of a region.
        device: The device's CUDA ordinal in this process.
        resident_bytes: Bytes of this process's allocations that are on the device.
        paused_bytes: Bytes of this process's allocations that have left it in a pause.
        imported_bytes: Bytes that this process has opened and another rank has allocated.
        allocations: How many allocations these are.
    """

    tag: str = ""
    device: int = 0
    resident_bytes: int = 0
    paused_bytes: int = 0
    imported_bytes: int = 0
    allocations: int = 0


@dataclasses.dataclass(frozen=True)
class Unbrokered:
    """Memory of one kind on one device that is the driver's own: no pause moves it.

    Attributes:
        kind: What has allocated it, such as "pool" for cudaMallocAsync.
        device: The device's CUDA ordinal in this process; of the host's memory: the device that was current.
        bytes: Its size in bytes.
        count: How many allocations these are.
        host: It is pinned memory of the host, and no device's.
    """

    kind: str = ""
    device: int = 0
    bytes: int = 0
    count: int = 0
    host: bool = False


@dataclasses.dataclass(frozen=True)
class Stats:
    """What a process holds, as its shim counts it without asking the broker.

    Attributes:
        group: The group's name; empty when amem is turned off.
        rank_id: The rank's number at the broker; 0 before the first call that opens the session.
        scope: Which memory is brokered: "nccl", "regions" or "heap"; "off" when amem is turned off.
        brokered: By tag and device.
        unbrokered: By kind and device.
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
    """Of the shim's JSON object."""
    figures = json.loads(text)
    for name, kind in (("brokered", Brokered), ("unbrokered", Unbrokered)):
        figures[name] = tuple(_made(kind, each) for each in figures.get(name, ()))
    return _made(Stats, figures)
