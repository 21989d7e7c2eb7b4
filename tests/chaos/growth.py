#!/usr/bin/env python3
"""Swaps again and again: what the broker, its holder and the ranks use must not grow. See --help.

Two jobs on a simulated node take turns. Once in a while the ranks verify every byte, and do collectives. After a tenth of the swaps
every process's memory, descriptors and threads are noted, and at the end compared.
"""
import argparse
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from sim_node.child import sanitized  # noqa: E402
from sim_node.node import Build, Node  # noqa: E402

MIB = 1 << 20
ANONYMOUS = 2 * MIB  # that an allocator may keep more of at one time than at another
DESCRIPTORS = 4  # of gRPC's connections, which come and go
THREADS = 2  # of gRPC's pool, which adds one where calls had to wait for a core
MAPS = 2 * THREADS  # a stack and its guard each
EVERY = 100  # swaps between two checks of all bytes


def figures(pid):
    """What a process uses."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    counts = {"threads": int(status["Threads"]), "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}
    if not sanitized(pid):
        counts.update(anonymous=int(status["RssAnon"].split()[0]) << 10, maps=sum(1 for _ in open(f"/proc/{pid}/maps")))
    return counts


class Cycles:
    def __init__(self, build, ranks, allocations):
        self.node = Node(Build(build), tempfile.mkdtemp(prefix="amem-growth-", dir="/tmp"))
        self.node.start_broker("--log-level", "warning")
        self.jobs = [self.node.job(name, ranks=ranks, allocations=allocations, env={"AMEM_LOG": "warning"})
                     for name in ("train", "rollout")]
        for job in self.jobs:
            job.ask("rewrite")
        self.node.ctl("pause", "rollout")

    def processes(self):
        return {"amemd": self.node.broker.pid, "amem-holder": self.node.holder_pid(),
                **{rank.name: rank.pid for job in self.jobs for rank in job.ranks}}

    def swap(self, number):
        out, into = self.jobs if number % 2 == 0 else self.jobs[::-1]
        self.node.ctl("swap", out.group, into.group)
        if number % EVERY < 2:
            into.ask("verify", 60)
            into.check()

    def account(self):
        status = self.node.ctl.status()
        node = {"pool": status["pool"]["used_bytes"], **{f"device {each['ordinal']}": each["used_bytes"] for each in status["devices"]}}
        return {**{name: figures(pid) for name, pid in self.processes().items()}, "node": node}

    def end(self):
        self.node.ctl("resume", *[job.group for job in self.jobs if self.node.ctl.state(job.group) == "paused"])
        for job in self.jobs:
            job.check()
        used = self.node.ctl.status()["pool"]["used_bytes"]
        assert used == 0, f"all run, and {used} bytes of the pool are used"
        for job in self.jobs:
            job.leave()
        left = [device["brokered_bytes"] for device in self.node.ctl.devices()]
        assert not any(left), f"nobody is left, and devices hold {left}"


def grown(before, after):
    """What has grown, in words."""
    slack = {"anonymous": ANONYMOUS, "descriptors": DESCRIPTORS, "threads": THREADS, "maps": MAPS}
    return [f"{who}: {what} was {before[who][what]} and is {now}" for who, figures_now in after.items()
            for what, now in figures_now.items() if now > before[who][what] + slack.get(what, 0)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", default="build/release")
    parser.add_argument("--swaps", type=int, default=10000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--allocations", type=int, default=16)
    arguments = parser.parse_args()
    cycles = Cycles(arguments.build_dir, arguments.ranks, arguments.allocations)
    began = time.monotonic()
    warm = max(arguments.swaps // 10, 20) // 2 * 2  # the same job runs as at the end
    try:
        for number in range(arguments.swaps // 2 * 2):
            if number == warm:
                before = cycles.account()
            cycles.swap(number)
        after = cycles.account()
        cycles.end()
    finally:
        cycles.node.close()
    for who, then in before.items():
        print(f"growth: {who}: " + ", ".join(f"{what} {then[what]} -> {after[who][what]}" for what in then))
    if more := grown(before, after):
        print("growth: " + "; ".join(more))
        return 1
    print(f"growth: {arguments.swaps} swaps in {time.monotonic() - began:.0f} s, nothing has grown since the {warm}th")
    return 0


if __name__ == "__main__":
    sys.exit(main())
