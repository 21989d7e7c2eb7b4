#!/usr/bin/env python3
"""What one PyTorch process does on one GPU with memory that is paused, or about to be.

Run as the name of a part says:

    amemctl run --group train --scope regions -- python3 one_process.py beside_cache
    amemctl run --group train --scope regions -- python3 one_process.py beside_region
    amemctl run --group train --scope heap -- python3 one_process.py free_while_paused
    amemctl run --group train --scope regions -- python3 one_process.py touch_paused

"beside_cache": a region gets what PyTorch's ordinary cache has free. "beside_region": ordinary memory gets what a region has
freed. "free_while_paused": the process pauses itself, frees memory and resumes. "touch_paused": a kernel reads memory that is
paused, which must end in an error. The first two run without amem too. Exit status: 0 all right, 1 a check failed.
"""

import argparse
import ctypes
import faulthandler
import gc
import json
import os
import sys
import time

import torch_rank
from torch_rank import CheckFailed, MIB, check, check_equal

import amem
import torch

SHARE = 0.6  # of what is free
FREE_LIMIT_S = 10  # for all that is freed while the group is paused
WATCHDOG_S = 100
DEVICE = torch.device("cuda", 0)


def values(count, seed):
    return torch_rank.values(1, 0, count, seed, DEVICE)


def free_bytes():
    return torch.cuda.mem_get_info(DEVICE)[0]


# ---- a region beside PyTorch's cache ------------------------------------------------------------------------------


def fill_cache(size):
    """So much is free in PyTorch's ordinary cache afterwards, in one segment."""
    torch.cuda.empty_cache()
    block = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    del block
    check(torch.cuda.memory_reserved(DEVICE) >= size, "PyTorch has not kept what was freed")


def in_bare_pool(size):
    """What PyTorch's own pools do beside a full cache."""
    fill_cache(size)
    pool = torch.cuda.MemPool()
    try:
        with torch.cuda.use_mem_pool(pool):
            block = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        del block
        return "enough memory"
    except torch.OutOfMemoryError:
        return "out of memory"
    finally:
        gc.collect()
        del pool
        torch.cuda.empty_cache()


def entered_ms(cached):
    """How long it takes to enter a region with so much in the cache."""
    if cached:
        fill_cache(cached)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with amem.region("small"):
        ms = (time.perf_counter() - begin) * 1000
    return round(ms, 2)


def beside_cache():
    torch.cuda.init()
    bare = in_bare_pool(int(free_bytes() * SHARE))
    ms = {"empty": entered_ms(0)}
    size = int(free_bytes() * SHARE)
    with amem.region("small"):
        small = values(1 << 20, 1)
    ms["full"] = entered_ms(size)
    fill_cache(size)
    with amem.region("kv_cache", keep=False):
        cache = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    cache.fill_(7)
    torch.cuda.synchronize()
    check(int(cache[:: 1 << 20].min()) == 7, "the region's memory is wrong")
    held = {each.tag: each.resident_bytes for each in amem.stats().brokered} if amem.is_active() else {}
    if amem.is_active():
        check(held.get("kv_cache", 0) >= size, f"the region has not got its memory: {held}")
        amem.pause()
        amem.resume()
        check(int(cache[:: 1 << 20].max()) == 0, "the discarded cache is not zero")
    check_equal("a small region", small, values(1 << 20, 1))
    return {"mib": size >> 20, "bare_pool": bare, "entered_ms": ms}


# ---- ordinary memory beside a region's pool -----------------------------------------------------------------------


def large(size, value):
    block = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    block.fill_(value)
    torch.cuda.synchronize()
    check(int(block[:: 1 << 20].min()) == value, "the memory has other bytes")
    return block


def beside_region():
    torch.cuda.init()
    with amem.region("weights"):
        small = values(1 << 20, 1)
    size = int(free_bytes() * SHARE)
    ms = {}
    for freed in ("outside", "inside"):
        with amem.region("kv_cache", keep=False):
            cache = large(size, 5)
            if freed == "inside":
                del cache
        cache = None
        check(torch.cuda.memory_reserved(DEVICE) >= size, "PyTorch has not kept what was freed")
        begin = time.perf_counter()
        plain = large(size, 6)
        ms[freed] = round((time.perf_counter() - begin) * 1000, 1)
        del plain
    with amem.region("kv_cache", keep=False):
        cache = large(size, 7)
    if amem.is_active():
        held = {each.tag: each.resident_bytes for each in amem.stats().brokered}
        check(size <= held.get("kv_cache", 0) < 1.1 * size, f"the region has kept what it has freed: {held}")
        amem.pause()
        amem.resume()
        check(int(cache[:: 1 << 20].max()) == 0, "the discarded cache is not zero")
    check_equal("a small region", small, values(1 << 20, 1))
    return {"mib": size >> 20, "allocated_ms": ms}


