"""Cluster: groups that span several nodes, controlled as one (docs/nodes.md). It requires grpcio.

    with amem.Cluster(["node1:7070", "node2:7070"]) as cluster:
        cluster.swap("rollout", "train")
        for node, answer in cluster.status().items():
            print(node, answer.error or answer.value)

The broker of this node leads, or the broker at `address`.

client/python/write_blocking.py makes this file of amem/aio/_cluster.py.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from amem._arguments import Groups, Guests, OnProgress, Tags
from amem._connection.calls import Operation
from amem._connection.transport import of_each
from amem._nodes import MOST_AT_ONCE, NodeAnswer, broker_at, node_list
from amem._requests import Answer, Command
from amem.broker import Broker
from amem.errors import Error
from amem.messages import GroupInfo, NodeStatus, Progress, RankInfo

__all__ = ["Cluster", "NodeAnswer"]


class Cluster:
    """Groups that span several nodes, controlled as one.

    Each operation covers the groups of all nodes. If one node fails, all nodes stay as they were (docs/nodes.md), and the
    error names the node. Several threads may use it at the same time. A child of fork() must not use it.

    Attributes:
        nodes: The addresses of the nodes, in the order of the argument.
    """

    def __init__(self, nodes: Sequence[str] | str | None = None, runtime_dir: str | None = None, *, socket: str | None = None,
                 address: str | None = None, tls: str | None = None) -> None:
        """Chooses the nodes. It does not connect yet.

        Args:
            nodes: The addresses of the nodes' brokers, "host:port" or "unix:PATH", each once. Or "@FILE": a file with one
                address in each line, in which empty lines and comments after "#" do not count. None: AMEM_NODES, which is
                "a,b,c" or "@FILE".
            runtime_dir: The runtime directory of the broker that leads. It need not be one of the nodes. None: this node's.
            socket: The path of this broker's control socket, if it is not in the runtime directory.
            address: Instead of these two, "host:port" of the broker that leads.
            tls: The directory of ca.crt, tls.crt and tls.key for each "host:port"; None: AMEM_TLS.

        Raises:
            InvalidArgumentError: `nodes` is not a list of addresses, or the arguments do not name a broker.
        """
        self.nodes = node_list(nodes)
        self._tls = tls
        self._leader = _Leader(self.nodes, runtime_dir, socket, address, tls)

    def close(self) -> None:
        """Ends every running operation with OperationCancelledError. Later calls raise it, too.

        Operations continue in the brokers. Running queries finish.
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

        It asks at most 64 nodes at the same time, each over its own connection.

        Returns:
            A dictionary: for each node its answer, or the error that prevented it. The failure of a node does not raise.
        """
        return self._of_each(lambda broker: broker.status())

    def groups(self) -> dict[str, NodeAnswer[list[GroupInfo]]]:
        """Asks each node for its groups, as Broker.groups does. See status().

        Returns:
            A dictionary: for each node its answer, or the error that prevented it.
        """
        return self._of_each(lambda broker: broker.groups())

    def ranks(self, group: str = "") -> dict[str, NodeAnswer[list[RankInfo]]]:
        """Asks each node for ranks, as Broker.ranks does. See status().

        Args:
            group: The group's name. Empty: all groups.

        Returns:
            A dictionary: for each node its answer, or the error that prevented it.
        """
        return self._of_each(lambda broker: broker.ranks(group))

    # ---- operations ----
    def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
              except_tags: Tags = None, discard: Tags = None, guests: Guests | None = None,
              force: bool = False) -> list[Progress]:
        """Pauses one or more groups on all nodes.

        Args:
            group: As for Broker.pause(). This holds for all arguments.
            tags: The pause takes only memory with these tags.
            timeout: Timeout in seconds for the ranks to become quiet.
            on_progress: A function that this thread calls for each step. Progress.node is the node of the step.
            except_tags: The pause takes all memory except memory with these tags.
            discard: Tags whose bytes this pause drops.
            guests: What the pause does with memory that other groups have open.
            force: `discard` may have "heap".

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: The caller is not an operator. Only operators may name other nodes.
            Error: The errors of Broker.pause(), with the node's name.
        """
        operation = self.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests, force=force)
        return operation.result(on_progress)

    def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, on_progress: OnProgress | None = None, *,
               except_tags: Tags = None) -> list[Progress]:
        """Resumes one or more groups on all nodes. No rank of any node runs before all of them have their memory.

        Args:
            group: As for Broker.resume(). This holds for all arguments.
            tags: The resume restores only memory with these tags.
            timeout: Timeout in seconds for mapping and loading.
            on_progress: A function that this thread calls for each step. Progress.node is the node of the step.
            except_tags: The resume restores all memory except memory with these tags.

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: The caller is not an operator. Only operators may name other nodes.
            Error: The errors of Broker.resume(), with the node's name.
        """
        return self.resuming(group, tags, timeout, except_tags=except_tags).result(on_progress)

    def swap(self, out: Groups, into: Groups, timeout: float | None = None, on_progress: OnProgress | None = None, *,
             discard: Tags = None, guests: Guests | None = None, force: bool = False) -> list[Progress]:
        """Pauses `out` and resumes `into` on all nodes.

        Args:
            out: As for Broker.swap(). This holds for all arguments.
            into: The groups to resume.
            timeout: Timeout in seconds for the pause, and for the resume.
            on_progress: A function that this thread calls for each step. Progress.node is the node of the step.
            discard: Tags of `out` whose bytes this pause drops.
            guests: What the pause does with memory of `out` that other groups have open.
            force: `discard` may have "heap".

        Returns:
            The last Progress of each group of each node.

        Raises:
            PermissionDeniedError: The caller is not an operator. Only operators may name other nodes.
            Error: The errors of Broker.swap(), with the node's name.
        """
        return self.swapping(out, into, timeout, discard=discard, guests=guests, force=force).result(on_progress)

    def pausing(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
                discard: Tags = None, guests: Guests | None = None, force: bool = False) -> Operation:
        """Starts pause() and does not wait.

        Args:
            group: As for pause(). This holds for all arguments.
            tags: The pause takes only memory with these tags.
            timeout: Timeout in seconds for the ranks to become quiet.
            except_tags: The pause takes all memory except memory with these tags.
            discard: Tags whose bytes this pause drops.
            guests: What the pause does with memory that other groups have open.
            force: `discard` may have "heap".

        Returns:
            An iterator over its progress. Progress.node is the node of each step.
        """
        return self._leader.pausing(group, tags, timeout, except_tags=except_tags, discard=discard, guests=guests, force=force)

    def resuming(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> Operation:
        """Starts resume() and does not wait.

        Args:
            group: As for resume(). This holds for all arguments.
            tags: The resume restores only memory with these tags.
            timeout: Timeout in seconds for mapping and loading.
            except_tags: The resume restores all memory except memory with these tags.

        Returns:
            An iterator over its progress. Progress.node is the node of each step.
        """
        return self._leader.resuming(group, tags, timeout, except_tags=except_tags)

    def swapping(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
                 guests: Guests | None = None, force: bool = False) -> Operation:
        """Starts swap() and does not wait.

        Args:
            out: As for swap(). This holds for all arguments.
            into: The groups to resume.
            timeout: Timeout in seconds for the pause, and for the resume.
            discard: Tags of `out` whose bytes this pause drops.
            guests: What the pause does with memory of `out` that other groups have open.
            force: `discard` may have "heap".

        Returns:
            An iterator over its progress. Progress.node is the node of each step.
        """
        return self._leader.swapping(out, into, timeout, discard=discard, guests=guests, force=force)

    def _of_each(self, ask: Callable[[Broker], Answer]) -> dict[str, NodeAnswer[Answer]]:
        self._leader.check_open()

        def of(node: str) -> NodeAnswer[Answer]:
            try:
                with Broker(**broker_at(node, self._tls)) as broker:
                    return NodeAnswer(ask(broker))
            except Error as error:
                return NodeAnswer(error=error)

        return dict(zip(self.nodes, of_each(of, self.nodes, MOST_AT_ONCE)))


class _Leader(Broker):
    """A Broker with operations on all nodes."""

    def __init__(self, nodes: tuple[str, ...], runtime_dir: str | None, socket: str | None, address: str | None,
                 tls: str | None) -> None:
        super().__init__(runtime_dir, socket=socket, address=address, tls=tls)
        self._nodes = nodes

    def check_open(self) -> None:
        self._transport.target.connection.check_open()

    def _operate(self, command: Command) -> Operation:
        return super()._operate(command.on(self._nodes))
