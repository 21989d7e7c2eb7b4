"""What the modules for frameworks ask before they change anything: functions that are where they were, a process that can be a
rank. Imports no framework. Any thread."""
from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from amem import _endpoint, _shim
from amem._rank import stats
from amem.errors import FailedPreconditionError, UnavailableError

Version = tuple[int, ...]


def warn_of_version(logger: logging.Logger, name: str, version: str, oldest: Version, newest: Version,
                    found: Iterable[Callable[..., Any]]) -> None:
    """One warning where this version is not among those that amem was tried with. It runs: what is there decides, never a
    number. `version`: the framework's, of which as many numbers count as the others have. `found`: what hook() has returned."""
    numbers = tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:len(oldest)]))
    if len(numbers) == len(oldest) and oldest <= numbers <= newest:
        return
    tried = " to ".join(".".join(map(str, each)) for each in dict.fromkeys((oldest, newest)))
    logger.warning("amem: this is %s %s; amem was tried with %s. It has what amem needs: %s", name, version, tried,
                   ", ".join(each.__qualname__ for each in found))


def check_process(purpose: str, how_to_start: str) -> None:
    """This process can be a rank whose memory is brokered. FailedPreconditionError or UnavailableError: the text says
    what is missing and what to do. `purpose`: who wants it and what for, as the beginning of a sentence."""
    if not _shim.is_loaded():
        raise FailedPreconditionError(f"{purpose}, but libamem_shim.so is not loaded: {how_to_start}")
    scope = stats()["scope"]
    if scope not in ("regions", "heap"):
        raise FailedPreconditionError(
            f"{purpose}, but amem's scope is {scope!r}, which leaves its memory on the GPU: {how_to_start}")
    check_broker(purpose)


def check_broker(purpose: str) -> None:
    """UnavailableError: nothing that this process starts would find a broker."""
    directory = _endpoint.default_runtime_dir()
    if not _endpoint.has_broker(directory):
        raise UnavailableError(
            f"{purpose}, but amemd does not run here: there is no socket {directory}/session.sock. Start it with "
            f"`systemctl start amemd` or `amemd --runtime-dir {directory}`")


def hook(owner: Any, name: str, *parameters: str) -> Callable[..., Any]:
    """The function `name` of a class or module, whose parameters begin with these. FailedPreconditionError: it is not
    there, or takes others: this version of the framework has moved it."""
    where = f"{getattr(owner, '__module__', '')}.{owner.__name__}".lstrip(".")
    function = inspect.getattr_static(owner, name, None)
    function = getattr(function, "__func__", function)  # of a static or class method
    if not callable(function):
        raise FailedPreconditionError(f"amem needs {name}() of {where}, which is not there: this version is not known to amem. Use "
                                      "an older version, or a newer amem. `amemctl pause` and `swap` work with any version")
    found = tuple(inspect.signature(function).parameters)
    if found[:len(parameters)] != parameters:
        raise FailedPreconditionError(
            f"amem needs {where}.{name}({', '.join(parameters)}, ...), which takes ({', '.join(found)}) here: this version is not "
            "known to amem. Use an older version, or a newer amem. `amemctl pause` and `swap` work with any version")
    return function  # type: ignore[no-any-return]


def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Puts `function` in the place of owner's, once: `function(original, *arguments)`. What was there is its first argument."""
    original = getattr(owner, name)
    if getattr(original, "_amem", False):
        return

    def changed(*arguments: Any, **options: Any) -> Any:
        return function(original, *arguments, **options)

    async def changed_later(*arguments: Any, **options: Any) -> Any:
        return await function(original, *arguments, **options)

    # Frameworks ask whether it is a coroutine's, and keep attributes at it.
    wrapped = functools.wraps(original)(changed_later if inspect.iscoroutinefunction(original) else changed)
    wrapped._amem = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