# ---- frees while the group is paused ------------------------------------------------------------------------------


class Runtime(torch_rank.Runtime):
    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cudaStreamCreate", ctypes.byref(stream))
        return stream


def captured():
    """A graph with memory of its own, and its input and output."""
    source = values(1 << 20, 5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target = source * 2 + 1
    graph.replay()
    torch.cuda.synchronize()
    return graph, source, target


def free_while_paused():
    runtime = Runtime()
    kept = [values(count, 10 + n) for n, count in enumerate((1000, 1 << 20, 64 * MIB // 4))]
    gone = [values(count, 20 + n) for n, count in enumerate((1000, 1 << 20, 64 * MIB // 4, 512 * MIB // 4))]
    kept_graph, source, target = captured()
    graph = [*captured()]
    raw, stream = runtime.allocate(256 * MIB), runtime.stream()
    torch.cuda.synchronize()
    operator = torch_rank.Operator(amem.group())
    took = {}
    for cycle in range(3):
        cached = values(128 * MIB // 4, 30)
        del cached
        torch.cuda.synchronize()
        amem.pause()
        status = operator.group_status()
        check(status["state"] == "GROUP_STATE_PAUSED" and status["resident_bytes"] == 0,
              f"paused, but the broker says {status['state']}, {status['resident_bytes']} B resident")
        before = status["allocated_bytes"]
        begin = time.monotonic()
        torch.cuda.empty_cache()
        if cycle == 1:
            gone.clear()
            graph.clear()
            gc.collect()
            torch.cuda.empty_cache()
            runtime.call("cudaFree", raw)
            runtime.call("cudaStreamDestroy", stream)
        took[cycle] = time.monotonic() - begin
        check(took[cycle] < FREE_LIMIT_S, f"freeing took {took[cycle]:.1f} s while the group was paused")
        # Expandable segments give back whole pieces only.
        least = int((128 + (512 + 256 if cycle == 1 else 0)) * MIB * 0.6)
        freed = before - torch_rank.eventually(lambda: max(operator.group_status()["allocated_bytes"], before - least),
                                               before - least)
        check(freed >= least, f"{freed >> 20} MiB have gone from the broker's account, {least >> 20} were freed")
        amem.resume()
        for n, tensor in enumerate(kept):
            check_equal(f"kept tensor {n} after cycle {cycle}", tensor, values(tensor.numel(), 10 + n))
        source.copy_(values(1 << 20, 40 + cycle))
        kept_graph.replay()
        check_equal("the kept graph", target, source * 2 + 1)
        check_equal("new memory", values(1 << 24, 60 + cycle).cpu(), values(1 << 24, 60 + cycle).cpu())
    return {"freed_ms": {cycle: round(seconds * 1000, 1) for cycle, seconds in took.items()}}


# ---- memory that is paused ------------------------------------------------------------------------------------------


def touch_paused():
    with amem.region("weights"):
        weights = values(1 << 20, 1)
    with amem.region("kv_cache", keep=False):
        cache = torch.ones(64 * MIB // 4, device=DEVICE)
    torch.cuda.synchronize()
    amem.pause(["kv_cache"])
    check_equal("the weights", weights, values(1 << 20, 1))
    try:
        total = cache.sum()
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(json.dumps({"program": "touch_paused", "error": str(error).splitlines()[0]}), flush=True)
        os._exit(0)  # nothing ends well in a context that has failed
    raise CheckFailed(f"a kernel has read {float(total)} from memory that is paused")


PARTS = {each.__name__: each for each in (beside_cache, beside_region, free_while_paused, touch_paused)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("part", choices=sorted(PARTS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(json.dumps({"skipped": "no GPU"}))
        return 0
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    torch.cuda.set_device(DEVICE)
    try:
        report = PARTS[options.part]()
    except CheckFailed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    print(json.dumps({"program": options.part, "torch": torch.__version__, **report}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
