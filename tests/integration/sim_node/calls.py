"""Calls: a caller's end of the control API, by hand, which reads no answer before it is told to.

HTTP/2 and gRPC's frames as far as amemd needs them. Header blocks of answers are not decoded: gRPC writes what it says for the first
time on a connection in plain bytes.
"""
from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sim_node import wire
from sim_node.child import patience

DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4  # of SETTINGS


@contextlib.contextmanager
def effective(uid: int, gid: int) -> Iterator[None]:
    """The sockets that are connected inside are that user's, by the kernel's word."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


class Calls:
    def __init__(self, runtime_dir: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(os.path.join(runtime_dir, "control.sock"))
        self.headers: dict[int, bytes] = {}
        self.data: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self._next = 1
        self._read = b""
        nothing = struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, nothing))
        self.await_(lambda: self.settled, "the broker's settings")

    settled = False

    def start(self, method: str, fields: wire.Fields | None = None, service: str = "amem.v1.Broker", whole: bool = True) -> int:
        """The number of a new call. `whole`: nothing follows this request."""
        number, self._next = self._next, self._next + 2
        names = {":method": "POST", ":scheme": "http", ":path": f"/{service}/{method}", ":authority": "localhost",
                 "content-type": "application/grpc", "te": "trailers"}
        block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in names.items())
        request = wire.encode(fields or {})
        self.socket.sendall(_frame(HEADERS, END_HEADERS, number, block)
                            + _frame(DATA, END_STREAM if whole else 0, number, struct.pack(">BI", 0, len(request)) + request))
        return number

    def open_window(self, call: int, size: int = 1 << 30) -> None:
        """What waits for it may come now."""
        increment = struct.pack(">I", size)
        self.socket.sendall(_frame(WINDOW_UPDATE, 0, 0, increment) + _frame(WINDOW_UPDATE, 0, call, increment))

    def messages(self, call: int) -> list[dict[int, Any]]:
        """What it has answered so far."""
        data, found = self.data.get(call, b""), []
        while len(data) >= 5 and len(data) >= 5 + struct.unpack(">I", data[1:5])[0]:
            length = struct.unpack(">I", data[1:5])[0]
            found.append(wire.decode(data[5:5 + length]))
            data = data[5 + length:]
        return found

    def await_(self, done: Callable[[], bool], what: str, limit: float = 20) -> None:
        """Reads what comes until done()."""
        deadline = time.monotonic() + patience(limit)
        while not done():
            left = deadline - time.monotonic()
            assert left > 0, f"{what}: not within {limit} s"
            self.socket.settimeout(left)
            try:
                got = self.socket.recv(1 << 16)
            except TimeoutError:
                continue
            if not got:
                raise ConnectionResetError("the broker hung up")
            self._read += got
            self._take()

    def await_answers(self, calls: Iterable[int]) -> None:
        """Each has been taken up, or has ended."""
        self.await_(lambda: all(call in self.headers for call in calls), "answers")

    def _take(self) -> None:
        while len(self._read) >= 9:
            length = struct.unpack(">I", b"\0" + self._read[:3])[0]
            if len(self._read) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self._read[3:9])
            payload, self._read = self._read[9:9 + length], self._read[9 + length:]
            if kind == SETTINGS and not flags & ACK:
                self.settled = True
                self.socket.sendall(_frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                self.socket.sendall(_frame(PING, ACK, 0, payload))
            elif kind == HEADERS:
                self.headers[stream] = self.headers.get(stream, b"") + payload
            elif kind == DATA:
                self.data[stream] = self.data.get(stream, b"") + payload
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                self.ended.add(stream)

    def close(self) -> None:
        self.socket.close()
