"""Footprint: what a process occupies, in memory, descriptors and threads."""
from sim_node.broker import Broker
from sim_node.child import eventually

KIB = 1 << 10


class Footprint:
    """What a process occupies now. Later it must not be more."""

    def __init__(self, process):
        self.process = process
        self.counts = self._counts()
        self.rss = process.rss_bytes()

    def _counts(self):
        # gRPC's threads come and go with the load, each with an event descriptor.
        if isinstance(self.process, Broker):
            return self.process.held()
        return self.process.descriptors(), self.process.threads()

    def _as_before(self):
        if isinstance(self.process, Broker):
            return self.process.holds_at_most(self.counts)
        return self._counts() == self.counts

    def check(self):
        # What a rank frees the broker closes a little later.
        eventually(self._as_before, what=f"{self.process.name} has as many descriptors and threads as before")
        # Space for what allocators keep, far below anything that leaks with each cycle.
        assert self.process.rss_bytes() < self.rss + 1024 * KIB, self.process.name
        if isinstance(self.process, Broker):
            assert self.process.threads() < 40
