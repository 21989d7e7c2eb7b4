"""Tags of this rank's group that leave and come back around a phase of a training step. Every rank asks for the same. Callers'
threads, and the package's own for what comes back late."""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from amem import _background
from amem._frameworks import replace
from amem._rank import pause, resume
from amem.errors import Error, NotFoundError


def _each(operation: Callable[..., None], tags: list[str], timeout: float | None) -> None:
    """Of all at once, unless the group has no memory of some of them yet: then of each that there is."""
    if not tags:
        return
    try:
        operation(tags, timeout)
    except NotFoundError:
        for tag in tags if len(tags) > 1 else ():
            with contextlib.suppress(NotFoundError):
                operation([tag], timeout)


def take(tags: list[str], timeout: float | None = None) -> None:
    """amem.pause() of the tags; of those of which there is no memory nothing. What torch keeps for later goes, too. After
    an error everything is on the GPU, as far as it can come back."""
    sys.modules["torch"].cuda.empty_cache()
    try:
        _each(pause, tags, timeout)
    except Error:
        with contextlib.suppress(Error):
            bring(tags, timeout)
        raise


def bring(tags: list[str], timeout: float | None = None) -> None:
    """amem.resume() of the tags; likewise."""
    _each(resume, tags, timeout)


class Late:
    """Tags that come back in the background. The methods of `owner` that touch their memory wait, and try once more if it
    could not come."""

    def __init__(self, tags: list[str], owner: Any, methods: Iterable[str]) -> None:
        self._tags = tags
        self._coming: Future[None] | None = None
        for name in methods:
            if hasattr(owner, name):
                replace(owner, name, self._after)

    def begin(self, timeout: float | None = None) -> None:
        self._coming = _background.submit(lambda: bring(self._tags, timeout))

    def wait(self) -> None:
        """Errors as amem.resume(): the memory is away still, and the next call tries again."""
        if self._coming is not None:
            if self._coming.exception() is not None:
                bring(self._tags)
            self._coming = None

    def _after(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.wait()
        return original(*arguments, **options)
