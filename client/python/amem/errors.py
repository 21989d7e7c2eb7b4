"""The errors that calls of this package raise.

An error has a code and a text. The code is one of gRPC's canonical codes, the same that the rank or the broker has reported. The
text is for people: it names the group, rank or device, and what to do next. Each code that amem uses has its own class.

Three classes also derive from Python's own errors, so `except TimeoutError`, `except ValueError` and
`except PermissionError` catch them. TimeoutError and PermissionError are kinds of OSError. Their `errno`, `strerror` and
`filename` are None here, because no system call has failed.
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
    """The caller stopped waiting. An operation that has begun continues in the broker.

    It differs from asyncio.CancelledError, which means that a task was cancelled.
    """

    code = Code.CANCELLED


class InvalidArgumentError(Error, ValueError):
    """A name, tag or number is not valid. Also a ValueError."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceededError(Error, TimeoutError):
    """Ranks or the broker did not answer in time. The text names them. Also a TimeoutError."""

    code = Code.DEADLINE_EXCEEDED


class NotFoundError(Error):
    """The group does not exist, or it has no memory with a tag. The text lists its tags."""

    code = Code.NOT_FOUND


class PermissionDeniedError(Error, PermissionError):
    """The socket or the group belongs to another user. Also a PermissionError."""

    code = Code.PERMISSION_DENIED


class ResourceExhaustedError(Error):
    """The host pool or a device is too small. The text has both sizes."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPreconditionError(Error):
    """The state is wrong: the group is already paused or running, the process has no shim, or a region is within a region."""

    code = Code.FAILED_PRECONDITION


class AbortedError(Error):
    """A rank died or failed. The text has the state of the group."""

    code = Code.ABORTED


class UnimplementedError(Error):
    """The other side is too old, or amem does not support the call."""

    code = Code.UNIMPLEMENTED


class InternalError(Error):
    """A fault of amem."""

    code = Code.INTERNAL


class UnavailableError(Error):
    """There is no broker. The text names the socket."""

    code = Code.UNAVAILABLE


class DataLossError(Error):
    """With AMEM_VERIFY=1: restored bytes differ from the saved ones. The group is as before the resume."""

    code = Code.DATA_LOSS


_CLASSES: dict[Code, type[Error]] = {each.code: each for each in Error.__subclasses__()}


def error_of(code: int, text: str) -> Error:
    """Makes the error for a code. Its class is the code's own, if the code has one.

    Args:
        code: A number of gRPC's canonical codes. An unknown number counts as UNKNOWN.
        text: What failed, for people. Empty: the name of the code.

    Returns:
        The error. The function does not raise it.
    """
    try:
        known = Code(code)
    except ValueError:
        known = Code.UNKNOWN
    text = text or known.name
    kind = _CLASSES.get(known)
    return kind(text) if kind is not None else Error(text, known)
