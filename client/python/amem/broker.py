"""Broker: a connection to amemd's control socket, for controllers. It requires grpcio, but neither a GPU nor the shim.

    with amem.Broker() as broker:
        broker.pause("train")
        broker.resume("rollout", tags=["weights"])
        broker.pause(["engine0", "engine1"])  # one operation, all or none
        for progress in broker.swapping("rollout", "train"):
            print(progress.group, progress.phase)

cluster.py has the same calls for groups that span several nodes.

client/python/write_blocking.py makes this file of amem/aio/_broker.py.
"""
from __future__ import annotations

from types import TracebackType
from typing import overload

from amem import _requests
from amem._arguments import FormatChoice, FormChoice, Groups, Guests, OnProgress, PolicyChoice, Several, Tags
from amem._connection import target
from amem._connection.calls import Operation, Watch
from amem._connection.transport import Transport
from amem._requests import Command, Question, all_of
from amem.messages import (
    AllocationInfo, Event, Form, GroupInfo, GroupState, GuestPolicy, MetricsFormat, NodeStatus, OwnerQuotas, PastOperation, Policy,
    Progress, RankInfo, StageInfo, from_wire)

__all__ = ["AllocationInfo", "Broker", "Event", "Form", "GroupInfo", "GroupState", "GuestPolicy", "MetricsFormat", "NodeStatus",
           "Operation", "OwnerQuotas", "PastOperation", "Policy", "Progress", "RankInfo", "StageInfo", "Watch"]


