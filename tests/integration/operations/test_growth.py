"""Twenty cycles: neither the broker nor the ranks grow, in memory, descriptors or threads."""

from sim_node import Broker, eventually

KIB = 1 << 10


class Footprint:
    """What a process occupies. Later it must not be more."""

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
        # Room for what allocators keep, far below anything that leaks with each cycle.
        assert self.process.rss_bytes() < self.rss + 1024 * KIB, self.process.name
        if isinstance(self.process, Broker):
            assert self.process.threads() < 40


def cycle(node, job, times):
    for _ in range(times):
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        job.step()


def test_twenty_cycles(node):
    job = node.job(trace=node.trace("small"))
    cycle(node, job, 5)  # buffers reach their size
    job.verify()
    footprints = [Footprint(each) for each in (node.broker, *job.ranks)]
    cycle(node, job, 20)
    job.verify()
    for each in footprints:
        each.check()


def test_jobs_come_and_go(node):
    def generation():
        job = node.job()
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        job.leave()

    for _ in range(3):
        generation()
    eventually(lambda: node.ctl.group("train") is None)
    before = Footprint(node.broker)
    for _ in range(8):
        generation()
    before.check()


def test_allocations_come_and_go(node):
    job = node.job(ranks=1, shared=0)
    [rank] = job.ranks

    def some():
        for answer in [rank.ask("alloc 200000") for _ in range(10)]:
            rank.ask(f"free {answer['ids'][0]}")

    def count():
        return node.ctl.group("train")["allocation_count"]

    before = count()
    some()
    eventually(lambda: count() == before)
    footprints = [Footprint(each) for each in (node.broker, rank)]
    for _ in range(10):
        some()
    for each in footprints:
        each.check()
    eventually(lambda: count() == before)
