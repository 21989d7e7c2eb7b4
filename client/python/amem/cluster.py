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
    """Each operation is one on the groups of all nodes: a failure of one node leaves all as they were, as docs/nodes.md
    has it, and is raised with the node's name. Any thread, several at a time; not in a child after fork().

    `nodes`: their brokers' addresses, "host:port" or "unix:PATH", each once; or "@FILE", which has one in a line, with empty
    lines and what follows a "#" left out; None: AMEM_NODES, "a,b,c" or "@FILE". `runtime_dir`, `socket`, or `address`: the
    broker that leads and need be none of them, as Broker has it; None: the one here. `tls`: the directory of ca.crt, tls.crt
    and tls.key for "host:port", None: AMEM_TLS. Only operators may name other nodes: PermissionDeniedError.
    """

    def __init__(self, nodes: Sequence[str] | str | None = None, runtime_dir: str | None = None, *, socket: str | None = None,
                 address: str | None = None, tls: str | None = None) -> None:
        self.nodes = node_list(nodes)
        self._tls = tls
        self._leader = _Leader(self.nodes, runtime_dir, socket, address, tls)

    def close(self) -> None:
        """Ends every call under way with OperationCancelledError; operations go on in the brokers."""
        self._leader.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ---- queries: by node, in their order ----
    def status(self) -> dict[str, NodeAnswer[NodeStatus]]:
        """As Broker.status(), of each node. At most 64 are asked at a time, over connections of their own."""
        return self._of_each(lambda broker: broker.status())

    def groups(self) -> dict[str, NodeAnswer[list[GroupInfo]]]:
        """Likewise Broker.groups()."""
        return self._of_each(lambda broker: broker.groups())

    def ranks(self, group: str = "") -> dict[str, NodeAnswer[list[RankInfo]]]:
        """Likewise Broker.ranks()."""
        return self._of_each(lambda broker: broker.ranks(group))

    # ---- operations ----
    def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None,
              *, except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None) -> list[Progress]:
        """Pauses a group, or several, of all nodes. As Broker.pause(); gives the last Progress of each group of each node."""
        return self.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests).result(on_progress)

    def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None,
               *, except_tags: Tags = None) -> list[Progress]:
        """Likewise as Broker.resume(): no rank of any node runs before all have their memory."""
        return self.resuming(group, tags, timeout, except_tags=except_tags).result(on_progress)

    def swap(self, out: Groups, into: Groups, timeout: float | None = None, on_progress: OnProgress | None = None, *,
             discard: Tags = None, guests: Guests | None = None) -> list[Progress]:
        """Likewise as Broker.swap()."""
        return self.swapping(out, into, timeout, discard=discard, guests=guests).result(on_progress)

    def pausing(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: Guests | None = None) -> Operation:
        """Begins pause() and gives its progress, an iterator; Progress.node says whose it is."""
        return self._leader.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests)

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *,
                 except_tags: Tags = None) -> Operation:
        """Begins resume() and gives its progress, an iterator."""
        return self._leader.resuming(group, tags, timeout, except_tags=except_tags)

    def swapping(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
                 guests: Guests | None = None) -> Operation:
        """Begins swap() and gives its progress, an iterator."""
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
