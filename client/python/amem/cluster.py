"""Cluster: groups that several nodes have, steered as one by the broker of this node (docs/nodes.md). For controllers.

    with amem.Cluster(["node1:7070", "node2:7070"]) as cluster:
        cluster.pause("train")
        cluster.swap("rollout", "train")
"""
from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from amem._arguments import Groups, Tags
from amem._calls import Operation
from amem.broker import Broker, OnProgress
from amem.errors import InvalidArgumentError
from amem.messages import Progress

__all__ = ["Cluster"]


class Cluster:
    """Each operation is one on the groups of all nodes: a failure of one node leaves all as they were, as docs/nodes.md
    has it, and is raised with the node's name. Any thread, several at a time; not in a child after fork().

    `nodes`: their brokers' addresses, "host:port" or "unix:PATH", each once. `runtime_dir`, `socket`: of the broker here,
    which leads and need be none of them, as Broker has it. Only operators may name other nodes: PermissionDeniedError.
    """

    def __init__(self, nodes: Sequence[str], runtime_dir: str | None = None, *, socket: str | None = None) -> None:
        if isinstance(nodes, str) or not nodes or not all(isinstance(node, str) and node for node in nodes):
            raise InvalidArgumentError(f"a cluster has a list of nodes' addresses, not {nodes!r}")
        self.nodes = tuple(nodes)
        self._leader = _Leader(self.nodes, runtime_dir, socket)

    def close(self) -> None:
        """Ends every call under way with CancelledError; operations go on in the brokers."""
        self._leader.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None,
              *, except_tags: Tags = None, discard: Tags = None, guests: str | None = None) -> list[Progress]:
        """Pauses a group, or several, of all nodes. As Broker.pause(); gives the last Progress of each group of each node."""
        return self.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests).result(on_progress)

    def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None,
               *, except_tags: Tags = None) -> list[Progress]:
        """Likewise as Broker.resume(): no rank of any node runs before all have their memory."""
        return self.resuming(group, tags, timeout, except_tags=except_tags).result(on_progress)

    def swap(self, out: Groups, into: Groups, timeout: float | None = None, on_progress: OnProgress | None = None, *,
             discard: Tags = None, guests: str | None = None) -> list[Progress]:
        """Likewise as Broker.swap()."""
        return self.swapping(out, into, timeout, discard=discard, guests=guests).result(on_progress)

    def pausing(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: str | None = None) -> Operation:
        """Begins pause() and gives its progress, an iterator; Progress.node says whose it is."""
        return self._leader.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests)

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *,
                 except_tags: Tags = None) -> Operation:
        """Begins resume() and gives its progress, an iterator."""
        return self._leader.resuming(group, tags, timeout, except_tags=except_tags)

    def swapping(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
                 guests: str | None = None) -> Operation:
        """Begins swap() and gives its progress, an iterator."""
        return self._leader.swapping(out, into, timeout, discard=discard, guests=guests)


class _Leader(Broker):
    """Whose operations are about all nodes."""

    def __init__(self, nodes: tuple[str, ...], runtime_dir: str | None, socket: str | None) -> None:
        super().__init__(runtime_dir, socket=socket)
        self._nodes = nodes

    def _operate(self, name: str, parts: int, count: int, timeout: float | None, **fields: Any) -> Operation:
        return super()._operate(name, parts, count * len(self._nodes), timeout, nodes=list(self._nodes), **fields)
