"""The answers of a Broker as dataclasses, and the enums. They have the names of proto/amem/v1/broker.proto.

Sizes are bytes. The names of times have their unit. If a newer broker sends an enum value that this package does not know,
the field is UNSPECIFIED. Plain values; any thread.
"""
# client/python/write_messages.py makes this file of broker.proto.
from __future__ import annotations

import dataclasses
import enum

from amem._connection.from_wire import from_wire as from_wire


class GroupState(enum.IntEnum):
    """The state of a group.

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
        KEEP: copies them to the host pool and restores them
        DISCARD: drops them; a resume provides zeros
    """

    UNSPECIFIED = 0
    KEEP = 1
    DISCARD = 2


class Form(enum.IntEnum):
    """The form of kept bytes in the pool.

    Attributes:
        UNSPECIFIED:
        AUTO: the bytes decide
        DENSE: all bytes
        SPARSE: only blocks that are not zero, if that is shorter
    """

    UNSPECIFIED = 0
    AUTO = 1
    DENSE = 2
    SPARSE = 3


class MetricsFormat(enum.IntEnum):
    """The format of the metrics.

    Attributes:
        UNSPECIFIED: OpenMetrics
        OPENMETRICS: OpenMetrics 1.0.0
        PROMETHEUS: Prometheus' own text format, 0.0.4
    """

    UNSPECIFIED = 0
    OPENMETRICS = 1
    PROMETHEUS = 2


class GuestPolicy(enum.IntEnum):
    """What a pause does with memory that guests still have open after it has waited for them, for at most 500 ms.

    Attributes:
        UNSPECIFIED: the configured policy
        PIN: the memory stays on its device; Progress.guests names the guests
        REFUSE: the pause fails with FAILED_PRECONDITION, which names the guests; the group runs on
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
        rss_bytes: resident memory of the broker process
        devices:
        pool:
        groups:
        times: of pauses and resumes that succeeded, since the broker started
        session_protocol: its protocol version with ranks; it refuses other versions
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
    """The durations of pauses, resumes or swaps, or of one of their phases, since the broker started.

    Attributes:
        operation: "pause", "resume" or "swap"; a swap has no phases, but its pauses and resumes have
        phase: empty: the whole operation
        count:
        sum_us:
        bounds_us: upper bounds of the buckets, inclusive
        buckets: counts; one more than bounds, for longer ones
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
        ordinal: in the broker, which sees all devices of the node
        name:
        total_bytes: the driver's figure
        used_bytes: the driver's figure, memory of all processes, without spare_bytes
        brokered_bytes: physical memory for which the broker has a descriptor
        usage_known: false: NVML is missing or hangs; used_bytes is 0
        trouble: what hangs on this device, for people; empty: nothing
        spare_bytes: free memory that waits for a resume (spare.idle); to the driver it is in use
    """

    uuid: str
    ordinal: int
    name: str
    total_bytes: int
    used_bytes: int
    brokered_bytes: int
    usage_known: bool
    trouble: str
    spare_bytes: int


@dataclasses.dataclass(frozen=True)
class PoolStatus:
    """The pinned host memory for saved bytes.

    Attributes:
        configured_bytes:
        ready_bytes: pinned now
        used_bytes: in use by saved bytes
        place: "host_numa" or "memfd": the kind of memory
        error: why it is smaller than configured; empty: it is not
        retained_bytes: free, but has bytes that were loaded again; not part of used_bytes
        shares: of owners that the caller may see
        unowned_bytes: in segments that no owner has
        segment_bytes: of the largest segment
        elastic_bytes: of configured_bytes, pinned only while something needs it: beyond pool.reserve
    """

    configured_bytes: int
    ready_bytes: int
    used_bytes: int
    place: str
    error: str
    retained_bytes: int
    shares: tuple[PoolShare, ...]
    unowned_bytes: int
    segment_bytes: int
    elastic_bytes: int


@dataclasses.dataclass(frozen=True)
class PoolShare:
    """What one owner has of the pool, and can have. A segment is one owner's at a time.

    Attributes:
        owner: as in GroupInfo
        segment_bytes: in the owner's segments, which it keeps until its last process ends
        free_bytes: of these, with what is retained there
        available_bytes: what a pause of its groups can have: free_bytes, and unowned segments as far as quotas.pool allows
    """

    owner: str
    segment_bytes: int
    free_bytes: int
    available_bytes: int


@dataclasses.dataclass(frozen=True)
class GroupInfo:
    """A group: the ranks that pause and resume together.

    Attributes:
        name: the name that the caller can use; with its owner if the bare name would mean another group
        state:
        phase: while pausing or resuming, e.g. "save"
        uid:
        rank_count:
        allocation_count:
        allocated_bytes: what the group holds when it runs
        resident_bytes: of allocated_bytes: on devices now
        saved_bytes: space in the pool that its kept bytes use now
        pinned_bytes: of allocated_bytes: a pause cannot free them
        since_ms: how long it has been in this state
        last_pause_us: 0: never
        last_resume_us:
        note: for example how the last operation failed
        policies: that an operator or a rank has set; for other tags the regions decide
        devices:
        tags: all tags of the group's allocations, by name
        unbrokered_bytes: device memory of the ranks that is not brokered; it stays through a pause
        dropped_bytes: of allocated_bytes: paused and dropped; a resume provides zeros
        guests: ranks that have opened memory of this group; a pause cannot free it meanwhile
        opened: memory of other groups that ranks of this group have opened; in no sum
        owner: "uid 1000", "/kubepods/pod12ab"
        address: "train@1000": always means this group
        retained_bytes: free space of the pool that has bytes which were loaded again; the next pause compares with them
        deep: paused, and its processes are checkpointed: nothing of them is on the GPUs
        stage: in which it takes turns; empty: none
        paused_by_stage: it is paused until its next turn; false while paused: until somebody resumes it
        partial: paused, and some of its memory did not have to leave
        lost: ranks that it lacks, until others replace them, such as "lost rank 1 (pid 7) while it was paused"; empty: none
        stopped_ranks: of rank_count: RankInfo.stopped
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
    deep: bool
    stage: str
    paused_by_stage: bool
    partial: bool
    lost: str
    stopped_ranks: int


