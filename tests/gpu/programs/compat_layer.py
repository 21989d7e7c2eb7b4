#!/usr/bin/env python3
"""torch_memory_saver's interface, as amem.compat has it, on a GPU.

The program is written for torch_memory_saver; what is amem's is that it was started with scope regions, that every rank asks,
and the first two lines. Run by torchrun:

    amemctl run --group train --scope regions -- torchrun --standalone --nproc-per-node 2 compat_layer.py

Exit status: torch_rank.py.
"""

import amem.compat

amem.compat.install()

import argparse  # noqa: E402
import sys  # noqa: E402

import figures  # noqa: E402
import torch_rank  # noqa: E402
from torch_rank import MIB, Rank, check, check_equal  # noqa: E402

import torch  # noqa: E402
from torch_memory_saver import torch_memory_saver as saver  # noqa: E402


class Program:
    def __init__(self, options):
        self.rank = Rank(options)
        self.device = self.rank.device
        self.count = options.mib * MIB // 4

    def expected(self, seed):
        return torch_rank.values(self.rank.rank, 0, self.count, seed, self.device)

    def filled(self, seed, tag, backup):
        with saver.region(tag=tag, enable_cpu_backup=backup):
            tensor = torch.empty(self.count, device=self.device)
        tensor.copy_(self.expected(seed))
        return tensor

    def tag(self, name):
        return figures.tag_of(self.rank.operator.group_status(), name)

    def do(self, call, *arguments):
        """In every rank at once."""
        torch.cuda.synchronize()
        self.rank.barrier()
        call(*arguments)
        self.rank.barrier()

    def run(self):
        check(saver.enabled and saver.hook_mode == "preload", "the shim is not in use")
        weights = self.filled(1, "weights", True)
        cache = self.filled(2, "kv_cache", False)
        with saver.region():
            scratch = torch.empty(self.count, device=self.device)
        self.rank.barrier()
        held = self.tag("weights")["allocated_bytes"]
        self.rank.barrier()
        with saver.region(tag="weights", enable_cpu_backup=True), saver.disable():
            outside = torch.full((self.count,), 3.0, device=self.device)
        self.rank.agree(self.tag("weights")["allocated_bytes"] == held, "what disable() is around is in the region")

        before = self.rank.memory.used()
        self.do(saver.pause, "kv_cache")
        freed = before - self.rank.memory.used()
        self.rank.agree(freed + self.rank.memory.tolerance >= self.count * 4, f"the pause freed {freed >> 20} MiB")
        check_equal("weights while the cache is paused", weights, self.expected(1))
        self.do(saver.resume, "kv_cache")
        check(int(torch.count_nonzero(cache)) == 0, "memory without backup comes back zeroed, and this did not")

        cache.copy_(self.expected(4))
        scratch.fill_(1)
        before = self.rank.memory.used()
        self.do(saver.pause)
        freed = before - self.rank.memory.used()
        self.rank.agree(freed + self.rank.memory.tolerance >= 3 * self.count * 4,
                        f"the pause of all tags freed {freed >> 20} MiB")
        check(float(outside.sum()) == 3.0 * self.count, "memory outside of regions changed")
        self.do(saver.resume)
        check_equal("weights after a pause of all tags", weights, self.expected(1))
        check(int(torch.count_nonzero(cache)) + int(torch.count_nonzero(scratch)) == 0, "dropped memory is not zero")
        self.graph()
        self.rank.report("compat_layer", tags=sorted(each["tag"] for each in self.rank.operator.group_status()["tags"]))
        self.rank.end()

    def graph(self):
        source = torch.zeros(1 << 20, device=self.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with saver.cuda_graph(graph, capture_error_mode="thread_local", tag="graph", enable_cpu_backup=True):
            result = source * 2 + 1
        for seed in (5, 6):
            source.copy_(torch_rank.values(self.rank.rank, 0, 1 << 20, seed, self.device))
            graph.replay()
            check_equal("the graph captured in a region", result, source * 2 + 1)
            if seed == 5:
                self.rank.agree(self.tag("graph")["allocated_bytes"] > 0, "the graph's memory has not its tag")
                self.do(saver.pause, "graph")
                self.do(saver.resume, "graph")
                check_equal("the graph's memory after a pause", result, source * 2 + 1)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    torch_rank.add_options(parser)
    parser.add_argument("--mib", type=int, default=256, help="size of each tensor")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(torch_rank.run_main(lambda: Program(parse(sys.argv[1:])).run()))
