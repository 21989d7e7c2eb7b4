#!/usr/bin/env python3
"""A program of a stack, with one of its allocators, computes the same beside pauses, which free its memory.

    amemctl run --group train --scope heap -- python3 stacks.py STACK

STACK: aimdo (ComfyUI's model management), cupy and rmm (stream-ordered pools), jax, numba, torch, triton. The environment
chooses the allocator of jax (XLA_PYTHON_CLIENT_ALLOCATOR) and of torch (PYTORCH_CUDA_ALLOC_CONF).

Prints a JSON object; one with "skipped" where the package is not there. Exit status: 0 all right, 1 a check failed.
"""

import argparse
import faulthandler
import functools
import importlib.util
import json
import os
import sys

WATCHDOG_S = 170
ELEMENTS = 64 << 20
STEPS = 12
MIB = 1 << 20


class Torch:
    def __init__(self):
        import torch
        self.torch = torch
        self.version = f"{torch.__version__} {torch.cuda.memory.get_allocator_backend()}"
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


class Rmm(Cupy):
    def __init__(self):
        super().__init__()
        import rmm
        from rmm.allocators.cupy import rmm_cupy_allocator
        rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
        self.version = rmm.__version__
        self.cupy.cuda.set_allocator(rmm_cupy_allocator)
        self.state = self.state.copy()


class Numba:
    def __init__(self):
        import numba
        import numpy
        from numba import cuda
        self.cuda, self.version = cuda, numba.__version__

        @cuda.jit
        def kernel(old, new, factor):
            i = cuda.grid(1)
            if i < old.size:
                new[i] = old[i] * factor - old[i] * old[i]
        self.kernel = kernel
        self.state = cuda.to_device(numpy.arange(ELEMENTS, dtype=numpy.float32) / ELEMENTS)

    def step(self, number):
        new = self.cuda.device_array_like(self.state)
        self.kernel[ELEMENTS // 256, 256](self.state, new, 1 + number / 64)
        self.state = new

    def value(self):
        return float(self.state.copy_to_host().sum(dtype="float64"))


class Triton(Torch):
    def __init__(self):
        super().__init__()
        import triton
        self.version = triton.__version__

    def step(self, number):
        new = self.torch.empty_like(self.state)
        triton_kernel()[(ELEMENTS // 1024,)](self.state, new, 1 + number / 64, BLOCK=1024)
        self.state = new


@functools.cache
def triton_kernel():
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(old, new, factor, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(new + at, tl.sin(tl.load(old + at) * factor))
    return kernel


class Aimdo(Torch):
    """Weights in memory that aimdo maps when a layer needs them; it replaces the driver's functions for memory by its own."""

    def __init__(self):
        from comfy_aimdo import control
        started = control.init()
        super().__init__()  # aimdo looks for a libcuda that is loaded
        if not started or not control.init_devices([0]):
            sys.exit("FAILED: aimdo does not start")
        from importlib import metadata
        from comfy_aimdo import model_vbar, torch as tensors
        self.vbars, self.tensors, self.version = model_vbar, tensors, metadata.version("comfy-aimdo")
        self.weights = self.torch.linspace(1, 2, ELEMENTS)
        self.vbar = model_vbar.ModelVBAR(ELEMENTS * 4, 0)
        self.vbar.prioritize()
        self.place, self.filled = self.vbar.alloc(ELEMENTS * 4), None

    def step(self, number):
        here = self.vbars.vbar_fault(self.place)
        if here is None:
            sys.exit("FAILED: aimdo has no memory for the weights")
        weights = self.tensors.aimdo_to_tensor(self.place, "cuda").view(self.torch.float32)
        if not self.vbars.vbar_signature_compare(here, self.filled):
            weights.copy_(self.weights)
            self.filled = here
        self.state = (self.state * weights + number / 64).sin()
        self.vbars.vbar_unpin(self.place)


class Jax:
    def __init__(self):
        import jax
        self.jax = jax
        self.version = f"{jax.__version__} {os.environ.get('XLA_PYTHON_CLIENT_ALLOCATOR', 'default')}"
        self.state = jax.numpy.arange(ELEMENTS, dtype=jax.numpy.float32) / ELEMENTS

    def step(self, number):
        self.state = self.jax.numpy.sin(self.state * (1 + number / 64))

    def value(self):
        return float(self.state.sum())


STACKS = {"aimdo": Aimdo, "cupy": Cupy, "jax": Jax, "numba": Numba, "rmm": Rmm, "torch": Torch, "triton": Triton}
MODULES = {"aimdo": "comfy_aimdo"}  # others have the stack's name
STAYS = ("device", "vmm", "pool")  # kinds of memory that has to leave


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
    module = MODULES.get(options.stack, options.stack)
    if importlib.util.find_spec(module) is None:
        print(json.dumps({"skipped": f"no {module}"}))
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
        stays.append(sum(each.bytes for each in stats.unbrokered if each.kind in STAYS))
        brokered.append(sum(each.paused_bytes for each in stats.brokered))
        amem.resume()
    version, seen = values(stack, pause)
    if seen != undisturbed:
        sys.exit(f"FAILED: {seen} is not {undisturbed}")
    if max(stays) > 0 or min(brokered) < ELEMENTS * 4:
        sys.exit(f"FAILED: {stays} B stayed, and {brokered} B left")
    print(json.dumps({"program": f"stacks {options.stack}", "version": version, "left_mib": max(brokered) // MIB,
                      "pauses": len(stays)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
