"""Session: a rank's end of the session protocol, by hand, to send what no shim sends.

Messages are protobuf (proto/amem/v1/session.proto), of which this knows numbers, byte strings and nesting.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sim_node.child import Child

# The fields of a message by their numbers.
Fields = Mapping[int, Any]

SYS_PIDFD_GETFD = 438
PROTOCOL = 15  # kProtocolVersion of common/protocol.h

# SessionMessage's fields
HELLO, CREATE, REDEEM, FREE, PIN, GROUP_REQUEST, CUT_STATUS, PHASE_DONE = range(10, 18)
REPLY, POOL_SEGMENT, QUIESCE, STEP, SAVE, RELEASE, MAP, LOAD, OPEN = range(30, 39)
WORK, TURN_REPORTS = 29, 42


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def encode(fields: Fields) -> bytes:
    """{number: int, bytes, str or dict}"""
    out = b""
    for number, value in fields.items():
        if isinstance(value, dict):
            value = encode(value)
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            out += _varint(number << 3 | 2) + _varint(len(value)) + value
        else:
            out += _varint(number << 3) + _varint(value & (1 << 64) - 1)
    return out


def decode(data: bytes) -> dict[int, Any]:
    """{number: value}; of repeated fields the last one."""
    fields: dict[int, Any] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            fields[key >> 3] = varint()
        else:
            length = varint()
            fields[key >> 3] = data[at:at + length]
            at += length
    return fields


class Session:
    def __init__(self, runtime_dir: str, timeout: float = 10) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self.socket.connect(os.path.join(runtime_dir, "session.sock"))
        self.seq = 0

    def send_raw(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
        self.socket.sendmsg([data], ancillary if descriptors else [])

    def send(self, body: int, fields: Fields, seq: int = 0) -> None:
        self.send_raw(encode({1: seq, body: fields} if seq else {body: fields}))

    def receive(self) -> tuple[int, dict[int, Any]]:
        """(body's number, its fields); descriptors are closed. ConnectionError when the broker hung up."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 20, 256)
        for each in descriptors:
            os.close(each)
        if not data:
            raise ConnectionResetError("the broker hung up")
        message = decode(data)
        body = next(number for number in message if number >= 10)
        return body, decode(message[body])

    def expect(self, body: int) -> dict[int, Any]:
        while True:
            got, fields = self.receive()
            if got == body:
                return fields

    def ask(self, body: int, fields: Fields) -> tuple[int, str, dict[int, Any]]:
        """The reply: (code, text, fields)."""
        self.seq += 1
        self.send(body, fields, self.seq)
        reply = self.expect(REPLY)
        return reply.get(1, 0), reply.get(2, b"").decode(), reply

    def hello(self, group: str, protocol: int = PROTOCOL, rank: int = 0) -> tuple[int, str, dict[int, Any]]:
        return self.ask(HELLO, {1: protocol, 2: "test", 3: group, 4: rank, 5: "test", 6: os.getpid()})

    def hung_up(self) -> bool:
        """Waits until the broker has closed the connection."""
        try:
            while True:
                self.receive()
        except (ConnectionError, BrokenPipeError):
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()


def cut_off(rank: Child) -> None:
    """The broker closes the rank's session, because of a packet that makes no sense; the rank lives on."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(rank.pid)
    for name in os.listdir(f"/proc/{rank.pid}/fd"):
        if not os.readlink(f"/proc/{rank.pid}/fd/{name}").startswith("socket:"):
            continue
        number = libc.syscall(SYS_PIDFD_GETFD, process, int(name), 0)
        if number < 0:
            pytest.skip(f"this user may not take another process's descriptor: {os.strerror(ctypes.get_errno())}")
        with socket.socket(fileno=number) as session:
            with contextlib.suppress(OSError):  # it is not connected
                if session.type == socket.SOCK_SEQPACKET and session.getpeername().endswith("/session.sock"):
                    session.send(b"\xff\xff\xff\xff")
    os.close(process)
