#!/usr/bin/env python3
"""Regions and tags on a GPU: what leaves, what stays, what comes back, and what the program is told otherwise.

Run by torchrun with scope regions:

    amemctl run --group train --scope regions -- torchrun --standalone --nproc-per-node 2 regions.py

Exit status: torch_rank.py.
"""

import argparse
import contextlib
import ctypes
import sys

import figures
import torch_rank
from torch_rank import Later, MIB, Rank, check, check_equal, eventually, verify_all_reduce

import amem
import torch

WEIGHTS, CACHE = "weights", "kv_cache"
SLACK_MIB = 64  # torch and the driver round sizes up
CODES = {"usage": 2, "not_found": 4, "state": 5, "deadline": 6}  # amemctl's exit codes


def pattern(count, seed, device):
    return torch_rank.values(3, 0, count, seed, device)


class Runtime(torch_rank.Runtime):
    def free(self, address):
        self.call("cudaFree", address)

    def fill(self, address, byte, size):
        self.call("cudaMemset", address, ctypes.c_int(byte), ctypes.c_size_t(size))


@contextlib.contextmanager
def refused(kind, what):
    try:
        yield
    except kind as error:
        print(f"{what}: {error}", file=sys.stderr)
        return
    check(False, f"{what}: no {kind.__name__}")


