"""Brokers of other nodes: TCP with mutual TLS. Functions without state; any thread."""
from __future__ import annotations

import os

import grpc

from amem.errors import InvalidArgumentError

_FILES = ("ca.crt", "tls.key", "tls.crt")  # as gRPC takes them


def check_address(address: str) -> str:
    """Returns the address, "host:port". InvalidArgumentError: it is not valid."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgumentError(f"{address!r} is not a valid broker address. Use HOST:PORT")
    return address


def credentials(directory: str | None) -> grpc.ChannelCredentials:
    """Reads the files ca.crt, tls.crt and tls.key in `directory`. None: AMEM_TLS."""
    directory = directory or os.environ.get("AMEM_TLS")
    if not directory:
        raise InvalidArgumentError(
            "another node's broker requires mutual TLS. Pass tls= or set AMEM_TLS: the directory with ca.crt, tls.crt and "
            "tls.key")
    read = []
    for name in _FILES:
        path = os.path.join(directory, name)
        try:
            with open(path, "rb") as file:
                read.append(file.read())
        except OSError as error:
            raise InvalidArgumentError(f"cannot read {path}: {error.strerror}") from None
    return grpc.ssl_channel_credentials(*read)
