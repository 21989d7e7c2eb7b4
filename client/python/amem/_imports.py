"""Calls functions when modules have been imported, now or later. Any thread: the thread that imports makes the call.

A finder at the front of sys.meta_path lets the other finders find an awaited module. It makes the module's loader report when it has
run the module. The loader stays the same object. A package may import its modules while it is imported itself. Other modules of it
cannot be imported then, so a call also waits until the packages of its modules have been imported.

An import that has begun before the finder was there reports nothing. The next import of any module finds that it has ended.
"""
from __future__ import annotations

import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any


@dataclasses.dataclass
class _Awaited:
    missing: set[str]
    begun: set[str]  # modules and packages whose import had begun before
    packages: frozenset[str]
    call: Callable[[], None]


def _packages(modules: Iterable[str]) -> frozenset[str]:
    """Those that the modules are in."""
    names = [each.split(".") for each in modules]
    return frozenset(".".join(parts[:count]) for parts in names for count in range(1, len(parts)))


def _is_running(name: str) -> bool:
    """Whether the module's import has begun, and not ended."""
    spec = getattr(sys.modules.get(name), "__dict__", {}).get("__spec__")  # a module's own __getattr__ might import
    return bool(getattr(spec, "_initializing", False))  # of importlib, which waits for other threads by it


def _lacking(modules: Sequence[str]) -> tuple[set[str], set[str]]:
    """Those that nobody imports yet, and those that somebody imports now, with their packages."""
    missing = {each for each in modules if each not in sys.modules}
    return missing, {each for each in _packages(modules).union(modules) if _is_running(each)}


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Awaited] = []
        self._running: list[str] = []  # the modules whose import has begun, in any thread

    def wait(self, modules: Sequence[str], missing: set[str], begun: set[str], call: Callable[[], None]) -> None:
        with self._lock:
            told = begun.intersection(self._running)  # of their ends
            self._waiting.append(_Awaited(missing | told.intersection(modules), begun - told, _packages(modules), call))

    def _is_awaited(self, name: str) -> bool:
        with self._lock:
            return any(name in each.missing or name in each.packages for each in self._waiting)

    def _begun(self, name: str) -> None:
        with self._lock:
            self._running.append(name)

    def _ended(self, name: str, well: bool) -> None:
        with self._lock:
            self._running.remove(name)
            if not well:
                return
            for each in self._waiting:
                each.missing.discard(name)
        self.look()

    def look(self) -> None:
        """Makes the calls that wait for nothing any more."""
        with self._lock:
            for each in self._waiting:
                ended = {name for name in each.begun if not _is_running(name)}
                each.begun -= ended
                each.missing |= {name for name in ended if name not in sys.modules}  # it has failed
            ready = [each for each in self._waiting
                     if not each.missing and not each.begun and each.packages.isdisjoint(self._running)]
            self._waiting = [each for each in self._waiting if each not in ready]
        for each in ready:
            each.call()

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if any(each.begun for each in self._waiting):
            self.look()
        if not self._is_awaited(fullname):
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                self._tell(fullname, spec)
                return spec  # type: ignore[no-any-return]
        return None

    def _tell(self, name: str, spec: importlib.machinery.ModuleSpec) -> None:
        loader = spec.loader
        run: Any = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != name:  # a loader of an archive runs other modules, too
                run(module)
                return
            self._begun(name)
            well = False
            try:
                run(module)
                well = True
            finally:
                self._ended(name, well)

        with contextlib.suppress(TypeError):  # a loader that takes no attribute: nobody is told
            vars(loader)["exec_module"] = exec_module

    def forget_lock(self) -> None:
        """A thread that does not exist in a child of fork may have held the lock."""
        self._lock = threading.Lock()


_finder = _Finder()
os.register_at_fork(after_in_child=_finder.forget_lock)


def when_imported(modules: Sequence[str], call: Callable[[], None]) -> bool:
    """Calls the function when all of the modules, and the packages that they are in, have been imported.

    If it raises, the import raises the same.

    Returns True if the modules are already imported. Then the caller must call the function.
    """
    missing, begun = _lacking(modules)
    if not missing and not begun:
        return True
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.wait(modules, missing, begun, call)
    return False


def are_imported(modules: Sequence[str]) -> bool:
    """Whether all of the modules, and the packages that they are in, have been imported."""
    return not any(_lacking(modules))


def look() -> None:
    """Makes the calls of when_imported() for which an import has ended that had begun before."""
    _finder.look()