class Program:
    def __init__(self, options):
        self.options = options
        self.rank = Rank(options)
        self.device = self.rank.device
        self.operator = self.rank.operator
        self.runtime = Runtime()
        self.done = []
        with amem.region(WEIGHTS, keep=True):
            self.weights = torch.empty(options.weights_mib * MIB // 4, device=self.device)
        with amem.region(CACHE, keep=False):
            self.cache = torch.empty(options.cache_mib * MIB // 4, device=self.device)
        # Filled out here: temporaries would be the region's too.
        self.weights.copy_(pattern(self.weights.numel(), 1, self.device))
        self.fill_cache(2)
        self.plain = pattern(1 << 20, 3, self.device)
        self.collective(0)

    # ---- what the steps need ----

    def collective(self, seed):
        verify_all_reduce(self.rank, seed)

    def fill_cache(self, seed):
        self.cache.copy_(pattern(self.cache.numel(), seed, self.device))

    def check_weights(self, when):
        check_equal(f"weights {when}", self.weights, pattern(self.weights.numel(), 1, self.device))

    def check_cache_zero(self, when):
        check(int(torch.count_nonzero(self.cache)) == 0, f"the discarded cache is not zero {when}")

    def check_plain(self, when):
        check_equal(f"memory outside of regions {when}", self.plain, pattern(self.plain.numel(), 3, self.device))

    def usage(self, tag):
        return figures.tag_of(self.operator.group_status(), tag)

    def both(self, verb, tags=None):
        """In every rank, from inside."""
        torch.cuda.synchronize()
        self.rank.barrier()
        {"pause": amem.pause, "resume": amem.resume}[verb](tags)
        self.rank.barrier()

    def alone(self, action):
        """Rank 0 does it while the others wait; a failure ends them all."""
        failure = None
        if self.rank.rank == 0:
            try:
                action()
            except torch_rank.CheckFailed as error:
                failure = str(error)
        self.rank.agree(failure is None, failure or "")

    def amemctl(self, wanted, *arguments):
        done = self.operator.call(*arguments)
        check(done.returncode == wanted, f"amemctl {' '.join(arguments)} ended with {done.returncode}, {wanted} is "
                                         f"right: {self.operator.said(done)}")

    # ---- the steps ----

    def accounting(self):
        """Broker and shim say the same, and it is what was allocated."""
        def action():
            for tag, mib in ((WEIGHTS, self.options.weights_mib), (CACHE, self.options.cache_mib)):
                usage = self.usage(tag)
                least, most = mib * MIB * self.rank.world, (mib + SLACK_MIB) * MIB * self.rank.world
                check(least <= usage["allocated_bytes"] <= most and
                      usage["resident_bytes"] == usage["allocated_bytes"],
                      f"tag {tag}: {usage}, {least} to {most} B were allocated")
                wanted = usage["allocated_bytes"] if tag == CACHE else 0
                check(usage["discard_bytes"] == wanted, f"tag {tag}: {usage['discard_bytes']} B would be dropped")
        self.alone(action)
        mine = {each.tag: each for each in amem.stats().brokered}
        total = sum(each.get(WEIGHTS, 0) for each in self.rank.gather(
            {tag: each.resident_bytes for tag, each in mine.items()}))
        self.rank.agree(total == self.usage(WEIGHTS)["resident_bytes"],
                        f"the shims count {total} B of {WEIGHTS}, the broker {self.usage(WEIGHTS)}")

    def weights_first(self):
        """Weights, then cache; the group runs on in between."""
        self.fill_cache(4)
        torch.cuda.synchronize()
        before = self.rank.memory.used()
        held = {tag: sum(each.resident_bytes for each in amem.stats().brokered if each.tag == tag)
                for tag in (WEIGHTS, CACHE)}
        self.both("pause", [WEIGHTS])
        self.freed("weights", before, held[WEIGHTS])
        self.alone(lambda: self.state_is("GROUP_STATE_RUNNING", {WEIGHTS: False, CACHE: True}))
        check_equal("the cache while the weights are paused", self.cache, pattern(self.cache.numel(), 4, self.device))
        self.collective(5)
        torch.cuda.synchronize()
        self.rank.barrier()
        before = self.rank.memory.used()
        self.rank.barrier()
        self.both("pause", [CACHE])
        self.freed("cache", before, held[CACHE])
        self.alone(lambda: self.state_is("GROUP_STATE_RUNNING", {WEIGHTS: False, CACHE: False}))
        self.check_plain("while the regions are paused")
        self.collective(6)
        self.both("resume", [WEIGHTS])
        self.check_weights("after their resume")
        self.alone(lambda: self.state_is("GROUP_STATE_RUNNING", {WEIGHTS: True, CACHE: False}))
        self.both("resume", [CACHE])
        self.check_cache_zero("after its resume")

    def freed(self, what, before, held):
        freed = before - self.rank.memory.used()
        self.rank.agree(abs(freed - held) <= self.rank.memory.tolerance,
                        f"{what}: the driver says that {freed >> 20} MiB were freed, the shim held {held >> 20}")

    def state_is(self, state, resident):
        status = self.operator.group_status()
        check(status["state"] == state, f"the group is {status['state']}, not {state}")
        for tag, there in resident.items():
            usage = figures.tag_of(status, tag)
            check((usage["resident_bytes"] > 0) == there, f"tag {tag} should be {'here' if there else 'paused'}: {usage}")
            if tag == CACHE:
                check(usage["saved_bytes"] == 0, f"discarded bytes were saved: {usage}")
            elif not there:
                check(usage["saved_bytes"] > 0, f"kept bytes were not saved: {usage}")

    def everything(self):
        """A whole pause, in the same program."""
        self.fill_cache(7)
        self.rank.pause(2)
        self.rank.resume(2)
        self.check_weights("after a whole pause")
        self.check_cache_zero("after a whole pause")
        self.check_plain("after a whole pause")
        self.collective(8)

    def nested(self):
        with amem.region(WEIGHTS, keep=True):
            with refused(amem.FailedPreconditionError, "a region within a region"):
                with amem.region(CACHE, keep=False):
                    pass
            inside = torch.ones(1 << 20, device=self.device)
        check(float(inside.sum()) == 1 << 20, "the outer region's memory is broken")

    def unknown_tag(self):
        """By every rank, and by the operator; the group runs on."""
        self.rank.barrier()
        with refused(amem.NotFoundError, "a pause of an unknown tag"):
            amem.pause("no_such_tag")
        self.rank.barrier()
        self.alone(lambda: self.amemctl(CODES["not_found"], "pause", self.options.group, "--tag", "no_such_tag"))
        self.alone(lambda: self.state_is("GROUP_STATE_RUNNING", {WEIGHTS: True, CACHE: True}))
        self.collective(9)

    def in_capture(self):
        """A pause waits for the end of a capture; one that cannot wait so long changes nothing."""
        source = pattern(1 << 20, 10, self.device)
        target = torch.zeros_like(source)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            target.copy_(source * 2)
            self.rank.barrier()
            self.alone(lambda: self.amemctl(CODES["deadline"], "pause", self.options.group, "--timeout", "2s"))
            target.add_(1)
        graph.replay()
        check_equal("the graph during whose capture a pause was tried", target, source * 2 + 1)
        self.rank.pause(2)
        self.rank.resume(2)
        source.copy_(pattern(1 << 20, 11, self.device))
        graph.replay()
        check_equal("that graph after a pause", target, source * 2 + 1)

    def graph_while_paused(self):
        """A graph that copies from memory that is paused waits for it. Torch has destroyed the graph that it was made of."""
        count = 1 << 20
        target = torch.zeros(count, device=self.device)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            target.copy_(self.weights[:count])

        def replay():
            torch.cuda.set_device(self.device)
            graph.replay()

        torch.cuda.synchronize()
        # An operator's pause: a launch that copies what its own process has paused fails.
        self.alone(lambda: self.amemctl(0, "pause", self.options.group, "--tag", WEIGHTS))
        launch = Later(replay)
        waited = launch.waits()
        self.rank.barrier()
        self.alone(lambda: self.amemctl(0, "resume", self.options.group, "--tag", WEIGHTS))
        launch.wait("the graph's launch")
        torch.cuda.synchronize()
        self.rank.agree(waited, "a graph was launched that copies from memory that is paused")
        check_equal("what the graph has copied", target, self.weights[:count])

    def freed_while_paused(self):
        """Memory given back while its tag is paused: gone from the accounts, and the rest comes back."""
        with amem.region(WEIGHTS, keep=True):
            extra = self.runtime.allocate(96 * MIB)
            torch_tensor = torch.ones(1 << 22, device=self.device)
        self.runtime.fill(extra, 7, 96 * MIB)
        self.both("pause", [WEIGHTS])
        before = self.usage(WEIGHTS)["allocated_bytes"]
        self.rank.barrier()
        del torch_tensor  # goes back to torch's pool, without any call of the driver
        self.runtime.free(extra)
        self.rank.barrier()
        after = eventually(lambda: self.usage(WEIGHTS)["allocated_bytes"], before - 96 * MIB * self.rank.world)
        self.rank.agree(before - after == 96 * MIB * self.rank.world,
                        f"freed 96 MiB per rank while paused: allocated {before} -> {after} B")
        self.both("resume", [WEIGHTS])
        self.check_weights("after some of the tag was freed while paused")
        with amem.region(WEIGHTS, keep=True):
            again = torch.empty(1 << 22, device=self.device)
        again.copy_(pattern(1 << 22, 13, self.device))
        check_equal("memory freed while paused and taken again", again, pattern(1 << 22, 13, self.device))

    def waits_at_the_gate(self):
        """Everything is paused: a free is done at once, and an allocation waits for the resume."""
        with amem.region(WEIGHTS, keep=True):
            old = self.runtime.allocate(32 * MIB)

        def allocate():
            torch.cuda.set_device(self.device)
            with amem.region(WEIGHTS, keep=True):
                return self.runtime.allocate(64 * MIB)

        def free():
            torch.cuda.set_device(self.device)
            self.runtime.free(old)

        def torch_allocates():
            torch.cuda.set_device(self.device)
            with amem.region(WEIGHTS, keep=True):
                return torch.full((80 * MIB,), 5, dtype=torch.uint8, device=self.device)

        self.rank.pause(2)
        Later(free).wait("cudaFree")
        calls = {"cudaMalloc": Later(allocate)}
        waited = {name: call.waits() for name, call in calls.items()}
        # Last: from here on that thread has the lock of torch's allocator, which entering a region needs too.
        calls["torch.full"] = Later(torch_allocates)
        waited["torch.full"] = calls["torch.full"].waits()
        self.rank.resume(2)
        results = {name: call.wait(name) for name, call in calls.items()}
        self.rank.agree(all(waited.values()), f"these calls did not wait while paused: "
                                              f"{[name for name, did in waited.items() if not did]}")
        self.runtime.fill(results["cudaMalloc"], 1, 64 * MIB)
        check(int(results["torch.full"].sum(dtype=torch.int64)) == 5 * 80 * MIB, "what was allocated while paused is wrong")
        self.runtime.free(results["cudaMalloc"])
        self.check_weights("after calls waited at the gate")

    def policy(self):
        """A tag's policy: not while it is paused; then the operator's word goes before the region's."""
        group = self.options.group
        self.both("pause", [CACHE])
        self.alone(lambda: self.amemctl(CODES["state"], "policy", group, CACHE, "keep"))
        self.both("resume", [CACHE])
        self.check_cache_zero("after a policy was refused")
        self.alone(lambda: self.amemctl(0, "policy", group, CACHE, "keep"))
        self.fill_cache(14)
        self.both("pause", [CACHE])
        self.both("resume", [CACHE])
        check_equal("the cache kept by policy", self.cache, pattern(self.cache.numel(), 14, self.device))
        self.alone(lambda: self.amemctl(CODES["usage"], "policy", group, "nccl", "discard"))
        self.alone(lambda: self.amemctl(0, "policy", group, CACHE, "discard"))
        self.both("pause", [CACHE])
        self.both("resume", [CACHE])
        self.check_cache_zero("after its policy is discard again")

    def run(self):
        steps = (self.accounting, self.weights_first, self.everything, self.nested, self.unknown_tag, self.in_capture,
                 self.graph_while_paused, self.freed_while_paused, self.waits_at_the_gate, self.policy)
        for step in steps:
            if self.options.only and step.__name__ not in self.options.only:
                continue
            self.rank.arm_watchdog()
            step()
            self.rank.barrier()
            self.done.append(step.__name__)
        tags = self.operator.group_status()["tags"]
        held = {each["tag"]: each["allocated_bytes"] >> 20 for each in tags}
        self.rank.report("regions", steps=self.done, tags_mib=held, unbrokered_mib=self.rank.unbrokered_mib())
        self.rank.end()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    torch_rank.add_options(parser)
    parser.add_argument("--weights-mib", type=int, default=512)
    parser.add_argument("--cache-mib", type=int, default=1024)
    parser.add_argument("--only", nargs="*", help="names of steps")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(torch_rank.run_main(lambda: Program(parse(sys.argv[1:])).run()))
