"""Footprint: what a process occupies, in memory, descriptors and threads."""
from __future__ import annotations

import collections
import functools
from collections.abc import Callable

from sim_node.broker import Broker
from sim_node.child import Child, eventually

KIB = 1 << 10


class Footprint:
    """What a process occupies now. Later it must not be more."""

    def __init__(self, process: Child) -> None:
        self.process = process
        self._as_before = self._compare()
        self.rss = process.rss_bytes()

    def _compare(self) -> Callable[[], bool]:
        """Tells whether the process has what it has now."""
        if isinstance(self.process, Broker):
            # gRPC's threads come and go with the load, each with an event descriptor.
            return functools.partial(self.process.holds_at_most, self.process.holding())
        counts = self._counts()
        return lambda: self._counts() == counts

    def _counts(self) -> tuple[collections.Counter[str], int]:
        return self.process.descriptors(), self.process.threads()

    def check(self) -> None:
        # What a rank frees the broker closes a little later.
        eventually(self._as_before, what=f"{self.process.name} has as many descriptors and threads as before")
        # Space for what allocators keep, far below anything that leaks with each cycle. Where amemd's loop shares an arena with gRPC's threads
        # that is 1.4 MiB, else 0.3.
        assert self.process.rss_bytes() < self.rss + 2048 * KIB, self.process.name
        if isinstance(self.process, Broker):
            assert self.process.threads() < 40
