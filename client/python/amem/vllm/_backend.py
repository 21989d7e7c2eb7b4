"""The sleep-mode backend `amem` of vLLM 0.25 and later. vLLM's factory of backends imports it in a worker's process."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from amem import _shim


class Backend(CuMemBackend):  # type: ignore[misc]
    """vLLM's own backend over amem's allocator. So vLLM's version decides which tags a level keeps."""

    def suspend(self, level: int = 1) -> None:
        """Puts the worker to sleep.

        Args:
            level: As for Worker.sleep().

        Raises:
            Error: The errors of Allocator.sleep(). The state stays as it was.
        """
        with self._or_as_before():
            super().suspend(level)

    def resume(self, tags: list[str] | None = None) -> None:
        """Resumes the worker's memory.

        Args:
            tags: As for Allocator.wake_up().

        Raises:
            Error: The errors of Allocator.wake_up(). The state stays as it was.
        """
        with self._or_as_before():
            super().resume(tags)

    def discard(self, tags: tuple[str, ...]) -> None:
        """Drops the bytes of tags, and frees their GPU memory.

        Args:
            tags: The pools, such as ("kv_cache",).

        Raises:
            Error: The errors of Allocator.discard(). The state stays as it was.
        """
        with self._or_as_before():
            super().discard(tags)

    @contextlib.contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """Restores the state that vLLM reads if the call fails."""
        state: Any = self.state()
        try:
            yield
        except BaseException:
            self._state = state
            raise

    @classmethod
    def is_supported(cls) -> bool:
        """Tells whether this process can sleep by amem.

        Returns:
            Whether the shim is loaded.
        """
        return _shim.is_loaded()

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Tells whether NCCL's communicators are usable after a resume.

        Returns:
            True.
        """
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Tells whether compiled code is usable after a resume.

        Returns:
            True.
        """
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Tells whether CUDA graphs with collectives in them are usable after a resume.

        Returns:
            True, because all memory returns at its addresses.
        """
        return True

    @classmethod
    def supports_durable_storage(cls) -> bool:
        """Tells whether the saved bytes outlive the process.

        Returns:
            False.
        """
        return False
