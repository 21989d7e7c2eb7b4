#!/usr/bin/env python3
"""Many short processes on one GPU, each with the first use of some forty kinds of kernels between allocations of all kinds.

Loading a kernel takes memory and time of the driver's own, which is when an allocator in its way would show. Some processes
are killed, some crash on purpose (a failed assertion on the GPU, after which their context is lost); every result of the
others is compared with the CPU's, every block and tensor with what was written to it. Without amem and in scope heap:

    python3 first_use.py --seconds 300
    amemctl run --group train --scope heap -- python3 first_use.py --seconds 300

The kernels are those of kernel_uses.py. The last line is a JSON object of totals; its time goes to the end of the last
process. Exit status: 0, 1 when a result was wrong or a process died.
"""

import argparse
import ctypes
import json
import math
import random
import sys
import time

from crowd import Crowd
from kernel_uses import DEVICE, USES, Wrong

import torch

HUNG_S = 90
KILLED_SHARE, CRASHED_SHARE = 0.08, 0.06
USES_BEFORE_CRASH = 20
SHOWN_FAILURES = 8


# ---- allocations ------------------------------------------------------------------------------------------------


class Memory:
    """Blocks of cudaMalloc and tensors of PyTorch's cache that come and go, and what each must hold."""

    RAW_BYTES = (512, 4096, 100_000, 1 << 20, 3 << 20)
    TENSOR_ELEMENTS = (1, 100, 5000, 1 << 18, 1 << 22)
    READ_BYTES = 64  # the end of a raw block
    DEVICE_TO_HOST = 2

    def __init__(self, chance):
        self.chance = chance
        self.runtime = self.loaded_runtime()
        self.raw = []
        self.tensors = []
        self.mallocs = 0
        self.malloc_s = 0.0

    @staticmethod
    def loaded_runtime():
        """The CUDA runtime that PyTorch uses."""
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                if "libcudart" in line:
                    return ctypes.CDLL(line.split()[-1])
        raise Wrong("PyTorch has loaded no libcudart")

    def call(self, name, *arguments):
        result = getattr(self.runtime, name)(*arguments)
        if result != 0:
            raise Wrong(f"{name} returned {result}")

    def churn(self):
        """Some blocks more and some fewer, a tensor more or fewer, sometimes an empty cache."""
        for _ in range(self.chance.randrange(1, 6)):
            if self.raw and self.chance.random() < 0.5:
                self.free_raw(*self.raw.pop(self.chance.randrange(len(self.raw))))
            else:
                self.allocate_raw(self.chance.choice(self.RAW_BYTES), self.chance.randrange(1, 255))
        if self.chance.random() < 0.5:
            value, count = self.chance.randrange(1 << 20), self.chance.choice(self.TENSOR_ELEMENTS)
            self.tensors.append((torch.full((count,), value, device=DEVICE, dtype=torch.int32), value))
        elif self.tensors:
            tensor, value = self.tensors.pop(self.chance.randrange(len(self.tensors)))
            self.check_tensor(tensor, value)
        if self.chance.random() < 0.4:
            torch.cuda.empty_cache()

    def release(self):
        for block in self.raw:
            self.free_raw(*block)
        for tensor, value in self.tensors:
            self.check_tensor(tensor, value)

    @staticmethod
    def check_tensor(tensor, value):
        if not (tensor == value).all().item():
            raise Wrong(f"a tensor of {tensor.numel()} elements does not hold {value}")

    def allocate_raw(self, size, value):
        address = ctypes.c_void_p()
        begin = time.perf_counter()
        self.call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        self.malloc_s += time.perf_counter() - begin
        self.mallocs += 1
        self.call("cudaMemset", address, value, ctypes.c_size_t(size))
        self.raw.append((address, size, value))

    def free_raw(self, address, size, value):
        end = (ctypes.c_ubyte * self.READ_BYTES)()
        self.call("cudaMemcpy", end, ctypes.c_void_p(address.value + size - self.READ_BYTES),
                  ctypes.c_size_t(self.READ_BYTES), self.DEVICE_TO_HOST)
        if any(byte != value for byte in end):
            raise Wrong(f"a block of {size} bytes ends with {list(end)[:8]}, {value} is right")
        self.call("cudaFree", address)


# ---- one process ------------------------------------------------------------------------------------------------


def crash():
    """A failed assertion on the GPU: no later call of this process succeeds."""
    try:
        torch.zeros(3, device=DEVICE)[torch.tensor([7], device=DEVICE)].cpu()
    except RuntimeError:
        return
    raise Wrong("an index out of bounds was no error")


def use_kernels(seed):
    """What a process does. Returns its report (crowd.py)."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    names = list(USES)
    chance.shuffle(names)
    crash_after = USES_BEFORE_CRASH if chance.random() < CRASHED_SHARE else math.inf
    report = {"outcome": "finished", "uses": 0}
    doing = "start"
    try:
        torch.ones(1, device=DEVICE)
        memory = Memory(chance)
        for doing in names:
            memory.churn()
            USES[doing]()
            report["uses"] += 1
            if report["uses"] >= crash_after:
                crash()
                report["outcome"] = "crashed"
                break
        else:
            memory.release()
        report |= {"mallocs": memory.mallocs, "malloc_s": memory.malloc_s}
    except Exception as error:  # noqa: BLE001: whatever it is, it is a wrong result
        text = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"
        report |= {"outcome": "wrong", "text": f"{doing}, after {report['uses']} uses: {text}"[:1500]}
    return report


# ---- all of them ------------------------------------------------------------------------------------------------


def totals(crowd):
    def total(name):
        return sum(report.get(name, 0) for report in crowd.reports)
    mallocs = total("mallocs")
    return {"program": "first_use", "elapsed_s": round(crowd.elapsed_s, 2), "workers": crowd.workers,
            "started": crowd.started, "killed": crowd.killed, **crowd.outcomes(), "uses": total("uses"),
            "mallocs": mallocs, "malloc_ms": round(1000 * total("malloc_s") / mallocs, 3) if mallocs else 0,
            "texts": crowd.failures()[:SHOWN_FAILURES]}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=20, help="for which new processes are started; 20")
    parser.add_argument("--workers", type=int, default=15, help="processes at a time; 15")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    crowd = Crowd(use_kernels, options.workers, options.seed, KILLED_SHARE, HUNG_S)
    crowd.run(options.seconds)
    print(json.dumps(totals(crowd)), flush=True)
    return 1 if crowd.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
