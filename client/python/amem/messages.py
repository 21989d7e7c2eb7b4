"""What a Broker answers: the messages of proto/amem/v1/broker.proto as dataclasses, with its field names.

Sizes are bytes; times have their unit in the name. An enum value that a newer broker has and this package does not
reads as UNSPECIFIED. Plain values; any thread.
"""
from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Callable
from typing import Any, TypeVar

_dataclass = dataclasses.dataclass(frozen=True)


class GroupState(enum.IntEnum):
    UNSPECIFIED = 0
    RUNNING = 1
    PAUSING = 2
    PAUSED = 3
    RESUMING = 4


class Policy(enum.IntEnum):
    """What a pause does with the bytes of a tag."""

    UNSPECIFIED = 0
    KEEP = 1  # copy to the host pool, restore
    DISCARD = 2  # drop; comes back zeroed


class Form(enum.IntEnum):
    """How kept bytes lie in the pool."""

    UNSPECIFIED = 0
    AUTO = 1  # a look at the bytes decides
    DENSE = 2  # all of them
    SPARSE = 3  # only blocks that are not zero, wherever that is shorter


@_dataclass
class DeviceStatus:
    uuid: str
    ordinal: int  # the broker's, all devices of the node visible
    name: str
    total_bytes: int
    used_bytes: int  # everybody's memory on the device
    brokered_bytes: int  # physical memory that the broker holds
    usage_known: bool  # False: used reads 0
    trouble: str  # what hangs there; empty: nothing


@_dataclass
class PoolStatus:
    configured_bytes: int
    ready_bytes: int  # created so far
    used_bytes: int  # holds saved bytes now
    place: str  # "host_numa" or "memfd": where saved bytes lie
    error: str  # why it is smaller than configured, else empty


@_dataclass
class GroupDeviceUsage:
    uuid: str
    allocated_bytes: int
    resident_bytes: int


@_dataclass
class TagPolicy:
    tag: str
    policy: Policy  # UNSPECIFIED: only the form was set
    form: Form  # UNSPECIFIED: the configured one


@_dataclass
class TagUsage:
    tag: str
    allocation_count: int
    allocated_bytes: int
    resident_bytes: int
    saved_bytes: int
    pinned_bytes: int
    discard_bytes: int  # of the allocated, what a pause would drop by the policies
    dropped_bytes: int  # of the allocated, what is paused and comes back zeroed


@_dataclass
class UnbrokeredUsage:
    """Memory of a rank that is not brokered, by kind: it stays through a pause."""

    uuid: str
    kind: str  # "device" (cuMemAlloc), "vmm" (cuMemCreate), "pool" (stream-ordered), "graph", "managed", "array"; "host" and others: pinned
    bytes: int
    count: int
    host: bool  # pinned memory of the host, which is no device's: uuid is that of the device that was current


@_dataclass
class UnknownCall:
    """A driver call that a rank's program has asked for and that the rank's shim does not know."""

    name: str
    fate: str  # "hidden", "listed" (somebody has signed it off) or "linked" (a library is linked to it, and pauses fail)
    library: str  # its file name; of "linked"


@_dataclass
class GuestUsage:
    """What a rank has opened of the memory of another group: of one group and one tag."""

    owner: str  # the group whose memory it is; empty: its ranks have freed it, or ended
    guest: str  # the group of the rank
    rank_id: int
    rank: int  # the launcher's number, -1 unknown
    pid: int
    tag: str
    allocation_count: int
    bytes: int  # of whole allocations; small blocks of the owner's share one
    paused: bool  # the rank's group is paused, so that it cannot close it


