#!/usr/bin/env python3
"""One PyTorch process with known bytes and a captured graph, which checks both until a file says that it may end. With --threads
others beside it have handles of cuBLAS, pinned memory and events that time, and check their results.

    amemctl run --group train --scope heap -- python3 deep_memory.py --gib 8 --progress FILE --stop-file FILE

Somebody else pauses it: while a process is checkpointed, also its calls to NVML do not return. Prints a JSON object. Exit status: 0 all
right, 1 a check failed.
"""

import argparse
import faulthandler
import json
import os
import sys
import threading
import time

import torch

PIECE = 16 << 20  # elements


class Contents:
    """Bytes that stay, bytes that change with each step, and a graph that adds 1 to a third tensor."""

    def __init__(self, size):
        self.still, self.changing = (torch.randint(-2**31, 2**31 - 1, (size // 8,), dtype=torch.int32, device="cuda") for _ in range(2))
        self.counter, self.launches = torch.zeros(1024, device="cuda"), 0
        self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.counter += 0
        stream.synchronize()
        with torch.cuda.graph(self.graph):
            self.counter += 1
        self.sums = self.sum()

    def sum(self):
        """In pieces: PyTorch keeps what an intermediate result takes."""
        return [sum(int(piece.sum(dtype=torch.int64).item()) for piece in each.split(PIECE)) for each in (self.still, self.changing)]

    def step(self, number):
        if self.sum() != self.sums:
            raise SystemExit(f"FAILED: other bytes in step {number}")
        self.changing ^= 0x5a5a5a5a
        self.sums = self.sum()
        self.graph.replay()
        self.launches += 1
        if not bool((self.counter == self.launches).all()):
            raise SystemExit(f"FAILED: the graph gives another result in step {number}")


class Worker:
    """A thread with a stream of its own."""

    def __init__(self, number):
        self.factor, self.steps, self.wrong, self.ends = number + 1, 0, "", threading.Event()
        self.pinned = torch.randint(0, 255, (1 << 22,), dtype=torch.uint8).pin_memory()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def end(self):
        """A thread that is inside PyTorch when the interpreter ends aborts the process."""
        self.ends.set()
        self.thread.join()

    def run(self):
        torch.cuda.set_device(0)
        stream, began, ended = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            matrix = torch.full((512, 512), float(self.factor), device="cuda")
        while not self.wrong and not self.ends.is_set():
            with torch.cuda.stream(stream):
                began.record()
                product, copied = matrix @ matrix, self.pinned.to("cuda", non_blocking=True).to("cpu")
                ended.record()
                stream.synchronize()
                if float(product.min()) != 512 * self.factor**2 or not torch.equal(copied, self.pinned) or began.elapsed_time(ended) < 0:
                    self.wrong = f"thread {self.factor} has another result in step {self.steps}"
            self.steps += 1
            time.sleep(0.005)


def run(options):
    contents, steps, end = Contents(int(options.gib * (1 << 30))), 0, time.monotonic() + options.loop
    workers = [Worker(number) for number in range(options.threads)]
    torch.cuda.empty_cache()
    while time.monotonic() < end and not os.path.exists(options.stop_file):
        faulthandler.dump_traceback_later(options.watchdog, exit=True)
        contents.step(steps)
        if wrong := [worker.wrong for worker in workers if worker.wrong]:
            raise SystemExit(f"FAILED: {wrong}")
        # Each step shows that all threads go on.
        before = [worker.steps for worker in workers]
        while any(worker.steps == then and not worker.wrong for worker, then in zip(workers, before)):
            time.sleep(0.001)
        steps += 1
        with open(options.progress + ".new", "w", encoding="ascii") as file:
            file.write(f"{steps}\n")
        os.replace(options.progress + ".new", options.progress)
    for worker in workers:
        worker.end()
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"program": "deep_memory", "torch": torch.__version__, "iterations": steps}), flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--loop", type=float, default=600, metavar="SECONDS", help="at most")
    parser.add_argument("--progress", required=True, help="file for the number of steps so far")
    parser.add_argument("--stop-file", required=True, help="end as soon as this file exists")
    parser.add_argument("--watchdog", type=float, default=60, help="seconds for one step until it is a hang")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    faulthandler.enable()
    run(parse(sys.argv[1:]))
