#!/usr/bin/env python3
"""A job that pauses and resumes all of its memory by itself, beside another job of the same group name.

Run by torchrun with scope heap, twice at the same time, with other numbers of cycles:

    amemctl run --group train --scope heap -- torchrun --standalone --nproc-per-node 1 two_jobs.py --cycles 5

If both were one group, each pause would wait for the other job. Exit status: torch_rank.py.
"""

import argparse
import statistics
import sys
import time

import torch_rank
from torch_rank import MIB, Rank, check_equal, verify_all_reduce

import amem
import torch


class Program:
    def __init__(self, options):
        self.options = options
        self.rank = Rank(options)
        count = options.weights_mib * MIB // 4
        self.expected = torch_rank.values(options.cycles, self.rank.rank, count, 1, self.rank.device)
        self.weights = self.expected.clone()

    def run(self):
        times = []
        for cycle in range(self.options.cycles):
            self.rank.arm_watchdog()
            verify_all_reduce(self.rank, cycle)
            self.rank.barrier()
            torch.cuda.synchronize()
            began = time.monotonic()
            amem.pause(timeout=20)
            amem.resume(timeout=20)
            times.append(1000 * (time.monotonic() - began))
            check_equal("the weights", self.weights, self.expected)
            time.sleep(self.options.between)
        self.rank.report("two_jobs", cycles=len(times), median_ms=round(statistics.median(times), 1), longest_ms=round(max(times), 1))
        self.rank.end()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    torch_rank.add_options(parser)
    parser.add_argument("--between", type=float, default=0.5, help="seconds")
    parser.add_argument("--weights-mib", type=int, default=512)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(torch_rank.run_main(lambda: Program(parse(sys.argv[1:])).run()))
