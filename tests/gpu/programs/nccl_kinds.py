#!/usr/bin/env python3
"""NCCL's kinds of memory besides its own buffers, across pauses: registered, captured, symmetric, and communicators that come
and go. One kind per run, by torchrun:

    amemctl run --group train -- torchrun --standalone --nproc-per-node 2 nccl_kinds.py window

Before the first pause and after the last one the program proves that NCCL does what the kind is about (by the profiler or by
NCCL's own log), and after every resume that all data is right. Exit status: torch_rank.py.
"""

import argparse
import os
import pathlib
import sys
import tempfile

import figures
import nccl_calls
import torch_rank
from nccl_calls import Collectives, Communicator, Nccl
from torch_rank import Later, NotHere, Rank, eventually

import torch
import torch.distributed as dist

KINDS = {}


def kind(cls):
    KINDS[cls.name] = cls
    return cls


class Kind:
    """What a kind is; all methods are called by all ranks at the same time."""

    name = ""
    environment = {}  # set before NCCL is used
    part = 1 << 20  # elements of one rank: 4 MiB, for which NCCL does not take its protocols for small messages

    def __init__(self, rank):
        self.rank = rank

    def verify(self, seed):
        """Collectives, all of whose data is compared."""
        raise NotImplementedError

    def evidence(self, seed):
        """What shows that NCCL does it in this way; a dict for the report."""
        return {}

    def missing(self, evidence):
        """Why that does not show it, else "". """
        return ""

    def cycle(self, number):
        self.rank.cycle(number)

    def end(self):
        """Gives everything back."""


class OfBuffers(Kind):
    """Collectives from and to buffers of ncclMemAlloc, by a communicator of the program's own."""

    settings = {}  # of the communicator
    calls = Collectives.ALL

    def __init__(self, rank):
        super().__init__(rank)
        self.nccl = Nccl(rank.device)
        self.communicator = Communicator.of_all(self.nccl, rank, **self.settings)
        self.collectives = Collectives(self.communicator, self.nccl.allocate, self.part, self.calls)

    def verify(self, seed):
        self.collectives.verify(seed)

    def counted(self, seed):
        self.collectives.fill(seed)
        counts = torch_rank.profiled(self.collectives.run)
        self.collectives.check(seed)
        return counts

    def end(self):
        # The communicator first: what it knows of a graph's buffers goes with it.
        self.communicator.destroy()
        del self.collectives
        self.nccl.free()


# ---- registered buffers -----------------------------------------------------------------------------------------


class Logged(OfBuffers):
    """Where NCCL's log says how often a peer mapped a buffer. With this algorithm and protocol NCCL uses registered
    buffers also without NVLS."""

    environment = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "REG"}

    folder = None

    @classmethod
    def log_to_file(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="amem-nccl-")  # goes with the process
        os.environ["NCCL_DEBUG_FILE"] = f"{cls.folder.name}/%p.log"

    def evidence(self, seed):
        log = pathlib.Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())))
        return figures.registrations(log.read_text(errors="replace"))

    def missing(self, evidence):
        return "" if evidence["peers"] > 0 else f"NCCL's log does not say that a peer mapped a buffer: {evidence}"


@kind
class Registered(Logged):
    """ncclMemAlloc and ncclCommRegister."""

    name = "registered"

    def __init__(self, rank):
        super().__init__(rank)
        self.registrations = [self.communicator.register(buffer) for buffer in self.collectives.buffers()]

    def end(self):
        torch.cuda.synchronize()
        for registration in self.registrations:
            self.communicator.deregister(registration)
        super().end()


@kind
class Captured(Logged):
    """Buffers that NCCL registers because a CUDA graph uses them. The graph is captured once."""

    name = "captured"

    def __init__(self, rank):
        super().__init__(rank)
        self.collectives.verify(0)  # the connections exist before the capture
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.collectives.run()

    def verify(self, seed):
        self.collectives.fill(seed)
        self.graph.replay()
        self.collectives.check(seed)

    def end(self):
        # NCCL waits for graphs that use a communicator before it lets go of it.
        torch.cuda.synchronize()
        self.graph.reset()
        del self.graph
        super().end()


