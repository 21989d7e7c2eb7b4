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
_NO_DISK = ("amem does not save bytes to disk. Use enable_cpu_backup=True, which keeps the bytes in the broker's pool (amemd "
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
    """As much of the hook library's C interface as programs call through its Python object.

    Each thread has a state of its own. The names and the results are the library's; where it would end the process, a call
    raises amem.Error.
    """

    def __init__(self, saver: TorchMemorySaver) -> None:
        """Makes the calls of one object.

        Args:
            saver: The object that pauses, resumes and has the settings.
        """
        self._saver = saver

    def _region(self) -> Optional[_Region]:
        if _thread.within:
            return _thread.within[-1]
        if whole_process():
            return _Region(DEFAULT_TAG, flag("TMS_INIT_ENABLE_CPU_BACKUP"), _default_backend())
        return None

    def tms_get_interesting_region(self) -> bool:
        """Says whether a pause takes what this thread allocates now.

        Returns:
            The thread is in a region, or TMS_INIT_ENABLE=1 holds, and neither disable() nor tms_set_interesting_region(False) is in
            force.
        """
        return not _thread.off and self._region() is not None

    def tms_set_interesting_region(self, on: bool) -> None:
        """Switches off that what this thread allocates is brokered, or switches it on again. No region begins by this.

        Args:
            on: False: what this thread allocates from now on is the driver's own. True: that ends.

        Raises:
            FailedPreconditionError: `on` is true, and the thread is in no region.
        """
        if bool(on) == self.tms_get_interesting_region() or not _shim.is_loaded():
            return
        if on and not _thread.off:
            raise FailedPreconditionError("this thread is not in a region. Enter one with torch_memory_saver.region()")
        _turn(not on)

    def tms_get_current_tag(self) -> bytes:
        """Says which tag this thread's memory gets.

        Returns:
            The tag of the innermost region, as ASCII; b"default" in none.
        """
        region = self._region()
        return (region.tag if region is not None else DEFAULT_TAG).encode()

    def tms_get_enable_cpu_backup(self) -> bool:
        """Says whether a pause keeps the bytes of what this thread allocates now.

        Returns:
            The region's `enable_cpu_backup`; in none, TMS_INIT_ENABLE_CPU_BACKUP of a whole process, else False.
        """
        region = self._region()
        return region is not None and region.backup

    def tms_get_cpu_backup_backend(self) -> bytes:
        """Says where the program wants the bytes to be kept. amem keeps them in the broker's pool, whatever this says.

        Returns:
            b"cpu", b"pinned" or b"mmap".
        """
        region = self._region()
        return (region.backend if region is not None else _default_backend()).encode()

    def tms_get_enable_disk_backup(self) -> bool:
        """Says whether bytes are kept on a disk.

        Returns:
            False, always.
        """
        return False

    def tms_get_retain_cpu_backup(self) -> bool:
        """Gets TorchMemorySaver.retain_cpu_backup.

        Returns:
            What was set last.
        """
        return self._saver.retain_cpu_backup

    def tms_set_retain_cpu_backup(self, retain: bool) -> None:
        """Sets TorchMemorySaver.retain_cpu_backup.

        Args:
            retain: What the property has from now on.
        """
        self._saver.retain_cpu_backup = retain

    def set_memory_margin_bytes(self, value: int) -> None:
        """Sets TorchMemorySaver.memory_margin_bytes.

        Args:
            value: Bytes of each device.

        Raises:
            InvalidArgumentError: The number is negative, or does not fit into 64 bits.
        """
        self._saver.memory_margin_bytes = value

    def tms_pause(self, tag: Optional[bytes]) -> int:
        """Calls TorchMemorySaver.pause().

        Args:
            tag: The tag as ASCII; None or b"": all memory of regions.

        Returns:
            0, always: a failure is an error that is raised.

        Raises:
            Error: As TorchMemorySaver.pause().
        """
        self._saver.pause(tag.decode() if tag else None)
        return 0

    def tms_resume(self, tag: Optional[bytes]) -> int:
        """Calls TorchMemorySaver.resume().

        Args:
            tag: The tag as ASCII; None or b"": all memory of regions.

        Returns:
            0, always: a failure is an error that is raised.

        Raises:
            Error: As TorchMemorySaver.resume().
        """
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
        """Makes an object with the settings that the environment has. It changes nothing else."""
        self._impl = _Implementation(self)
        self._margin = 0
        self._retain = flag("TMS_RETAIN_CPU_BACKUP")

    def _ensure_initialized(self) -> None:
        """There is nothing to prepare."""

    @contextlib.contextmanager
    def region(self, tag: str = DEFAULT_TAG, enable_cpu_backup: bool = False, enable_disk_backup: bool = False,
               cpu_backup_backend: str | None = None) -> Iterator[None]:
        """Tags what this thread allocates within.

        It is amem.region(tag, keep=enable_cpu_backup), but regions may nest here. Within another region what is allocated has the inner
        tag. The bytes are kept in the broker's pool, whatever the backend.

        Args:
            tag: 1 to 31 of [A-Za-z0-9._-], not "nccl".
            enable_cpu_backup: A pause keeps the bytes. False: it drops them, and the memory comes back zeroed.
            enable_disk_backup: False; amem keeps nothing on disks.
            cpu_backup_backend: "cpu", "pinned" or "mmap", which say the same here; None: TMS_INIT_CPU_BACKUP_BACKEND, else "pinned".

        Returns:
            A context manager, which belongs to the thread that enters it.

        Raises:
            FailedPreconditionError: torch is older than 2.6.
            InvalidArgumentError: The tag cannot be.
            UnimplementedError: Bytes are to be on a disk.
            ValueError: There is no such backend, or a backend is named without `enable_cpu_backup`.
        """
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
        """Captures a graph, as torch.cuda.graph does, whose memory is in a region.

        Args:
            cuda_graph: The torch.cuda.CUDAGraph.
            pool: The graph's pool, as torch.cuda.graph takes it; None: one of its own.
            stream: The torch.cuda.Stream of the capture; None: one of torch's.
            capture_error_mode: "global", "thread_local" or "relaxed".
            tag: 1 to 31 of [A-Za-z0-9._-], not "nccl".
            enable_cpu_backup: A pause keeps the bytes. False: it drops them, and the memory comes back zeroed.
            cpu_backup_backend: As of region().

        Returns:
            A context manager, which belongs to the thread that enters it.

        Raises:
            InvalidArgumentError: The tag cannot be.
            UnimplementedError: Bytes are to be on a disk.
            ValueError: There is no such backend, or a backend is named without `enable_cpu_backup`.
        """
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
        """Lets what this thread allocates within be the driver's own, as amem.unbrokered() does.

        Args:
            dispose_mem_pool_after_use: torch allocates from a new pool, whose free memory goes back to the driver at the end. False:
                from one that is kept for the next time.

        Returns:
            A context manager, which belongs to the thread that enters it.

        Raises:
            FailedPreconditionError: torch is older than 2.6.
        """
        with _on(), _regions.unbrokered_stretch(dispose=dispose_mem_pool_after_use), _within(None):
            yield

    def pause(self, tag: str | None = None) -> None:
        """Pauses memory of this process's group. Every rank of the group calls.

        The program runs on, as after amem.pause(). The call does nothing where the group has no such memory.

        Args:
            tag: The tag that leaves. None: all memory of regions, and with TMS_INIT_ENABLE=1 what is in none, but not NCCL's.

        Raises:
            Error: As amem.pause().
        """
        self._operate(_pause, tag)

    def resume(self, tag: str | None = None) -> None:
        """Brings back what was paused. Every rank of the group calls.

        The call does nothing where the group has no such memory.

        Args:
            tag: The tag that comes back. None: all that pause() without a tag takes.

        Raises:
            Error: As amem.resume().
        """
        self._operate(_resume, tag)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """Gets the bytes that a CUDA tensor had when it was paused.

        A view is for reading, and only until the resume begins: then other memory is saved in its place. A tag that is saved dense
        (`amemctl policy GROUP TAG --save dense`) is more often in one piece.

        Args:
            x: A contiguous CUDA tensor.
            zero_copy: A view of the broker's pool, where the bytes lie there in one piece; else a copy.

        Returns:
            A tensor on the CPU of the same shape and type; None when `x` is not paused.

        Raises:
            FailedPreconditionError: The pause has dropped the bytes, or another rank of the group has saved them.
            InvalidArgumentError: The tensor is not on a GPU, not contiguous, or not brokered.
        """
        return _backup.of_tensor(x, zero_copy)

    def set_disk_backup_dir(self, path: str) -> None:
        """Is there because the original has it. amem keeps nothing on disks.

        Args:
            path: Is not used.

        Raises:
            UnimplementedError: Always.
        """
        raise UnimplementedError(_NO_DISK)

    @property
    def enabled(self) -> bool:
        """The shim is loaded in this process."""
        return _shim.is_loaded()

    @property
    def hook_mode(self) -> str:
        """The way in which memory is seen: "preload", always.

        "torch" can be set, too: the same memory is meant, and no allocator has to be chosen. The shim has to be preloaded all the
        same. Any other value is an InvalidArgumentError.
        """
        return "preload"

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in ("preload", "torch"):
            raise InvalidArgumentError(f"{mode!r} is not a valid hook mode. Use preload or torch")

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether memory for saved bytes stays between pauses, as was set; else TMS_RETAIN_CPU_BACKUP.

        It changes nothing: the pool stays pinned from pause to pause, and a resume gives the space in it back.
        """
        return self._retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, retain: bool) -> None:
        self._retain = bool(retain)

    @property
    def memory_margin_bytes(self) -> int:
        """Bytes that stay free on each device; 0 at first.

        Allocations of brokered memory that would leave less are refused as out of memory. NCCL's are not. A number that is negative or
        does not fit into 64 bits is an InvalidArgumentError.
        """
        return self._margin

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if not 0 <= value < 1 << 64:
            raise InvalidArgumentError(f"the memory margin {value} is not valid. It must be 0 to 2**64 - 1 bytes")
        if _shim.is_loaded():
            _shim.set_memory_margin(value)
        self._margin = value

    def _check_backend(self, backup: bool, backend: str | None) -> None:
        if backend is None:
            return
        if backend == "disk":
            raise UnimplementedError(_NO_DISK)
        if backend not in _BACKENDS:
            raise ValueError(f"{backend!r} is not a valid cpu_backup_backend. Use {', '.join(_BACKENDS[:-1])} or {_BACKENDS[-1]}")
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
