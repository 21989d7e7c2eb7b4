"""Blocking calls on threads of their own, so that Ctrl-C ends the main thread's wait at once. Any thread."""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_logger = logging.getLogger("amem")


def call(what: str, function: Callable[..., Any], *arguments: Any, outlives: bool = False,
         withdraw: Callable[[int], Any] | None = None) -> None:
    """Calls the function, and raises what it raises. An error of a signal handler ends the wait, but not a call that has begun its work.

    Python handles signals in the main thread alone, and there only between two instructions: never inside a call of ctypes.
    Other threads make the call themselves.

    Args:
        what: The call's name, for the log. It says how a call ends that nobody waits for.
        function: The function to call with the arguments.
        outlives: The interpreter waits for the end of the call before it ends.
        withdraw: Ends the call of the thread with this native id if its work has not begun.
    """
    if threading.current_thread() is not threading.main_thread():
        function(*arguments)
        return
    done: Future[None] = Future()
    left = threading.Event()

    def run() -> None:
        try:
            function(*arguments)
        except BaseException as error:  # the caller raises it
            done.set_exception(error)
            if left.is_set():
                _logger.warning("amem: the %s whose wait was interrupted has failed: %s", what, error)
        else:
            done.set_result(None)
            if left.is_set():
                _logger.warning("amem: the %s whose wait was interrupted has succeeded", what)

    thread = threading.Thread(target=run, name=f"amem-{what}", daemon=not outlives)
    try:
        thread.start()
        done.result()
    except BaseException as error:
        if thread.ident is None and isinstance(error, RuntimeError):  # the interpreter ends, and starts no threads any more
            function(*arguments)
            return
        left.set()
        if not done.done():
            goes_on = f"The {what} goes on, at most until its timeout" if withdraw is None else f"The {what} ends, unless it has begun"
            _logger.warning("amem: the wait for the %s was interrupted. %s. The log will say how it ends", what, goes_on)
            if withdraw is not None and thread.native_id is not None:
                withdraw(thread.native_id)
        raise
