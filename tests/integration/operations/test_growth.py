"""Jobs and allocations that come and go: neither the broker nor the ranks grow, in memory, descriptors or threads."""
from sim_node import eventually
from sim_node.footprint import Footprint


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