@_dataclass
class GroupInfo:
    name: str
    state: GroupState
    phase: str  # while pausing or resuming, e.g. "save"
    uid: int
    rank_count: int
    allocation_count: int
    allocated_bytes: int  # what the group holds when it runs
    resident_bytes: int  # of these, on devices now
    saved_bytes: int  # what the bytes of these that are kept take in the pool now
    pinned_bytes: int  # of these, cannot leave the device
    since_ms: int  # time in this state
    last_pause_us: int  # 0: never
    last_resume_us: int
    note: str  # e.g. how the last operation failed
    policies: tuple[TagPolicy, ...]
    devices: tuple[GroupDeviceUsage, ...]
    tags: tuple[TagUsage, ...]
    unbrokered_bytes: int  # of all ranks
    dropped_bytes: int  # of the allocated, what is paused and comes back zeroed
    guests: tuple[GuestUsage, ...]  # who has opened memory of this group
    opened: tuple[GuestUsage, ...]  # what its ranks have opened of others; in none of the sums
    owner: str  # "uid 1000", "/kubepods/pod12ab"
    address: str  # "train@1000": names it whatever groups others have


@_dataclass
class Quota:
    resource: str  # "sessions", "allocations", "device", "pool", "descriptors", "queue"
    used: int
    limited: bool
    most: int  # where it is limited
    bytes: bool  # else a number
    refusals: int  # for want of it


@_dataclass
class OwnerQuotas:
    owner: str  # as in GroupInfo
    uid: int
    quotas: tuple[Quota, ...]


@_dataclass
class NodeStatus:
    version: str
    pid: int
    uptime_ms: int
    rss_bytes: int  # of the broker process
    devices: tuple[DeviceStatus, ...]
    pool: PoolStatus
    groups: tuple[GroupInfo, ...]
    times: tuple[TimeHistogram, ...]  # of pauses and resumes that succeeded
    session_protocol: int  # the one that it speaks with ranks; it refuses others


@_dataclass
class RankInfo:
    id: int
    group: str
    rank: int  # the launcher's number, -1 unknown
    pid: int
    uid: int
    program: str
    shim_version: str
    owned_bytes: int
    imported_bytes: int
    allocation_count: int
    phase: str  # what the broker waits for it to do, empty: nothing
    unbrokered: tuple[UnbrokeredUsage, ...]
    tags: tuple[TagUsage, ...]
    opened_bytes: int  # of other groups
    unknown_calls: tuple[UnknownCall, ...]


@_dataclass
class Pinner:
    rank: int  # rank id
    reason: str  # "NIC", "GDRCopy", "dma-buf", "P2P tokens" or "GPUDirect Storage"


@_dataclass
class AllocationInfo:
    id: int
    group: str
    owner: int  # rank id that saves and loads it
    peers: tuple[int, ...]  # other rank ids that hold it
    device: str  # UUID
    size: int
    tag: str
    policy: Policy
    resident: bool
    pinned: bool
    pinners: tuple[Pinner, ...]
    guests: tuple[int, ...]  # rank ids of other groups that have opened it


@_dataclass
class RankTime:
    """What one rank did in a phase. Times in microseconds; 0: no such thing. Copies run beside the rest."""

    id: int
    rank: int
    us: int  # from the beginning of the phase to the rank's last answer
    busy_us: int  # of these, since it had its first command
    bytes: int  # copied
    copy_us: int
    import_us: int
    map_us: int
    access_us: int
    unmap_us: int
    release_us: int
    handles: int  # imported or released


@_dataclass
class PhaseTime:
    phase: str
    us: int
    broker_us: int  # CPU time of the broker's thread
    driver_us: int  # that the broker was in driver calls
    ranks: tuple[RankTime, ...]


@_dataclass
class TimeHistogram:
    """How long pauses, resumes or swaps have taken, whole or one phase, since the broker began."""

    operation: str  # "pause", "resume" or "swap"
    phase: str  # empty: the whole
    count: int
    sum_us: int
    bounds_us: tuple[int, ...]  # of the buckets, included
    buckets: tuple[int, ...]  # one more than bounds: what was longer


