#!/usr/bin/env python3
"""Engines of one group that sleep and wake by themselves, as each rank of TRL's colocated vLLM does.

Run by torchrun with scope regions:

    amemctl run --group train --scope regions -- torchrun --standalone --nproc-per-node 2 local_tags.py

Each rank has weights of its own and other numbers of turns than its peer, which waits for it in a collective. Between, an operator
pauses the whole group. Exit status: torch_rank.py.
"""

import argparse
import statistics
import sys
import time

import torch_rank
from torch_rank import MIB, Rank, check, check_equal, verify_all_reduce

import amem
import torch

ENGINE = "engine"


def timed(call, *arguments, **options):
    began = time.monotonic()
    call(*arguments, **options)
    return 1000 * (time.monotonic() - began)


class Program:
    def __init__(self, options):
        self.options = options
        self.rank = Rank(options)
        count = options.weights_mib * MIB // 4
        self.expected = torch_rank.values(3, self.rank.rank, count, 1, self.rank.device)
        with amem.region(ENGINE):
            self.weights = torch.empty(count, device=self.rank.device)
        self.weights.copy_(self.expected)
        self.times = {"pause": [], "resume": []}

    def turn(self, work=None):
        torch.cuda.synchronize()
        self.times["pause"].append(timed(amem.pause, ENGINE))
        if work is not None:
            work()
        self.times["resume"].append(timed(amem.resume, ENGINE))
        check_equal("the engine's weights", self.weights, self.expected)

    def unequal_turns(self):
        for step in range(3):
            for _ in range(1 + 2 * ((self.rank.rank + step) % 2)):
                self.turn()
            verify_all_reduce(self.rank, step)

    def skew(self):
        """One rank is late. The other sleeps and works meanwhile."""
        if self.rank.rank % 2:
            time.sleep(self.options.late)
        took = timed(self.turn)
        check(took < 1000 * self.options.late, f"rank {self.rank.rank} waited {took:.0f} ms for another's turn")
        verify_all_reduce(self.rank, 10)

    def busy_device(self):
        """The device works in a collective that a late peer begins later; the pause waits for it."""
        if self.rank.rank % 2:
            time.sleep(2)
        verify_all_reduce(self.rank, 11)
        self.turn()

    def operator_between(self):
        amem.pause(ENGINE)
        self.rank.barrier()
        self.rank.cycle(2)
        check_equal("the engine's weights after an operator", self.weights, self.expected)
        amem.resume(ENGINE)

    def set_of_all(self):
        name = (ENGINE, self.rank.world)
        amem.pause(ENGINE, ranks=name)
        amem.resume(ENGINE, ranks=name)
        check_equal("the engine's weights of a set", self.weights, self.expected)

    def copy_of_paused(self):
        amem.pause(ENGINE)
        try:
            self.weights[:16].cpu()
        except RuntimeError as error:
            print(f"a copy of paused memory: {error}", file=sys.stderr)
        else:
            check(False, "a copy of memory that this process has paused succeeded")
        amem.resume(ENGINE)
        check_equal("the engine's weights after a refused copy", self.weights, self.expected)

    def run(self):
        steps = (self.unequal_turns, self.skew, self.busy_device, self.operator_between, self.set_of_all, self.copy_of_paused)
        for step in steps:
            self.rank.arm_watchdog()
            step()
            self.rank.barrier()
        median = {verb: round(statistics.median(times), 1) for verb, times in self.times.items()}
        self.rank.report("local_tags", steps=[step.__name__ for step in steps], median_ms=median)
        self.rank.end()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    torch_rank.add_options(parser)
    parser.add_argument("--weights-mib", type=int, default=4096)
    parser.add_argument("--late", type=float, default=5, help="seconds")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(torch_rank.run_main(lambda: Program(parse(sys.argv[1:])).run()))