@dataclasses.dataclass(frozen=True)
class GuestUsage:
    """Memory of another group with the same uid that a rank has opened: of one group and one tag.

    Attributes:
        owner: the group that owns the memory; empty: its ranks have freed it, or have ended
        guest: the group of the rank
        rank_id:
        rank: the launcher's number, -1 unknown
        pid:
        tag:
        allocation_count:
        bytes: of whole allocations; small blocks of the owner share one allocation
        paused: the rank's group is paused, so the rank cannot close it
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
    """Memory of a group on one GPU.

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
    """The policy that was set for a tag of a group.

    Attributes:
        tag:
        policy: UNSPECIFIED: only the form was set
        form: UNSPECIFIED: the configured form
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
        discard_bytes: of allocated_bytes: a pause would drop them by the policies
        dropped_bytes: of allocated_bytes: paused and dropped; a resume provides zeros
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
    """Unbrokered memory of a rank, of one kind. It stays through a pause.

    Attributes:
        uuid:
        kind: "device" (cuMemAlloc), "vmm" (cuMemCreate), "pool" (stream-ordered), "graph", "managed", "array"; pinned host memory: "host",
            "registered" (cuMemHostRegister), and of NCCL: "nccl_host", "nccl_registered"
        bytes:
        count: allocations
        host: It is host memory, and no sum of unbrokered_bytes includes it. `uuid` is the device that was current.
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
        phase: the phase that the broker waits for it to finish; empty: none
        unbrokered:
        tags: of the allocations that it owns
        opened_bytes: of other groups
        unknown_calls:
        stopped: its process is stopped, as by Ctrl-Z or SIGSTOP, or its cgroup is frozen
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
    stopped: bool


@dataclasses.dataclass(frozen=True)
class UnknownCall:
    """A driver call that a rank's program has looked up and that the rank's shim does not know.

    Attributes:
        name:
        fate: "hidden": the shim has hidden the call from the program; "listed": the program has the call, because it is on the list of
            allowed ones; "linked": `library` is linked to it, and pauses fail
        library: with "linked": its file name
    """

    name: str
    fate: str
    library: str


