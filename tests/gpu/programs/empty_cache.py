#!/usr/bin/env python3
"""A cache that is largely empty, in blocks as of layers, and random weights, as an inference engine has them.

Fills its memory, makes FILES.ready, waits for FILES.check, and looks at every byte. While it waits somebody else may pause
and resume it. On device 0:

    amemctl run --group train --scope heap -- python3 empty_cache.py --files /tmp/cache --cache-mib 61440 --weights-mib 4096

With `--resets N` it then resets the device (cudaDeviceReset) and does all of that again, so often: FILES.ready1 and FILES.check1
are the second time's. With the context goes what the shim has made in it, too.

Exit status: 0, 1 when a call fails or a byte is wrong.
"""

import argparse
import ctypes
import json
import os
import pathlib
import sys
import time

from fresh_pinned import Driver

MIB = 1 << 20
STEP = 16 * MIB
SHIFTS = 256  # so many steps differ
MOST_LAYERS = 30
LEAST_LAYER_MIB = 64
FILLED_PERCENT = 10
PATIENCE_S = 240


class Memory:
    """Device memory with what must be in it: random bytes up to `filled`, then zeros."""

    def __init__(self, driver):
        self.driver = driver
        self.random = ctypes.create_string_buffer(os.urandom(STEP + 16 * SHIFTS), STEP + 16 * SHIFTS)
        self.zeros = ctypes.create_string_buffer(STEP)
        self.read = ctypes.create_string_buffer(STEP)
        self.compare = ctypes.CDLL(None).memcmp
        self.blocks = []

    def add(self, size, filled):
        address = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.blocks.append((address.value, size, filled))

    def steps(self):
        """(address, bytes, where in this process the right bytes are)"""
        number = 0
        for address, size, filled in self.blocks:
            for begin, end, source in ((0, filled, self.random), (filled, size, self.zeros)):
                for at in range(begin, end, STEP):
                    number += 1
                    shift = 16 * (number % SHIFTS) if source is self.random else 0
                    yield address + at, min(STEP, end - at), ctypes.addressof(source) + shift

    def fill(self):
        for address, size, source in self.steps():
            self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(source), ctypes.c_size_t(size))

    def check(self):
        for address, size, source in self.steps():
            self.driver.call("cuMemcpyDtoH_v2", self.read, ctypes.c_uint64(address), ctypes.c_size_t(size))
            if self.compare(self.read, ctypes.c_void_p(source), ctypes.c_size_t(size)) != 0:
                sys.exit(f"FAILED: bytes from {address:#x} to {address + size:#x} are not what was written")


def wait_for(file):
    end = time.monotonic() + PATIENCE_S
    while not file.exists():
        if time.monotonic() > end:
            sys.exit(f"FAILED: nobody made {file} within {PATIENCE_S} s")
        time.sleep(0.02)


def filled(driver, options):
    memory = Memory(driver)
    memory.add(options.weights_mib * MIB, options.weights_mib * MIB)
    layers = max(1, min(MOST_LAYERS, options.cache_mib // LEAST_LAYER_MIB))
    layer = options.cache_mib // layers * MIB
    for _ in range(layers):
        memory.add(layer, layer * FILLED_PERCENT // 100 // 4096 * 4096)
    memory.fill()
    return memory


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=pathlib.Path, required=True)
    parser.add_argument("--cache-mib", type=int, required=True)
    parser.add_argument("--weights-mib", type=int, required=True)
    parser.add_argument("--resets", type=int, default=0)
    options = parser.parse_args()
    driver = Driver()
    for reset in range(options.resets + 1):
        if reset > 0:
            driver.call("cuDevicePrimaryCtxReset_v2", 0)
        driver.enter_device()
        memory = filled(driver, options)
        options.files.with_suffix(f".ready{reset or ''}").touch()
        wait_for(options.files.with_suffix(f".check{reset or ''}"))
        memory.check()
    print(json.dumps({"program": "empty_cache", "bytes": sum(size for _, size, _ in memory.blocks)}), flush=True)


if __name__ == "__main__":
    main()
