"""torch_memory_saver's interface over amem, for programs that are written for it.

    from amem.compat import torch_memory_saver

or, for a program or framework that imports torch_memory_saver itself, before it does so:

    import amem.compat
    amem.compat.install()

What differs: a pause or resume takes effect when every rank of the group has asked for it, not for one process by
itself; saved bytes are in the broker's host pool; memory is the region's only in a process that was started with scope
"regions" or "heap" (configure_subprocess sees to that); TMS_INIT_ENABLE, which covers a whole process, is scope "heap"
and amem.pause() here, and a RuntimeWarning says so. pause() without a tag is about the tags that this process has
used in regions, so that, as there, the program runs on and NCCL's memory stays; amem.pause() is about everything.
Errors are amem.Error, which is a RuntimeError.
"""
from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from amem import _regions, _shim
from amem._arguments import MAX_TAGS, tag_name
from amem._launcher import environment
from amem._rank import group
from amem._rank import pause as _pause
from amem._rank import resume as _resume
from amem.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]

_DEFAULT_TAG = "default"


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Processes started within are ranks of this process's group, and what they allocate in regions is brokered: sets
    the variables of amem.environment() in this process's environment, which is shared by its threads, for a while.
    AMEM_SCOPE stays as it is when it is set."""
    variables = environment(group(), os.environ.get("AMEM_SCOPE") or "regions")
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class TorchMemorySaver:
    """Regions with tags, and their pause and resume. Any thread."""

    _tags: set[str] = set()  # used in regions of this process, by all instances
    _lock = threading.Lock()

    @contextlib.contextmanager
    def region(self, tag: str = _DEFAULT_TAG, enable_cpu_backup: bool = False) -> Iterator[None]:
        """amem.region(tag, keep=enable_cpu_backup): without backup the bytes are dropped and come back zeroed. Within
        another one: what is allocated has the inner tag."""
        self._note(tag)
        with _regions.outside(), _regions.region(tag, keep=enable_cpu_backup):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global",
                   tag: str = _DEFAULT_TAG, enable_cpu_backup: bool = False) -> Iterator[None]:
        """torch.cuda.graph with these arguments, its memory in a region."""
        import torch

        self._note(tag)
        with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
            # The graph's own pool is where torch allocates now.
            with _regions.outside(), _regions.region_of_callers_pool(tag, keep=enable_cpu_backup):
                yield

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """Leaves this thread's region for a while. The argument is taken and changes nothing: there is no pool to
        dispose of."""
        with _regions.outside():
            yield

    def pause(self, tag: str | None = None) -> None:
        """amem.pause of the tag, or of all that were used in regions of this process; nothing when there is no memory
        of it."""
        self._operate(_pause, tag)

    def resume(self, tag: str | None = None) -> None:
        """amem.resume of the tag, or of all that were used in regions of this process; nothing when there is no memory
        of it."""
        self._operate(_resume, tag)

    def get_cpu_backup(self, x: Any) -> Any:
        """UnimplementedError: the bytes are in the broker's pool."""
        raise UnimplementedError("the bytes of paused memory are in the broker's pool, which a program cannot read")

    configure_subprocess = staticmethod(configure_subprocess)

    @property
    def enabled(self) -> bool:
        """The shim is loaded in this process."""
        return _shim.is_loaded()

    @property
    def hook_mode(self) -> str:
        """"preload", always. "torch" may be set too: the same memory is meant, and no allocator has to be chosen."""
        return "preload"

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in ("preload", "torch"):
            raise InvalidArgumentError(f"{mode!r} is no hook mode: preload or torch")

    @property
    def retain_cpu_backup(self) -> bool:
        """True, whatever is set: the pool stays pinned from pause to pause."""
        return True

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, retain: bool) -> None:
        pass

    @property
    def memory_margin_bytes(self) -> int:
        """0. Another value is not kept free, and a RuntimeWarning says so."""
        return 0

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if value != 0:
            warnings.warn("amem keeps no margin of memory free", RuntimeWarning, stacklevel=2)

    def _note(self, tag: str) -> None:
        with self._lock:
            self._tags.add(tag_name(tag))

    def _operate(self, operation: Callable[[list[str]], None], tag: str | None) -> None:
        if tag is not None:
            with contextlib.suppress(NotFoundError):
                operation([tag])
            return
        with self._lock:
            tags = sorted(self._tags)  # every rank asks for the same ones in the same order
        for begin in range(0, len(tags), MAX_TAGS):
            some = tags[begin:begin + MAX_TAGS]
            try:
                operation(some)
            except NotFoundError:
                # A region in which nothing was allocated has no memory, and is no reason to leave the others.
                for each in some:
                    with contextlib.suppress(NotFoundError):
                        operation([each])


def install() -> None:
    """Makes this module what `import torch_memory_saver` gives in this process.

    FailedPreconditionError: the other one has been imported.
    """
    this = sys.modules[__name__]
    if sys.modules.setdefault("torch_memory_saver", this) is not this:
        raise FailedPreconditionError("torch_memory_saver has been imported already: amem.compat.install() comes first")


if os.environ.get("TMS_INIT_ENABLE") == "1":
    warnings.warn("TMS_INIT_ENABLE has no effect with amem: to pause all of a process, start it with scope heap and call "
                  "amem.pause()", RuntimeWarning, stacklevel=2)

torch_memory_saver = TorchMemorySaver()
