#!/usr/bin/env python3
"""A program whose allocator is cudaMallocAsync computes the same beside a pause, which frees its memory.

    PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync amemctl run --group train --scope heap -- python3 pool_stacks.py torch
    XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async amemctl run --group train --scope heap -- python3 pool_stacks.py jax
    amemctl run --group train --scope heap -- python3 pool_stacks.py cupy

Prints a JSON object; one with "skipped" where the package is not there. Exit status: 0 all right, 1 a check failed.
"""

import argparse
import faulthandler
import importlib.util
import json
import sys

WATCHDOG_S = 170
ELEMENTS = 64 << 20
STEPS = 12
MIB = 1 << 20


class Torch:
    def __init__(self):
        import torch
        self.torch = torch
        if torch.cuda.memory.get_allocator_backend() != "cudaMallocAsync":
            sys.exit(f"FAILED: PyTorch's allocator is {torch.cuda.memory.get_allocator_backend()}")
        self.version = torch.__version__
        self.state = torch.arange(ELEMENTS, device="cuda", dtype=torch.float32) / ELEMENTS

    def step(self, number):
        side = self.torch.cuda.Stream()
        side.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(side):
            part = self.state * (1 + number / 64)
        self.torch.cuda.current_stream().wait_stream(side)
        part.record_stream(self.torch.cuda.current_stream())
        self.state = part.sin()

    def value(self):
        return self.state.double().sum().item()


class Cupy:
    def __init__(self):
        import cupy
        self.cupy = cupy
        self.version = cupy.__version__
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
        self.state = cupy.arange(ELEMENTS, dtype=cupy.float32) / ELEMENTS

    def step(self, number):
        self.state = self.cupy.sin(self.state * (1 + number / 64))

    def value(self):
        return float(self.state.sum(dtype=self.cupy.float64))


class Jax:
    def __init__(self):
        import jax
        self.jax = jax
        self.version = jax.__version__
        self.state = jax.numpy.arange(ELEMENTS, dtype=jax.numpy.float32) / ELEMENTS

    def step(self, number):
        self.state = self.jax.numpy.sin(self.state * (1 + number / 64))

    def value(self):
        return float(self.state.sum())


STACKS = {"torch": Torch, "cupy": Cupy, "jax": Jax}


def values(stack, between):
    """What the state sums up to after each step."""
    program, seen = stack(), []
    for number in range(STEPS):
        program.step(number)
        between(number)
        seen.append(program.value())
    return program.version, seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("stack", choices=sorted(STACKS))
    options = parser.parse_args()
    if importlib.util.find_spec(options.stack) is None:
        print(json.dumps({"skipped": f"no {options.stack}"}))
        return 0
    import amem  # the package of the bundle
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    stack, stays, brokered = STACKS[options.stack], [], []
    _, undisturbed = values(stack, lambda number: None)

    def pause(number):
        if number % 3:
            return
        amem.pause()
        stats = amem.stats()
        stays.append(sum(each.bytes for each in stats.unbrokered if each.kind == "pool"))
        brokered.append(sum(each.paused_bytes for each in stats.brokered if each.tag == "heap"))
        amem.resume()
    version, seen = values(stack, pause)
    if seen != undisturbed:
        sys.exit(f"FAILED: {seen} is not {undisturbed}")
    if max(stays) > 0 or min(brokered) < ELEMENTS * 4:
        sys.exit(f"FAILED: {stays} B of pools stayed, and {brokered} B left")
    print(json.dumps({"program": f"pool_stacks {options.stack}", "version": version, "left_mib": max(brokered) // MIB,
                      "pauses": len(stays)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
