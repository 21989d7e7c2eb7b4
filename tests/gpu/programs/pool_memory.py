#!/usr/bin/env python3
"""Memory of stream-ordered pools (cuMemAllocAsync) on one GPU, through the driver's own calls.

    python3 pool_memory.py speed
    amemctl run --group train --scope heap -- python3 pool_memory.py speed
    amemctl run --group train --scope heap -- python3 pool_memory.py pauses --cycles 5

"speed": what one cuMemAllocAsync and one cuMemFreeAsync take that use memory again, 1000 of each in a stream, for blocks of 2 MiB and
64 MiB. "pauses": blocks are written on one stream, read on the next, behind an event, and freed there, and each sixteenth round captures a
graph with memory of its own; meanwhile a thread pauses and resumes the group. Prints a JSON object. Exit status: 0 all right, 1 a check or
a call failed.
"""

import argparse
import ctypes
import faulthandler
import json
import statistics
import sys
import threading
import time

import bare_driver

MIB = 1 << 20
CALLS = 1000
REPEATS = 9
STREAMS = 3
ROUNDS = 256
WATCHDOG_S = 200
NON_BLOCKING = 1
RELEASE_THRESHOLD = 4
RESERVED_CURRENT = 5
INVALID_VALUE = 1


def size(number):
    return ctypes.c_size_t(number)


class Driver(bare_driver.Driver):
    def __init__(self):
        super().__init__()
        self.pool = ctypes.c_void_p()
        self.call("cuDeviceGetMemPool", ctypes.byref(self.pool), 0)

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        return stream

    def event(self):
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        return event

    def allocate(self, number, stream):
        address = ctypes.c_uint64()
        self.call("cuMemAllocAsync", ctypes.byref(address), size(number), stream)
        return address

    def keep(self):
        self.call("cuMemPoolSetAttribute", self.pool, RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(1 << 62)))

    def reserved(self):
        value = ctypes.c_uint64()
        self.call("cuMemPoolGetAttribute", self.pool, RESERVED_CURRENT, ctypes.byref(value))
        return value.value

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


def speed(driver, _options):
    """The median of several runs, for each call."""
    driver.keep()
    stream = driver.stream()
    allocate, free = driver.library.cuMemAllocAsync, driver.library.cuMemFreeAsync
    address = ctypes.c_uint64()
    there, clock = ctypes.byref(address), time.perf_counter
    figures = {}
    for mib in (2, 64):
        number, blocks, frees = size(mib * MIB), [], []
        driver.call("cuMemFreeAsync", driver.allocate(mib * MIB, stream), stream)
        for _ in range(REPEATS):
            spent_allocating = spent_freeing = 0.0
            for _ in range(CALLS):
                before = clock()
                failed = allocate(there, number, stream)
                between = clock()
                failed |= free(address, stream)
                spent_freeing += clock() - between
                spent_allocating += between - before
                if failed:
                    sys.exit("FAILED: an allocation or a free")
            blocks.append(spent_allocating / CALLS * 1e6)
            frees.append(spent_freeing / CALLS * 1e6)
        figures[f"{mib}"] = {"allocate_us": round(statistics.median(blocks), 3), "free_us": round(statistics.median(frees), 3)}
    return {"sizes_mib": figures}


