#!/usr/bin/env python3
"""PyTorch's GradScaler may read a copy before it has arrived. Shown without amem, by hand; no case of the tests.

A fused optimizer is given `found_inf`, which says whether to skip the step. Where the scale lives on the CPU, GradScaler copies it
there from the GPU without a wait (`to(..., non_blocking=True)`) into a block of pinned memory, and reads it at once. When the copy
is late the step is decided by what the block held before. Here the copy is made late by a kernel that waits, and blocks that hold
a 1 or a 0 are put into PyTorch's cache of pinned memory before:

    python3 late_copy.py

One line for each stream, old value and delay: how many steps were skipped. None should be.
"""

import argparse
import sys

import torch

GRADIENT = 15.0  # 5 times 3, the two scales
STALE_BLOCKS = 8


def leave_in_pinned_cache(value):
    """Blocks that hold this and are free: the next ones that are asked for."""
    blocks = [torch.FloatTensor([value]).pin_memory() for _ in range(STALE_BLOCKS)]
    del blocks


def step_is_skipped(delay):
    """One step of a fused optimizer. `delay`: cycles of the GPU for which what comes before the step waits."""
    weights = torch.ones((5, 5), device="cuda", requires_grad=True)
    weights.grad = torch.full_like(weights, GRADIENT)
    optimizer = torch.optim.SGD([weights], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(init_scale=5)
    scaler.scale(torch.ones(5))  # a tensor of the CPU: so the scale lives there
    optimizer.grad_scale = torch.Tensor([3]).cuda()
    if delay:
        torch.cuda._sleep(delay)
    scaler.step(optimizer)
    return weights.grad.cpu()[0, 0].item() == GRADIENT  # a step that is made unscales the gradient


def count_skipped(options, stale, delay):
    skipped = 0
    for _ in range(options.tries):
        torch.cuda.synchronize()
        leave_in_pinned_cache(stale)
        skipped += step_is_skipped(delay)
    return skipped


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tries", type=int, default=40, help="steps of each kind; 40")
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 100_000, 20_000_000], metavar="CYCLES",
                        help="of the GPU, before the step; 0, 100000 and 20000000")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    for name, stream in (("default", torch.cuda.default_stream()), ("side", torch.cuda.Stream())):
        with torch.cuda.stream(stream):
            for stale in (1.0, 0.0):
                for delay in options.delays:
                    skipped = count_skipped(options, stale, delay)
                    print(f"{name} stream, old value {stale:g}, {delay} cycles: {skipped} of {options.tries} steps skipped",
                          flush=True)


if __name__ == "__main__":
    main()
