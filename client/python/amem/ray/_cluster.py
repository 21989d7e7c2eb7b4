"""Cluster: the controller's side."""
from __future__ import annotations

import dataclasses
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import ray
from ray import exceptions as ray_errors
from ray.util import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from amem import _launcher
from amem._arguments import Groups, Guests, Scope, Tags
from amem._nodes import NodeAnswer
from amem._version import __version__
from amem.errors import (
    OperationCancelledError, DeadlineExceededError, Error, FailedPreconditionError, InternalError, InvalidArgumentError,
    ResourceExhaustedError, UnavailableError, error_of)
from amem.messages import NodeStatus, Progress
from amem.ray._certificates import Authority
from amem.ray._node import Found, Node, Outcome, Started, endpoint
from amem.ray._rank_class import RankClass

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_POOL_UNIT = 2 << 20
_CALLS_AT_ONCE = 8  # of one node's actor; more wait
_ASK_S = 10.0
_LOOK_S = 2.0
_END_S = 60.0
# An operation's deadlines are the broker's, then those of the leader's call; this is later than both.
_LONGEST_S = 600.0
_LATER_S = 30.0


def size_of(text: int | str) -> int:
    """The size in bytes, of a number or of a text such as "64GiB". InvalidArgumentError: it is not a valid pool size."""
    found = re.fullmatch(r"(\d+)\s*([KMGT]iB|)", text, re.I) if isinstance(text, str) else None
    size = int(found[1]) * _UNITS[found[2].upper()] if found else text
    if isinstance(size, bool) or not isinstance(size, int) or size < 0 or size % _POOL_UNIT != 0:
        raise InvalidArgumentError(
            f'{text!r} is not a valid pool size. Use a multiple of 2MiB, as a number of bytes or a text such as "64GiB"')
    return size


@dataclasses.dataclass
class _Place:
    """One node of the cluster."""

    id: str  # Ray's
    ip: str
    memory: float  # the resource, bytes
    actor: Any = None
    lives: bool = False  # the actor has answered
    host: str = ""
    shim: str | None = None
    started: Started | None = None

    def __str__(self) -> str:
        return f"node {self.id[:12]} ({self.ip})"


