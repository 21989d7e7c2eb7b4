"""Calls functions when modules have been imported, now or later. Any thread: the thread that imports makes the call.

A finder at the front of sys.meta_path lets the other finders find an awaited module. It makes the module's loader report when it has
run the module. The loader stays the same object. A package may import its modules while it is imported itself. Other modules of it
cannot be imported then, so a call also waits until the packages of its modules have been imported.
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
    packages: frozenset[str]
    call: Callable[[], None]


def _packages(modules: Iterable[str]) -> frozenset[str]:
    """Those that the modules are in."""
    names = [each.split(".") for each in modules]
    return frozenset(".".join(parts[:count]) for parts in names for count in range(1, len(parts)))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Awaited] = []
        self._running: list[str] = []  # the modules whose import has begun, in any thread

    def wait(self, modules: set[str], call: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.append(_Awaited(modules, _packages(modules), call))

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
            ready = [each for each in self._waiting if not each.missing and each.packages.isdisjoint(self._running)]
            self._waiting = [each for each in self._waiting if each not in ready]
        for each in ready:
            each.call()

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
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
    missing = {each for each in modules if each not in sys.modules}
    if not missing:
        return True
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.wait(missing, call)
    return False
