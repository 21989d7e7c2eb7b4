"""The kit for modules with which amem frees and restores a framework's GPU memory.

Such a module has a subclass of `Framework`. It names the framework and the functions that amem needs, and replaces these functions.
amem.enable() finds the module, checks it and installs it. CONTRIBUTING.md explains how to write one, in amem or in your own
distribution. `amem.frameworks.phases` pauses and resumes tags around a phase of a training step, and `amem.frameworks.tensors`
finds the tensors that own their memory.

The kit imports no framework. Any thread.
"""
from __future__ import annotations

import abc
import functools
import importlib
import inspect
import logging
import os
import re
import types
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from amem import _endpoint, _shim
from amem._rank import stats
from amem.errors import FailedPreconditionError, UnavailableError

__all__ = ["Framework", "Version", "check_broker", "check_process", "hook", "replace"]

Version = tuple[int, ...]


class Framework(abc.ABC):
    """What amem knows about one framework. A subclass sets the names, and implements hooks() and install().

    amem.enable() makes one instance, and calls install() when all `modules` have been imported.

    Attributes:
        name: The framework's name in amem and amem.enable().
        title: The framework's name in messages.
        distribution: The distribution whose version counts.
        modules: amem.enable() installs the module when all of these have been imported, now or later.
        tried: The oldest and the newest version that the module was tried with. With another version, amem logs one warning. None:
            amem never warns.
        purpose: What fails if this process or its broker lacks something, such as "vLLM cannot sleep by amem". An error begins with it.
        how_to_start: How to start a process whose memory amem can pause. This sentence ends such an error.
        logger: The logger for warnings. Use one below the framework's own logger, if the framework shows that.
        on: Whether amem.enable() has switched the framework on.
        required: Whether the call was amem.enable(require=True). Then later failures also raise errors.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    distribution: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    tried: ClassVar[tuple[Version, Version] | None] = None
    purpose: ClassVar[str]
    how_to_start: ClassVar[str] = "Start it with `amemctl run --group NAME --scope regions -- COMMAND`"
    logger: ClassVar[logging.Logger] = logging.getLogger("amem")
    on: bool = False
    required: bool = False

    @abc.abstractmethod
    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions of the framework that amem needs, each by hook(). It changes nothing.

        Returns:
            The results of hook().

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """

    @abc.abstractmethod
    def install(self) -> None:
        """Calls check(), and then replaces the framework's functions by amem's. A second call changes nothing.

        If the framework asks for its memory saver later, install() may call check() at that time.

        Raises:
            FailedPreconditionError: amem does not support this version, or this process lacks something.
            UnavailableError: There is no broker.
        """

    def version(self) -> str:
        """Returns the installed version.

        Returns:
            The framework's `__version__`, else the version of its distribution. "of an unknown version" if it has neither, as in a
            checkout.
        """
        found = getattr(importlib.import_module(self.modules[0].partition(".")[0]), "__version__", None)
        if found is not None:
            return str(found)
        from importlib import metadata  # seldom needed, and slow to import

        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return "of an unknown version"

    def check(self) -> None:
        """Checks that amem supports this version of the framework in this process. It changes nothing.

        The functions of the framework decide, and not its version number. With a version that was not tried, amem logs one warning.

        Raises:
            FailedPreconditionError: A function is missing or has other parameters, or the process has no shim, or the memory is
                not in its scope.
            UnavailableError: There is no broker.
        """
        self.check_version()
        self.check_process()

    def check_version(self) -> None:
        """Does the part of check() that concerns the framework.

        Raises:
            FailedPreconditionError: A function is missing or has other parameters.
        """
        try:
            found = self.hooks()
        except FailedPreconditionError as error:
            raise FailedPreconditionError(f"{error}. This is {self.title} {self.version()}") from error
        if self.tried is not None:
            _warn_of_version(self.logger, self.title, self.version(), *self.tried, found)

    def check_process(self) -> None:
        """Does the part of check() that concerns this process.

        Raises:
            FailedPreconditionError: The process has no shim, or the memory is not in its scope.
            UnavailableError: There is no broker.
        """
        check_process(self.purpose, self.how_to_start)


@functools.lru_cache(maxsize=None)
def _warn_once(logger: logging.Logger, text: str) -> None:
    logger.warning("%s", text)


