"""The shim of this process, through the functions that libamem_shim.so exports.

This module looks the functions up by name and never loads the shim: a shim that is loaded after the start would miss
allocations. So the process loads only the shim, and neither protobuf nor gRPC. ctypes releases the interpreter's lock
during a call, so other threads run on while one waits for its group. Any thread.
"""
from __future__ import annotations

import ctypes
import functools
import time
from typing import Any

from amem import _apart
from amem.errors import FailedPreconditionError, InternalError, error_of

_ERROR_SIZE = 1020
_NOT_LOADED = (
    "libamem_shim.so is not loaded in this process. Start the process with `amemctl run --group NAME -- COMMAND`, with "
    "amem.launch(), or with the variables of amem.environment() in its environment")

_TEXT = (ctypes.c_char_p, ctypes.c_size_t)
_OPERATION = (ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.c_uint32, *_TEXT)
_NAMES = (ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "amem_shim_active": (),
    "amem_shim_asked_here": (ctypes.c_int,),
    "amem_shim_backup_read": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, *_TEXT),
    "amem_shim_backup_view": (ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p), *_TEXT),
    "amem_shim_group": _TEXT,
    "amem_shim_interpreter_ends": (),
    "amem_shim_memory_margin": (ctypes.c_uint64,),
    "amem_shim_pause": _OPERATION,
    "amem_shim_resume": _OPERATION,
    "amem_shim_request_2": (ctypes.c_int, *_NAMES * 3, ctypes.c_int, ctypes.c_uint32, *_TEXT),
    "amem_shim_request_3": (ctypes.c_int, *_NAMES * 3, ctypes.c_int, ctypes.c_int, ctypes.c_uint32, *_TEXT),
    "amem_shim_request_4": (ctypes.c_int, *_NAMES * 3, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_uint32, *_TEXT),
    "amem_shim_request_5": (
        ctypes.c_int, *_NAMES * 3, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32,
        *_TEXT),
    "amem_shim_set_group": (ctypes.c_char_p, *_TEXT),
    "amem_shim_region_begin": (ctypes.c_char_p, ctypes.c_int, *_TEXT),
    "amem_shim_region_end": _TEXT,
    "amem_shim_unbrokered_begin": _TEXT,
    "amem_shim_unbrokered_end": _TEXT,
    "amem_shim_set_policy": (ctypes.c_char_p, ctypes.c_int, *_TEXT),
    "amem_shim_shut_ms": (),
    "amem_shim_stats": _TEXT,
    "amem_shim_withdraw": (ctypes.c_int,),
}
DISCARD_FORCED = 3  # a policy of amem_shim_set_policy: discard, also for "heap"
_RESULTS: dict[str, Any] = {"amem_shim_shut_ms": ctypes.c_uint64}


@functools.lru_cache(maxsize=None)
def _find(name: str) -> Any:
    """The function, or None. The shim is preloaded, so the answer never changes."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        return None
    function.argtypes = _ARGUMENTS[name]
    function.restype = _RESULTS.get(name, ctypes.c_int)
    return function


def is_loaded() -> bool:
    """Whether the shim is in this process. It may be inactive."""
    return _find("amem_shim_active") is not None


def is_active() -> bool:
    return is_loaded() and _find("amem_shim_active")() != 0


def _function(name: str) -> Any:
    function = _find(name)
    if function is not None:
        return function
    if not is_loaded():
        raise FailedPreconditionError(_NOT_LOADED)
    raise FailedPreconditionError(
        f"the libamem_shim.so of this process and the amem package have different versions: the shim has no {name}")


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a code and a text, and raises the error."""
    function = _function(name)
    text = ctypes.create_string_buffer(_ERROR_SIZE)
    code = function(*arguments, text, len(text))
    if code != 0:
        raise error_of(code, text.value.decode(errors="replace"))


def operate(name: str, tags: list[str], except_tags: list[str], discard: list[str], guests: int, timeout_ms: int,
            deep: bool = False, force: bool = False, ranks: tuple[str, int] | None = None) -> None:
    """Calls amem_shim_pause or amem_shim_resume, which every shim has, or a newer function if they are not enough."""
    what = name.removeprefix("amem_shim_")
    names = [(ctypes.c_char_p * len(each))(*(tag.encode() for tag in each)) for each in (tags, except_tags, discard)]
    counted = [argument for each in names for argument in (each, len(each))]
    asked = [{"pause": 1, "resume": 2}[what], *counted, guests]
    if ranks is not None:
        name, arguments = "amem_shim_request_5", [*asked, int(deep), int(force), ranks[0].encode(), ranks[1]]
    elif force:
        name, arguments = "amem_shim_request_4", [*asked, int(deep), 1]
    elif deep:
        name, arguments = "amem_shim_request_3", [*asked, 1]
    elif except_tags or discard or guests != 0:
        name, arguments = "amem_shim_request_2", asked
    else:
        arguments = counted[:2]
    _apart.call(what, call, name, *arguments, timeout_ms, withdraw=_find("amem_shim_withdraw"))
    # The shim warns a thread that then waits for itself. The call may have been another thread's.
    asked_here = _find("amem_shim_asked_here")
    if asked_here is not None and not tags and not except_tags:
        asked_here(asked[0])


def group() -> str:
    """Empty without a shim, if amem is off, and if the shim is too old for this call."""
    function = _find("amem_shim_group")
    name = ctypes.create_string_buffer(64)
    if function is not None:
        function(name, len(name))
    return name.value.decode(errors="replace")


def shut_ms() -> int:
    """For how long the gate of this process has been shut so far, in milliseconds."""
    return int(_function("amem_shim_shut_ms")())


def is_shut() -> bool:
    """Whether calls of this process that need the GPU wait now, because its group is paused. Takes about 3 ms."""
    before = shut_ms()
    time.sleep(0.003)
    return shut_ms() > before


def interpreter_ends() -> None:
    """Does nothing with an older shim, which notices the end a little later."""
    function = _find("amem_shim_interpreter_ends")
    if function is not None:
        function()


def set_memory_margin(size: int) -> None:
    _function("amem_shim_memory_margin")(size)


def stats_json() -> str:
    function = _function("amem_shim_stats")
    size = 4096
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = function(buffer, size)
        if length < 0:
            raise InternalError("the shim could not provide its figures")
        if length < size:
            return buffer.value.decode(errors="replace")
        size = length + 1024  # it may have grown again by the next try
