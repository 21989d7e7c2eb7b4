"""What a Broker answers, as dataclasses, and the enums. Both have the names of proto/amem/v1/broker.proto.

Sizes are bytes; times have their unit in the name. An enum value that a newer broker has and this package does not
reads as UNSPECIFIED. Plain values; any thread.
"""
# client/python/write_messages.py makes this file of broker.proto.
from __future__ import annotations

import dataclasses
import enum

from amem._connection.from_wire import from_wire as from_wire


class GroupState(enum.IntEnum):
    """Where a group stands.

    Attributes:
        UNSPECIFIED:
        RUNNING:
        PAUSING:
        PAUSED:
        RESUMING:
    """

    UNSPECIFIED = 0
    RUNNING = 1
    PAUSING = 2
    PAUSED = 3
    RESUMING = 4


class Policy(enum.IntEnum):
    """What a pause does with the bytes of a tag.

    Attributes:
        UNSPECIFIED:
        KEEP: copy to the host pool, restore
        DISCARD: drop; comes back zeroed
    """

    UNSPECIFIED = 0
    KEEP = 1
    DISCARD = 2


class Form(enum.IntEnum):
    """How kept bytes lie in the pool.

    Attributes:
        UNSPECIFIED:
        AUTO: a look at the bytes decides
        DENSE: all of them
        SPARSE: only blocks that are not zero, wherever that is shorter
    """

    UNSPECIFIED = 0
    AUTO = 1
    DENSE = 2
    SPARSE = 3


class MetricsFormat(enum.IntEnum):
    """In which form GetMetrics writes the metrics.

    Attributes:
        UNSPECIFIED: OpenMetrics
        OPENMETRICS: OpenMetrics 1.0.0
        PROMETHEUS: Prometheus' own text format, 0.0.4
    """

    UNSPECIFIED = 0
    OPENMETRICS = 1
    PROMETHEUS = 2


class GuestPolicy(enum.IntEnum):
    """What a pause does with memory that guests have open still when it has waited for them (deadlines.guests).

    Attributes:
        UNSPECIFIED: the configured one
        PIN: it stays on its device with its bytes; Progress.guests names them
        REFUSE: FAILED_PRECONDITION, which names them; the group runs on
    """

    UNSPECIFIED = 0
    PIN = 1
    REFUSE = 2


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """The node of a broker.

    Attributes:
        version:
        pid:
        uptime_ms:
        rss_bytes: of the broker process
        devices:
        pool:
        groups:
        times: of pauses and resumes that succeeded, since the broker began
        session_protocol: the one that it speaks with ranks; it refuses others
    """

    version: str
    pid: int
    uptime_ms: int
    rss_bytes: int
    devices: tuple[DeviceStatus, ...]
    pool: PoolStatus
    groups: tuple[GroupInfo, ...]
    times: tuple[TimeHistogram, ...]
    session_protocol: int


@dataclasses.dataclass(frozen=True)
class TimeHistogram:
    """How long pauses, resumes or swaps have taken, whole or one phase, since the broker began.

    Attributes:
        operation: "pause", "resume" or "swap"; a swap has no phases, its pauses and resumes have
        phase: empty: the whole operation
        count:
        sum_us:
        bounds_us: of the buckets, included
        buckets: counts, one more than bounds: what was longer
    """

    operation: str
    phase: str
    count: int
    sum_us: int
    bounds_us: tuple[int, ...]
    buckets: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class DeviceStatus:
    """A GPU of the node.

    Attributes:
        uuid: "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
        ordinal: the broker's, all devices of the node visible
        name:
        total_bytes: the driver's figure
        used_bytes: the driver's figure, everybody's memory on the device
        brokered_bytes: physical memory that the broker holds a descriptor of
        usage_known: false: the management library is missing, or hangs; used reads 0
        trouble: what hangs there, for people; empty: nothing
    """

    uuid: str
    ordinal: int
    name: str
    total_bytes: int
    used_bytes: int
    brokered_bytes: int
    usage_known: bool
    trouble: str


@dataclasses.dataclass(frozen=True)
class PoolStatus:
    """The pinned host memory that saved bytes lie in.

    Attributes:
        configured_bytes:
        ready_bytes: created so far
        used_bytes: holds saved bytes now
        place: "host_numa" or "memfd": where saved bytes lie
        error: why it is smaller than configured, else empty
        retained_bytes: holds bytes that have been loaded again; free for whoever needs it, so not in used_bytes
    """

    configured_bytes: int
    ready_bytes: int
    used_bytes: int
    place: str
    error: str
    retained_bytes: int