# ---- symmetric memory -------------------------------------------------------------------------------------------


class OfWindows(OfBuffers):
    flags = nccl_calls.WINDOW_SYMMETRIC

    def __init__(self, rank):
        super().__init__(rank)
        self.windows = [self.communicator.open_window(buffer, self.flags) for buffer in self.collectives.buffers()]

    def end(self):
        torch.cuda.synchronize()
        for window in self.windows:
            self.communicator.close_window(window)
        super().end()


@kind
class Window(OfWindows):
    """Windows that peers map, and collectives to and from them; one more window is opened and closed between cycles."""

    name = "window"

    def cycle(self, number):
        late = self.nccl.allocate(self.part)
        window = self.communicator.open_window(late, self.flags)
        values = torch_rank.values(self.rank.rank, 0, self.part, number, self.rank.device)
        late.copy_(values)
        super().cycle(number)
        torch_rank.check_equal("a window opened before this pause", late, values)
        torch.cuda.synchronize()
        self.communicator.close_window(window)
        self.nccl.call("ncclMemFree", self.nccl.allocated.pop())


@kind
class SymmetricKernels(OfWindows):
    """Collectives that NCCL runs by its symmetric kernels."""

    name = "symmetric_kernels"

    def evidence(self, seed):
        return self.counted(seed)

    def missing(self, evidence):
        right = evidence["symmetric"] == len(self.calls) and evidence["nccl"] == 0
        return "" if right else f"{len(self.calls)} collectives were not one symmetric kernel each: {evidence}"


@kind
class CopyEngines(OfWindows):
    """An all-gather without GPU threads."""

    name = "copy_engines"
    settings = {"CTAPolicy": nccl_calls.POLICY_ZERO}
    calls = ("all_gather",)

    def __init__(self, rank):
        # NCCL 2.28 copies by cudaMemcpyBatchAsync, which takes no legacy default stream.
        torch.cuda.set_stream(torch.cuda.Stream())
        super().__init__(rank)

    def evidence(self, seed):
        return self.counted(seed)

    def missing(self, evidence):
        kernels = evidence["nccl"] + evidence["symmetric"]
        right = kernels == 0 and evidence["copy"] + evidence["batch"] > 0
        return "" if right else f"the all-gather was not copied by copy engines: {evidence}"


class TorchCommunicator:
    """PyTorch's communicator of all ranks, with the calls of Communicator."""

    def __init__(self, rank):
        self.index, self.size = rank.rank, rank.world

    @staticmethod
    def all_reduce(send, receive):
        receive.copy_(send)
        dist.all_reduce(receive)

    @staticmethod
    def all_gather(send, receive):
        dist.all_gather_into_tensor(receive, send)

    @staticmethod
    def reduce_scatter(send, receive):
        dist.reduce_scatter_tensor(receive, send)


@kind
class TorchSymmetric(Kind):
    """PyTorch's symmetric memory with the NCCL backend, and its collectives on such tensors."""

    name = "torch_symmetric"

    def __init__(self, rank):
        super().__init__(rank)
        self.symmetric = torch_rank.Symmetric(rank)
        self.collectives = Collectives(TorchCommunicator(rank), self.symmetric.allocate, self.part)

    def verify(self, seed):
        self.collectives.verify(seed)

    def evidence(self, seed):
        self.collectives.fill(seed)
        counts = torch_rank.profiled(self.collectives.run)
        self.collectives.check(seed)
        return counts

    def missing(self, evidence):
        right = evidence["symmetric"] == len(Collectives.ALL)
        return "" if right else f"{len(Collectives.ALL)} collectives were not one symmetric kernel each: {evidence}"


# ---- communicators that come and go -----------------------------------------------------------------------------