@_dataclass
class Progress:
    """How far a pause or resume is."""

    group: str
    phase: str  # "quiesce", "save", "release", "drop", "admit", "create", ...
    ranks_done: int
    ranks_total: int
    bytes: int  # copied, released or mapped in this phase so far
    elapsed_us: int  # since the operation began
    done: bool  # the operation on this group has ended well; a swap has two of these
    times: tuple[PhaseTime, ...]  # with done: where the time went
    pinned_bytes: int  # with done, of a pause: still on the devices, because a NIC knows the physical addresses
    unbrokered_bytes: int  # the same, because it is not brokered; 0 for a pause of tags
    swap_us: int  # with done, of a swap's resume: since the swap was asked for
    dropped_bytes: int  # with done, of a pause: what of the memory that it is about comes back zeroed
    guests: tuple[GuestUsage, ...]  # with done, of a pause: for whom memory has stayed on its device
    waits_for: str  # what the phase waits for before its ranks are asked; empty: for them
    transaction: int  # as in PastOperation
    copied_bytes: int  # while ranks copy, as far as they have told: between devices and pool, in this phase so far
    to_copy_bytes: int  # of so many; 0: nobody has told
    unknown_calls: int  # with done, of a pause: driver calls that ranks of the group asked for, that their shims do not know and that nobody has signed off
    node: str  # of an operation over several nodes: whose this is; else empty


@_dataclass
class CallSpan:
    """Copies, or all driver calls of one kind, of an answer. Copies run beside calls, and several kinds of calls take
    turns."""

    name: str  # "copy", or the driver's function: "cuMemMap"
    begin_us: int  # since the operation began: of the first
    us: int  # to the end of the last
    in_calls_us: int  # of these, in such calls


@_dataclass
class RankSpan:
    """One answer of a rank's."""

    id: int  # as in RankInfo
    rank: int
    pid: int  # 0: it has ended meanwhile
    work: str  # "quiesce", "measure", "save", "release", "map", "load" or "open"
    begin_us: int  # since the operation began
    us: int
    bytes: int  # looked at, copied, released or mapped
    calls: tuple[CallSpan, ...]


@_dataclass
class PhaseSpan:
    """Once through one phase. Times in microseconds since the operation began."""

    phase: str
    begin_us: int
    us: int
    ranks: tuple[RankSpan, ...]  # as they answered


@_dataclass
class PastOperation:
    """A pause or resume of one group that has ended."""

    transaction: int  # one for all operations of a swap or a set, counted since the broker began; 0: ranks asked
    swap: bool  # part of one
    group: str
    operation: str  # "pause" or "resume"
    tags: str  # "tag kv_cache", "all but tags a, b"; empty: everything
    began_us: int  # Unix time in microseconds
    us: int  # how long it took
    code: int  # canonical gRPC code; 0: it succeeded
    error: str
    bytes: int  # copied
    times: tuple[PhaseTime, ...]
    spans: tuple[PhaseSpan, ...]  # in order; with spans=True only


@_dataclass
class Event:
    time_ms: int  # Unix time
    group: str
    kind: str  # "state", "rank_joined", "rank_left", "pool", "error"
    text: str
    state: GroupState  # with kind "state"
    lost: bool  # events before this one were dropped because this reader was too slow
    missed: int  # how many


_T = TypeVar("_T")


def from_wire(kind: type[_T], message: Any) -> _T:
    """The dataclass for a protobuf message of the same name."""
    plan = _plans.get(kind)
    if plan is None:
        hints = typing.get_type_hints(kind)
        fields: Any = dataclasses.fields(typing.cast(Any, kind))
        plan = _plans[kind] = [(field.name, _converter(hints[field.name])) for field in fields]
    return kind(**{name: convert(getattr(message, name)) for name, convert in plan})


# How each field of a dataclass is made from the message's.
_plans: dict[type, list[tuple[str, Callable[[Any], Any]]]] = {}


def _converter(hint: Any) -> Callable[[Any], Any]:
    if typing.get_origin(hint) is tuple:
        item = _converter(typing.get_args(hint)[0])
        return lambda values: tuple(map(item, values))
    if dataclasses.is_dataclass(hint):
        return functools.partial(from_wire, typing.cast(Any, hint))
    if issubclass(hint, enum.Enum):
        known = {member.value: member for member in hint}
        return lambda number: known.get(number, known[0])
    return typing.cast(Callable[[Any], Any], hint)  # int, str, bool: the value itself