class Broker:
    """A connection to amemd's control socket. The first call connects, and a call after a lost connection connects again.

    Several threads may use it at the same time. A child of fork() must not use it. An empty group name means all groups.

    All calls raise UnavailableError if there is no broker or the connection was lost. If that happens during an operation,
    groups() shows the state. All calls raise PermissionDeniedError if the socket belongs to another user, and
    InvalidArgumentError if the name of a group or tag is not valid.

    Attributes:
        socket: The path of the control socket. Empty for another node's broker.
    """

    def __init__(self, runtime_dir: str | None = None, *, socket: str | None = None, address: str | None = None,
                 tls: str | None = None, query_timeout: float = 5.0) -> None:
        """Chooses the broker. It does not connect yet.

        Args:
            runtime_dir: The broker's runtime directory. None: AMEM_RUNTIME_DIR, else the default.
            socket: The path of the control socket, if it is not in the runtime directory.
            address: Instead of these two, "host:port" of another node's broker.
            tls: With `address`: the directory of ca.crt, tls.crt and tls.key; None: AMEM_TLS.
            query_timeout: Timeout in seconds for calls that ask or set something, and for the start of a watch.

        Raises:
            InvalidArgumentError: The arguments do not name a broker, or its certificates cannot be read.
        """
        self._transport = Transport(target.find(runtime_dir, socket, address, tls), query_timeout)
        self.socket = self._transport.target.socket

    def close(self) -> None:
        """Closes the connection. Running calls and later calls raise OperationCancelledError.

        Operations continue in the broker.
        """
        self._transport.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ---- queries ----
    def status(self) -> NodeStatus:
        """Asks for the node's state.

        Returns:
            The node: version, devices, pool and groups.
        """
        return self._transport.ask(Question("GetStatus", {}, lambda answer: from_wire(NodeStatus, answer)))

    def groups(self) -> list[GroupInfo]:
        """Asks for the groups that the caller may see.

        Returns:
            The groups: for each its state, its memory by device and tag in bytes, and its policies.
        """
        return self._transport.ask(Question("ListGroups", {}, lambda answer: all_of(GroupInfo, answer.groups)))

    def quotas(self) -> list[OwnerQuotas]:
        """Asks for the quotas of each owner and for how much of them the owner uses.

        Returns:
            The owners that the caller may see. An operator sees all.
        """
        return self._transport.ask(Question("ListQuotas", {}, lambda answer: all_of(OwnerQuotas, answer.owners)))

    def metrics(self, format: FormatChoice = "openmetrics") -> str:
        """Asks for the broker's metrics about the groups that the caller may see. docs/metrics.md lists the metrics.

        Args:
            format: "openmetrics", or "prometheus" for Prometheus' own text format, or a member of MetricsFormat.

        Returns:
            The metrics as text.

        Raises:
            InvalidArgumentError: The format is not valid.
        """
        return self._transport.ask(_requests.metrics(format))

    def history(self, group: str = "", *, transaction: int = 0, most: int = 0, spans: bool = False) -> list[PastOperation]:
        """Asks for the last pauses and resumes of the groups that the caller may see, and how they ended.

        Args:
            group: Only operations of this group. Empty: of all groups.
            transaction: Only operations of this transaction. 0: of all transactions.
            most: At most this many operations, the latest. 0: all that the broker remembers.
            spans: Also the times of each phase, copy and driver call.

        Returns:
            The operations, oldest first.

        Raises:
            NotFoundError: The group does not exist, and the broker remembers no operation of it.
            InvalidArgumentError: A number is below 0.
        """
        return self._transport.ask(_requests.history(group, transaction, most, spans))

    def upgrade(self) -> tuple[str, str]:
        """Replaces the running amemd by the installed one.

        Returns before the new amemd serves. Ranks reconnect to it automatically.

        Returns:
            The version that runs, and the version that is installed.

        Raises:
            FailedPreconditionError: The jobs would be lost, because no amem-holder keeps their memory. Or the installed
                amemd does not support the present configuration.
            AbortedError: An operation is running.
        """
        return self._transport.ask(_requests.upgrade())

    def ranks(self, group: str = "") -> list[RankInfo]:
        """Asks for the ranks of one group, or of all that the caller may see.

        Args:
            group: The group's name. Empty: all groups.

        Returns:
            The ranks: processes with their memory in bytes.

        Raises:
            NotFoundError: The group does not exist.
        """
        return self._transport.ask(_requests.ranks(group))

    def allocations(self, group: str = "", tag: str | None = None) -> list[AllocationInfo]:
        """Asks for single allocations.

        Args:
            group: The group's name. Empty: all groups.
            tag: Only allocations with this tag. None: all.

        Returns:
            The allocations, oldest first.

        Raises:
            NotFoundError: The group does not exist.
        """
        return self._transport.ask(_requests.allocations(group, tag))

    def set_policy(self, group: str, tag: str, policy: PolicyChoice | None = None, *,
                   save: FormChoice | None = None, force: bool = False) -> None:
        """Sets what a pause does from now on with the bytes of a tag. It overrides the policies of regions.

        Args:
            group: The group's name.
            tag: The tag. It need not have memory yet.
            policy: Policy.KEEP or "keep", Policy.DISCARD or "discard". None does not change it.
            save: How a pause copies bytes that it keeps: "auto", "dense" or "sparse", or a member of Form. None does not
                change it.
            force: The policy of "heap" may be "discard". Each pause then loses all memory that no region names.

        Raises:
            InvalidArgumentError: The policy or the form is not valid, both are None, or the policy of "nccl", or of "heap"
                without `force`, is "discard". A pause always keeps the bytes of "nccl".
            NotFoundError: The group does not exist.
            FailedPreconditionError: The group is not running, or some memory with the tag is paused.
            ResourceExhaustedError: The group already has the largest number of tags with a policy.
        """
        self._transport.ask(_requests.set_policy(group, tag, policy, save, force))

    def turns(self, stage: str = "") -> list[StageInfo]:
        """Asks for the stages of the node and for the groups that take turns there (docs/turns.md).

        Args:
            stage: Only this stage. Empty: all stages.

        Returns:
            The stages, each with its groups that the caller may see.

        Raises:
            NotFoundError: There is no such stage.
        """
        return self._transport.ask(_requests.turns(stage))

    def prepare(self, groups: Groups, timeout: float | None = None) -> int:
        """Pins the host memory that a pause of these groups needs at most, so that the pause need not wait for it.

        amemd has that to do only beyond its setting pool.reserve. The memory stays for pool.idle.

        Args:
            groups: A group, or several.
            timeout: How long to wait, in seconds. None: no limit.

        Returns:
            The bytes that were pinned.

        Raises:
            ResourceExhaustedError: The host has too little memory.
            DeadlineExceededError: It was not pinned in time. What was pinned stays for pool.idle.
            NotFoundError: A group does not exist.
        """
        return self._transport.ask(_requests.prepare(groups, timeout))

    def lease(self, group: str, timeout: float | None = None) -> float:
        """Asks for a group's turn in a stage with the policy lease, and waits for it. amem.turn() does this in a rank.

        The turn lasts until end_lease(), or until the group ends.

        Args:
            group: The group's name.
            timeout: How long to wait, in seconds. None: no limit.

        Returns:
            How long the group waited, in seconds.

        Raises:
            DeadlineExceededError: The group has not got its turn in time. It does not ask for it any more.
            FailedPreconditionError: The group is in no stage, or its stage has another policy, or the group takes no turns.
            AbortedError: The group has ended.
            NotFoundError: The group does not exist.
        """
        return self._transport.ask(_requests.lease(group, timeout))

    def end_lease(self, group: str) -> None:
        """Ends a group's turn in a stage with the policy lease. Has no effect if the group has none.

        Args:
            group: The group's name.

        Raises:
            FailedPreconditionError: The group is in no stage, or its stage has another policy.
            NotFoundError: The group does not exist.
        """
        self._transport.ask(_requests.end_lease(group))

    def set_turn(self, group: str, *, stage: str | None = None, weight: int | None = None, priority: int | None = None,
                 longest_wait: float | None = None, leave_first: Tags = None, return_order: Tags = None) -> None:
        """Sets in which stage a group takes turns, and what its turns depend on. None does not change a value.

        Args:
            group: The group's name.
            stage: The stage. Empty: the group leaves its stage.
            weight: 1 to 100. In a stage with the policy slice, its turns are that many times as long.
            priority: -100 to 100. In a stage with another policy, more comes first.
            longest_wait: The longest wait for a turn, in seconds. 0: none.
            leave_first: Tags. At the end of a turn only their memory leaves, in this order, where that is enough. Empty: all leaves.
            return_order: Tags. Their memory returns before all other memory, in this order. Empty: in no order.

        Raises:
            InvalidArgumentError: A value is not valid, or all are None.
            FailedPreconditionError: amemd could not promise this longest wait, or those of other groups.
            NotFoundError: There is no such group or stage.
        """
        self._transport.ask(_requests.set_turn(group, stage, weight, priority, longest_wait, leave_first, return_order))

    # ---- operations ----
    @overload
    def pause(self, group: str, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
              except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None,
              deep: bool = False, force: bool = False) -> Progress: ...
    @overload
    def pause(self, group: Several, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
              except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None,
              deep: bool = False, force: bool = False) -> list[Progress]: ...
    def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
              except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None,
              deep: bool = False, force: bool = False) -> Progress | list[Progress]:
        """Pauses a group from outside: its ranks need not call anything. Returns when the group is paused.

        Several groups pause as one operation, all or none. If one group fails before the first of them has freed memory, all
        run on, and the error names each group.

        Args:
            group: One group, or a list of groups.
            tags: One tag, or at most 64. The pause takes only memory with these tags, and the group runs on. Its program must
                not touch that memory before the resume. None: everything.
            timeout: Timeout in seconds for the ranks to become quiet. None: the broker's setting, which other phases always use.
            on_progress: A function that this thread calls for each step. If it raises, the call stops waiting and raises the same.
            except_tags: Instead of `tags`: all memory except memory with these tags.
            discard: Tags whose bytes this pause drops, whatever their policy. A resume provides zeros for them. The last
                Progress has their number. Not "nccl": a pause always keeps its bytes. "heap" only with `force`.
            guests: What the pause does with memory that ranks of other groups still have open after the broker has waited for
                them. "pin": the memory stays on its device, and the last Progress names these ranks. "refuse": the call raises
                FailedPreconditionError, which names these ranks, and the group runs on. None: the broker's setting.
            deep: The driver then checkpoints the processes, so that nothing of them stays on the GPUs. A resume restores them
                first. Also for a group that is paused already. Only where the broker allows it (`deep.enabled`), and not with tags.
            force: `discard` may have "heap": all memory that no region names, such as weights and optimizer state.

        Returns:
            The last Progress, which says where the time went. For several groups: a list, in the order of the groups.

        Raises:
            NotFoundError: The group does not exist, or it has no memory with a tag.
            InvalidArgumentError: An argument is not valid, or "heap" would be lost without `force`.
            FailedPreconditionError: The group is not running.
            DeadlineExceededError: A phase took too long. The text names the ranks. The group is as after AbortedError.
            ResourceExhaustedError: The pool is too small. The group runs on.
            AbortedError: A rank died or failed. The group runs on. If the pause had already freed memory, the group is paused
                and its bytes are safe.
        """
        command = _requests.pause(group, tags, timeout, except_tags, discard, guests, deep, force)
        last = self._operate(command).result(on_progress)
        return last[0] if isinstance(group, str) else command.ordered(last)

    @overload
    def resume(self, group: str, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
               except_tags: Tags = None) -> Progress: ...
    @overload
    def resume(self, group: Several, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
               except_tags: Tags = None) -> list[Progress]: ...
    def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
               except_tags: Tags = None) -> Progress | list[Progress]:
        """Resumes a paused group: restores its memory at the same addresses. Returns when the group runs.

        Of several groups, none runs before all of them have their memory. After an error, the group is as before and its
        bytes are safe. There are two exceptions: after OperationCancelledError the operation continues, and after a failure
        in the last phase, "open", the group runs.

        Args:
            group: One group, or a list of groups.
            tags: One tag, or at most 64. The resume restores only memory with these tags. None: everything.
            timeout: Timeout in seconds for mapping and loading. None: the broker's setting.
            on_progress: A function that this thread calls for each step. If it raises, the call stops waiting and raises the same.
            except_tags: Instead of `tags`: all memory except memory with these tags.

        Returns:
            The last Progress, which says where the time went. For several groups: a list, in the order of the groups.

        Raises:
            NotFoundError: The group does not exist, or it has no memory with a tag.
            FailedPreconditionError: The group is not paused.
            ResourceExhaustedError: A device has too little free memory. The text has both sizes.
            DataLossError: With AMEM_VERIFY=1: restored bytes differ from the saved ones.
            DeadlineExceededError: A phase took too long. The text names the ranks.
            AbortedError: A rank died or failed.
        """
        command = _requests.resume(group, tags, timeout, except_tags)
        last = self._operate(command).result(on_progress)
        return last[0] if isinstance(group, str) else command.ordered(last)

    def swap(self, out: Groups, into: Groups, timeout: float | None = None, on_progress: OnProgress | None = None, *,
             discard: Tags = None, guests: Guests | None = None, deep: bool = False,
             force: bool = False) -> tuple[Progress, ...]:
        """Pauses `out` and resumes `into`, at the same time as far as memory allows. Returns when both are done.

        If the pause fails, `into` stays paused. If the resume fails, all groups are paused and their bytes are safe.

        Args:
            out: The group to pause, or a list of groups.
            into: The group to resume, or a list of groups.
            timeout: Timeout in seconds for the pause, and for the resume. None: the broker's setting.
            on_progress: As for pause().
            discard: Tags of `out`, as for pause().
            guests: Of `out`, as for pause().
            deep: The groups of `out` become deep after they have left, as for pause(). `into` does not wait for that.
            force: As for pause().

        Returns:
            The last Progress of each group, in the order in which the call names them.

        Raises:
            Error: The errors of pause() and resume().
        """
        command = _requests.swap(out, into, timeout, discard, guests, deep, force)
        return tuple(command.ordered(self._operate(command).result(on_progress)))

    def pausing(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: Guests | None = None, deep: bool = False, force: bool = False) -> Operation:
        """Starts pause() and does not wait.

        Args:
            group: As for pause(). This holds for all arguments.
            tags: The pause takes only memory with these tags.
            timeout: Timeout in seconds for the ranks to become quiet.
            except_tags: The pause takes all memory except memory with these tags.
            discard: Tags whose bytes this pause drops.
            guests: What the pause does with memory that other groups have open.
            deep: The driver then checkpoints the processes, so that nothing of them stays on the GPUs. A resume restores them
                first. Also for a group that is paused already. Only where the broker allows it (`deep.enabled`), and not with tags.
            force: As for pause().

        Returns:
            An iterator over its progress. It raises the errors of pause().
        """
        return self._operate(_requests.pause(group, tags, timeout, except_tags, discard, guests, deep, force))

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> Operation:
        """Starts resume() and does not wait.

        Args:
            group: As for resume(). This holds for all arguments.
            tags: The resume restores only memory with these tags.
            timeout: Timeout in seconds for mapping and loading.
            except_tags: The resume restores all memory except memory with these tags.

        Returns:
            An iterator over its progress. It raises the errors of resume().
        """
        return self._operate(_requests.resume(group, tags, timeout, except_tags))

    def swapping(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
                 guests: Guests | None = None, deep: bool = False, force: bool = False) -> Operation:
        """Starts swap() and does not wait.

        Args:
            out: As for swap(). This holds for all arguments.
            into: The groups to resume.
            timeout: Timeout in seconds for the pause, and for the resume.
            discard: Tags of `out` whose bytes this pause drops.
            guests: What the pause does with memory of `out` that other groups have open.
            deep: The groups of `out` become deep after they have left, as for pause(). `into` does not wait for that.
            force: As for pause().

        Returns:
            An iterator over its progress. It raises the errors of swap().
        """
        return self._operate(_requests.swap(out, into, timeout, discard, guests, deep, force))

    def watch(self, group: str = "") -> Watch:
        """Watches for events. The watch begins when this call returns.

        Args:
            group: Only events of this group. Empty: of all groups that the caller may see.

        Returns:
            An iterator over the events. close() ends it.

        Raises:
            DeadlineExceededError: The watch was not in effect within `query_timeout` seconds.
        """
        return self._transport.watch(_requests.watch(group))

    def _operate(self, command: Command) -> Operation:
        return self._transport.operate(command)