@dataclasses.dataclass(frozen=True)
class AllocationInfo:
    """Physical GPU memory with one id.

    Attributes:
        id:
        group:
        owner: id of the rank that saves and loads it
        peers: ids of the other ranks that have it
        device: UUID
        size:
        tag:
        policy:
        resident:
        pinned:
        pinners: why it is pinned
        guests: ids of ranks of other groups that have opened it
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
    """A rank registered an allocation with a device that keeps its physical address.

    Attributes:
        rank: rank id
        reason: "NIC", "GDRCopy", "dma-buf", "P2P tokens" or "GPUDirect Storage"
    """

    rank: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a pause or resume.

    Attributes:
        group:
        phase: "quiesce", "save", "release", "drop", "admit", "create", ..., as in docs/phases.md
        ranks_done:
        ranks_total:
        bytes: saved, released or mapped in this phase so far
        elapsed_us: since the operation began
        done: the last message of a group; its operation has succeeded
        times: with done: where the time went
        pinned_bytes: With done, of a pause: memory that is still on the devices, because it is registered with a NIC.
        unbrokered_bytes: With done, of a pause: unbrokered memory on the devices. RankInfo has the kinds. 0 for a pause of tags.
        swap_us: with done, of a swap's last resume: time since the call of the swap
        dropped_bytes: with done, of a pause: dropped bytes; a resume provides zeros
        guests: with done, of a pause: guests whose open memory has stayed on its device
        waits_for: what the phase waits for before it asks its ranks; empty: it waits for the ranks
        transaction: as in PastOperation, of the node
        copied_bytes: While ranks copy between devices and pool: bytes in this phase so far. Ranks report them every quarter of a second.
        to_copy_bytes: the total; 0: no rank has reported it yet
        unknown_calls: With done, of a pause: the number of driver calls that ranks have looked up, that their shims do not know and that
            are not on the list of allowed calls.
        node: of an operation over several nodes: the node of this message; else empty
        saves: with done, of a pause: of each tag whose bytes it kept, by name
        node_number: with node: its place in the request's `nodes`, from 0
        remarks: with done: what people should know of the operation, a sentence each
        memory: with done: as in PastOperation
        pool_pinned_bytes: With the first `done` of a pause: host memory that amemd pinned before the operation began, and for how long. 0:
            none.
        pool_pinned_us:
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
    node_number: int
    remarks: tuple[str, ...]
    memory: MovedMemory
    pool_pinned_bytes: int
    pool_pinned_us: int


@dataclasses.dataclass(frozen=True)
class MovedMemory:
    """What became of the device memory that left, or where that which came in is from. In bytes.

    Attributes:
        handed_on_bytes: from a group that left to a group of its owner that came in
        made_bytes: of a resume: the driver has made it
        closed_bytes: of a pause: the driver has got it back
    """

    handed_on_bytes: int
    made_bytes: int
    closed_bytes: int


@dataclasses.dataclass(frozen=True)
class TagSave:
    """What a pause did with the bytes of one tag that it kept.

    Attributes:
        tag:
        kept_bytes:
        compared_bytes: of kept_bytes: the pool had them since an earlier pause, and this pause compared
        unchanged_bytes: of compared_bytes: equal, and so not copied
        copied_bytes: to the pool, in the form in which they lie there
        hashed: the pause took hashes, so that the next pause can compare
    """

    tag: str
    kept_bytes: int
    compared_bytes: int
    unchanged_bytes: int
    copied_bytes: int
    hashed: bool


@dataclasses.dataclass(frozen=True)
class PhaseTime:
    """The duration of one phase.

    Attributes:
        phase:
        us:
        broker_us: CPU time of the broker's thread in this phase
        driver_us: of broker_us: in driver calls that create, free and measure device memory
        ranks: ranks that had work in this phase, by id
    """

    phase: str
    us: int
    broker_us: int
    driver_us: int
    ranks: tuple[RankTime, ...]


@dataclasses.dataclass(frozen=True)
class RankTime:
    """The work of one rank in a phase. Times are microseconds; 0: no such work. Copies run at the same time as the rest.

    Attributes:
        id: as in RankInfo
        rank:
        us: from the beginning of the phase to the rank's last answer
        busy_us: of us: since its first command
        bytes: copied
        copy_us: from the first copy queued to the end of the last one
        import_us: driver calls, for each kind separately
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
        transaction: the same for all operations of a swap or a set, counted since the broker started; 0: by ranks
        swap: it is part of a swap
        group:
        operation: "pause" or "resume"
        tags: "tag kv_cache", "all but tags a, b"; empty: everything
        began_us: Unix time in microseconds
        us: how long it took
        code: canonical gRPC code; 0: it succeeded
        error:
        bytes: copied
        times:
        spans: in order; only if the request has `spans`
        saves: of a pause, as in Progress
        deep: of a pause: as in PauseRequest
        by_broker: the broker's setting deep.after began it
        stage: the stage that switched its groups; empty: none did
        why: why it did; empty if other owners' groups were part of it, except for operators
        partial: of a pause of tags by a stage: the group does not run on
        remarks: as in Progress
        memory:
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
    deep: bool
    by_broker: bool
    stage: str
    why: str
    partial: bool
    remarks: tuple[str, ...]
    memory: MovedMemory


@dataclasses.dataclass(frozen=True)
class PhaseSpan:
    """One run of a phase. Times are microseconds since the operation began.

    Attributes:
        phase:
        begin_us:
        us:
        ranks: in the order of their answers
    """

    phase: str
    begin_us: int
    us: int
    ranks: tuple[RankSpan, ...]


