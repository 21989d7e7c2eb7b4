#!/usr/bin/env python3
"""Many short processes on one GPU, each with the first use of some forty kinds of kernels between allocations of all kinds.

Loading a kernel takes memory and time of the driver's own, which is when an allocator in its way would show. Some processes
are killed, some crash on purpose (a failed assertion on the GPU, after which their context is lost); every result of the
others is compared with the CPU's, every block and tensor with what was written to it. Without amem and in scope heap:

    python3 first_use.py --seconds 300
    amemctl run --group train --scope heap -- python3 first_use.py --seconds 300

The kernels are small: they are about being loaded. Most give on the GPU what they give on the CPU. The last line is a JSON
object of totals; its time goes to the end of the last process. Exit status: 0, 1 when a result was wrong or a process died.
"""

import argparse
import ctypes
import json
import math
import random
import sys
import threading
import time

from crowd import Crowd

import torch
from torch.nn import functional

# ---- kernels ----------------------------------------------------------------------------------------------------

DEVICE = "cuda"
ROWS, COLUMNS = 97, 131  # of what the kernels work on: no multiples of anything
TOLERANCE = 1e-3  # a convolution may use TF32
THREADS_MEET_S = 30


class Wrong(Exception):
    """A result is not what it should be; the text says which."""


def check_close(result, expected):
    result, expected = result.detach().cpu().double(), expected.detach().cpu().double()
    if result.shape != expected.shape:
        raise Wrong(f"shape {tuple(result.shape)}, {tuple(expected.shape)} is right")
    away = (result - expected).abs().max().item()
    if not away <= TOLERANCE * (1 + expected.abs().max().item()):  # not a number is wrong, too
        raise Wrong(f"{away:g} away from a result of up to {expected.abs().max().item():g}")


def index(x):
    return torch.arange(ROWS, device=x.device)


SAME_AS_ON_CPU = {
    "bfloat16": lambda x: (x.bfloat16() + 1).float(),
    "bincount": lambda x: torch.bincount((x.abs() * 10).int().flatten()).float(),
    "bmm": lambda x: torch.bmm(x[None].expand(3, ROWS, COLUMNS), x.t()[None].expand(3, COLUMNS, ROWS)),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "cdist": lambda x: torch.cdist(x, x[:9]),
    "conv2d": lambda x: functional.conv2d(x[None, None], x[None, None, :5, :5]),
    "cumsum": lambda x: x.cumsum(0),
    "embedding": lambda x: functional.embedding((x.abs() * 5).int().clamp(max=ROWS - 1), x),
    "erfinv": lambda x: torch.erfinv(x.tanh() * 0.9),
    "fft": lambda x: torch.fft.fft(x).real,
    "foreach": lambda x: torch._foreach_mul([x, x + 1], 3.0)[1],
    "gelu": functional.gelu,
    "glu": lambda x: functional.glu(x[:, :COLUMNS - 1]),
    "half": lambda x: (x.half() * 2).float(),
    "histc": lambda x: torch.histc(x, 20, -3, 3),
    "index_add": lambda x: torch.zeros_like(x).index_add_(0, index(x) % 13, x),
    "interpolate": lambda x: functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "kthvalue": lambda x: x.kthvalue(3)[0],
    "layer_norm": lambda x: functional.layer_norm(x, (COLUMNS,)),
    "lerp": lambda x: x.lerp(x * 2, 0.3),
    "logsumexp": lambda x: x.logsumexp(1),
    "matmul": lambda x: x @ x.t(),
    "max_pool2d": lambda x: functional.max_pool2d(x[None, None], 3),
    "median": lambda x: x.median(1)[0],
    "nonzero": lambda x: torch.nonzero(x > 0).float(),
    "norm": lambda x: x.norm(dim=1),
    "pow": lambda x: x.abs().pow(1.7),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "roll": lambda x: x.roll(3, 1),
    "scatter": lambda x: torch.zeros_like(x).scatter_(0, index(x)[:, None].expand(ROWS, COLUMNS), x),
    "softmax": lambda x: x.softmax(1),
    "sort": lambda x: torch.sort(x, dim=1)[0],
    "std": lambda x: x.std(0),
    "topk": lambda x: torch.topk(x, 7)[0],
    "triu": lambda x: x.triu(),
    "unique": lambda x: torch.unique((x * 10).int()).float(),
}


def same_as_on_cpu(work):
    def use():
        x = torch.randn(ROWS, COLUMNS)
        check_close(work(x.to(DEVICE)), work(x))
    return use


def optimizer(kind):
    """A step of a fused one is that of the plain one on the CPU."""
    def step(device, **how):
        weights = torch.ones((5, 5), device=device, requires_grad=True)
        weights.grad = torch.full_like(weights, 15)
        kind([weights], lr=0.1, **how).step()
        return weights
    return lambda: check_close(step(DEVICE, fused=True), step("cpu", foreach=False))


def sparse_in_threads():
    """cuSPARSE used for the first time by four threads at once, each on a stream of its own."""
    dense = torch.randn(64, 64)
    dense[torch.rand(64, 64) < 0.9] = 0
    right, on_gpu = dense @ dense, dense.to(DEVICE)
    sparse = on_gpu.to_sparse()
    together, failures = threading.Barrier(4, timeout=THREADS_MEET_S), []

    def multiply():
        try:
            stream = torch.cuda.Stream()
            together.wait()
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream())
                for _ in range(20):
                    product = torch.sparse.mm(sparse, on_gpu)
                check_close(product, right)
        except Exception as error:  # noqa: BLE001: raised again by the thread that waits
            failures.append(error)
    threads = [threading.Thread(target=multiply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def graph():
    """A captured and replayed CUDA graph."""
    x = torch.ones(1 << 16, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = x * 3 + 1
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = x * 3 + 1
    captured.replay()
    check_close(result, torch.full((1 << 16,), 4.0))


USES = {name: same_as_on_cpu(work) for name, work in SAME_AS_ON_CPU.items()}
USES |= {"sgd": optimizer(torch.optim.SGD), "adam": optimizer(torch.optim.Adam), "adamw": optimizer(torch.optim.AdamW),
         "sparse_in_threads": sparse_in_threads, "graph": graph}


# ---- processes ----------------------------------------------------------------------------------------------------

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