@dataclasses.dataclass(frozen=True)
class GroupInfo:
    """A group: the ranks that pause and resume together.

    Attributes:
        name: by which the caller can call it: with its owner where it would be another's alone
        state:
        phase: while pausing or resuming, e.g. "save"
        uid:
        rank_count:
        allocation_count:
        allocated_bytes: what the group holds when it runs
        resident_bytes: of these, on devices now
        saved_bytes: what the bytes of these that are kept take in the pool now
        pinned_bytes: of these, cannot leave the device
        since_ms: time in this state
        last_pause_us: 0: never
        last_resume_us:
        note: e.g. how the last operation failed
        policies: that an operator has set, or else a rank; of other tags the regions decide
        devices:
        tags: every tag of the group's allocations, by name
        unbrokered_bytes: device memory of the ranks that is not brokered, and so stays through a pause
        dropped_bytes: of allocated_bytes, those that are paused and come back zeroed
        guests: who has opened memory of this group; it cannot leave its device meanwhile
        opened: what ranks of this group have opened of others; in none of the sums
        owner: "uid 1000", "/kubepods/pod12ab"
        address: "train@1000": names it whatever groups others have
        retained_bytes: in free space of the pool: bytes that have been loaded again, which a pause compares with
    """

    name: str
    state: GroupState
    phase: str
    uid: int
    rank_count: int
    allocation_count: int
    allocated_bytes: int
    resident_bytes: int
    saved_bytes: int
    pinned_bytes: int
    since_ms: int
    last_pause_us: int
    last_resume_us: int
    note: str
    policies: tuple[TagPolicy, ...]
    devices: tuple[GroupDeviceUsage, ...]
    tags: tuple[TagUsage, ...]
    unbrokered_bytes: int
    dropped_bytes: int
    guests: tuple[GuestUsage, ...]
    opened: tuple[GuestUsage, ...]
    owner: str
    address: str
    retained_bytes: int


@dataclasses.dataclass(frozen=True)
class GuestUsage:
    """What a rank has opened of the memory of another group of its uid: of one group and one tag.

    Attributes:
        owner: the group whose memory it is; empty: its ranks have freed it, or ended
        guest: the group of the rank
        rank_id:
        rank: the launcher's number, -1 unknown
        pid:
        tag:
        allocation_count:
        bytes: of whole allocations; small blocks of the owner's share one
        paused: the rank's group is paused, so that it cannot close it
    """

    owner: str
    guest: str
    rank_id: int
    rank: int
    pid: int
    tag: str
    allocation_count: int
    bytes: int
    paused: bool


@dataclasses.dataclass(frozen=True)
class GroupDeviceUsage:
    """What a group has of one GPU.

    Attributes:
        uuid:
        allocated_bytes:
        resident_bytes:
    """

    uuid: str
    allocated_bytes: int
    resident_bytes: int


@dataclasses.dataclass(frozen=True)
class TagPolicy:
    """What has been set for a tag of a group.

    Attributes:
        tag:
        policy: unspecified: only the form was set
        form: unspecified: the configured one
    """

    tag: str
    policy: Policy
    form: Form


@dataclasses.dataclass(frozen=True)
class TagUsage:
    """The allocations of one tag.

    Attributes:
        tag:
        allocation_count:
        allocated_bytes:
        resident_bytes:
        saved_bytes: in the pool
        pinned_bytes:
        discard_bytes: of the allocated, what a pause would drop by the policies
        dropped_bytes: of the allocated, what is paused and comes back zeroed
        retained_bytes: as in GroupInfo
    """

    tag: str
    allocation_count: int
    allocated_bytes: int
    resident_bytes: int
    saved_bytes: int
    pinned_bytes: int
    discard_bytes: int
    dropped_bytes: int
    retained_bytes: int


