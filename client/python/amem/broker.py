"""Broker: a connection to amemd's control socket, for controllers. It needs neither a GPU nor the shim, but grpcio.

    with amem.Broker() as broker:
        broker.pause("train")
        broker.resume("rollout", tags=["weights"])
        broker.pause(["engine0", "engine1"])  # one operation, all or none
        for progress in broker.swapping("rollout", "train"):
            print(progress.group, progress.phase)

cluster.py has the same for groups that several nodes have.
"""
from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import overload

import grpc

from amem import _requests, _wire
from amem._arguments import FormatChoice, FormChoice, Groups, Guests, PolicyChoice, Several, Tags
from amem._connection import target
from amem._connection.calls import Course, Ending, Operation, Watch
from amem._requests import Answer, Command, Question
from amem.messages import (
    AllocationInfo, Event, Form, GroupInfo, GroupState, GuestPolicy, MetricsFormat, NodeStatus, OwnerQuotas, PastOperation, Policy,
    Progress, RankInfo)

__all__ = ["AllocationInfo", "Broker", "Event", "Form", "GroupInfo", "GroupState", "GuestPolicy", "MetricsFormat", "NodeStatus",
           "Operation", "OwnerQuotas", "PastOperation", "Policy", "Progress", "RankInfo", "Watch"]

OnProgress = Callable[[Progress], object]

