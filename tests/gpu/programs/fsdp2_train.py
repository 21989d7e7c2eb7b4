#!/usr/bin/env python3
"""FSDP2 training across pauses, its staging buffers in symmetric memory.

A transformer sharded by fully_shard, AdamW in float32. What FSDP2 gathers and scatters lies in one allocation of PyTorch's
symmetric memory (NCCL backend), so that NCCL uses its symmetric kernels. Run by torchrun:

    amemctl run --group train --scope heap -- torchrun --standalone --nproc-per-node 2 fsdp2_train.py

The report has the losses, for a comparison with a run without pauses (--pause none). Exit status: torch_rank.py.
"""

import argparse
import sys

import model as models
import torch_rank
from torch_rank import NotHere, Rank, check, verify_all_reduce

import torch
from torch.distributed.fsdp import fully_shard

try:
    # No public names for these yet; set_custom_all_gather() and set_custom_reduce_scatter() take them.
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
except ImportError:
    DefaultAllGather = DefaultReduceScatter = object

ALIGNED = 1024  # elements: more than any kernel asks for


class Staging:
    """FSDP2's staging buffers. The first step uses ordinary ones and notes their sizes; from the second on the n-th request
    of a step gets the n-th part of one symmetric allocation. So it is the same part in every rank, and never one that is
    still in use: a step ends before the next one begins."""

    def __init__(self):
        self.sizes = []
        self.groups = []
        self.whole = None
        self.parts = []
        self.next = 0
        self.calls = 0

    def begin_step(self):
        self.next = 0
        self.calls = 0

    def allocate(self, size, *, dtype, device):
        count = int(size[0])
        check(len(size) == 1 and dtype == torch.float32, f"a staging buffer of {size} {dtype} was asked for")
        if self.whole is None:
            self.sizes.append(count)
            return torch.empty(count, dtype=dtype, device=device)
        part = self.parts[self.next]
        check(part.numel() == count, f"staging buffer {self.next} had {part.numel()} elements, now {count}")
        self.next += 1
        return part

    def called(self, group):
        self.calls += 1
        if group not in self.groups:
            self.groups.append(group)

    def make(self, allocate):
        """Between two steps. `allocate`: makes one buffer of so many elements, known to the peers in the group."""
        check(len(self.groups) == 1, f"FSDP2 uses {len(self.groups)} groups for its buffers")
        offsets = [0]
        for count in self.sizes:
            offsets.append(offsets[-1] + -(-count // ALIGNED) * ALIGNED)
        self.whole = allocate(offsets[-1], self.groups[0])
        # Not views: FSDP2 cuts gradients out of a buffer by their offsets in its storage.
        self.parts = [torch_rank.tensor_at(self.whole.data_ptr() + 4 * begin, count, self.whole.device)
                      for begin, count in zip(offsets, self.sizes)]
        return 4 * offsets[-1]


class StagedAllGather(DefaultAllGather):
    def __init__(self, staging):
        super().__init__()
        self.staging = staging

    def allocate(self, size, *, dtype, device):
        return self.staging.allocate(size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        self.staging.called(group)
        return super().__call__(output_tensor, input_tensor, group, async_op)


class StagedReduceScatter(DefaultReduceScatter):
    def __init__(self, staging):
        super().__init__()
        self.staging = staging

    def allocate(self, size, *, dtype, device):
        return self.staging.allocate(size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        self.staging.called(group)
        return super().__call__(output_tensor, input_tensor, group, op, async_op)


class Training:
    """The sharded model and its optimizer."""

    def __init__(self, rank, options):
        self.rank = rank
        self.sequences, self.length = options.sequences, options.length
        self.shape = {"width": options.width, "layers": options.layers, "vocabulary": 8192, "length": options.length}
        self.model = models.seeded_model(self.shape, 1, rank.device)
        self.staging = Staging()
        for module in (*self.model.blocks, self.model):
            fully_shard(module)
            if not hasattr(module, "set_custom_reduce_scatter") or DefaultAllGather is object:
                raise NotHere(f"FSDP2 of PyTorch {torch.__version__} takes no staging buffers")
            module.set_custom_all_gather(StagedAllGather(self.staging))
            module.set_custom_reduce_scatter(StagedReduceScatter(self.staging))
            # NCCL has symmetric kernels for sums, not for averages.
            module.set_force_sum_reduction_for_comms(True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.losses = []
        self.loss = None

    def launch(self):
        """The next step, not waited for."""
        self.staging.begin_step()
        self.optimizer.zero_grad(set_to_none=True)
        tokens = models.seeded_tokens(self.shape, self.sequences, self.length,
                                      1000 * len(self.losses) + self.rank.rank, self.rank.device)
        self.loss = self.model.loss(tokens)
        self.loss.backward()
        self.optimizer.step()

    def finish(self):
        self.losses.append(self.loss.item())
        torch.cuda.synchronize()

    def step(self):
        self.launch()
        self.finish()

    def counted(self):
        """A step under the profiler: NCCL's kernels by kind, and collectives that FSDP2 made."""
        counts = torch_rank.profiled(self.step)
        return {**counts, "collectives": self.staging.calls}

    def checksum(self):
        tensors = []
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            tensors += [parameter.to_local(), state["exp_avg"].to_local(), state["exp_avg_sq"].to_local()]
        return torch_rank.checksum(tensors)


def unlike(counts):
    """Why a step did not use symmetric kernels for everything, else ""."""
    right = counts["symmetric"] == counts["collectives"] > 0 and counts["nccl"] == 0
    return "" if right else f"a step of FSDP2 did not run by symmetric kernels: {counts}"


def run(options):
    models.deterministic()
    rank = Rank(options)
    symmetric = torch_rank.Symmetric(rank)
    training = Training(rank, options)
    verify_all_reduce(rank, 0)
    training.step()
    staged = training.staging.make(symmetric.allocate)
    training.step()
    before = training.counted()
    rank.all_here(unlike(before))
    for cycle in range(1, options.cycles + 1):
        rank.arm_watchdog()
        training.step()
        # Every third pause finds a step under way, which no checksum can be taken of.
        still = cycle % 3 != 0
        if still:
            checksum = training.checksum()
        else:
            training.launch()
        rank.cycle(cycle, still=still)
        if still:
            rank.agree(training.checksum() == checksum, f"weights or optimizer's state changed over cycle {cycle}")
        else:
            training.finish()
        verify_all_reduce(rank, cycle)
    after = training.counted()
    rank.agree(not unlike(after), f"after {options.cycles} cycles: {unlike(after)}")
    rank.report("fsdp2_train", losses=training.losses, staged_mib=staged >> 20, before=before, after=after,
                checksums=rank.gather(training.checksum()), unbrokered_mib=rank.unbrokered_mib())
    rank.end()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    torch_rank.add_options(parser)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--sequences", type=int, default=4, help="in a rank's batch")
    parser.add_argument("--length", type=int, default=256)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(torch_rank.run_main(lambda: run(parse(sys.argv[1:]))))
