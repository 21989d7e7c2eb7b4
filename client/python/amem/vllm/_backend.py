"""The sleep-mode backend `amem`, of vLLM 0.25 and later. Imported by vLLM's factory of backends, in a worker's process."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from amem import _shim


class Backend(CuMemBackend):  # type: ignore[misc]
    """vLLM's own backend over amem's allocator. So it is vLLM's version that says which tags a level keeps."""

    def suspend(self, level: int = 1) -> None:
        """Puts the worker to sleep.

        Args:
            level: As of Worker.sleep().

        Raises:
            Error: As Allocator.sleep(). The state is as before.
        """
        with self._or_as_before():
            super().suspend(level)

    def resume(self, tags: list[str] | None = None) -> None:
        """Brings the worker's memory back.

        Args:
            tags: As of Allocator.wake_up().

        Raises:
            Error: As Allocator.wake_up(). The state is as before.
        """
        with self._or_as_before():
            super().resume(tags)

    def discard(self, tags: tuple[str, ...]) -> None:
        """Drops the bytes of tags, and takes their memory off the GPU.

        Args:
            tags: The pools, such as ("kv_cache",).

        Raises:
            Error: As Allocator.discard(). The state is as before.
        """
        with self._or_as_before():
            super().discard(tags)

    @contextlib.contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """The state that vLLM reads is not that of a call which has failed."""
        state: Any = self.state()
        try:
            yield
        except BaseException:
            self._state = state
            raise

    @classmethod
    def is_supported(cls) -> bool:
        """Says whether this process can sleep by amem.

        Returns:
            The shim is loaded.
        """
        return _shim.is_loaded()

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Says whether NCCL's communicators are usable after a resume.

        Returns:
            True.
        """
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Says whether compiled code is usable after a resume.

        Returns:
            True.
        """
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Says whether CUDA graphs with collectives in them are usable after a resume.

        Returns:
            True: all memory comes back at its addresses.
        """
        return True

    @classmethod
    def supports_durable_storage(cls) -> bool:
        """Says whether what is saved outlives the process.

        Returns:
            False.
        """
        return False