def _warn_of_version(logger: logging.Logger, name: str, version: str, oldest: Version, newest: Version,
                     found: Iterable[Callable[..., Any]]) -> None:
    """Warns once if amem was not tried with this version. The framework runs on.

    Args:
        logger: The logger for the warning.
        name: The framework's name in messages.
        version: The framework's version. Only as many of its numbers count as the other two versions have.
        oldest: The first version that amem was tried with.
        newest: The last version that amem was tried with.
        found: The results of hook().
    """
    numbers = tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:len(oldest)]))
    if len(numbers) == len(oldest) and oldest <= numbers <= newest:
        return
    tried = " to ".join(".".join(map(str, each)) for each in dict.fromkeys((oldest, newest)))
    names = ", ".join(each.__qualname__ for each in found)
    _warn_once(logger, f"amem: this is {name} {version}. amem was tried with {tried}. This version has the functions that amem needs: "
                       f"{names}")


def check_process(purpose: str, how_to_start: str) -> None:
    """Checks that this process can be a rank with brokered memory.

    Args:
        purpose: What fails otherwise. Errors begin with it.
        how_to_start: What to do. This sentence ends the errors.

    Raises:
        FailedPreconditionError: The process has no shim, or the memory is not in its scope.
        UnavailableError: There is no broker.
    """
    if not _shim.is_loaded():
        raise FailedPreconditionError(f"{purpose}: libamem_shim.so is not loaded in process {os.getpid()}. {how_to_start}")
    scope = stats().scope
    if scope not in ("regions", "heap"):
        raise FailedPreconditionError(
            f"{purpose}: the scope of this process is {scope!r}, with which its memory stays on the GPU. {how_to_start}")
    check_broker(purpose)


def check_broker(purpose: str) -> None:
    """Checks that processes that this process starts would find a broker.

    Args:
        purpose: What fails otherwise. Errors begin with it.

    Raises:
        UnavailableError: There is no broker.
    """
    directory = _endpoint.default_runtime_dir()
    if not _endpoint.has_broker(directory):
        raise UnavailableError(
            f"{purpose}: amemd does not run here: there is no socket {directory}/session.sock. Start amemd with "
            f"`systemctl start amemd` or `amemd --runtime-dir {directory}`")


def hook(owner: Any, name: str, *parameters: str) -> Callable[..., Any]:
    """Finds a function of a framework.

    Args:
        owner: A class or a module.
        name: The function's name.
        *parameters: The names of its first parameters.

    Returns:
        The function.

    Raises:
        FailedPreconditionError: This version of the framework has no such function, or its parameters differ.
    """
    where = f"{getattr(owner, '__module__', '')}.{owner.__name__}".lstrip(".")
    function = inspect.getattr_static(owner, name, None)
    function = getattr(function, "__func__", function)  # of a static or class method
    if not callable(function):
        raise FailedPreconditionError(f"{where} has no {name}(), which amem needs. amem does not support this version. Use an older "
                                      "version, or a newer amem. `amemctl pause` and `swap` work with any version")
    found = tuple(inspect.signature(function).parameters)
    if found[:len(parameters)] != parameters:
        raise FailedPreconditionError(
            f"{where}.{name} has the parameters ({', '.join(found)}), and amem needs ({', '.join(parameters)}, ...). amem does not "
            "support this version. Use an older version, or a newer amem. `amemctl pause` and `swap` work with any version")
    return function  # type: ignore[no-any-return]


def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replaces a function of a class, a module or an object. A second call changes nothing.

    Args:
        owner: A class, a module or an object. A method of an object stays a bound method.
        name: The name of its function.
        function: The new function. Calls become `function(original, *arguments)`.
    """
    original = getattr(owner, name)
    if getattr(original, "_amem", False):
        return
    bound = inspect.ismethod(original) and not inspect.isclass(owner)  # torch's LR schedulers ask the optimizer's step for __func__
    begin = 1 if bound else 0

    def changed(*arguments: Any, **options: Any) -> Any:
        return function(original, *arguments[begin:], **options)

    async def changed_later(*arguments: Any, **options: Any) -> Any:
        return await function(original, *arguments[begin:], **options)

    # Frameworks ask whether it is a coroutine's, and keep attributes at it.
    wrapped = functools.wraps(original)(changed_later if inspect.iscoroutinefunction(original) else changed)
    wrapped._amem = True  # type: ignore[attr-defined]
    setattr(owner, name, types.MethodType(wrapped, owner) if bound else wrapped)
