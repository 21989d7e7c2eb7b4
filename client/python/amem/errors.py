"""Errors: what every call of this package raises when amem refuses or fails.

An error has one of gRPC's canonical codes, which travel unchanged from a rank or the broker to the caller, and a text
for people that names the group, rank or device and what to do next. Each code that amem uses has a class of its own.

Three classes also derive from Python's own errors, so `except TimeoutError`, `except ValueError` and
`except PermissionError` catch them. TimeoutError and PermissionError are kinds of OSError: their `errno`, `strerror` and
`filename` are None here, because no system call failed.
"""
from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """gRPC's canonical codes with their numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


class Error(RuntimeError):
    """The base class of all errors of this package. `str()` returns the text. Errors can be copied and pickled.

    Attributes:
        code: One of gRPC's canonical codes.
        text: What failed, for people.
    """

    code: Code = Code.UNKNOWN

    def __init__(self, text: str, code: Code | None = None) -> None:
        """Makes an error.

        Args:
            text: What failed, for people.
            code: The code; None: the code of the class.
        """
        super().__init__(text)
        self.text = text
        if code is not None:
            self.code = code


class OperationCancelledError(Error):
    """The waiting was stopped; an operation that has begun goes on in the broker.

    It is not asyncio.CancelledError, which says that a task was cancelled.
    """

    code = Code.CANCELLED


class InvalidArgumentError(Error, ValueError):
    """A name, tag or number that cannot be. Also a ValueError."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceededError(Error, TimeoutError):
    """Ranks did not come, or the broker did not answer, in time; the text names them. Also a TimeoutError."""

    code = Code.DEADLINE_EXCEEDED


class NotFoundError(Error):
    """No such group, or it has no memory of a tag; the text lists the tags there are."""

    code = Code.NOT_FOUND


class PermissionDeniedError(Error, PermissionError):
    """The socket, or the group, is another user's. Also a PermissionError."""

    code = Code.PERMISSION_DENIED


class ResourceExhaustedError(Error):
    """The host pool or a device is too small; the text has both numbers."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPreconditionError(Error):
    """Wrong state: paused or running already, no shim in this process, a region within a region."""

    code = Code.FAILED_PRECONDITION


class AbortedError(Error):
    """A rank died or failed; the text says what state the group is in."""

    code = Code.ABORTED


class UnimplementedError(Error):
    """The other side is too old, or amem has no such thing."""

    code = Code.UNIMPLEMENTED


class InternalError(Error):
    """A fault of amem."""

    code = Code.INTERNAL


class UnavailableError(Error):
    """No broker; the text names the socket."""

    code = Code.UNAVAILABLE


class DataLossError(Error):
    """AMEM_VERIFY=1 has found bytes that did not come back as they were saved; the group is as before the resume."""

    code = Code.DATA_LOSS


_CLASSES: dict[Code, type[Error]] = {each.code: each for each in Error.__subclasses__()}


def error_of(code: int, text: str) -> Error:
    """Makes the error for a code, of its own class where it has one.

    Args:
        code: A number of gRPC's canonical codes; an unknown one counts as UNKNOWN.
        text: What failed, for people; empty: the name of the code.

    Returns:
        The error, which is not raised.
    """
    try:
        known = Code(code)
    except ValueError:
        known = Code.UNKNOWN
    text = text or known.name
    kind = _CLASSES.get(known)
    return kind(text) if kind is not None else Error(text, known)
