#!/usr/bin/env python3
"""What one PyTorch process does with driver calls that are hidden from it, as on a driver that is older.

    AMEM_FORGET_CALLS=cuMemcpyBatchAsync,... amemctl run --group train --scope heap -- python3 hidden_calls.py cuMemcpyBatchAsync ...

Each of the calls is looked up in every way that a process has: dlsym, cuGetProcAddress, cudaGetDriverEntryPointByVersion, and cuda.bindings
where it is installed. A program that would copy by cuMemcpyBatchAsync copies in another way. PyTorch works, captures a graph, and pauses.
Without amem, or without AMEM_FORGET_CALLS, say --found. The last line is a report. Exit status: 0 all right, 1 a check failed.
"""

import argparse
import ctypes
import json
import sys

from torch_rank import CheckFailed, Runtime, check, check_equal, values

import amem
import torch

DEVICE = torch.device("cuda", 0)
VERSION = 13000  # of CUDA: the driver has all of the calls by then
NOT_FOUND, SYMBOL_FOUND = 500, 0
KNOWN = "cuStreamSynchronize"
ASKED = "cuStreamGetDevice"  # of cuda.bindings
BYTES = 1 << 20


def by_dlsym(driver, name):
    return hasattr(driver, name)


def by_proc_address(driver, name):
    function, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(function), VERSION, ctypes.c_uint64(0), ctypes.byref(status))
    check(result in (0, NOT_FOUND), f"cuGetProcAddress_v2 of {name} returned {result}")
    check((status.value == SYMBOL_FOUND) == bool(function.value), f"the status of {name} is {status.value}, its function {function.value}")
    return bool(function.value)


def by_runtime(runtime, name):
    function, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = runtime.cudaGetDriverEntryPointByVersion(name.encode(), ctypes.byref(function), VERSION, ctypes.c_uint64(0), ctypes.byref(status))
    check(result == 0 or not function.value, f"cudaGetDriverEntryPointByVersion of {name} returned {result}")
    return bool(function.value) and status.value == SYMBOL_FOUND


def by_bindings():
    """Whether cuda.bindings, which looks all calls up when it is first used, has found ASKED; nothing: it is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    check(driver.cuInit(0)[0] == driver.CUresult.CUDA_SUCCESS, "cuInit by cuda.bindings fails")
    try:
        return driver.cuStreamGetDevice(driver.CUstream(0))[0] == driver.CUresult.CUDA_SUCCESS
    except RuntimeError as error:
        check("not found" in str(error), f"cuda.bindings says: {error}")
        return False


def copy(driver, found, to, source):
    """As a program that prefers one call for many copies."""
    if not found:
        check(driver.cuMemcpyDtoD_v2(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(BYTES)) == 0, "the other way to copy fails")
        return "cuMemcpyDtoD"
    return "cuMemcpyBatchAsync"


def work(seed):
    """PyTorch with a graph; what it gives is compared with what it gave before."""
    x = values(0, 0, BYTES, seed, DEVICE)
    graph, result = torch.cuda.CUDAGraph(), torch.empty_like(x)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result.copy_(x * 2 + 1)
    graph.replay()
    torch.cuda.synchronize()
    check_equal("the graph's result", result, x * 2 + 1)
    return graph, x, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("calls", nargs="+")
    parser.add_argument("--found", action="store_true", help="the calls are not hidden")
    parser.add_argument("--cycles", type=int, default=5)
    options = parser.parse_args()
    torch.ones(1, device=DEVICE)  # the runtime has looked its calls up by now
    driver, runtime = ctypes.CDLL("libcuda.so.1"), Runtime().library
    ways = {"dlsym": lambda name: by_dlsym(driver, name), "cuGetProcAddress": lambda name: by_proc_address(driver, name),
            "cudaGetDriverEntryPoint": lambda name: by_runtime(runtime, name)}
    for way, look in ways.items():
        for name in options.calls:
            check(look(name) == options.found, f"{name} by {way}: {'not found' if options.found else 'found'}")
        check(look(KNOWN), f"{KNOWN} by {way} is not found")
    looked = {way: f"{len(options.calls)} {'found' if options.found else 'not found'}" for way in ways}
    found = by_bindings()
    check(ASKED not in options.calls or found in (None, options.found), f"{ASKED} by cuda.bindings: {'found' if found else 'not found'}")
    looked["cuda.bindings"] = "not installed" if found is None else f"{ASKED} {'found' if found else 'not found'}"
    source, to = values(0, 0, BYTES // 4, 3, DEVICE), torch.zeros(BYTES // 4, device=DEVICE)
    torch.cuda.synchronize()
    way = copy(driver, by_proc_address(driver, "cuMemcpyBatchAsync"), to.data_ptr(), source.data_ptr())
    if way == "cuMemcpyDtoD":
        check_equal("the copy", to, source)
    graph, x, result = work(5)
    cycles = 0
    if not options.found:
        for cycles in range(1, options.cycles + 1):
            amem.pause()
            amem.resume()
            result.zero_()
            graph.replay()
            torch.cuda.synchronize()
            check_equal("the graph's result after a pause", result, x * 2 + 1)
            check_equal("the copy after a pause", to, source)
    print(json.dumps({"program": "hidden_calls", "looked": looked, "copies_by": way, "cycles": cycles}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except CheckFailed as failure:
        print(f"hidden_calls: {failure}", file=sys.stderr)
        sys.exit(1)
