"""Where the broker's sockets are, and why a connection fails. Functions without state; any thread."""
from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import urllib.parse

from amem.errors import Error, InvalidArgumentError, PermissionDeniedError, UnavailableError

_LONGEST_PATH = 107  # sockaddr_un.sun_path, less its end
_OVERFLOW_UID = 65534  # how the kernel shows users that a namespace does not know
_HOW_TO_START = (
    "Start it with `systemctl start amemd` or `amemd --runtime-dir DIR`, or set AMEM_RUNTIME_DIR or runtime_dir to the "
    "directory in which it runs")


def default_runtime_dir() -> str:
    """AMEM_RUNTIME_DIR; else /run/amem if it exists or for root; else $XDG_RUNTIME_DIR/amem; else /tmp/amem-UID."""
    named = os.environ.get("AMEM_RUNTIME_DIR")
    if named:
        return named
    if os.path.isdir("/run/amem") or os.geteuid() == 0:
        return "/run/amem"
    users = os.environ.get("XDG_RUNTIME_DIR")
    return f"{users}/amem" if users else f"/tmp/amem-{os.geteuid()}"


def control_socket(runtime_dir: str | None, path: str | None) -> str:
    """The path of the control socket: `path`, else control.sock in the directory."""
    path = path or os.path.join(runtime_dir or default_runtime_dir(), "control.sock")
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH:
        raise InvalidArgumentError(
            f"the path of the control socket has {length} bytes, and the limit for Unix sockets is {_LONGEST_PATH}: {path}")
    return path


def grpc_target(path: str) -> str:
    """The name of a Unix socket in gRPC. Escapes characters that are special in a URI."""
    return "unix:" + urllib.parse.quote(os.fsencode(path), safe="/")


def has_broker(runtime_dir: str) -> bool:
    """Whether ranks that start with this directory will find the session socket."""
    try:
        return stat.S_ISSOCK(os.stat(os.path.join(runtime_dir, "session.sock")).st_mode)
    except OSError:
        return False


def _check_broker(connected: socket.socket, path: str) -> Error | None:
    """As common/trusted_broker.h: a broker must run as root, as this user, or as the uid in AMEM_BROKER_UID."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    _, uid, _ = struct.unpack("iII", credentials)
    own = os.geteuid()
    if uid == 0 or (uid == own and uid != _OVERFLOW_UID) or str(uid) == os.environ.get("AMEM_BROKER_UID"):
        return None
    return PermissionDeniedError(
        f"uid {uid} serves {path}. amem trusts brokers of root and of this user (uid {own}) only. If you trust it, set "
        f"AMEM_BROKER_UID={uid}")


def probe(path: str) -> Error | None:
    """Why a connection would fail and what to do about it. None: a broker listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probing:
        number = probing.connect_ex(path)
        if number == 0:
            return _check_broker(probing, path)
    if number == errno.EAGAIN:  # somebody listens, whose queue is full
        return None
    if number in (errno.ENOENT, errno.ENOTDIR):
        return UnavailableError(f"amemd does not run here: there is no socket {path}. {_HOW_TO_START}")
    if number == errno.ECONNREFUSED:
        return UnavailableError(
            f"amemd does not run. It left the socket {path} behind when it ended. {_HOW_TO_START}")
    if number in (errno.EACCES, errno.EPERM):
        return PermissionDeniedError(
            f"this user may not open {path}. Ask for membership of the socket's Unix group (ls -l shows it), or run as the "
            "user who started amemd")
    return UnavailableError(f"cannot reach amemd at {path}: {os.strerror(number)}")
