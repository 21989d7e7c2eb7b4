#!/usr/bin/env python3
"""PyTorch across pauses: process groups, collectives and a captured CUDA graph, all results compared.

Run by torchrun, one process per GPU, with the shim preloaded (amemctl run) or without:

    amemctl run --group train -- torchrun --standalone --nproc-per-node 2 torch_cycle.py --pause inside

The program is an ordinary PyTorch program: nothing in it knows amem but the two calls that pause and resume.
Exit status: 0 all right, 1 a check failed, 77 not enough GPUs.
"""

import argparse
import ctypes
import faulthandler
import json
import os
import random
import sys
import time

import torch_rank
from torch_rank import CheckFailed, Memory, SKIPPED, loaded_nccl, missing_gpus, own_device, sums, values

import torch
import torch.distributed as dist

SIZES = (4 << 10, 256 << 10, 64 << 20)


class Collectives:
    """The collectives of one process group, each checked against what must arrive."""

    def __init__(self, group, device, label, number=0):
        self.group = group
        self.device = device
        self.label = label
        self.number = number  # the same in every rank, whatever other groups it is in
        self.ranks = dist.get_world_size(group)
        self.me = dist.get_rank(group)

    def check(self, what, got, wanted):
        if torch.equal(got, wanted):
            return
        wrong = (got != wanted).nonzero().flatten()
        at = int(wrong[0])
        raise CheckFailed(
            f"{what} of {got.numel()} elements in {self.label}: {wrong.numel()} wrong, the first is "
            f"[{at}] = {float(got[at])}, must be {float(wanted[at])}")

    def mine(self, count, seed):
        return values(self.me, 0, count, seed, self.device)

    def all_reduce(self, count, seed):
        data = self.mine(count, seed)
        dist.all_reduce(data, group=self.group)
        self.check("all-reduce", data, sums(self.ranks, 0, count, seed, self.device))

    def all_gather(self, count, seed):
        part = max(1, count // self.ranks)
        out = torch.full((part * self.ranks,), -99.0, device=self.device)
        dist.all_gather_into_tensor(out, self.mine(part, seed), group=self.group)
        wanted = [values(r, 0, part, seed, self.device) for r in range(self.ranks)]
        self.check("all-gather", out, torch.cat(wanted))

    def reduce_scatter(self, count, seed):
        part = max(1, count // self.ranks)
        out = torch.full((part,), -99.0, device=self.device)
        dist.reduce_scatter_tensor(out, self.mine(part * self.ranks, seed), group=self.group)
        self.check("reduce-scatter", out,
                   sums(self.ranks, self.me * part, part, seed, self.device))

    def all_to_all(self, count, seed):
        part = max(1, count // self.ranks)
        out = torch.full((part * self.ranks,), -99.0, device=self.device)
        dist.all_to_all_single(out, self.mine(part * self.ranks, seed), group=self.group)
        wanted = [values(r, self.me * part, part, seed, self.device) for r in range(self.ranks)]
        self.check("all-to-all", out, torch.cat(wanted))

    def all(self, size, seed):
        for call in (self.all_reduce, self.all_gather, self.reduce_scatter, self.all_to_all):
            call(size // 4, seed)


class CapturedAllReduce:
    """A CUDA graph with arithmetic and an all-reduce, captured once and replayed with new data."""

    COUNT = 1 << 20

    def __init__(self, group, device):
        self.collectives = Collectives(group, device, "the captured graph")
        self.buffer = torch.zeros(self.COUNT, device=device)
        self.result = torch.zeros(self.COUNT, device=device)
        dist.all_reduce(self.buffer, group=group)  # the communicator exists before the capture
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            dist.all_reduce(self.buffer, group=group)
            self.result.copy_(self.buffer * 2)

    def replay(self, seed):
        c = self.collectives
        self.buffer.copy_(c.mine(self.COUNT, seed))
        self.graph.replay()
        c.check("replayed all-reduce", self.result,
                2 * sums(c.ranks, 0, self.COUNT, seed, c.device))


class Pauses(torch_rank.Pauses):
    """Inside by AMem's calls, ncclPause in every rank; outside by amemctl."""

    def __init__(self, how, group, host_group):
        super().__init__(how, group, host_group)
        if how == "inside":
            library = ctypes.CDLL(None)
            self.calls = {"pause": library.ncclPause, "resume": library.ncclResume}
            for call in self.calls.values():
                call.argtypes = [ctypes.c_void_p]
                call.restype = ctypes.c_int

    def from_inside(self, verb, tags):
        result = self.calls[verb](None)
        if result != 0:
            raise CheckFailed(f"nccl{verb.capitalize()} returned {result}")


class Program:
    """What every rank runs."""

    def __init__(self, options):
        self.options = options
        self.device = own_device()
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", device_id=self.device if options.split else None)
        self.rank = dist.get_rank()
        world = dist.get_world_size()
        random.seed(self.rank)
        self.host_group = dist.new_group(backend="gloo")
        groups = [(f"group {g}", list(range(world))) for g in range(options.groups)]
        if world >= 4:
            groups += [(f"ranks {ranks}", ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 2, 3])]
        # new_group is collective over all ranks, members or not.
        made = [(label, ranks, dist.new_group(ranks)) for label, ranks in groups]
        self.sets = [Collectives(group, self.device, label, number)
                     for number, (label, ranks, group) in enumerate(made) if self.rank in ranks]
        self.memory = Memory(self.device, options.tolerance_mib)
        self.pauses = Pauses(options.pause, options.group, self.host_group)
        self.weights = torch.randn(2048, 2048, device=self.device)

    def arm_watchdog(self):
        """Prints every thread's Python stack and ends the process when it is not called again in time."""
        faulthandler.dump_traceback_later(self.options.watchdog, exit=True)

    def verify(self, seed):
        for collectives in self.sets:
            for size in SIZES:
                collectives.all(size, seed * 131 + collectives.number)

    def cycles(self):
        self.memory.note("before_nccl")
        self.verify(0)
        graph = CapturedAllReduce(self.sets[0].group, self.device)
        graph.replay(0)
        checksum = self.weights.double().sum().item()
        for k in range(1, self.options.cycles + 1):
            self.arm_watchdog()
            if self.options.pause != "none":
                self.cycle_pause(k)
            graph.replay(k)
            self.verify(k)
            if self.weights.double().sum().item() != checksum:
                raise CheckFailed("the weights changed")
        self.memory.note("after")

    def cycle_pause(self, k):
        torch.cuda.synchronize()
        dist.barrier(group=self.host_group)
        running = self.memory.used()
        brokered = self.pauses.operator.resident(self.memory.uuid)
        if k == 1:
            self.memory.note("running")
        self.pauses.do("pause")
        status = self.pauses.operator.group_status()
        if status["state"] != "GROUP_STATE_PAUSED" or status["resident_bytes"] != 0:
            raise CheckFailed(f"paused, but the broker says {status['state']}, "
                              f"{status['resident_bytes']} B resident")
        if self.options.memory_checks:
            self.memory.check_paused(running, brokered)
        self.pauses.do("resume")

    def burst(self, seed):
        """Arithmetic and collectives of all groups at once; whoever comes late keeps its peers waiting."""
        works = []
        for _ in range(8):
            if random.random() < 0.2:
                time.sleep(random.random() / 1000)
            self.weights.matmul(self.weights)
            for collectives in self.sets:
                data = collectives.mine(64 << 10, seed)
                works.append((collectives, data,
                              dist.all_reduce(data, group=collectives.group, async_op=True)))
        for collectives, data, work in works:
            work.wait()
            collectives.check("all-reduce", data,
                              sums(collectives.ranks, 0, data.numel(), seed, self.device))

    def loop(self):
        end = time.monotonic() + self.options.loop
        iterations = 0
        graph = CapturedAllReduce(self.sets[0].group, self.device) if self.options.graph else None
        stop = torch.zeros(1, device=self.device)
        while stop.item() == 0:
            self.arm_watchdog()
            self.burst(iterations)
            if graph is not None:
                graph.replay(iterations)
            iterations += 1
            if self.rank == 0:
                self.write_progress(iterations)
                if time.monotonic() > end or os.path.exists(self.options.stop_file):
                    stop.fill_(1)
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        self.verify(iterations)
        return iterations

    def write_progress(self, iterations):
        if self.options.progress:
            with open(self.options.progress + ".new", "w", encoding="ascii") as file:
                file.write(f"{iterations}\n")
            os.replace(self.options.progress + ".new", self.options.progress)

    def run(self):
        self.arm_watchdog()
        iterations = 0
        if self.options.loop > 0:
            iterations = self.loop()
        else:
            self.cycles()
        torch.cuda.synchronize()
        dist.barrier(group=self.host_group)
        report = {"program": "torch_cycle", "torch": torch.__version__,
                  "nccl": loaded_nccl(),
                  "ranks": dist.get_world_size(), "groups": len(self.sets), "pause": self.options.pause,
                  "iterations": iterations, **self.pauses.summary(), "device_mib": self.memory.figures}
        dist.destroy_process_group()
        faulthandler.cancel_dump_traceback_later()
        if self.rank == 0:
            print(json.dumps(report), flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--groups", type=int, default=4, help="process groups of all ranks")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--pause", choices=("inside", "outside", "none"), default="inside")
    parser.add_argument("--loop", type=float, default=0, metavar="SECONDS",
                        help="run collectives for so long, without cycles")
    parser.add_argument("--graph", action="store_true", help="the loop also replays a captured graph with an all-reduce")
    parser.add_argument("--group", default=os.environ.get("AMEM_GROUP", ""))
    parser.add_argument("--split", action="store_true",
                        help="let PyTorch make the groups' communicators by ncclCommSplit")
    parser.add_argument("--progress", help="file for the number of iterations so far")
    parser.add_argument("--stop-file", default="", help="end the loop as soon as this file exists")
    parser.add_argument("--watchdog", type=float, default=90,
                        help="seconds for one cycle until it is a hang")
    parser.add_argument("--tolerance-mib", type=int, default=16)
    parser.add_argument("--no-memory-checks", dest="memory_checks", action="store_false",
                        help="where others use the GPUs too")
    return parser.parse_args(arguments)


def main():
    faulthandler.enable()
    options = parse(sys.argv[1:])
    if missing := missing_gpus():
        print(f"skipped: {missing}", file=sys.stderr)
        return SKIPPED
    try:
        Program(options).run()
    except CheckFailed as failure:
        print(f"FAILED rank {os.environ.get('RANK')}: {failure}", file=sys.stderr, flush=True)
        # Without destructors: they would wait for peers that this failure has left behind.
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
