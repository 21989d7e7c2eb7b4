"""Node: the actor of one node. It finds amemd there or starts it. The actor of the leading node also runs the operations.

Every call returns its result, or an amem.Error as a value. If an actor raised an error, Ray would raise an error of another class in
the caller.
"""
from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from amem import _endpoint, _launcher, _programs
from amem._version import __version__
from amem.errors import Error, FailedPreconditionError, InternalError, NotFoundError, OperationCancelledError, UnavailableError
from amem.messages import NodeStatus, Progress
from amem.ray._certificates import Identity
from amem.ray._kept import Kept

_PORTS_TO_TRY = 5
_CONNECT_S = 5.0
_Call = TypeVar("_Call", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Found:
    """The state of a node before the cluster starts anything."""

    version: str
    host: str  # its name, as amemd says it
    broker: str | None  # the runtime directory of an amemd that runs already
    shim: str | None  # its path there
    request: bytes  # to sign


@dataclasses.dataclass(frozen=True)
class Started:
    address: str  # by which the other nodes reach its amemd
    runtime_dir: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of an operation.

    amemd calls a node by the name of its host when it has joined. Before that, and if two nodes have the same name, it uses the
    address. `names`: the names that it has used.
    """

    done: list[Progress]
    error: Error | None
    names: frozenset[str]


def endpoint(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _told(call: _Call) -> _Call:
    @functools.wraps(call)
    def answer(*arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except Error as error:
            return error.with_traceback(None)
        except Exception as error:
            return InternalError(f"{type(error).__name__}: {error}")

    return answer  # type: ignore[return-value]


def _free_port(ip: str) -> int:
    """A port that is free now, because amemd needs a number."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as listener:
        listener.bind((ip, 0))
        port: int = listener.getsockname()[1]
        return port


def _made(name: str) -> str:
    """Makes a directory that only this user may access. With several nodes on one machine, the first gets the name without a number."""
    parent = tempfile.gettempdir()
    for number in range(1000):
        path = os.path.join(parent, f"{name}-{number}" if number else name)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        return path
    raise FailedPreconditionError(f"{parent} already has 1000 directories with the name {name}. Remove them")


class Node:
    """Several threads may call it. `runtime_dir`: where a broker may already run. None: the default of this node."""

    def __init__(self, runtime_dir: str | None = None) -> None:
        self._runtime_dir = os.path.abspath(runtime_dir or _endpoint.default_runtime_dir())
        self._identity = Identity.make()
        self._lock = threading.Lock()
        self._kept: Kept | None = None
        self._cluster: Any = None  # amem.Cluster, where this node leads
        self._stopped = False

    @_told
    def look(self) -> Found:
        socket_path = _endpoint.control_socket(self._runtime_dir, None)
        why = _endpoint.probe(socket_path)
        if why is not None and not isinstance(why, UnavailableError):
            raise why  # somebody else's
        try:
            shim: str | None = _launcher.shim_path()
        except NotFoundError:
            shim = None
        running = self._runtime_dir if why is None else None
        return Found(__version__, socket.gethostname(), running, shim, self._identity.request)

    @_told
    def start(self, name: str, pool: int, ip: str, port: int, certificate: bytes, authority: bytes,
              timeout: float) -> Started:
        """Starts amemd in a new directory with this name. It listens for the other nodes at `ip`. `port` 0: a free port.

        Returns when amemd serves and its pool is complete.
        """
        for left in reversed(range(_PORTS_TO_TRY if port == 0 else 1)):
            chosen = port or _free_port(ip)
            try:
                return self._start(name, pool, endpoint(ip, chosen), certificate, authority, timeout)
            except InternalError as error:
                # Somebody else may have got the port meanwhile.
                if left == 0 or "cannot serve the control API" not in error.text:
                    raise
        raise AssertionError

    def _start(self, name: str, pool: int, address: str, certificate: bytes, authority: bytes,
               timeout: float) -> Started:
        _programs.path("amemd")
        directory = _made(name)
        try:
            tls = os.path.join(directory, "tls")
            self._identity.write(tls, certificate, authority)
            kept = Kept(directory, ["--control-listen", address, "--control-tls", tls, "--pool-size", str(pool)])
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        try:
            kept.wait(timeout)
        except BaseException:
            kept.end()
            raise
        with self._lock:
            self._kept = kept
        return Started(address, directory)

    @_told
    def reach(self, addresses: Sequence[str]) -> None:
        """Connects to the other nodes' addresses. UnavailableError: one connection has failed."""
        for address in addresses:
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            except OSError as error:
                raise UnavailableError(f"cannot reach amemd at {address}: {error.strerror or error}") from None

    @_told
    def operate(self, addresses: Sequence[str], name: str, groups: Sequence[Any], options: dict[str, Any]) -> Outcome:
        """Calls pause, resume or swap of amem.Cluster. This node leads."""
        from amem.cluster import Cluster

        with self._lock:
            self._check()
            if self._cluster is None or self._cluster.nodes != tuple(addresses):
                self._cluster = Cluster(list(addresses), self._directory())
            cluster = self._cluster
        names: set[str] = set()
        try:
            done = getattr(cluster, name)(*groups, on_progress=lambda progress: names.add(progress.node), **options)
        except Error as error:
            return Outcome([], error.with_traceback(None), frozenset(names))
        return Outcome(done, None, frozenset(names))

    @_told
    def status(self) -> NodeStatus:
        from amem.broker import Broker

        with self._lock:
            self._check()
            directory = self._directory()
        with Broker(directory) as broker:
            return broker.status()

    @_told
    def stop(self) -> None:
        """Ends the amemd that this actor has started, and waits for its end."""
        with self._lock:
            self._stopped = True
            kept, cluster = self._kept, self._cluster
            self._kept = self._cluster = None
        if cluster is not None:
            cluster.close()
        if kept is not None and not kept.end():
            raise InternalError(f"amemd in {kept.directory} has not ended in time")

    def _directory(self) -> str:
        return self._kept.directory if self._kept is not None else self._runtime_dir

    def _check(self) -> None:
        """REQUIRES: the lock. UnavailableError: amemd has ended."""
        if self._stopped:  # it has no amemd any more, and one in the default directory is another one
            raise OperationCancelledError("close() has closed the amem.ray.Cluster. Make another one")
        why = self._kept.fault() if self._kept is not None else None
        if why is not None:
            raise UnavailableError(why)
