"""Cluster: amem.Cluster's calls as coroutines."""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType

from amem._arguments import Groups, Guests, Tags
from amem._nodes import MOST_AT_ONCE, NodeAnswer, broker_at, node_list
from amem._requests import Answer, Command
from amem.aio._broker import Broker
from amem.aio._calls import Operation
from amem.broker import OnProgress
from amem.errors import Error
from amem.messages import GroupInfo, NodeStatus, Progress, RankInfo


class Cluster:
    """Groups that several nodes have, steered as one.

    It has the methods of amem.Cluster, with the same arguments, results and errors. Several tasks of one event loop may use
    it at a time. A task that is cancelled stops waiting; what it has asked for goes on in the brokers.
    """

    def __init__(self, nodes: Sequence[str] | str | None = None, runtime_dir: str | None = None, *, socket: str | None = None,
                 address: str | None = None, tls: str | None = None) -> None:
        """Says which nodes are meant; nothing is asked of them yet.

        Args:
            nodes: Their brokers' addresses, "host:port" or "unix:PATH", each once; or "@FILE", which has one in a line, with
                empty lines and what follows a "#" left out; None: AMEM_NODES, "a,b,c" or "@FILE".
            runtime_dir: The runtime directory of the broker that leads, which need not be one of the nodes; None: this node's.
            socket: The control socket's path of the broker that leads, when it is elsewhere.
            address: Instead of these, "host:port" of the broker that leads.
            tls: The directory of ca.crt, tls.crt and tls.key for each "host:port"; None: AMEM_TLS.

        Raises:
            InvalidArgumentError: `nodes` is no list of addresses, or the arguments name no broker.
        """
        self.nodes = node_list(nodes)
        self._tls = tls
        self._leader = _Leader(self.nodes, runtime_dir, socket, address, tls)

    async def close(self) -> None:
        """Ends every call under way with OperationCancelledError, which later operations raise, too.

        Operations go on in the brokers.
        """
        await self._leader.close()

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        await self.close()

    # ---- queries: by node, in their order ----
    async def status(self) -> dict[str, NodeAnswer[NodeStatus]]:
        """Asks each node for its state, as Broker.status does.

        At most 64 nodes are asked at a time, over connections of their own.

        Returns:
            By node the answer, or why there is none. No node's failure is raised.
        """
        return await self._of_each(lambda broker: broker.status())

    async def groups(self) -> dict[str, NodeAnswer[list[GroupInfo]]]:
        """Asks each node for its groups, as Broker.groups does; see status().

        Returns:
            By node the answer, or why there is none.
        """
        return await self._of_each(lambda broker: broker.groups())

    async def ranks(self, group: str = "") -> dict[str, NodeAnswer[list[RankInfo]]]:
        """Asks each node for ranks, as Broker.ranks does; see status().

        Args:
            group: The group's name; empty: all groups.

        Returns:
            By node the answer, or why there is none.
        """
        return await self._of_each(lambda broker: broker.ranks(group))

    # ---- operations ----
    async def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                    except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> list[Progress]:
        """Pauses a group, or several, of all nodes.

        Args:
            group: As for Broker.pause(), like all arguments.
            tags: Only memory with these tags leaves.
            timeout: Seconds for the ranks to become quiet.
            on_progress: A plain function that the event loop calls for each step; Progress.node says whose it is.
            except_tags: All memory except that with these tags leaves.
            discard: Tags whose bytes this pause drops.
            guests: What becomes of memory that other groups have open.

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: Only operators may name other nodes.
            Error: The errors of Broker.pause(), with the node's name.
        """
        operation = self.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests)
        return await operation.result(on_progress)

    async def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                     except_tags: Tags = None) -> list[Progress]:
        """Resumes a group, or several, of all nodes: no rank of any node runs before all have their memory.

        Args:
            group: As for Broker.resume(), like all arguments.
            tags: Only memory with these tags is restored.
            timeout: Seconds for mapping and loading.
            on_progress: A plain function that the event loop calls for each step; Progress.node says whose it is.
            except_tags: All memory except that with these tags is restored.

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: Only operators may name other nodes.
            Error: The errors of Broker.resume(), with the node's name.
        """
        return await self.resuming(group, tags, timeout, except_tags=except_tags).result(on_progress)

    async def swap(self, out: Groups, into: Groups, timeout: float | None = None, on_progress: OnProgress | None = None, *,
                   discard: Tags = None, guests: Guests | None = None) -> list[Progress]:
        """Pauses `out` and resumes `into` on all nodes.

        Args:
            out: As for Broker.swap(), like all arguments.
            into: What is resumed.
            timeout: Seconds for each of the two.
            on_progress: A plain function that the event loop calls for each step; Progress.node says whose it is.
            discard: Tags of `out` whose bytes this pause drops.
            guests: What becomes of memory of `out` that other groups have open.

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: Only operators may name other nodes.
            Error: The errors of Broker.swap(), with the node's name.
        """
        return await self.swapping(out, into, timeout, discard=discard, guests=guests).result(on_progress)

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
            Its progress, an asynchronous iterator; Progress.node says whose it is.
        """
        return self._leader.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests)

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> Operation:
        """Prepares resume(), which the first step of the iteration begins.

        Args:
            group: As for resume(), like all arguments.
            tags: Only memory with these tags is restored.
            timeout: Seconds for mapping and loading.
            except_tags: All memory except that with these tags is restored.

        Returns:
            Its progress, an asynchronous iterator; Progress.node says whose it is.
        """
        return self._leader.resuming(group, tags, timeout, except_tags=except_tags)

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
            Its progress, an asynchronous iterator; Progress.node says whose it is.
        """
        return self._leader.swapping(out, into, timeout, discard=discard, guests=guests)

    async def _of_each(self, ask: Callable[[Broker], Awaitable[Answer]]) -> dict[str, NodeAnswer[Answer]]:
        turns = asyncio.Semaphore(MOST_AT_ONCE)

        async def of(node: str) -> NodeAnswer[Answer]:
            async with turns:
                try:
                    async with Broker(**broker_at(node, self._tls)) as broker:
                        return NodeAnswer(await ask(broker))
                except Error as error:
                    return NodeAnswer(error=error)

        return dict(zip(self.nodes, await asyncio.gather(*map(of, self.nodes))))


class _Leader(Broker):
    """Whose operations are about all nodes."""

    def __init__(self, nodes: tuple[str, ...], runtime_dir: str | None, socket: str | None, address: str | None,
                 tls: str | None) -> None:
        super().__init__(runtime_dir, socket=socket, address=address, tls=tls)
        self._nodes = nodes

    def _operate(self, command: Command) -> Operation:
        return super()._operate(command.on(self._nodes))