@kind
class Changing(Kind):
    """Communicators made, split and destroyed between pauses, while others stay."""

    name = "changing"
    part = 1 << 18
    KEPT = 3

    def __init__(self, rank):
        super().__init__(rank)
        self.nccl = Nccl(rank.device)
        self.families = []  # a communicator, one of a part of its ranks, and collectives of both
        self.made = 0
        self.add()

    def add(self):
        # With two ranks a part of one would hold no memory of peers, so both are in it.
        parts = 2 if self.rank.world >= 4 else 1
        whole = Communicator.of_all(self.nccl, self.rank)
        part = whole.split(lambda index: index % parts)
        sets = [Collectives(each, lambda count: torch.empty(count, device=self.rank.device), self.part)
                for each in (whole, part)]
        self.families.append((whole, part, sets))
        self.made += 1

    def remove(self):
        whole, part, _ = self.families.pop(0)
        part.destroy()
        whole.destroy()

    def verify(self, seed):
        for number, (_, _, sets) in enumerate(self.families):
            for each in sets:
                each.verify(seed + 100 * number)

    def evidence(self, seed):
        return {"made": 2 * self.made}

    def cycle(self, number):
        if len(self.families) >= self.KEPT:
            self.remove()
        self.add()
        if number % 2 == 0:
            self.verify(50 + number)  # every other time the new ones have not been used before their first pause
        super().cycle(number)

    def end(self):
        while self.families:
            self.remove()


@kind
class Aborted(Kind):
    """ncclCommAbort of a paused communicator, another one stays. What the call has to free is paused: it may wait until the
    group is resumed, and must then come to an end."""

    name = "aborted"

    def __init__(self, rank):
        super().__init__(rank)
        self.nccl = Nccl(rank.device)
        self.stays = self.collectives()
        self.doomed = self.collectives()
        self.waited = []

    def collectives(self):
        return Collectives(Communicator.of_all(self.nccl, self.rank),
                           lambda count: torch.empty(count, device=self.rank.device), self.part)

    def verify(self, seed):
        self.stays.verify(seed)
        self.doomed.verify(seed + 1)

    def evidence(self, seed):
        return {"waited": sum(self.waited), "aborted": len(self.waited)}

    def cycle(self, number):
        if self.rank.options.pause == "none":
            self.doomed.communicator.abort()
        else:
            self.rank.pause(number)
            call = Later(self.doomed.communicator.abort)
            self.waited.append(call.waits(0.5))
            self.rank.resume(number)
            call.wait("ncclCommAbort")
        self.rank.barrier()
        self.stays.verify(200 + number)
        self.doomed = self.collectives()

    def end(self):
        self.stays.communicator.destroy()
        self.doomed.communicator.destroy()


# ---- the program ------------------------------------------------------------------------------------------------


def check_nothing_left(rank):
    """The program's communicators and buffers were all that was brokered."""
    if rank.options.pause == "none":
        return
    rank.barrier()
    most = rank.memory.tolerance * rank.world
    eventually(lambda: rank.operator.group_status()["allocated_bytes"] <= most, True)
    left = rank.operator.group_status()["allocated_bytes"]
    rank.agree(left <= most, f"{left >> 20} MiB are still brokered with everything freed")


def made(rank, chosen):
    """The kind, in every rank or in none."""
    this, why = None, ""
    try:
        this = chosen(rank)
    except NotHere as missing:
        why = str(missing)
    rank.all_here(why)
    return this


def run(options):
    chosen = KINDS[options.kind]
    os.environ.update(chosen.environment)
    if issubclass(chosen, Logged):
        chosen.log_to_file()
    rank = Rank(options)
    this = made(rank, chosen)
    this.verify(0)
    before = this.evidence(1)
    rank.all_here(this.missing(before))
    for cycle in range(1, options.cycles + 1):
        rank.arm_watchdog()
        this.cycle(cycle)
        this.verify(cycle + 1)
    after = this.evidence(2)
    rank.agree(not this.missing(after), f"after {options.cycles} cycles: {this.missing(after)}")
    rank.arm_watchdog()
    this.end()
    if not isinstance(this, TorchSymmetric):
        check_nothing_left(rank)
    rank.report("nccl_kinds", kind=options.kind, before=before, after=after)
    rank.end()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    torch_rank.add_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(torch_rank.run_main(lambda: run(parse(sys.argv[1:]))))
