"""Tells the shim that Python is ending. From then on, no call waits at the gate of a paused group.

The shim notices the finalization of the interpreter without this module, but only after the atexit functions have run. This module
is for calls of the atexit functions.
"""
from __future__ import annotations

import atexit
import contextlib
import threading

from amem import _shim


def _register() -> None:
    # Python calls this when the main thread has ended and, with the program's other threads, atexit functions follow:
    # the last of these to be registered is the first to run.
    atexit.register(_shim.interpreter_ends)


def register() -> None:
    if not _shim.is_loaded():
        return
    with contextlib.suppress(RuntimeError):  # imported by an atexit function
        # As concurrent.futures does. A Python without it: what is registered from here on runs before.
        getattr(threading, "_register_atexit", lambda function: function())(_register)