class Cluster:
    """amemd on each node of a placement group, and operations on groups that span these nodes.

    If one node fails, all nodes stay as they were (docs/nodes.md). Several threads may use the object at the same time, in the
    process that made it. Each node with a bundle gets an actor, which needs no CPU and no GPU. The placement groups stay when
    this object ends.

    The amemds end with close(), with this object, or with the job, also if the job is killed. The saved bytes of their groups end
    with them. So let ranks end or resume first.
    """

    def __init__(self, placement_group: Any, *, pool: int | str | None = "64GiB", runtime_dir: str | None = None,
                 port: int = 0, timeout: float = 120.0) -> None:
        """Finds amemd on the nodes, or starts it there. Returns when all are ready.

        Args:
            placement_group: A placement group that Ray has placed or is placing, or a list of several. Their bundles have
                consecutive numbers.
            pool: The size of each node's pool (host memory for saved bytes), in bytes or as "64GiB". Ray counts it as the
                resource `memory` of the node. None: amemd must already run on each node, with its own pool, which Ray does not
                count.
            runtime_dir: The runtime directory of an amemd that already runs on a node. The cluster uses this amemd and does not
                change it. None: the node's default. amemd must run on all nodes or on none. If it runs on none, the cluster
                starts it in a new directory.
            port: The TCP port at which the nodes' amemds reach each other. 0: a free port of each node. It is required if
                amemd already runs on several nodes.
            timeout: Timeout in seconds until everything is ready.

        Raises:
            ResourceExhaustedError: A node has too little memory.
            DeadlineExceededError: The cluster was not ready in time. The text says what was missing.
            FailedPreconditionError: The cluster cannot use the amemds that already run.
            UnavailableError: Ray has lost a node or an actor, or one node cannot reach another.
            InvalidArgumentError: The pool's size or the port is not valid.
        """
        self._until = time.monotonic() + timeout
        self._timeout = timeout
        self._pool = None if pool is None else size_of(pool)
        if not 0 <= port <= 65535:
            raise InvalidArgumentError(f"{port} is not a valid TCP port")
        self._lock = threading.Lock()
        self._closed = False
        self._bundles: list[tuple[Any, int, _Place]] = []  # by their number: the group, the number there, the node
        self._places: list[_Place] = []
        self._find(placement_group if isinstance(placement_group, (list, tuple)) else [placement_group])
        self._check_memory()
        try:
            self._make_actors(runtime_dir)
            self._start(port)
        except BaseException:
            self.close()
            raise

    # ---- how it begins ----
    def _find(self, groups: Sequence[Any]) -> None:
        known = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
        places: dict[str, _Place] = {}
        for group in groups:
            if not group.wait(max(1, int(self._left()))):
                raise DeadlineExceededError(
                    f"Ray has not placed the placement group {group.id.hex()} within {self._timeout:g} s")
            nodes = placement_group_table(group)["bundles_to_node_id"]
            for number in sorted(nodes):
                node = known.get(nodes[number])
                if node is None:
                    raise UnavailableError(f"Ray has lost the node {nodes[number]} of bundle {number}")
                place = places.setdefault(node["NodeID"], _Place(node["NodeID"], node["NodeManagerAddress"],
                                                                 node["Resources"].get("memory", 0)))
                self._bundles.append((group, number, place))
        self._places = list(places.values())
        if not self._places:
            raise InvalidArgumentError("the placement group has no bundles")

    def _check_memory(self) -> None:
        for place in self._places:
            if self._pool is not None and place.memory < self._pool:
                raise ResourceExhaustedError(
                    f"{place} has {place.memory:.0f} bytes of Ray's resource memory, and the pool requires "
                    f"{self._pool}. Ask for a smaller pool, or start the node with more (`ray start --memory`)")

    def _make_actors(self, runtime_dir: str | None) -> None:
        actor = ray.remote(Node)
        for place in self._places:
            place.actor = actor.options(
                num_cpus=0, num_gpus=0, memory=self._pool or None, max_restarts=0, max_task_retries=0,
                max_concurrency=_CALLS_AT_ONCE,
                scheduling_strategy=NodeAffinitySchedulingStrategy(place.id, soft=False)).remote(runtime_dir)

    def _start(self, port: int) -> None:
        found: list[Found] = self._all("look", missing="its actor has not started (its resource memory may be in use)")
        for place, each in zip(self._places, found):
            if each.version != __version__:
                raise FailedPreconditionError(f"{place} has amem {each.version}, and this process has {__version__}. "
                                              "Install the same version on all nodes")
            place.lives, place.host, place.shim = True, each.host, each.shim
        running = [place for place, each in zip(self._places, found) if each.broker is not None]
        if running and len(running) < len(self._places):
            lacks = next(place for place in self._places if place not in running)
            raise FailedPreconditionError(
                f"amemd runs on {running[0]} but not on {lacks}. Start it on all nodes, stop it on all nodes, or pass a "
                "runtime_dir in which no amemd runs")
        if running:
            self._use(port, [str(each.broker) for each in found])
        elif self._pool is None:
            raise FailedPreconditionError(
                f"amemd runs on no node, for example not on {self._places[0]}. Start it on each node, or pass pool=")
        else:
            self._start_brokers(port, found)
        if len(self._places) > 1:
            self._answer(self._places[0], self._places[0].actor.reach.remote(self.addresses), self._left())

    def _use(self, port: int, directories: Sequence[str]) -> None:
        if port == 0 and len(self._places) > 1:
            raise FailedPreconditionError(
                f"amemd already runs on {self._places[0]}, in {directories[0]}. Pass the port at which the amemds listen "
                "for other nodes (control.listen, docs/nodes.md), or pass a runtime_dir in which no amemd runs")
        for place, directory in zip(self._places, directories):
            alone = f"unix:{os.path.join(directory, 'control.sock')}"
            place.started = Started(alone if len(self._places) == 1 else endpoint(place.ip, port), directory)

    def _start_brokers(self, port: int, found: Sequence[Found]) -> None:
        job = ray.get_runtime_context().get_job_id()
        name = f"amem-{os.getuid()}-{job}-{secrets.token_hex(4)}"
        authority = Authority(name)
        wait = max(1.0, self._left() - 1)
        given = [(name, self._pool, place.ip, port, authority.sign(each.request, place.ip), authority.certificate, wait)
                 for place, each in zip(self._places, found)]
        started = self._all("start", *given, missing="amemd is not ready")
        for place, each in zip(self._places, started):
            place.started = each

    def _all(self, name: str, *arguments: Sequence[Any], missing: str) -> list[Any]:
        """Calls every node's actor at the same time."""
        calls = [getattr(place.actor, name).remote(*given)
                 for place, given in zip(self._places, arguments or [()] * len(self._places))]
        return [self._answer(place, call, self._left(), missing) for place, call in zip(self._places, calls)]

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    # ---- what a controller asks ----
    @property
    def nodes(self) -> tuple[str, ...]:
        """Ray's node ids, in the order of their first bundles."""
        return tuple(place.id for place in self._places)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the nodes' amemds, in the order of `nodes` and in the form of amem.Cluster."""
        return tuple(place.started.address for place in self._places if place.started is not None)

    def pause(self, group: Groups, tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
              discard: Tags = None, guests: Guests | None = None, force: bool = False) -> list[Progress]:
        """Pauses one or more groups on all nodes. An error names Ray's node.

        Args:
            group: As for amem.Cluster.pause(). This holds for all arguments.
            tags: The pause takes only memory with these tags.
            timeout: Timeout in seconds for the ranks to become quiet.
            except_tags: The pause takes all memory except memory with these tags.
            discard: Tags whose bytes this pause drops.
            guests: What the pause does with memory that other groups have open.
            force: `discard` may have "heap".

        Returns:
            The last Progress of each group of each node. Progress.node is Ray's node id.

        Raises:
            UnavailableError: Also if Ray has lost the actor of the leading node, or its amemd has ended. The other nodes end the
                operation as docs/nodes.md says, and status() shows how.
            DeadlineExceededError: Also if the actor does not answer.
            Error: The errors of amem.Cluster.pause().
        """
        return self._operate("pause", 1, (group, tags, timeout), timeout, except_tags=except_tags, discard=discard,
                             guests=guests, force=force)

    def resume(self, group: Groups, tags: Tags = None, timeout: float | None = None, *,
               except_tags: Tags = None) -> list[Progress]:
        """Resumes one or more groups on all nodes. No rank of any node runs before all of them have their memory.

        Args:
            group: As for amem.Cluster.resume(). This holds for all arguments.
            tags: The resume restores only memory with these tags.
            timeout: Timeout in seconds for mapping and loading.
            except_tags: The resume restores all memory except memory with these tags.

        Returns:
            The last Progress of each group of each node. Progress.node is Ray's node id.

        Raises:
            Error: The errors of pause() and of amem.Cluster.resume().
        """
        return self._operate("resume", 1, (group, tags, timeout), timeout, except_tags=except_tags)

    def swap(self, out: Groups, into: Groups, timeout: float | None = None, *, discard: Tags = None,
             guests: Guests | None = None, force: bool = False) -> list[Progress]:
        """Pauses `out` and resumes `into` on all nodes.

        Args:
            out: As for amem.Cluster.swap(). This holds for all arguments.
            into: The groups to resume.
            timeout: Timeout in seconds for the pause, and for the resume.
            discard: Tags of `out` whose bytes this pause drops.
            guests: What the pause does with memory of `out` that other groups have open.
            force: `discard` may have "heap".

        Returns:
            The last Progress of each group of each node. Progress.node is Ray's node id.

        Raises:
            Error: The errors of pause() and resume().
        """
        return self._operate("swap", 2, (out, into, timeout), timeout, discard=discard, guests=guests, force=force)

    def status(self, timeout: float = _ASK_S) -> dict[str, NodeAnswer[NodeStatus]]:
        """Asks each node's amemd for its state.

        Args:
            timeout: Timeout in seconds for all answers.

        Returns:
            A dictionary: for each of Ray's node ids the result of Broker.status() there, or the error that prevented it.

        Raises:
            OperationCancelledError: The program has closed this object.
        """
        self._check_open()
        until = time.monotonic() + timeout
        calls = [place.actor.status.remote() for place in self._places]
        answers: dict[str, NodeAnswer[NodeStatus]] = {}
        for place, call in zip(self._places, calls):
            try:
                answers[place.id] = NodeAnswer(self._answer(place, call, max(0.0, until - time.monotonic())))
            except Error as error:
                self._check_open()  # close() ends the actors
                answers[place.id] = NodeAnswer(error=error)
        return answers

    def runtime_env(self, group: str, scope: Scope | None = "heap", bundle: int | None = None, *, required: bool = True,
                    base: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Returns a runtime_env that makes an actor a rank of a group.

        Args:
            group: The group's name.
            scope: As for amem.environment().
            bundle: The number of the actor's bundle. None: the actor may be on any node. Then all nodes must have the same
                runtime directory.
            required: Without amemd, allocations of the rank fail. Otherwise they go to the driver.
            base: The env_vars so far. The result keeps the libraries of their LD_PRELOAD.

        Returns:
            {"env_vars": `base` and the variables of amem.environment()}.

        Raises:
            FailedPreconditionError: The bundle is None, and the nodes have different runtime directories, because some of them
                are on one machine.
            InvalidArgumentError: The bundle does not exist, or the group or the scope is not valid.
        """
        self._check_open()
        places = self._places if bundle is None else [self._bundle(bundle)[2]]
        found = {(place.started.runtime_dir, place.shim): place for place in places if place.started is not None}
        if len(found) > 1:
            ways = [f"{directory} with {shim} on {place}" for (directory, shim), place in found.items()]
            raise FailedPreconditionError(
                f"the nodes need different variables: {ways[0]}, {ways[1]}. Pass the bundle of the rank")
        [(directory, shim)] = found
        given = dict(base or {})
        variables = _launcher.rank_variables(group, scope, directory, shim or _launcher.shim_path(), required, given)
        return {"env_vars": {**given, **variables}}

    def options(self, bundle: int, group: str, scope: Scope | None = "heap", *, required: bool = True,
                base: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Returns options that make an actor a rank: its bundle and its runtime_env.

        The caller chooses the resources that the actor takes from the bundle, such as num_gpus.

        Args:
            bundle: The bundle's number.
            group: The group's name.
            scope: As for amem.environment().
            required: As for runtime_env().
            base: As for runtime_env().

        Returns:
            The keyword arguments for `.options(**...)` of the actor class.

        Raises:
            Error: The errors of runtime_env().
        """
        group_of, number, _ = self._bundle(bundle)
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group_of, placement_group_bundle_index=number),
                "runtime_env": self.runtime_env(group, scope, bundle, required=required, base=base)}

    def actor(self, actor_class: Any, group: str, scope: Scope | None = "heap", *, required: bool = True) -> RankClass:
        """Makes an actor class whose actors are ranks of a group.

        Use it for code that calls `.options(...)` or `.remote(...)` itself, such as frameworks. These calls raise the errors of
        runtime_env().

        Args:
            actor_class: An actor class of ray.remote().
            group: The group's name.
            scope: As for amem.environment().
            required: As for runtime_env().

        Returns:
            A class to use instead of `actor_class`.

        Raises:
            InvalidArgumentError: `actor_class` is not an actor class.
        """
        return RankClass(actor_class, lambda bundle, base: self.runtime_env(
            group, scope, bundle, required=required, base=base), self._number)

    def close(self) -> None:
        """Ends the amemds that this object has started and the actors, and removes their directories. Returns when all are gone.

        Running operations end with OperationCancelledError. The call never raises. Actors and amemds that it cannot reach end
        without it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not ray.is_initialized():  # then the actors have ended with the job
            return
        until = time.monotonic() + _END_S
        made = [place for place in self._places if place.actor is not None]
        calls = [place.actor.stop.remote() if place.lives else None for place in made]
        for place, call in zip(made, calls):
            try:
                if call is not None:
                    ray.get(call, timeout=max(0.0, until - time.monotonic()))
            except ray_errors.RayError:
                pass
            ray.kill(place.actor)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ---- how ----
    def _check_open(self) -> None:
        if self._closed:
            raise OperationCancelledError("close() has closed this amem.ray.Cluster. Make another one")

    def _bundle(self, number: int) -> tuple[Any, int, _Place]:
        if not 0 <= number < len(self._bundles):
            raise InvalidArgumentError(f"there is no bundle {number}. The bundles are 0 to {len(self._bundles) - 1}")
        return self._bundles[number]

    def _number(self, group: Any, index: int) -> int | None:
        """The number of a placement group's bundle. None: any bundle of the group, or a group of another cluster."""
        for number, (each, place_in_group, _) in enumerate(self._bundles):
            if each.id == group.id and place_in_group == index:
                return number
        return None

    def _operate(self, name: str, parts: int, groups: Sequence[Any], timeout: float | None,
                 **options: Any) -> list[Progress]:
        self._check_open()
        wait = parts * (_LONGEST_S + (timeout or 0)) + _LATER_S
        leader = self._places[0]
        try:
            outcome: Outcome = self._answer(leader, leader.actor.operate.remote(self.addresses, name, groups, options), wait)
        except Error:
            self._check_open()  # close() ends the actor, too
            raise
        if outcome.error is not None:
            self._check_open()
            text = f"{self._explained(outcome.error.text, outcome.names)} (led by {leader})"
            # Of a node that goes its ranks may go first: a group is missing there then, and that is not all.
            lost = [each.error.text for each in self.status(_LOOK_S).values() if isinstance(each.error, UnavailableError)]
            if lost:
                raise UnavailableError(f"{'; '.join(lost)}. Therefore {name} failed: {text}")
            raise error_of(outcome.error.code, text)
        who = self._called(outcome.names)
        return [_of_node(each, who[each.node][0].id if who[each.node] else each.node) for each in outcome.done]

    def _explained(self, text: str, names: Iterable[str]) -> str:
        """The text with Ray's node ids behind amemd's names of the nodes."""
        for name, places in self._called({*names, *re.findall(r"node '([^']+)'", text)}).items():
            if places:
                ids = " or ".join(place.id[:12] for place in places)
                text = text.replace(f"node '{name}'", f"node '{name}' (Ray's {ids})", 1)
        return text

    def _called(self, names: Iterable[str]) -> dict[str, list[_Place]]:
        """The nodes that amemd means by each name. If several nodes are on one host, all that it may mean."""
        by_address = {place.started.address: place for place in self._places if place.started is not None}
        others = [place for address, place in by_address.items() if address not in names]
        return {name: [by_address[name]] if name in by_address else [place for place in others if place.host == name]
                for name in names}

    def _answer(self, place: _Place, call: Any, timeout: float, missing: str = "its actor does not answer") -> Any:
        """The answer of a node's actor. Raises the amem.Error that the actor returns."""
        try:
            answer = ray.get(call, timeout=timeout)
        except ray_errors.GetTimeoutError:
            raise DeadlineExceededError(f"{place}: {missing} after {timeout:.0f} s") from None
        except ray_errors.RayActorError as error:
            raise UnavailableError(f"{place} is lost: {_first_line(error)}") from None
        except ray_errors.RayError as error:
            raise InternalError(f"{place}: {_first_line(error)}") from None
        if isinstance(answer, Error):
            raise error_of(answer.code, f"{place}: {answer.text}")
        return answer


def _of_node(progress: Any, node: str) -> Progress:
    named: Progress = dataclasses.replace(progress, node=node)
    return named


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
