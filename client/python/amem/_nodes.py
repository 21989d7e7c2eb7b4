"""The nodes of a cluster, and the answer of each node. Plain values; any thread."""
from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from amem.errors import Error, InvalidArgumentError

MOST_AT_ONCE = 64  # as amemctl asks nodes

_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True)
class NodeAnswer(Generic[_Answer]):
    """The answer of one node of a cluster. One of the two fields is None.

    Attributes:
        value: The answer. None: the node has not answered.
        error: Why there is no answer. None: there is one.
    """

    value: _Answer | None = None
    error: Error | None = None

    def result(self) -> _Answer:
        """Returns the answer, or raises if there is none.

        Returns:
            `value`.

        Raises:
            Error: `error`, if the node has not answered.
        """
        if self.value is None:
            raise self.error or AssertionError("a node's answer has a value or an error")
        return self.value


def node_list(nodes: Sequence[str] | str | None) -> tuple[str, ...]:
    """The addresses for a Cluster: of a list, of "@FILE", or of AMEM_NODES for None. InvalidArgumentError: there are none."""
    if nodes is None:
        named = os.environ.get("AMEM_NODES", "")
        nodes = named if named.startswith("@") else [node for node in named.split(",") if node]
    if isinstance(nodes, str) and nodes.startswith("@"):
        try:
            with open(nodes[1:], encoding="utf-8") as file:
                nodes = [line.partition("#")[0].strip() for line in file]
        except OSError as error:
            raise InvalidArgumentError(f"cannot read the list of nodes {nodes[1:]}: {error.strerror}") from None
        nodes = [node for node in nodes if node]
    if isinstance(nodes, str) or not nodes or not all(isinstance(node, str) and node for node in nodes):
        raise InvalidArgumentError(f"a cluster requires a list of node addresses, or \"@FILE\" with such a list, not {nodes!r}")
    return tuple(nodes)


def broker_at(node: str, tls: str | None) -> dict[str, Any]:
    """The arguments of a Broker for a node's address, "unix:PATH" or "host:port"."""
    if node.startswith("unix:"):
        return {"socket": node.removeprefix("unix:")}
    return {"address": node, "tls": tls}
