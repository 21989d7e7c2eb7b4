#!/usr/bin/env python3
"""What one large block of cuMemAlloc costs: to allocate and to free it, and to write and to copy within it.

    amemctl run --group train --scope heap -- python3 large_block.py --mib 61440 --rounds 5

The last line is a JSON object: milliseconds of each round, but for the first one, by what was done. Between two rounds it waits until the
driver has cleared what was freed.
"""

import argparse
import ctypes
import json
import time

import bare_driver

MIB = 1 << 20
CLEARED_S = 1.5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=10, help="of writing and of copying, of which the fastest counts")
    options = parser.parse_args()
    driver = bare_driver.Driver()
    size, times = options.mib * MIB, {"allocate": [], "write": [], "copy": [], "free": []}

    def timed(what, *calls):
        began = time.perf_counter()
        for name, *arguments in calls:
            driver.call(name, *arguments)
        times[what].append((time.perf_counter() - began) * 1000)

    for _ in range(options.rounds + 1):
        block = ctypes.c_uint64()
        timed("allocate", ("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size)))
        half = ctypes.c_uint64(block.value + size // 2)
        passes = {"write": ("cuMemsetD32_v2", block, ctypes.c_uint(1), ctypes.c_size_t(size // 4)),
                  "copy": ("cuMemcpyDtoD_v2", half, block, ctypes.c_size_t(size // 2))}
        for what, call in passes.items():
            before = len(times[what])
            for _ in range(options.passes):
                timed(what, call, ("cuCtxSynchronize",))
            times[what][before:] = [min(times[what][before:])]
        timed("free", ("cuMemFree_v2", block))
        time.sleep(CLEARED_S)
    print(json.dumps({what: taken[1:] for what, taken in times.items()}))


main()
