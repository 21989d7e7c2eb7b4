#!/usr/bin/env python3
"""A training step across pauses with all of PyTorch's memory brokered (scope heap).

A transformer with AdamW in float32, one process per GPU, gradients summed by NCCL, forward and backward in a captured CUDA
graph. Run by torchrun:

    amemctl run --group train --scope heap -- torchrun --standalone --nproc-per-node 2 heap_step.py

After each resume all weights and the optimizer's state must be the same bytes; the report has the losses, for a comparison
with a run without pauses (--pause none). Exit status: torch_rank.py.
"""

import argparse
import sys

import model as models
import torch_rank
from torch_rank import Rank, verify_all_reduce

import torch
import torch.distributed as dist

GIB = 1 << 30


class Training:
    """The model, its optimizer and the captured step."""

    def __init__(self, rank, options):
        self.rank = rank
        self.sequences, self.length = options.sequences, options.length
        self.shape = models.shape_for(int(options.state_gib * GIB), options.width, 8192, options.length)
        self.model = models.seeded_model(self.shape, 1, rank.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = self.batch(0)
        self.losses = []
        self.step_number = 0
        self.graph = None
        self.loss = None

    def batch(self, step):
        return models.seeded_tokens(self.shape, self.sequences, self.length, 1000 * step + self.rank.rank,
                                    self.rank.device)

    def forward_backward(self):
        loss = self.model.loss(self.tokens)
        loss.backward()
        return loss.detach()

    def capture(self):
        """Warm on a side stream, as PyTorch wants it, then captured; the gradients live in the graph's memory."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.optimizer.zero_grad(set_to_none=True)
                self.forward_backward()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss = self.forward_backward()

    def launch(self):
        """The next step, not waited for."""
        self.step_number += 1
        self.tokens.copy_(self.batch(self.step_number))
        self.graph.replay()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.rank.world
        self.optimizer.step()

    def finish(self):
        self.losses.append(self.loss.item())

    def step(self):
        self.launch()
        self.finish()

    def state(self):
        tensors = list(self.model.parameters())
        for parameter in self.model.parameters():
            tensors += [self.optimizer.state[parameter][name] for name in ("exp_avg", "exp_avg_sq")]
        return tensors

    def checksum(self):
        return torch_rank.checksum(self.state())

    def bytes(self):
        return 16 * sum(parameter.numel() for parameter in self.model.parameters())


def run(options):
    models.deterministic()
    rank = Rank(options)
    training = Training(rank, options)
    verify_all_reduce(rank, 0)
    training.capture()
    training.step()
    cycles = []
    for cycle in range(1, options.cycles + 1):
        rank.arm_watchdog()
        for _ in range(options.steps - 1):
            training.step()
        # Every fifth pause finds a step under way, which no checksum can be taken of.
        still = cycle % 5 != 0
        if still:
            training.step()
            before = training.checksum()
        else:
            training.launch()
        rank.cycle(cycle, still=still)
        if still:
            rank.agree(training.checksum() == before, f"weights or optimizer's state changed over cycle {cycle}")
        else:
            training.finish()
        verify_all_reduce(rank, cycle)
        cycles.append("still" if still else "under way")
    final = training.checksum()
    sums = rank.gather(final)
    rank.agree(len(set(sums)) == 1, "the ranks' weights differ at the end")
    results = {"losses": training.losses, "checksum": final, "state_mib": training.bytes() >> 20,
               "shape": training.shape, "cycles": {kind: cycles.count(kind) for kind in set(cycles)},
               "unbrokered_mib": rank.unbrokered_mib()}
    rank.arm_watchdog()
    del training
    rank.end()
    if options.memory_checks:
        rank.memory.check_contexts(slack_mib=96)  # the graph itself is the driver's, and has just been destroyed
    rank.report("heap_step", **results)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    torch_rank.add_options(parser, cycles=20)
    parser.add_argument("--state-gib", type=float, default=14, help="weights, gradients and AdamW's state per GPU")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=2, help="in a rank's batch")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2, help="steps between two pauses")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(torch_rank.run_main(lambda: run(parse(sys.argv[1:]))))