@dataclasses.dataclass(frozen=True)
class UnbrokeredUsage:
    """Memory of a rank that is not brokered, by kind: it stays through a pause.

    Attributes:
        uuid:
        kind: "device" (cuMemAlloc), "vmm" (cuMemCreate), "pool" (stream-ordered), "graph", "managed", "array"; pinned memory of the host:
            "host", "registered" (cuMemHostRegister), of NCCL "nccl_host", "nccl_registered"
        bytes:
        count: allocations
        host: No device's memory, and in no sum of unbrokered_bytes: `uuid` is that of the device that was current.
    """

    uuid: str
    kind: str
    bytes: int
    count: int
    host: bool


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """A rank: a process of a group.

    Attributes:
        id:
        group:
        rank: the launcher's number, -1 unknown
        pid:
        uid:
        program:
        shim_version:
        owned_bytes:
        imported_bytes:
        allocation_count:
        phase: what the broker waits for it to do, empty: nothing
        unbrokered:
        tags: of the allocations that it owns
        opened_bytes: of other groups
        unknown_calls:
    """

    id: int
    group: str
    rank: int
    pid: int
    uid: int
    program: str
    shim_version: str
    owned_bytes: int
    imported_bytes: int
    allocation_count: int
    phase: str
    unbrokered: tuple[UnbrokeredUsage, ...]
    tags: tuple[TagUsage, ...]
    opened_bytes: int
    unknown_calls: tuple[UnknownCall, ...]


@dataclasses.dataclass(frozen=True)
class UnknownCall:
    """A driver call that a rank's program has asked for and that the rank's shim does not know.

    Attributes:
        name:
        fate: "hidden": the program was told that there is none; "listed": it has it, because somebody has signed it off; "linked":
            `library` is linked to it, and pauses fail
        library: its file name; of "linked"
    """

    name: str
    fate: str
    library: str


