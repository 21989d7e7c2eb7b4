"""Times of torch_memory_saver with a backup in host memory: pause and resume of one region, dense data. One line of JSON."""

import argparse
import json
import os
import time

import torch
from torch_memory_saver import torch_memory_saver


def timed(call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--retain", action="store_true", help="it keeps its host memory between pauses")
    options = parser.parse_args()
    torch_memory_saver.hook_mode = "torch"  # not by LD_PRELOAD: this process is already under way
    torch_memory_saver.retain_cpu_backup = options.retain
    with torch_memory_saver.region(tag="bench", enable_cpu_backup=True):
        data = torch.empty(options.bytes, dtype=torch.uint8, device="cuda")
    data.random_(1, 255)
    expected = int(data[:: 1 << 12].sum(dtype=torch.int64))
    times = {"pause_ms": [], "resume_ms": []}
    for _ in range(options.runs + 1):
        times["pause_ms"].append(timed(lambda: torch_memory_saver.pause("bench")))
        times["resume_ms"].append(timed(lambda: torch_memory_saver.resume("bench")))
        if int(data[:: 1 << 12].sum(dtype=torch.int64)) != expected:
            raise SystemExit("the data changed")
    print(json.dumps(times), flush=True)
    os._exit(0)  # its allocator takes no memory back outside a region, and would end the process with an error


if __name__ == "__main__":
    main()
