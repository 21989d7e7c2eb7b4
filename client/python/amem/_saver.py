"""torch_memory_saver's object over amem's regions, tags and pauses: what amem.compat and the distribution of that name share."""
from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional

from amem import _backup, _regions, _shim
from amem._rank import pause as _pause
from amem._rank import resume as _resume
from amem._rank import stats
from amem.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError

DEFAULT_TAG = "default"
_HEAP = "heap"  # the tag of memory that is in no region
_BACKENDS = ("cpu", "pinned", "mmap")
_NO_DISK = ("amem saves nothing to disks: use enable_cpu_backup=True, which keeps the bytes in the broker's pool (amemd "
            "--pool-size)")


def flag(name: str) -> bool:
    """A switch of that package's in the environment."""
    return os.environ.get(name) in ("1", "true", "TRUE", "yes", "YES")


@contextlib.contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets them in this process's environment, which is shared by its threads, for a while."""
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


def whole_process() -> bool:
    """TMS_INIT_ENABLE=1 holds: what is in no region is torch_memory_saver's, too. That takes a shim with scope heap."""
    return flag("TMS_INIT_ENABLE") and _shim.is_loaded() and _scope() == _HEAP


@functools.lru_cache(maxsize=None)
def _scope() -> str:
    """The shim has read it once for all."""
    return stats().scope


class _Region:
    def __init__(self, tag: str, backup: bool, backend: str) -> None:
        self.tag, self.backup, self.backend = tag, backup, backend


class _Thread(threading.local):
    def __init__(self) -> None:
        self.within: list[Optional[_Region]] = []  # None: disable()
        self.off = False  # tms_set_interesting_region(False)


_thread = _Thread()


def _turn(off: bool) -> None:
    """Begins or ends what tms_set_interesting_region(False) has begun in this thread."""
    if off != _thread.off:
        _shim.call("amem_shim_unbrokered_begin" if off else "amem_shim_unbrokered_end")
        _thread.off = off


@contextlib.contextmanager
def _on() -> Iterator[None]:
    """Around a region: one begins switched on, whatever was switched off before, which goes on afterwards."""
    off, owner = _thread.off, threading.get_ident()
    _turn(False)
    try:
        yield
    finally:
        if threading.get_ident() == owner:  # not in a generator that another thread's garbage collection has closed
            _turn(off)


@contextlib.contextmanager
def _within(what: Optional[_Region]) -> Iterator[None]:
    _thread.within.append(what)
    try:
        yield
    finally:
        _turn(False)  # what is switched off within a region ends with it, and before it
        _thread.within.pop()


def _default_backend() -> str:
    return os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or "pinned"


class Calls:
    """As much of the hook library's C interface as programs call through its Python object. This thread's state."""

    def __init__(self, saver: TorchMemorySaver) -> None:
        self._saver = saver

    def _region(self) -> Optional[_Region]:
        if _thread.within:
            return _thread.within[-1]
        if whole_process():
            return _Region(DEFAULT_TAG, flag("TMS_INIT_ENABLE_CPU_BACKUP"), _default_backend())
        return None

    def tms_get_interesting_region(self) -> bool:
        return not _thread.off and self._region() is not None

    def tms_set_interesting_region(self, on: bool) -> None:
        """Off: what this thread allocates is not brokered. On: that ends; no region begins by this."""
        if bool(on) == self.tms_get_interesting_region() or not _shim.is_loaded():
            return
        if on and not _thread.off:
            raise FailedPreconditionError("this thread is in no region: enter one with torch_memory_saver.region()")
        _turn(not on)

    def tms_get_current_tag(self) -> bytes:
        region = self._region()
        return (region.tag if region is not None else DEFAULT_TAG).encode()

    def tms_get_enable_cpu_backup(self) -> bool:
        region = self._region()
        return region is not None and region.backup

    def tms_get_cpu_backup_backend(self) -> bytes:
        region = self._region()
        return (region.backend if region is not None else _default_backend()).encode()

    def tms_get_enable_disk_backup(self) -> bool:
        return False

    def tms_get_retain_cpu_backup(self) -> bool:
        return self._saver.retain_cpu_backup

    def tms_set_retain_cpu_backup(self, retain: bool) -> None:
        self._saver.retain_cpu_backup = retain

    def set_memory_margin_bytes(self, value: int) -> None:
        self._saver.memory_margin_bytes = value

    def tms_pause(self, tag: Optional[bytes]) -> int:
        self._saver.pause(tag.decode() if tag else None)
        return 0

    def tms_resume(self, tag: Optional[bytes]) -> int:
        self._saver.resume(tag.decode() if tag else None)
        return 0


class BinaryWrapper:
    def __init__(self, saver: TorchMemorySaver) -> None:
        self.cdll = Calls(saver)


class _Implementation:
    """Where programs look for the C interface."""

    def __init__(self, saver: TorchMemorySaver) -> None:
        self._binary_wrapper = BinaryWrapper(saver)