@dataclasses.dataclass(frozen=True)
class AllocationInfo:
    """Physical GPU memory under one id.

    Attributes:
        id:
        group:
        owner: rank id that saves and loads it
        peers: other rank ids that hold it
        device: UUID
        size:
        tag:
        policy:
        resident:
        pinned:
        pinners: why; none when it is not pinned
        guests: rank ids of other groups that have opened it
    """

    id: int
    group: str
    owner: int
    peers: tuple[int, ...]
    device: str
    size: int
    tag: str
    policy: Policy
    resident: bool
    pinned: bool
    pinners: tuple[Pinner, ...]
    guests: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Pinner:
    """A rank gave an allocation to a device that remembers where it is.

    Attributes:
        rank: rank id
        reason: "NIC", "GDRCopy", "dma-buf", "P2P tokens" or "GPUDirect Storage"
    """

    rank: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a pause or resume is.

    Attributes:
        group:
        phase: "quiesce", "save", "release", "drop", "admit", "create", ..., as in docs/phases.md
        ranks_done:
        ranks_total:
        bytes: saved, released or mapped in this phase so far
        elapsed_us: since the operation began
        done: last message of a group's operation, which has ended well; one comes for each group
        times: with done: where the time went
        pinned_bytes: With done, of a pause: still on the devices, because a NIC knows the physical addresses.
        unbrokered_bytes: With done, of a pause: on the devices, because it was never brokered; RankInfo has the kinds. 0 for a pause of
            tags.
        swap_us: with done, of a swap's last resume: since the swap was asked for
        dropped_bytes: with done, of a pause: what of the memory that it is about comes back zeroed
        guests: with done, of a pause: for whom memory has stayed on its device
        waits_for: what the phase waits for before its ranks are asked; empty: for them
        transaction: as in PastOperation
        copied_bytes: While ranks copy, as far as they have told, which they do every quarter of a second: between devices and pool, in this
            phase so far.
        to_copy_bytes: of so many; 0: nobody has told
        unknown_calls: With done, of a pause: driver calls that ranks of the group asked for, that their shims do not know and that nobody
            has signed off.
        node: of an operation over several nodes: whose this is; else empty
        saves: with done, of a pause: of each tag whose bytes it has kept, by name
    """

    group: str
    phase: str
    ranks_done: int
    ranks_total: int
    bytes: int
    elapsed_us: int
    done: bool
    times: tuple[PhaseTime, ...]
    pinned_bytes: int
    unbrokered_bytes: int
    swap_us: int
    dropped_bytes: int
    guests: tuple[GuestUsage, ...]
    waits_for: str
    transaction: int
    copied_bytes: int
    to_copy_bytes: int
    unknown_calls: int
    node: str
    saves: tuple[TagSave, ...]


@dataclasses.dataclass(frozen=True)
class TagSave:
    """What a pause did with the bytes of one tag that it kept.

    Attributes:
        tag:
        kept_bytes:
        compared_bytes: of these, those that the pool had since an earlier pause, and that were compared with it
        unchanged_bytes: of these, those that had not changed, and so were not copied
        copied_bytes: to the pool, in the form in which they lie there
        hashed: it took hashes, so that the next pause can compare
    """

    tag: str
    kept_bytes: int
    compared_bytes: int
    unchanged_bytes: int
    copied_bytes: int
    hashed: bool


@dataclasses.dataclass(frozen=True)
class PhaseTime:
    """Where the time of one phase went.

    Attributes:
        phase:
        us:
        broker_us: CPU time of the broker's thread meanwhile
        driver_us: that it was in driver calls: creating, freeing and measuring device memory
        ranks: that had something to do, by id
    """

    phase: str
    us: int
    broker_us: int
    driver_us: int
    ranks: tuple[RankTime, ...]


@dataclasses.dataclass(frozen=True)
class RankTime:
    """What one rank did in a phase. Times in microseconds; 0: no such thing. Copies run beside the rest.

    Attributes:
        id: as in RankInfo
        rank:
        us: from the beginning of the phase to the rank's last answer
        busy_us: of these, since it had its first command
        bytes: copied
        copy_us: from the first copy queued to the end of the last one
        import_us: driver calls, each kind by itself
        map_us:
        access_us:
        unmap_us:
        release_us:
        handles: imported or released
    """

    id: int
    rank: int
    us: int
    busy_us: int
    bytes: int
    copy_us: int
    import_us: int
    map_us: int
    access_us: int
    unmap_us: int
    release_us: int
    handles: int


@dataclasses.dataclass(frozen=True)
class PastOperation:
    """A pause or resume of one group that has ended.

    Attributes:
        transaction: one for all operations of a swap or a set, counted since the broker began; 0: ranks asked
        swap: part of one
        group:
        operation: "pause" or "resume"
        tags: "tag kv_cache", "all but tags a, b"; empty: everything
        began_us: Unix time in microseconds
        us: how long it took
        code: canonical gRPC code; 0: it succeeded
        error:
        bytes: copied
        times:
        spans: in order; only where the request has `spans`
        saves: of a pause, as in Progress
    """

    transaction: int
    swap: bool
    group: str
    operation: str
    tags: str
    began_us: int
    us: int
    code: int
    error: str
    bytes: int
    times: tuple[PhaseTime, ...]
    spans: tuple[PhaseSpan, ...]
    saves: tuple[TagSave, ...]


@dataclasses.dataclass(frozen=True)
class PhaseSpan:
    """Once through one phase. Times in microseconds since the operation began.

    Attributes:
        phase:
        begin_us:
        us:
        ranks: as they answered
    """

    phase: str
    begin_us: int
    us: int
    ranks: tuple[RankSpan, ...]


@dataclasses.dataclass(frozen=True)
class RankSpan:
    """One answer of a rank's.

    Attributes:
        id: as in RankInfo
        rank:
        pid: 0: it has ended meanwhile
        work: "quiesce", "measure", "save", "release", "map", "load" or "open"
        begin_us: since the operation began
        us:
        bytes: looked at, copied, released or mapped
        calls:
    """

    id: int
    rank: int
    pid: int
    work: str
    begin_us: int
    us: int
    bytes: int
    calls: tuple[CallSpan, ...]


@dataclasses.dataclass(frozen=True)
class CallSpan:
    """Copies, or all driver calls of one kind, of an answer. Copies run beside calls, and several kinds of calls take turns.

    Attributes:
        name: "copy", or the driver's function: "cuMemMap"
        begin_us: since the operation began: of the first
        us: to the end of the last
        in_calls_us: of these, in such calls
    """

    name: str
    begin_us: int
    us: int
    in_calls_us: int


@dataclasses.dataclass(frozen=True)
class OwnerQuotas:
    """What one owner has of what the broker can run out of, and may have.

    Attributes:
        owner: as in GroupInfo
        uid:
        quotas: one of each resource
    """

    owner: str
    uid: int
    quotas: tuple[Quota, ...]


@dataclasses.dataclass(frozen=True)
class Quota:
    """One resource of an owner.

    Attributes:
        resource: "sessions", "allocations", "device", "pool", "descriptors", "queue": the setting quotas.RESOURCE
        used:
        limited:
        most: where it is limited
        bytes: else a number
        refusals: for want of it
    """

    resource: str
    used: int
    limited: bool
    most: int
    bytes: bool
    refusals: int


@dataclasses.dataclass(frozen=True)
class Event:
    """What has happened.

    Attributes:
        time_ms: Unix time
        group:
        kind: "state", "rank_joined", "rank_left", "pool", "error"
        text:
        state: with kind "state"
        lost: events before this one were dropped for this caller, who reads too slowly
        missed: how many
    """

    time_ms: int
    group: str
    kind: str
    text: str
    state: GroupState
    lost: bool
    missed: int
