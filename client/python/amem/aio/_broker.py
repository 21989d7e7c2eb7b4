"""Broker: amem.Broker's calls as coroutines, over grpc.aio."""
from __future__ import annotations

import asyncio
import weakref
from types import TracebackType
from typing import Any, overload

import grpc
import grpc.aio

from amem import _requests, _wire
from amem._arguments import FormatChoice, FormChoice, Groups, Guests, PolicyChoice, Several, Tags
from amem._connection import target
from amem._connection.calls import Course, Ending
from amem._requests import Answer, Command, Question
from amem.aio._calls import Operation, Watch, stop_of
from amem.broker import OnProgress
from amem.messages import AllocationInfo, GroupInfo, NodeStatus, OwnerQuotas, PastOperation, Progress, RankInfo


class Broker:
    """A connection to amemd's control socket, made with the first call and again after a loss.

    It has the methods of amem.Broker, with the same arguments, results and errors. Several tasks of one event loop may use
    it at a time. A task that is cancelled, for example by asyncio.timeout(), stops waiting; what it has asked for goes on in
    the broker. Arguments are checked when a coroutine begins, those of pausing(), resuming(), swapping() and watch() at once.
    """

    def __init__(self, runtime_dir: str | None = None, *, socket: str | None = None, address: str | None = None,
                 tls: str | None = None, query_timeout: float = 5.0) -> None:
        """Says which broker is meant; nothing is asked of it yet.

        Args:
            runtime_dir: The broker's; None: AMEM_RUNTIME_DIR, else the default.
            socket: The control socket's path, when it is elsewhere.
            address: Instead of these, "host:port" of another node's broker.
            tls: With `address`: the directory of ca.crt, tls.crt and tls.key; None: AMEM_TLS.
            query_timeout: Seconds that the broker may take to answer calls that ask or set, and to begin a watch.

        Raises:
            InvalidArgumentError: The arguments name no broker, or its certificates cannot be read.
        """
        self._query_timeout = query_timeout
        self._target = target.find(runtime_dir, socket, address, tls)
        self.socket = self._target.socket
        self._channel: grpc.aio.Channel | None = None
        self._calls: Any = None
        # gRPC's own close() finds only calls that a task awaits directly.
        self._under_way: weakref.WeakSet[Any] = weakref.WeakSet()

    async def close(self) -> None:
        """Ends the connection and every call under way with OperationCancelledError, which later calls raise, too.

        Operations go on in the broker.
        """
        self._target.connection.closed = True
        for call in list(self._under_way):
            call.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        await self.close()

    # ---- queries ----
    async def status(self) -> NodeStatus:
        """Asks for the node's state.

        Returns:
            The node: version, devices, pool and groups.
        """
        return await self._ask(_requests.status())

    async def groups(self) -> list[GroupInfo]:
        """Asks for the groups that the caller may see.

        Returns:
            Of each group its state, its memory by device and tag in bytes, and its policies.
        """
        return await self._ask(_requests.groups())

    async def quotas(self) -> list[OwnerQuotas]:
        """Asks what each owner has of what the broker can run out of.

        Returns:
            The owners that the caller may see: all for an operator.
        """
        return await self._ask(_requests.quotas())

    async def metrics(self, format: FormatChoice = "openmetrics") -> str:
        """Asks for what the broker measures, of the groups that the caller may see. docs/metrics.md lists the metrics.

        Args:
            format: "openmetrics", or "prometheus" for Prometheus' own text format; or a member of MetricsFormat.

        Returns:
            The metrics as text.

        Raises:
            InvalidArgumentError: There is no such format.
        """
        return await self._ask(_requests.metrics(format))

    async def history(self, group: str = "", *, transaction: int = 0, most: int = 0, spans: bool = False) -> list[PastOperation]:
        """Asks for the last pauses and resumes, as they ended, of the groups that the caller may see.

        Args:
            group: Only operations of this group; empty: of all groups.
            transaction: Only operations of this transaction; 0: of all transactions.
            most: Only the latest, at most so many; 0: all that the broker remembers.
            spans: Also when each phase, copy and driver call was.

        Returns:
            The operations, oldest first.

        Raises:
            NotFoundError: There is no such group, and the broker remembers none.
            InvalidArgumentError: A number is below 0.
        """
        return await self._ask(_requests.history(group, transaction, most, spans))

    async def upgrade(self) -> tuple[str, str]:
        """Replaces the running amemd by the one that is installed now.

        Returns before the next one serves; ranks connect to it by themselves.

        Returns:
            The version that runs, and the version that is installed.

        Raises:
            FailedPreconditionError: Nothing would outlive amemd, or the other does not take its configuration.
            AbortedError: An operation is under way.
        """
        return await self._ask(_requests.upgrade())

    async def ranks(self, group: str = "") -> list[RankInfo]:
        """Asks for the ranks of one group, or of all that the caller may see.

        Args:
            group: The group's name; empty: all groups.

        Returns:
            The ranks: processes with their memory in bytes.

        Raises:
            NotFoundError: There is no such group.
        """
        return await self._ask(_requests.ranks(group))

    async def allocations(self, group: str = "", tag: str | None = None) -> list[AllocationInfo]:
        """Asks for single allocations.

        Args:
            group: The group's name; empty: all groups.
            tag: Only allocations with this tag; None: all.

        Returns:
            The allocations, oldest first.

        Raises:
            NotFoundError: There is no such group.
        """
        return await self._ask(_requests.allocations(group, tag))

    async def set_policy(self, group: str, tag: str, policy: PolicyChoice | None = None, *, save: FormChoice | None = None) -> None:
        """Says what a pause does with the bytes of a tag from now on. It overrides what regions say.

        Args:
            group: The group's name.
            tag: The tag, which need not have memory yet.
            policy: Policy.KEEP or "keep", Policy.DISCARD or "discard"; None leaves it as it is.
            save: How a pause copies what it keeps: "auto", "dense" or "sparse", or a member of Form; None leaves it as it is.

        Raises:
            InvalidArgumentError: There is no such policy or form, neither of the two is given, or "discard" is given for
                "nccl", whose bytes are always kept.
            NotFoundError: There is no such group.
            FailedPreconditionError: The group is not running, or some memory of the tag is paused.
            ResourceExhaustedError: As many tags of the group have a policy as may have one.
        """
        await self._ask(_requests.set_policy(group, tag, policy, save))

    # ---- operations ----
    @overload
    async def pause(self, group: str, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                    except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> Progress: ...
    @overload
    async def pause(self, group: Several, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                    except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> list[Progress]: ...
    async def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                    except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> Progress | list[Progress]:
        """Pauses a group from outside: its ranks need not expect it. Returns when it is paused.

        Several groups are paused as one operation, all or none: until the first of them releases memory a failure of one
        leaves all running, and an error names each.

        Args:
            group: One group, or a list of several.
            tags: One tag or at most 64: only memory of these leaves, and the group runs on. Its program must leave that
                memory alone until it has been resumed. None: everything.
            timeout: Seconds for the ranks to become quiet; None: as the broker is configured, as the other phases are.
            on_progress: A plain function that the event loop calls for each step; what it raises ends the waiting and comes out.
            except_tags: Instead of `tags`: all memory except that with these tags.
            discard: Tags whose bytes this pause drops, whatever their policy; they come back zeroed. The last Progress says
                how many. Not "nccl", whose bytes are always kept.
            guests: What becomes of memory that ranks of other groups have open still when the broker has waited for them.
                "pin": it stays on its device, and the last Progress names them. "refuse": FailedPreconditionError names
                them, and the group runs on. None: as the broker is configured.

        Returns:
            The last Progress, which says where the time went; of several groups a list, in their order.

        Raises:
            NotFoundError: There is no such group, or it has no memory of a tag.
            FailedPreconditionError: The group is not running.
            DeadlineExceededError: A phase took too long; the text names the ranks. The group is as after AbortedError.
            ResourceExhaustedError: The pool is too small; the group runs on.
            AbortedError: A rank died or failed. The group runs on or, when something had been released already, is paused
                with its bytes safe.
        """
        command = _requests.pause(group, tags, timeout, except_tags, discard, guests)
        last = await self._operate(command).result(on_progress)
        return last[0] if isinstance(group, str) else command.ordered(last)

    @overload
    async def resume(self, group: str, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                     except_tags: Tags = None) -> Progress: ...
    @overload
    async def resume(self, group: Several, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                     except_tags: Tags = None) -> list[Progress]: ...
    async def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                     except_tags: Tags = None) -> Progress | list[Progress]:
        """Brings the memory of a paused group back, at the same addresses. Returns when the group runs.

        Of several groups none runs before every one has all its memory. After an error but OperationCancelledError the group
        is as before, with its bytes safe; only a failure in the last phase, "open", leaves it running.

        Args:
            group: One group, or a list of several.
            tags: One tag or at most 64: only memory with these tags is restored. None: everything.
            timeout: Seconds for mapping and loading; None: as the broker is configured.
            on_progress: A plain function that the event loop calls for each step; what it raises ends the waiting and comes out.
            except_tags: Instead of `tags`: all memory except that with these tags.

        Returns:
            The last Progress, which says where the time went; of several groups a list, in their order.

        Raises:
            NotFoundError: There is no such group, or it has no memory of a tag.
            FailedPreconditionError: The group is not paused.
            ResourceExhaustedError: A device has too little free memory; the text has both numbers.
            DataLossError: With AMEM_VERIFY=1, bytes did not come back as they were saved.
            DeadlineExceededError: A phase took too long; the text names the ranks.
            AbortedError: A rank died or failed.
        """
        command = _requests.resume(group, tags, timeout, except_tags)
        last = await self._operate(command).result(on_progress)
        return last[0] if isinstance(group, str) else command.ordered(last)

    async def swap(self, out: Groups, into: Groups, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                   discard: Tags = None, guests: Guests | None = None) -> tuple[Progress, ...]:
        """Pauses `out` and resumes `into`, at the same time as far as memory allows. Returns when both are done.

        When the pause fails `into` stays paused. When the resume fails all groups are paused and their bytes safe.

        Args:
            out: One group, or a list of several, which are paused.
            into: One group, or a list of several, which are resumed.
            timeout: Seconds for each of the two; None: as the broker is configured.
            on_progress: As for pause().
            discard: Tags of `out`, as for pause().
            guests: Of `out`, as for pause().

        Returns:
            The last Progress of each group, in the order in which the call names them.

        Raises:
            Error: As pause() and resume().
        """
        command = _requests.swap(out, into, timeout, discard, guests)
        return tuple(command.ordered(await self._operate(command).result(on_progress)))

    def pausing(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: Guests | None = None) -> Operation:
        """Prepares pause(), which the first step of the iteration begins.

        Args:
            group: As for pause(), like all arguments.
            tags: Only memory with these tags leaves.
            timeout: Seconds for the ranks to become quiet.
            except_tags: All memory except that with these tags leaves.
            discard: Tags whose bytes this pause drops.
            guests: What becomes of memory that other groups have open.

        Returns:
            Its progress, an asynchronous iterator. It raises the errors of pause().
        """
        return self._operate(_requests.pause(group, tags, timeout, except_tags, discard, guests))

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> Operation:
        """Prepares resume(), which the first step of the iteration begins.

        Args:
            group: As for resume(), like all arguments.
            tags: Only memory with these tags is restored.
            timeout: Seconds for mapping and loading.
            except_tags: All memory except that with these tags is restored.

        Returns:
            Its progress, an asynchronous iterator. It raises the errors of resume().
        """
        return self._operate(_requests.resume(group, tags, timeout, except_tags))

    def swapping(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
                 guests: Guests | None = None) -> Operation:
        """Prepares swap(), which the first step of the iteration begins.

        Args:
            out: As for swap(), like all arguments.
            into: What is resumed.
            timeout: Seconds for each of the two.
            discard: Tags of `out` whose bytes this pause drops.
            guests: What becomes of memory of `out` that other groups have open.

        Returns:
            Its progress, an asynchronous iterator. It raises the errors of swap().
        """
        return self._operate(_requests.swap(out, into, timeout, discard, guests))

    def watch(self, group: str = "") -> Watch:
        """Watches for events from the moment on when `async with` has entered the Watch.

        Args:
            group: Only the events of this group; empty: of all that the caller may see.

        Returns:
            The events, an asynchronous iterator; close() ends it.

        Raises:
            DeadlineExceededError: The watch was not in effect within `query_timeout` seconds.
        """
        fields = _requests.watch(group)

        return Watch(lambda: self._call("Watch", fields), self._target.connection, self._query_timeout)

    # ---- how ----
    def _call(self, name: str, fields: dict[str, Any], timeout: float | None = None) -> Any:
        self._target.connection.check()  # a look at the socket, which does not wait
        if self._channel is None:  # here, because a channel belongs to the event loop that runs when it is made
            found = self._target
            self._channel = (grpc.aio.insecure_channel(found.name, options=target.OPTIONS) if found.credentials is None
                             else grpc.aio.secure_channel(found.name, found.credentials, options=target.OPTIONS))
            self._calls = _wire.Calls(self._channel)
        call = self._calls(name, fields, timeout=timeout, wait_for_ready=self._target.waits)
        self._under_way.add(call)
        return call

    async def _ask(self, question: Question[Answer]) -> Answer:
        # A second try, because gRPC may notice by the first that its connection is to a broker that is gone, and asking
        # or setting twice does no harm.
        for last in (False, True):
            ending = Ending(self._target.connection, self._query_timeout)
            try:
                call = self._call(question.name, question.fields, self._query_timeout)
                if question.name in _wire.STREAMS:
                    return question.read([message async for message in call])
                return question.read(await call)
            except grpc.RpcError as failure:
                if last or failure.code() != grpc.StatusCode.UNAVAILABLE:
                    raise ending.error(failure) from None
            except asyncio.CancelledError:
                stopped = stop_of(ending)
                if stopped is None:
                    raise
                raise stopped from None
        raise AssertionError

    def _operate(self, command: Command) -> Operation:
        # The call's own deadline is long: it would wait as long for a broker that ends before it is connected. A question
        # does not.
        async def ready() -> None:
            if self._target.waits:
                await self._ask(_requests.groups())

        return Operation(ready, lambda: self._call(command.name, command.fields, command.wait),
                         Course(command.count, self._target.connection, command.wait))


async def swap(out: Groups, into: Groups, timeout: float | None = None, *, runtime_dir: str | None = None) -> None:
    """Pauses the group `out` and resumes the group `into`, over a connection of its own. To swap more than once, keep a Broker.

    Args:
        out: One group or several, which are paused.
        into: One group or several, which are resumed.
        timeout: Seconds for each of the two; None: as the broker is configured.
        runtime_dir: The broker's; None: AMEM_RUNTIME_DIR, else the default.

    Raises:
        Error: As Broker.swap().
    """
    async with Broker(runtime_dir) as broker:
        await broker.swap(out, into, timeout)