@dataclasses.dataclass(frozen=True)
class RankSpan:
    """One answer of a rank.

    Attributes:
        id: as in RankInfo
        rank:
        pid: 0: the rank has ended
        work: "quiesce", "measure", "save", "release", "map", "load" or "open"
        begin_us: since the operation began
        us:
        bytes: measured, copied, released or mapped
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
    """Copies, or all driver calls of one kind, of an answer. Copies run at the same time as calls. Several kinds of calls take turns.

    Attributes:
        name: "copy", or the driver's function: "cuMemMap"
        begin_us: begin of the first, since the operation began
        us: until the end of the last
        in_calls_us: of us: within such calls
    """

    name: str
    begin_us: int
    us: int
    in_calls_us: int


@dataclasses.dataclass(frozen=True)
class StageInfo:
    """A stage: GPUs, and the groups that take turns on them.

    Attributes:
        name:
        policy: "lease", "demand" or "slice"
        devices:
        groups: that the caller may see
        switching: a switch is under way
        last: the last switch, or the one that is under way; unset: none, or other owners' groups were part of it
        switches: since the broker started
        failed_switches: of switches
        switching_us: spent on switches
    """

    name: str
    policy: str
    devices: tuple[StageDevice, ...]
    groups: tuple[TurnInfo, ...]
    switching: bool
    last: StageSwitch
    switches: int
    failed_switches: int
    switching_us: int


@dataclasses.dataclass(frozen=True)
class StageDevice:
    """A GPU of a stage.

    Attributes:
        uuid:
        ordinal:
        total_bytes:
        margin_bytes: that stay free
    """

    uuid: str
    ordinal: int
    total_bytes: int
    margin_bytes: int


@dataclasses.dataclass(frozen=True)
class TurnInfo:
    """A group of a stage.

    Attributes:
        group:
        turn: "starts" (has its first turn), "runs", "waits" (for its turn), "idle" (it is paused and wants nothing), "comes", "leaves",
            "paused" (by an operator or by its own ranks), "apart" (it takes no turns, and note says why)
        since_ms: it runs, or waits, for so long; else 0
        call: the driver call that waits at the gate, or "its start"; empty: none
        leased: it has asked for its turn and has not yielded
        weight:
        priority:
        longest_wait_ms: 0: none
        needs_bytes: on the GPU where it needs most
        note:
        there_ms: it is in the stage, since the broker started
        ran_ms: of there_ms
        waited_ms: of there_ms
        leave_first: tags whose memory leaves first, in this order
        return_order: tags whose memory returns before all other memory, in this order
        stays_bytes: of a group that its stage has paused: on the GPU where it still has most
        failures: of its switches, in a row
        pids: processes that wait to start it, or are to start its ranks
    """

    group: str
    turn: str
    since_ms: int
    call: str
    leased: bool
    weight: int
    priority: int
    longest_wait_ms: int
    needs_bytes: int
    note: str
    there_ms: int
    ran_ms: int
    waited_ms: int
    leave_first: tuple[str, ...]
    return_order: tuple[str, ...]
    stays_bytes: int
    failures: int
    pids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class StageSwitch:
    """One switch of a stage.

    Attributes:
        out_groups: groups that leave
        in_groups: groups that come in
        why:
        began_us: Unix time in microseconds
        us: how long it took; 0: it is under way
        code: canonical gRPC code; 0: it succeeded
        error:
    """

    out_groups: tuple[str, ...]
    in_groups: tuple[str, ...]
    why: str
    began_us: int
    us: int
    code: int
    error: str


@dataclasses.dataclass(frozen=True)
class OwnerQuotas:
    """The quotas of one owner, and how much of them the owner uses.

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
    """The quota of one resource.

    Attributes:
        resource: "sessions", "allocations", "device", "pool", "descriptors", "queue": the setting quotas.RESOURCE
        used:
        limited:
        most: the limit, if it is limited
        bytes: used and most are bytes; else a number
        refusals: requests that the broker refused because of the limit
    """

    resource: str
    used: int
    limited: bool
    most: int
    bytes: bool
    refusals: int


@dataclasses.dataclass(frozen=True)
class Event:
    """An event.

    Attributes:
        time_ms: Unix time
        group:
        kind: "state", "rank_joined", "rank_left", "pool", "turn", "error"
        text:
        state: with kind "state"
        lost: events before this one were dropped, because this caller reads too slowly
        missed: how many were dropped
    """

    time_ms: int
    group: str
    kind: str
    text: str
    state: GroupState
    lost: bool
    missed: int
