"""torch_memory_saver's object over amem's regions, tags and pauses. amem.compat and amem's distribution torch_memory_saver share it."""
from __future__ import annotations

import contextlib
import functools
import logging
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
    """Whether the environment sets this switch of torch_memory_saver."""
    return os.environ.get(name) in ("1", "true", "TRUE", "yes", "YES")


@contextlib.contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets the variables in the environment of this process for a while. All its threads see them."""
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
    """Whether TMS_INIT_ENABLE=1 is in effect, which includes memory outside of regions. It requires a shim with scope heap."""
    return flag("TMS_INIT_ENABLE") and _shim.is_loaded() and _scope() == _HEAP


@functools.lru_cache(maxsize=None)
def _scope() -> str:
    """The scope of this process, which never changes."""
    return stats().scope


class _Region:
    def __init__(self, tag: str, backup: bool, backend: str) -> None:
        self.tag, self.backup, self.backend = tag, backup, backend


class _Thread(threading.local):
    def __init__(self) -> None:
        self.within: list[Optional[_Region]] = []  # None: disable()
        self.off = False  # tms_set_interesting_region(False)
        self.ranks: Optional[tuple[str, int]] = None  # those whose pauses and resumes are one with this thread's


_thread = _Thread()


def _turn(off: bool) -> None:
    """Switches brokering off or on in this thread, for tms_set_interesting_region()."""
    if off != _thread.off:
        _shim.call("amem_shim_unbrokered_begin" if off else "amem_shim_unbrokered_end")
        _thread.off = off


@contextlib.contextmanager
def _on() -> Iterator[None]:
    """Around a region: brokering is on when the region begins. Afterwards it is as before the region."""
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


@contextlib.contextmanager
def together(ranks: Optional[tuple[str, int]]) -> Iterator[None]:
    """Within the context, pauses and resumes of this thread are one operation with those of other ranks."""
    outer, _thread.ranks = _thread.ranks, ranks
    try:
        yield
    finally:
        _thread.ranks = outer


def _default_backend() -> str:
    return os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or "pinned"


class Calls:
    """The part of the hook library's C interface that programs call through its Python object.

    Each thread has its own state. The names and the results are the library's. Where the library would end the process, a call
    raises amem.Error.
    """

    def __init__(self, saver: TorchMemorySaver) -> None:
        """Makes the calls of one object.

        Args:
            saver: The object that pauses and resumes, and that has the settings.
        """
        self._saver = saver

    def _region(self) -> Optional[_Region]:
        if _thread.within:
            return _thread.within[-1]
        if whole_process():
            kept = flag("TMS_INIT_ENABLE_CPU_BACKUP") or flag("TMS_INIT_ENABLE_DISK_BACKUP")  # the pool keeps both, as the shim says
            return _Region(DEFAULT_TAG, kept, _default_backend())
        return None

    def tms_get_interesting_region(self) -> bool:
        """Tells whether a pause takes memory that this thread allocates now.

        Returns:
            True if the thread is in a region or TMS_INIT_ENABLE=1 is in effect, and neither disable() nor
            tms_set_interesting_region(False) is in effect.
        """
        return not _thread.off and self._region() is not None

    def tms_set_interesting_region(self, on: bool) -> None:
        """Switches brokering of this thread's allocations off, or on again. It does not begin a region.

        Args:
            on: False: memory that this thread allocates from now on is unbrokered. True: it is brokered again.

        Raises:
            FailedPreconditionError: `on` is true, and the thread is not in a region.
        """
        if bool(on) == self.tms_get_interesting_region() or not _shim.is_loaded():
            return
        if on and not _thread.off:
            raise FailedPreconditionError("this thread is not in a region. Enter one with torch_memory_saver.region()")
        _turn(not on)

    def tms_get_current_tag(self) -> bytes:
        """Returns the tag of memory that this thread allocates now.

        Returns:
            The tag of the innermost region, as ASCII. Outside of regions: b"default".
        """
        region = self._region()
        return (region.tag if region is not None else DEFAULT_TAG).encode()

    def tms_get_enable_cpu_backup(self) -> bool:
        """Tells whether a pause keeps the bytes of memory that this thread allocates now.

        Returns:
            The region's `enable_cpu_backup`. Outside of regions, with TMS_INIT_ENABLE=1: whether TMS_INIT_ENABLE_CPU_BACKUP or
            TMS_INIT_ENABLE_DISK_BACKUP is set. Else False.
        """
        region = self._region()
        return region is not None and region.backup

    def tms_get_cpu_backup_backend(self) -> bytes:
        """Returns the backend that the program has chosen. amem keeps the bytes in the broker's pool with every backend.

        Returns:
            b"cpu", b"pinned" or b"mmap".
        """
        region = self._region()
        return (region.backend if region is not None else _default_backend()).encode()

    def tms_get_enable_disk_backup(self) -> bool:
        """Tells whether amem keeps bytes on disk.

        Returns:
            Always False.
        """
        return False

    def tms_get_retain_cpu_backup(self) -> bool:
        """Gets TorchMemorySaver.retain_cpu_backup.

        Returns:
            The present value.
        """
        return self._saver.retain_cpu_backup

    def tms_set_retain_cpu_backup(self, retain: bool) -> None:
        """Sets TorchMemorySaver.retain_cpu_backup.

        Args:
            retain: The new value of the property.
        """
        self._saver.retain_cpu_backup = retain

    def set_memory_margin_bytes(self, value: int) -> None:
        """Sets TorchMemorySaver.memory_margin_bytes.

        Args:
            value: The number of bytes on each device.

        Raises:
            InvalidArgumentError: The number is negative, or does not fit into 64 bits.
        """
        self._saver.memory_margin_bytes = value

    def tms_pause(self, tag: Optional[bytes]) -> int:
        """Calls TorchMemorySaver.pause().

        Args:
            tag: The tag as ASCII. None or b"": all memory of regions.

        Returns:
            Always 0. A failure raises an error.

        Raises:
            Error: The errors of TorchMemorySaver.pause().
        """
        self._saver.pause(tag.decode() if tag else None)
        return 0

    def tms_resume(self, tag: Optional[bytes]) -> int:
        """Calls TorchMemorySaver.resume().

        Args:
            tag: The tag as ASCII. None or b"": all memory of regions.

        Returns:
            Always 0. A failure raises an error.

        Raises:
            Error: The errors of TorchMemorySaver.resume().
        """
        self._saver.resume(tag.decode() if tag else None)
        return 0


class BinaryWrapper:
    def __init__(self, saver: TorchMemorySaver) -> None:
        self.cdll = Calls(saver)


class _Implementation:
    """The object in which programs look for the C interface."""

    def __init__(self, saver: TorchMemorySaver) -> None:
        self._binary_wrapper = BinaryWrapper(saver)


class TorchMemorySaver:
    """Regions with tags, and their pause and resume. Any thread. Errors are amem.Error, which is a RuntimeError."""

    def __init__(self) -> None:
        """Makes an object with the settings of the environment. It changes nothing else."""
        self._impl = _Implementation(self)
        self._margin = 0
        self._retain = flag("TMS_RETAIN_CPU_BACKUP")

    def _ensure_initialized(self) -> None:
        """Does nothing. The original prepares its library here."""

    @contextlib.contextmanager
    def region(self, tag: str = DEFAULT_TAG, enable_cpu_backup: bool = False, enable_disk_backup: bool = False,
               cpu_backup_backend: str | None = None) -> Iterator[None]:
        """Sets the tag of memory that this thread allocates within.

        It is amem.region(tag, keep=enable_cpu_backup), but these regions can nest: the inner tag counts. amem keeps the bytes in the
        broker's pool with every backend.

        Args:
            tag: 1 to 31 characters of [A-Za-z0-9._-], not "nccl".
            enable_cpu_backup: A pause keeps the bytes. False: a pause drops them, and a resume provides zeros.
            enable_disk_backup: Must be False. amem keeps nothing on disk.
            cpu_backup_backend: "cpu", "pinned" or "mmap". They have the same effect here. None: TMS_INIT_CPU_BACKUP_BACKEND, else
                "pinned".

        Returns:
            A context manager, which belongs to the thread that enters it.

        Raises:
            FailedPreconditionError: PyTorch is older than 2.6.
            InvalidArgumentError: The tag is not valid.
            UnimplementedError: The call asks for a backup on disk.
            ValueError: The backend is not valid, or the call names a backend without `enable_cpu_backup`.
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
        """Captures a graph like torch.cuda.graph. The graph's memory is in a region.

        Args:
            cuda_graph: The torch.cuda.CUDAGraph.
            pool: The graph's pool, as for torch.cuda.graph. None: its own pool.
            stream: The torch.cuda.Stream of the capture. None: a stream of torch.
            capture_error_mode: "global", "thread_local" or "relaxed".
            tag: 1 to 31 characters of [A-Za-z0-9._-], not "nccl".
            enable_cpu_backup: A pause keeps the bytes. False: a pause drops them, and a resume provides zeros.
            cpu_backup_backend: As for region().

        Returns:
            A context manager, which belongs to the thread that enters it.

        Raises:
            InvalidArgumentError: The tag is not valid.
            UnimplementedError: The call asks for a backup on disk.
            ValueError: The backend is not valid, or the call names a backend without `enable_cpu_backup`.
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
        """Leaves memory that this thread allocates within unbrokered, like amem.unbrokered().

        Args:
            dispose_mem_pool_after_use: torch allocates from a new pool. At the end, the pool's free memory returns to the driver.
                False: torch allocates from a pool that stays for the next use if it is small, as amem.unbrokered().

        Returns:
            A context manager, which belongs to the thread that enters it.

        Raises:
            FailedPreconditionError: PyTorch is older than 2.6.
        """
        with _on(), _regions.unbrokered_stretch(dispose=dispose_mem_pool_after_use), _within(None):
            yield

    def pause(self, tag: str | None = None) -> None:
        """Pauses memory of this process. Ranks that share it must call it, too.

        The program runs on, as after amem.pause(tags). The call does nothing if the group has no such memory.

        Args:
            tag: The tag to pause. None: all memory of regions. With TMS_INIT_ENABLE=1 also memory outside of regions, except NCCL's.

        Raises:
            Error: The errors of amem.pause().
        """
        self._operate(_pause, tag)

    def resume(self, tag: str | None = None) -> None:
        """Resumes paused memory. Ranks that share it must call it, too.

        The call does nothing if the group has no such memory.

        Args:
            tag: The tag to resume. None: all memory that pause() without a tag takes.

        Raises:
            Error: The errors of amem.resume().
        """
        self._operate(_resume, tag)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """Returns the bytes that a CUDA tensor had when it was paused.

        Only read from a view, and only until the resume begins. Afterwards its place in the pool holds other bytes. The bytes of a
        tag that is saved dense (`amemctl policy GROUP TAG --save dense`) are more often in one piece.

        Args:
            x: A contiguous CUDA tensor.
            zero_copy: Return a view of the broker's pool if the bytes are in one piece there, and a copy otherwise.

        Returns:
            A tensor on the CPU with the same shape and type. None: `x` is not paused.

        Raises:
            FailedPreconditionError: The pause has dropped the bytes, or another rank of the group has saved them.
            InvalidArgumentError: The tensor is not on a GPU, not contiguous, or not brokered.
        """
        return _backup.of_tensor(x, zero_copy)

    def set_disk_backup_dir(self, path: str) -> None:
        """Exists because the original has it. amem keeps nothing on disk.

        Args:
            path: Not used.

        Raises:
            UnimplementedError: Always.
        """
        raise UnimplementedError(_NO_DISK)

    @property
    def enabled(self) -> bool:
        """Whether the shim is loaded in this process."""
        return _shim.is_loaded()

    @property
    def hook_mode(self) -> str:
        """The hook mode: always "preload".

        You may also set "torch". It has no effect: the shim must still be preloaded, and the program need not choose an allocator.
        Without a shim, amem then logs one warning. Any other value raises InvalidArgumentError.
        """
        return "preload"

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in ("preload", "torch"):
            raise InvalidArgumentError(f"{mode!r} is not a valid hook mode. Use preload or torch")
        if mode == "torch":
            check_torch_mode()

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether memory for saved bytes stays between pauses. The default is TMS_RETAIN_CPU_BACKUP.

        It has no effect: the pool stays pinned from pause to pause, and a resume frees the space in it.
        """
        return self._retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, retain: bool) -> None:
        self._retain = bool(retain)

    @property
    def memory_margin_bytes(self) -> int:
        """The number of bytes that stay free on each device. The default is 0.

        An allocation of brokered memory fails as out of memory if it would leave less. NCCL's allocations do not. A number that is
        negative or does not fit into 64 bits raises InvalidArgumentError.
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
        together = {} if _thread.ranks is None else {"ranks": _thread.ranks}
        with contextlib.suppress(NotFoundError):
            if tag:
                operation([_tag(tag)], **together)
            else:
                operation(except_tags=["nccl"] if whole_process() else ["nccl", _HEAP], **together)


def check_torch_mode() -> None:
    """Warns once if the process has no shim."""
    if not _shim.is_loaded():
        _warn_of_torch_mode()


@functools.lru_cache(maxsize=None)
def _warn_of_torch_mode() -> None:
    logging.getLogger("amem").warning(
        'amem: torch_memory_saver is amem\'s in this environment, and hook_mode = "torch" does not load libamem_shim.so. So regions do '
        "nothing in process %d, and a pause fails. Start the process with `amemctl run --group NAME --scope regions -- COMMAND`, or "
        "install the original torch_memory_saver", os.getpid())


def _tag(tag: str) -> str:
    """The tag's name in amem."""
    return _HEAP if tag == DEFAULT_TAG and whole_process() else tag