class Broker:
    """A connection, made with the first call and again after a loss. Any thread, several at a time; not in a child
    after fork().

    `runtime_dir`: the broker's; None: AMEM_RUNTIME_DIR, else the default. `socket`: the control socket's path, when it
    is elsewhere. `address`: instead of these, "host:port" of another node's broker, with `tls`, the directory of ca.crt,
    tls.crt and tls.key (None: AMEM_TLS). `query_timeout`: seconds that the broker may take to answer calls that ask or set,
    and to begin a watch.

    All calls raise UnavailableError (no broker, or the connection was lost; of an operation: groups() has the state),
    PermissionDeniedError (the socket), InvalidArgumentError (a name that no group or tag can have). An empty group
    means all groups.
    """

    def __init__(self, runtime_dir: str | None = None, *, socket: str | None = None,
                 address: str | None = None, tls: str | None = None, query_timeout: float = 5.0) -> None:
        self._query_timeout = query_timeout
        self._target = found = target.find(runtime_dir, socket, address, tls)
        self.socket = found.socket
        self._channel = (grpc.insecure_channel(found.name, options=target.OPTIONS) if found.credentials is None
                         else grpc.secure_channel(found.name, found.credentials, options=target.OPTIONS))
        self._calls = _wire.Calls(self._channel)

    def close(self) -> None:
        """Ends the connection and every call under way with OperationCancelledError; operations go on in the broker."""
        self._target.connection.closed = True
        self._channel.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ---- queries ----
    def status(self) -> NodeStatus:
        """The node: version, devices, pool, groups."""
        return self._ask(_requests.status())

    def groups(self) -> list[GroupInfo]:
        """The groups that the caller may see: state, memory by device and tag, policies."""
        return self._ask(_requests.groups())

    def quotas(self) -> list[OwnerQuotas]:
        """What each owner has of what the broker can run out of: of all owners for who may see them."""
        return self._ask(_requests.quotas())

    def metrics(self, format: FormatChoice = "openmetrics") -> str:
        """What the broker measures, of the groups that the caller may see, as text: "openmetrics", or "prometheus" for
        its own text format. docs/metrics.md lists the metrics."""
        return self._ask(_requests.metrics(format))

    def history(self, group: str = "", *, transaction: int = 0, most: int = 0, spans: bool = False) -> list[PastOperation]:
        """The last pauses and resumes, as they ended, of the groups that the caller may see; of `transaction` only (0: of all),
        and the latest `most` (0: all that are remembered). `spans`: with when each phase, copy and driver call was.
        NotFoundError: there is no such group, and none is remembered."""
        return self._ask(_requests.history(group, transaction, most, spans))

    def upgrade(self) -> tuple[str, str]:
        """The amemd that is installed now takes the place of the one that runs: the versions of both. Returns before the
        next one serves; ranks come back to it by themselves. FailedPreconditionError: nothing would outlive amemd, or the
        other does not take its configuration; AbortedError: an operation is under way."""
        return self._ask(_requests.upgrade())

    def ranks(self, group: str = "") -> list[RankInfo]:
        """The ranks of one group, or of all that the caller may see. NotFoundError: there is no such group."""
        return self._ask(_requests.ranks(group))

    def allocations(self, group: str = "", tag: str | None = None) -> list[AllocationInfo]:
        """Oldest first; with `tag`, only those that have it."""
        return self._ask(_requests.allocations(group, tag))

    def set_policy(self, group: str, tag: str, policy: PolicyChoice | None = None, *,
                   save: FormChoice | None = None) -> None:
        """What a pause does with the bytes of a tag from now on: Policy.KEEP or "keep", Policy.DISCARD or "discard".
        It goes before what regions say. `save`: how it copies what it keeps, "auto", "dense" or "sparse". None leaves
        either as it is. InvalidArgumentError also for "nccl" and discard: it is always kept."""
        self._ask(_requests.set_policy(group, tag, policy, save))

    # ---- operations ----
    @overload
    def pause(self, group: str, tags: Tags = None, timeout: float | None = None,
              on_progress: OnProgress | None = None, *, except_tags: Tags = None,
              discard: Tags = None, guests: Guests | None = None) -> Progress: ...
    @overload
    def pause(self, group: Several, tags: Tags = None, timeout: float | None = None,
              on_progress: OnProgress | None = None, *, except_tags: Tags = None,
              discard: Tags = None, guests: Guests | None = None) -> list[Progress]: ...
    def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None,
              on_progress: OnProgress | None = None, *, except_tags: Tags = None,
              discard: Tags = None, guests: Guests | None = None) -> Progress | list[Progress]:
        """Pauses a group from outside: its ranks need not expect it. Blocks until it is paused; gives the last
        Progress, which says where the time went.

        Several groups are paused as one operation, all or none: until the first of them releases memory a failure of
        one leaves all running. The last Progress of each is given, in their order, and an error names each.

        `tags`: one tag or at most 64; only memory of these leaves, and the group runs on: its program must leave that
        memory alone until it has been resumed. `except_tags`: likewise, all memory but that of these. None: everything.
        `discard`: tags whose bytes this pause drops, whatever their policy; they come back zeroed. The last Progress
        says how much. Not "nccl", whose bytes are always kept.
        `guests`: what becomes of memory that ranks of other groups have open still when the broker has waited for them:
        "pin", it stays on its device, and the last Progress names them; "refuse", FailedPreconditionError does, and the
        group runs on. None: as the broker is configured.
        `timeout`: seconds for the ranks to become quiet; None: as the broker is configured, as the other phases are.
        `on_progress`: called in this thread for each step; what it raises ends the waiting and comes out of the call.

        NotFoundError: no such group, or it has no memory of a tag. FailedPreconditionError: it is not running.
        DeadlineExceededError: the text names the ranks. ResourceExhaustedError: the pool is too small; the group runs
        on.
        AbortedError: a rank died or failed; the group runs on or, when something had been released already, is paused
        with its bytes safe. The same holds for a deadline.
        """
        command = _requests.pause(group, tags, timeout, except_tags, discard, guests)
        last = self._operate(command).result(on_progress)
        return last[0] if isinstance(group, str) else command.ordered(last)

    @overload
    def resume(self, group: str, tags: Tags = None, timeout: float | None = None,
               on_progress: OnProgress | None = None, *, except_tags: Tags = None) -> Progress: ...
    @overload
    def resume(self, group: Several, tags: Tags = None, timeout: float | None = None,
               on_progress: OnProgress | None = None, *, except_tags: Tags = None) -> list[Progress]: ...
    def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None,
               on_progress: OnProgress | None = None, *, except_tags: Tags = None) -> Progress | list[Progress]:
        """Brings the memory of a paused group back. As pause() otherwise; after an error but OperationCancelledError the group
        is as before, with its bytes safe; only a failure in the last phase, "open", leaves it running.
        Of several groups none runs before every one has all its memory.

        `timeout`: seconds for mapping and loading. ResourceExhaustedError: a device has too little free memory.
        DataLossError: with AMEM_VERIFY=1, bytes did not come back as they were saved.
        """
        command = _requests.resume(group, tags, timeout, except_tags)
        last = self._operate(command).result(on_progress)
        return last[0] if isinstance(group, str) else command.ordered(last)

    def swap(self, out: Groups, into: Groups, timeout: float | None = None,
             on_progress: OnProgress | None = None, *, discard: Tags = None,
             guests: Guests | None = None) -> tuple[Progress, ...]:
        """Pauses `out` and resumes `into`, each one group or several, at the same time as far as memory allows; gives
        the last Progress of each, in their order. When the pause fails `into` stays paused; when the resume fails all
        groups are paused and their bytes safe. `timeout`: seconds for each. `discard`, `guests`: of
        `out`, as of pause()."""
        command = _requests.swap(out, into, timeout, discard, guests)
        return tuple(command.ordered(self._operate(command).result(on_progress)))

    def pausing(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: Guests | None = None) -> Operation:
        """Begins pause() and gives its progress, an iterator."""
        return self._operate(_requests.pause(group, tags, timeout, except_tags, discard, guests))

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *,
                 except_tags: Tags = None) -> Operation:
        """Begins resume() and gives its progress, an iterator."""
        return self._operate(_requests.resume(group, tags, timeout, except_tags))

    def swapping(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
                 guests: Guests | None = None) -> Operation:
        """Begins swap() and gives its progress, an iterator."""
        return self._operate(_requests.swap(out, into, timeout, discard, guests))

    def watch(self, group: str = "") -> Watch:
        """Events from the return of this call on, an iterator; close() ends it."""
        self._reach()
        stream = self._calls("Watch", _requests.watch(group), wait_for_ready=self._target.waits)
        return Watch(stream, self._target.connection, self._query_timeout)

    # ---- how ----
    def _reach(self) -> None:
        # gRPC's own error names neither the socket nor a remedy. Of another node's broker it is all that there is.
        error = self._target.connection.probe()
        if error is not None:
            raise error

    def _ask(self, question: Question[Answer]) -> Answer:
        # A second try, because gRPC may notice by the first that its connection is to a broker that is gone, and asking
        # or setting twice does no harm.
        for last in (False, True):
            self._reach()
            ending = Ending(self._target.connection, self._query_timeout)
            try:
                answer = self._calls(question.name, question.fields, timeout=self._query_timeout, wait_for_ready=self._target.waits)
                return question.read(list(answer) if question.name in _wire.STREAMS else answer)
            except grpc.RpcError as failure:
                if last or failure.code() != grpc.StatusCode.UNAVAILABLE:
                    raise ending.error(failure) from None
        raise AssertionError

    def _operate(self, command: Command) -> Operation:
        # Its own deadline is long: it would wait as long for a broker that ends before it is connected. A question does not.
        if self._target.waits:
            self._ask(_requests.groups())
        stream = self._calls(command.name, command.fields, timeout=command.wait, wait_for_ready=self._target.waits)
        return Operation(stream, Course(command.count, self._target.connection, command.wait))
