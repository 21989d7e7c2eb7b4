"""Cluster: groups that several nodes have, steered as one (docs/nodes.md). It needs grpcio.

    with amem.Cluster(["node1:7070", "node2:7070"]) as cluster:
        cluster.swap("rollout", "train")
        for node, answer in cluster.status().items():
            print(node, answer.error or answer.value)

The broker of this node leads, or that of `address`.
"""
from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from types import TracebackType

from amem._arguments import Groups, Guests, Tags
from amem._connection.calls import Operation
from amem._nodes import MOST_AT_ONCE, NodeAnswer, broker_at, node_list
from amem._requests import Answer, Command
from amem.broker import Broker, OnProgress
from amem.errors import Error
from amem.messages import GroupInfo, NodeStatus, Progress, RankInfo

__all__ = ["Cluster", "NodeAnswer"]


class Cluster:
    """Groups that several nodes have, steered as one.

    Each operation is one on the groups of all nodes: a failure of one node leaves all as they were, as docs/nodes.md has
    it, and is raised with the node's name. Any thread, several at a time; not in a child after fork().

    Attributes:
        nodes: The nodes' addresses, in the order in which they were given.
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

    def close(self) -> None:
        """Ends every call under way with OperationCancelledError, which later operations raise, too.

        Operations go on in the brokers.
        """
        self._leader.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ---- queries: by node, in their order ----
    def status(self) -> dict[str, NodeAnswer[NodeStatus]]:
        """Asks each node for its state, as Broker.status does.

        At most 64 nodes are asked at a time, over connections of their own.

        Returns:
            By node the answer, or why there is none. No node's failure is raised.
        """
        return self._of_each(lambda broker: broker.status())

    def groups(self) -> dict[str, NodeAnswer[list[GroupInfo]]]:
        """Asks each node for its groups, as Broker.groups does; see status().

        Returns:
            By node the answer, or why there is none.
        """
        return self._of_each(lambda broker: broker.groups())

    def ranks(self, group: str = "") -> dict[str, NodeAnswer[list[RankInfo]]]:
        """Asks each node for ranks, as Broker.ranks does; see status().

        Args:
            group: The group's name; empty: all groups.

        Returns:
            By node the answer, or why there is none.
        """
        return self._of_each(lambda broker: broker.ranks(group))

    # ---- operations ----
    def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None,
              *, except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> list[Progress]:
        """Pauses a group, or several, of all nodes.

        Args:
            group: As for Broker.pause(), like all arguments.
            tags: Only memory with these tags leaves.
            timeout: Seconds for the ranks to become quiet.
            on_progress: Is called in this thread for each step; Progress.node says whose it is.
            except_tags: All memory except that with these tags leaves.
            discard: Tags whose bytes this pause drops.
            guests: What becomes of memory that other groups have open.

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: Only operators may name other nodes.
            Error: The errors of Broker.pause(), with the node's name.
        """
        return self.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests).result(on_progress)

    def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None,
               *, except_tags: Tags = None) -> list[Progress]:
        """Resumes a group, or several, of all nodes: no rank of any node runs before all have their memory.

        Args:
            group: As for Broker.resume(), like all arguments.
            tags: Only memory with these tags is restored.
            timeout: Seconds for mapping and loading.
            on_progress: Is called in this thread for each step; Progress.node says whose it is.
            except_tags: All memory except that with these tags is restored.

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: Only operators may name other nodes.
            Error: The errors of Broker.resume(), with the node's name.
        """
        return self.resuming(group, tags, timeout, except_tags=except_tags).result(on_progress)

    def swap(self, out: Groups, into: Groups, timeout: float | None = None, on_progress: OnProgress | None = None, *,
             discard: Tags = None, guests: Guests | None = None) -> list[Progress]:
        """Pauses `out` and resumes `into` on all nodes.

        Args:
            out: As for Broker.swap(), like all arguments.
            into: What is resumed.
            timeout: Seconds for each of the two.
            on_progress: Is called in this thread for each step; Progress.node says whose it is.
            discard: Tags of `out` whose bytes this pause drops.
            guests: What becomes of memory of `out` that other groups have open.

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: Only operators may name other nodes.
            Error: The errors of Broker.swap(), with the node's name.
        """
        return self.swapping(out, into, timeout, discard=discard, guests=guests).result(on_progress)

    def pausing(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: Guests | None = None) -> Operation:
        """Begins pause().

        Args:
            group: As for pause(), like all arguments.
            tags: Only memory with these tags leaves.
            timeout: Seconds for the ranks to become quiet.
            except_tags: All memory except that with these tags leaves.
            discard: Tags whose bytes this pause drops.
            guests: What becomes of memory that other groups have open.

        Returns:
            Its progress, an iterator; Progress.node says whose it is.
        """
        return self._leader.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests)

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *,
                 except_tags: Tags = None) -> Operation:
        """Begins resume().

        Args:
            group: As for resume(), like all arguments.
            tags: Only memory with these tags is restored.
            timeout: Seconds for mapping and loading.
            except_tags: All memory except that with these tags is restored.

        Returns:
            Its progress, an iterator; Progress.node says whose it is.
        """
        return self._leader.resuming(group, tags, timeout, except_tags=except_tags)

    def swapping(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
                 guests: Guests | None = None) -> Operation:
        """Begins swap().

        Args:
            out: As for swap(), like all arguments.
            into: What is resumed.
            timeout: Seconds for each of the two.
            discard: Tags of `out` whose bytes this pause drops.
            guests: What becomes of memory of `out` that other groups have open.

        Returns:
            Its progress, an iterator; Progress.node says whose it is.
        """
        return self._leader.swapping(out, into, timeout, discard=discard, guests=guests)

    def _of_each(self, ask: Callable[[Broker], Answer]) -> dict[str, NodeAnswer[Answer]]:
        def of(node: str) -> NodeAnswer[Answer]:
            try:
                with Broker(**broker_at(node, self._tls)) as broker:
                    return NodeAnswer(ask(broker))
            except Error as error:
                return NodeAnswer(error=error)

        with concurrent.futures.ThreadPoolExecutor(min(MOST_AT_ONCE, len(self.nodes))) as pool:
            return dict(zip(self.nodes, pool.map(of, self.nodes)))


class _Leader(Broker):
    """Whose operations are about all nodes."""

    def __init__(self, nodes: tuple[str, ...], runtime_dir: str | None, socket: str | None, address: str | None,
                 tls: str | None) -> None:
        super().__init__(runtime_dir, socket=socket, address=address, tls=tls)
        self._nodes = nodes

    def _operate(self, command: Command) -> Operation:
        return super()._operate(command.on(self._nodes))
