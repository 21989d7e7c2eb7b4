#!/usr/bin/env python3
"""Whether device memory that is registered with a NIC stays where it is through a pause, and leaves once it is deregistered.

Needs a NIC and a way for it into device memory (nvidia-peermem, or a stand-in for libibverbs). On device 0:

    amemctl run --group train --scope heap -- python3 nic_memory.py

The last line is a JSON object: bytes resident in each pause, and whether the contents were right after it. Exit status: 0, 1 when a
call fails.
"""

import ctypes
import json
import os
import sys

import amem

import bare_driver

BYTES = 64 << 20
OLD_BYTE, NEW_BYTE = 0x5A, 0xA5
LOCAL_WRITE = 1  # IBV_ACCESS_LOCAL_WRITE


def skip(why):
    print(json.dumps({"skipped": why}), flush=True)
    sys.exit(0)


class Driver(bare_driver.Driver):
    def allocate(self, byte):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(BYTES))
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(byte), ctypes.c_size_t(BYTES))
        self.call("cuCtxSynchronize")
        return address

    def holds(self, address, byte):
        content = ctypes.create_string_buffer(BYTES)
        self.call("cuMemcpyDtoH_v2", content, address, ctypes.c_size_t(BYTES))
        return content.raw == bytes([byte]) * BYTES


class Nic:
    """The first one that there is, as programs that can do without find it."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libibverbs.so.1", use_errno=True)
        except OSError as error:
            skip(f"no libibverbs: {error}")
        count = ctypes.c_int()
        devices = self.pointer("ibv_get_device_list", ctypes.byref(count))
        if not devices or count.value == 0:
            skip("no NIC")
        context = self.pointer("ibv_open_device", ctypes.c_void_p(ctypes.c_void_p.from_address(devices).value))
        self.domain = context and self.pointer("ibv_alloc_pd", ctypes.c_void_p(context))
        if not self.domain:
            skip(f"the NIC cannot be used: {os.strerror(ctypes.get_errno())}")

    def pointer(self, name, *arguments):
        function = getattr(self.library, name)
        function.restype = ctypes.c_void_p
        return function(*arguments)

    def register(self, address):
        region = self.pointer("ibv_reg_mr", ctypes.c_void_p(self.domain), address, ctypes.c_size_t(BYTES), LOCAL_WRITE)
        if not region:
            skip(f"the NIC cannot reach device memory (nvidia-peermem?): {os.strerror(ctypes.get_errno())}")
        return region

    def deregister(self, region):
        if self.library.ibv_dereg_mr(ctypes.c_void_p(region)) != 0:
            sys.exit("FAILED: ibv_dereg_mr")


def resident_in_a_pause():
    amem.pause()
    bytes_there = sum(each.resident_bytes for each in amem.stats().brokered)
    amem.resume()
    return bytes_there


def main():
    driver = Driver()
    nic = Nic()
    known, other = driver.allocate(OLD_BYTE), driver.allocate(NEW_BYTE)
    region = nic.register(known)
    report = {"program": "nic_memory", "bytes": BYTES, "registered": resident_in_a_pause()}
    intact = driver.holds(known, OLD_BYTE) and driver.holds(other, NEW_BYTE)
    nic.deregister(region)
    report["deregistered"] = resident_in_a_pause()
    report["intact"] = intact and driver.holds(known, OLD_BYTE) and driver.holds(other, NEW_BYTE)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
