"""The broker of a client, and how gRPC reaches it. amem.Broker and amem.aio.Broker share it. Any thread."""
from __future__ import annotations

import dataclasses

import grpc

from amem import _endpoint
from amem._connection import remote
from amem._connection.calls import Connection
from amem.errors import InvalidArgumentError

OPTIONS = [
    # The socket is local: trying again is cheap, and a broker that was restarted is there at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    # Two connections of one process stay independent of each other.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),  # the broker is trusted, and lists may be long
]


@dataclasses.dataclass(frozen=True)
class Target:
    """`name`: the target for gRPC. `socket`: the control socket's path, empty for another node's broker. `credentials` None: local."""

    name: str
    socket: str
    credentials: grpc.ChannelCredentials | None
    connection: Connection

    @property
    def waits(self) -> bool:
        """Whether calls wait for a connection. The probe has found a broker here. It cannot check another node's broker."""
        return self.credentials is None


def find(runtime_dir: str | None, socket: str | None, address: str | None, tls: str | None) -> Target:
    """The target for the arguments of a Broker. InvalidArgumentError: they do not name a broker."""
    if address is None:
        path = _endpoint.control_socket(runtime_dir, socket)
        return Target(_endpoint.grpc_target(path), path, None, Connection(path, lambda: _endpoint.probe(path)))
    if runtime_dir or socket:
        raise InvalidArgumentError("pass runtime_dir or socket for a local broker, or address for another node's, not both")
    return Target(remote.check_address(address), "", remote.credentials(tls), Connection(address, lambda: None))