class TorchMemorySaver:
    """Regions with tags, and their pause and resume. Any thread. Errors are amem.Error, which is a RuntimeError."""

    def __init__(self) -> None:
        self._impl = _Implementation(self)
        self._margin = 0
        self._retain = flag("TMS_RETAIN_CPU_BACKUP")

    def _ensure_initialized(self) -> None:
        """There is nothing to prepare."""

    @contextlib.contextmanager
    def region(self, tag: str = DEFAULT_TAG, enable_cpu_backup: bool = False, enable_disk_backup: bool = False,
               cpu_backup_backend: str | None = None) -> Iterator[None]:
        """amem.region(tag, keep=enable_cpu_backup): without backup the bytes are dropped and come back zeroed. Within
        another one: what is allocated has the inner tag. The bytes are in the broker's pool whatever the backend.

        UnimplementedError: bytes are to be on a disk."""
        if enable_disk_backup:
            raise UnimplementedError(_NO_DISK)
        self._check_backend(enable_cpu_backup, cpu_backup_backend)
        region = _Region(tag, enable_cpu_backup, cpu_backup_backend or _default_backend())
        with _on(), _regions.outside(), _regions.region(_tag(tag), keep=enable_cpu_backup), _within(region):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global",
                   tag: str = DEFAULT_TAG, enable_cpu_backup: bool = False,
                   cpu_backup_backend: str | None = None) -> Iterator[None]:
        """torch.cuda.graph with these arguments, its memory in a region."""
        import torch

        self._check_backend(enable_cpu_backup, cpu_backup_backend)
        region = _Region(tag, enable_cpu_backup, cpu_backup_backend or _default_backend())
        with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
            # The graph's own pool is where torch allocates now.
            with (_on(), _regions.outside(), _regions.region_of_callers_pool(_tag(tag), keep=enable_cpu_backup),
                  _within(region)):
                yield

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """What this thread allocates within is not brokered, as in amem.unbrokered(). Torch allocates from a new pool,
        whose free memory goes back to the driver at the end; without the argument from one that is kept for the next
        time."""
        with _on(), _regions.unbrokered_stretch(dispose=dispose_mem_pool_after_use), _within(None):
            yield

    def pause(self, tag: str | None = None) -> None:
        """amem.pause of the tag, or of all memory of regions, and with TMS_INIT_ENABLE=1 of the heap. The program runs
        on. Nothing when there is no such memory."""
        self._operate(_pause, tag)

    def resume(self, tag: str | None = None) -> None:
        """amem.resume of what pause() is about."""
        self._operate(_resume, tag)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The bytes that a CUDA tensor had when it was paused, as a tensor on the CPU; None when it is not paused.

        `zero_copy`: a view of the broker's pool, where the bytes lie there in one piece; else a copy. A view is for reading,
        and only until the resume begins: then other memory is saved in its place. A tag that is saved dense (`amemctl policy
        GROUP TAG --save dense`) is more often in one piece.

        FailedPreconditionError: the pause has dropped the bytes, or another rank of the group has saved them.
        InvalidArgumentError: the tensor is not on a GPU, not contiguous, or not brokered.
        """
        return _backup.of_tensor(x, zero_copy)

    def set_disk_backup_dir(self, path: str) -> None:
        """UnimplementedError."""
        raise UnimplementedError(_NO_DISK)

    @property
    def enabled(self) -> bool:
        """The shim is loaded in this process."""
        return _shim.is_loaded()

    @property
    def hook_mode(self) -> str:
        """"preload", always. "torch" may be set too: the same memory is meant, and no allocator has to be chosen; but the
        shim has to be preloaded all the same."""
        return "preload"

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in ("preload", "torch"):
            raise InvalidArgumentError(f"{mode!r} is no hook mode: preload or torch")

    @property
    def retain_cpu_backup(self) -> bool:
        """What was set; else TMS_RETAIN_CPU_BACKUP. It changes nothing: the pool stays pinned from pause to pause, and a
        resume gives the space in it back."""
        return self._retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, retain: bool) -> None:
        self._retain = bool(retain)

    @property
    def memory_margin_bytes(self) -> int:
        """Allocations of brokered memory that would leave less than this free on their device are refused as out of
        memory. NCCL's are not."""
        return self._margin

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if not 0 <= value < 1 << 64:
            raise InvalidArgumentError(f"a margin of {value} bytes")
        if _shim.is_loaded():
            _shim.set_memory_margin(value)
        self._margin = value

    def _check_backend(self, backup: bool, backend: str | None) -> None:
        if backend is None:
            return
        if backend == "disk":
            raise UnimplementedError(_NO_DISK)
        if backend not in _BACKENDS:
            raise ValueError(f"cpu_backup_backend {backend!r}: {', '.join(_BACKENDS)}")
        if not backup:
            raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")

    def _operate(self, operation: Callable[..., None], tag: str | None) -> None:
        with contextlib.suppress(NotFoundError):
            if tag:
                operation([_tag(tag)])
            else:
                operation(except_tags=["nccl"] if whole_process() else ["nccl", _HEAP])


def _tag(tag: str) -> str:
    """What amem calls the tag."""
    return _HEAP if tag == DEFAULT_TAG and whole_process() else tag
