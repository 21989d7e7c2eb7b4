#!/usr/bin/env python3
"""An upgrade of amemd beside many paused groups, on the simulated driver: how long it takes, and how long an allocation waits.

    upgrade.py [--build-dir build/release] [--groups 1000] [--runs 5]

Each group is a process with 2 MiB, paused. One more group runs and allocates 2 MiB every 2 ms. Prints a table. A descriptor
for each group has to be allowed (`ulimit -n`).
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

from sim_node import MIB, Build, Node, Program  # noqa: E402

AT_ONCE = 50  # processes that start together
QUIET_S = 2.0
PACE_S = 0.002  # between two allocations


class Allocating(threading.Thread):
    """Asks the program for memory until it is told to stop, and keeps how long each allocation took. Nothing is freed: the shim
    gives out again what was freed, without asking amemd."""

    def __init__(self, program: Program) -> None:
        super().__init__(daemon=True)
        self.program = program
        self.seconds: list[float] = []
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.is_set():
            began = time.monotonic()
            self.program.ask(f"alloc 0 {2 * MIB}", 120)
            self.seconds.append(time.monotonic() - began)
            time.sleep(PACE_S)

    def stop(self) -> list[float]:
        self.ends.set()
        self.join()
        return self.seconds


def longest_ms(program: Program, counts: list[int], work: Callable[[], object]) -> float:
    """Of the allocations beside the work, whose number goes to `counts`."""
    allocating = Allocating(program)
    allocating.start()
    work()
    seconds = allocating.stop()
    counts.append(len(seconds))
    return max(seconds) * 1000


def measure(node: Node, groups: int, runs: int) -> None:
    node.settings.update({"AMEM_SIM_DEVICES": "1", "AMEM_SIM_MEMORY": f"{groups * 4 + 65536}MiB", "AMEM_SIM_CONTEXT_BYTES": "64KiB"})
    node.start_broker("--pool-size", f"{groups * 2 + 64}MiB")
    names = [f"g{number}" for number in range(groups)]
    began = time.monotonic()
    for first in range(0, groups, AT_ONCE):
        for program in [Program(node, name) for name in names[first:first + AT_ONCE]]:
            program.ask(f"alloc 0 {2 * MIB}")
        node.ctl("pause", *names[first:first + AT_ONCE])
    busy = Program(node, "busy")
    print(f"{groups} groups have started and are paused after {time.monotonic() - began:.0f} s; {os.cpu_count()} cores", flush=True)
    counts: list[int] = []
    quiet = longest_ms(busy, counts, lambda: time.sleep(QUIET_S))
    took, stalls = [], []
    for _ in range(runs):
        def upgrade() -> None:
            start = time.monotonic()
            node.ctl("upgrade")
            took.append((time.monotonic() - start) * 1000)
            time.sleep(QUIET_S)
        stalls.append(longest_ms(busy, counts, upgrade))
    resident = node.ctl.group("busy")["resident_bytes"]
    assert resident >= sum(counts) * 2 * MIB, "amemd was asked for each"
    began = time.monotonic()
    for first in range(0, groups, AT_ONCE):
        node.ctl("resume", *names[first:first + AT_ONCE])
    print(f"all groups were resumed in {time.monotonic() - began:.1f} s")
    print("| what | median | longest |")
    print("| --- | --- | --- |")
    print(f"| amemctl upgrade, ms | {statistics.median(took):.0f} | {max(took):.0f} |")
    print(f"| the longest allocation beside it, ms | {statistics.median(stalls):.0f} | {max(stalls):.0f} |")
    print(f"| the longest allocation in {QUIET_S:.0f} s without an upgrade, ms | {quiet:.1f} | {quiet:.1f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build-dir", default="build/release")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as logs:
        node = Node(Build(options.build_dir), logs)
        try:
            measure(node, options.groups, options.runs)
        finally:
            node.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