class Rounds:
    """Each block's first and last byte must be what its round has written, when another stream reads them."""

    def __init__(self, driver):
        self.driver = driver
        self.streams = [driver.stream() for _ in range(STREAMS)]
        self.event = driver.event()
        self.seen = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(self.seen), size(2 * ROUNDS))

    def read(self, i, block, number, stream):
        for byte, at in ((0, 0), (1, number - 1)):
            self.driver.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(self.seen.value + 2 * i + byte),
                             ctypes.c_uint64(block.value + at), size(1), stream)

    def one(self, i, number):
        driver, here, there = self.driver, self.streams[i % STREAMS], self.streams[(i + 1) % STREAMS]
        block = driver.allocate(number, here)
        driver.call("cuMemsetD8Async", block, ctypes.c_ubyte(i % 251), size(number), here)
        driver.call("cuEventRecord", self.event, here)
        driver.call("cuStreamWaitEvent", there, self.event, 0)
        self.read(i, block, number, there)
        driver.call("cuMemFreeAsync", block, there)

    def captured(self, i, number):
        """The graph's memory is the driver's; a free of the pool's memory in the capture is refused."""
        driver, stream = self.driver, self.streams[i % STREAMS]
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuStreamBeginCapture_v2", stream, 2)
        block = driver.allocate(number, stream)
        driver.call("cuMemsetD8Async", block, ctypes.c_ubyte(i % 251), size(number), stream)
        self.read(i, block, number, stream)
        driver.call("cuMemFreeAsync", block, stream)
        driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        for _ in range(2):
            driver.call("cuGraphLaunch", made, stream)
        driver.call("cuStreamSynchronize", stream)
        driver.call("cuGraphExecDestroy", made)
        driver.call("cuGraphDestroy", graph)

    def run(self, number):
        for i in range(ROUNDS):
            if i % 16 == 5:
                self.captured(i, number)
            else:
                self.one(i, number)
        for stream in self.streams:
            self.driver.call("cuStreamSynchronize", stream)
        seen = (ctypes.c_ubyte * (2 * ROUNDS))()
        self.driver.call("cuMemcpyDtoH_v2", seen, self.seen, size(2 * ROUNDS))
        wrong = [i for i in range(2 * ROUNDS) if seen[i] != i // 2 % 251]
        if wrong:
            sys.exit(f"FAILED: blocks of {number} B in the rounds {wrong[:8]} have other bytes")


def mistakes(driver):
    """The driver's errors, which programs may look for."""
    stream = driver.stream()
    block = driver.allocate(5 * MIB, stream)
    free = driver.library.cuMemFreeAsync
    answers = {"inside": free(ctypes.c_uint64(block.value + 512), stream), "first": free(block, stream), "again": free(block, stream)}
    if answers != {"inside": INVALID_VALUE, "first": 0, "again": INVALID_VALUE}:
        sys.exit(f"FAILED: frees are answered {answers}")
    block = driver.allocate(5 * MIB, stream)
    driver.call("cuStreamSynchronize", stream)
    driver.call("cuMemFree_v2", block)
    if driver.library.cuMemFree_v2(block) != INVALID_VALUE:
        sys.exit("FAILED: cuMemFree of pool memory, a second time, is not an error")
    driver.call("cuStreamSynchronize", stream)


def free_after_wait(driver):
    """With the threshold of 0, for everybody."""
    stream = driver.stream()
    before = driver.free_bytes()
    block = driver.allocate(1 << 30, stream)
    driver.call("cuMemFreeAsync", block, stream)
    driver.call("cuStreamSynchronize", stream)
    kept = before - driver.free_bytes()
    if driver.reserved() != 0 or kept > 64 * MIB:
        sys.exit(f"FAILED: {driver.reserved()} B are reserved and {kept} B are missing after a synchronisation")
    return kept


def pauses(driver, options):
    import amem  # the package of the bundle
    report = {"kept_after_wait": free_after_wait(driver)}
    mistakes(driver)
    driver.keep()
    kept = driver.allocate(512 * MIB, driver.stream())
    driver.call("cuMemsetD8_v2", kept, ctypes.c_ubyte(77), size(512 * MIB))
    ended, failures = threading.Event(), []

    def pause_often():
        try:
            for _ in range(options.cycles):
                amem.pause()
                amem.resume()
        except amem.Error as failure:
            failures.append(str(failure))
        ended.set()
    thread = threading.Thread(target=pause_often)
    rounds, runs = Rounds(driver), 0
    thread.start()
    while not ended.is_set() or runs < 3:
        for number in (4096, 2 * MIB, 64 * MIB):
            rounds.run(number)
        runs += 1
    thread.join()
    if failures:
        sys.exit(f"FAILED: {failures[0]}")
    seen = (ctypes.c_ubyte * (1 * MIB))()
    driver.call("cuMemcpyDtoH_v2", seen, ctypes.c_uint64(kept.value + 511 * MIB), size(MIB))
    if bytes(seen) != bytes([77]) * MIB:
        sys.exit("FAILED: memory that was not freed has other bytes")
    amem.pause()
    stays = {each.kind: each.bytes for each in amem.stats().unbrokered if each.kind in {"pool", "graph"}}
    amem.resume()
    if stays.get("pool", 0):
        sys.exit(f"FAILED: {stays} stays on the GPU")
    return {**report, "runs": runs, "cycles": options.cycles, "stays": stays}


PARTS = {"speed": speed, "pauses": pauses}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--cycles", type=int, default=5)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    print(json.dumps({"program": f"pool_memory {options.part}", **PARTS[options.part](Driver(), options)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
