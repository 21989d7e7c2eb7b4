#!/usr/bin/env python3
"""Whether a small block of pinned memory that a program has just got is all zero, after others were filled and freed.

The driver takes small blocks from a chunk of its own and gives that back when the last of them is freed; the next chunk's
pages are the system's, all zero. It promises no zeros: a block that anything else in the process has in the chunk keeps it, and
with it the old bytes. Under amem it must be as without: the shim may have nothing there. With the driver alone, on device 0:

    python3 fresh_pinned.py
    amemctl run --group train --scope heap -- python3 fresh_pinned.py

Exit status: 0, 1 when a call fails.
"""

import ctypes
import json
import sys

import amem

BLOCKS = 64
BLOCK_BYTES = 512
DEVICE_BYTES = 4 << 20
OLD_BYTE = 1


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            sys.exit(f"FAILED: {name} returned {result}")

    def enter_device(self):
        """Device 0's context, for this thread."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))

    def allocate_pinned(self):
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(BLOCK_BYTES), 0)
        return address

    def free_pinned(self, address):
        self.call("cuMemFreeHost", address)


def prepare_shim():
    """The shim has now made all that it ever makes on this device. Returns the bytes that it brokers."""
    if not amem.is_active():
        return 0
    amem.pause()
    amem.resume()
    return sum(each.resident_bytes for each in amem.stats().brokered)


def main():
    driver = Driver()
    driver.enter_device()
    driver.allocate(DEVICE_BYTES)
    brokered = prepare_shim()
    blocks = [driver.allocate_pinned() for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, OLD_BYTE, BLOCK_BYTES)
    for block in blocks:
        driver.free_pinned(block)
    fresh = driver.allocate_pinned()
    content = ctypes.string_at(fresh, BLOCK_BYTES)
    print(json.dumps({"program": "fresh_pinned", "brokered_bytes": brokered, "all_zero": not any(content),
                      "old_bytes": content.count(OLD_BYTE),
                      "address_of_an_old_one": fresh.value in {block.value for block in blocks}}), flush=True)


if __name__ == "__main__":
    main()
