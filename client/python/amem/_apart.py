"""Blocking calls on threads of their own, so that Ctrl-C ends the main thread's wait at once. Any thread."""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_logger = logging.getLogger("amem")


def call(what: str, function: Callable[..., Any], *arguments: Any, outlives: bool = False) -> None:
    """Calls the function, and raises what it raises. An error of a signal handler ends the wait, but not the call.

    Python handles signals in the main thread alone, and there only between two instructions: never inside a call of ctypes.
    Other threads make the call themselves.

    Args:
        what: The call's name, for the log. It says how a call ends that nobody waits for.
        function: The function to call with the arguments.
        outlives: The interpreter waits for the end of the call before it ends.
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
            _logger.warning("amem: the wait for the %s was interrupted. The %s goes on, at most until its timeout. The log will say how "
                            "it ends", what, what)
        raise
