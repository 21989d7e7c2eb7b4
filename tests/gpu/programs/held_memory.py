#!/usr/bin/env python3
"""Whether a descriptor keeps device memory, and what is in it, while no process that uses CUDA has it.

One process makes memory, writes to it, exports it and ends; this one, which never uses CUDA, holds the descriptor; another imports it
and reads. amem is not in use. On device 0:

    python3 held_memory.py

The last line is a JSON object: GPU memory in use at each step in MiB, and whether the bytes were right. Exit status: 0, 1 when a call
fails.
"""

import array
import ctypes
import json
import os
import socket
import subprocess
import sys

from harness import Gpus

import bare_driver

BYTES = 1 << 30
PATTERN = 0x5EED5EED
POSIX_FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int),
                ("location_id", ctypes.c_int), ("metadata", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int)]


class Driver(bare_driver.Driver):
    def make(self):
        handle = ctypes.c_uint64()
        properties = Properties(type=1, handle_types=POSIX_FD, location_type=DEVICE)
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(BYTES), ctypes.byref(properties), ctypes.c_ulonglong(0))
        return handle

    def map(self, handle):
        address, access = ctypes.c_uint64(), Access(DEVICE, 0, READ_WRITE)
        self.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(BYTES), ctypes.c_size_t(0), ctypes.c_uint64(0),
                  ctypes.c_ulonglong(0))
        self.call("cuMemMap", address, ctypes.c_size_t(BYTES), ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        self.call("cuMemSetAccess", address, ctypes.c_size_t(BYTES), ctypes.byref(access), ctypes.c_size_t(1))
        return address


def make(channel):
    """The process that makes it, and ends."""
    driver = Driver()
    handle = driver.make()
    address = driver.map(handle)
    driver.call("cuMemsetD32_v2", address, ctypes.c_uint(PATTERN), ctypes.c_size_t(BYTES // 4))
    driver.call("cuCtxSynchronize")
    descriptor = ctypes.c_int()
    driver.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, ctypes.c_int(POSIX_FD), ctypes.c_ulonglong(0))
    channel.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor.value]))])


def read(descriptor):
    """The process that gets it afterwards."""
    driver = Driver()
    handle = ctypes.c_uint64()
    driver.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), ctypes.c_int(POSIX_FD))
    content = (ctypes.c_uint32 * (BYTES // 4))()
    driver.call("cuMemcpyDtoH_v2", content, driver.map(handle), ctypes.c_size_t(BYTES))
    if bytes(content) != PATTERN.to_bytes(4, sys.byteorder) * (BYTES // 4):
        sys.exit("FAILED: it holds other bytes")


def hold():
    used = {"before": Gpus().used_mib()[0]}
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    maker = subprocess.Popen([sys.executable, __file__, "make", str(there.fileno())], pass_fds=[there.fileno()])
    there.close()
    _, ancillary, _, _ = here.recvmsg(1, socket.CMSG_SPACE(4))
    if maker.wait() != 0 or not ancillary:
        sys.exit("FAILED: it was not made")
    descriptor = array.array("i", ancillary[0][2])[0]
    used["held"] = Gpus().used_mib()[0]
    reader = subprocess.run([sys.executable, __file__, "read", str(descriptor)], pass_fds=[descriptor], check=False)
    used["read"] = Gpus().used_mib()[0]
    os.close(descriptor)
    used["closed"] = Gpus().used_mib()[0]
    print(json.dumps({"program": "held_memory", "mib": BYTES >> 20, "used_mib": used, "intact": reader.returncode == 0}), flush=True)


def main():
    if sys.argv[1:2] == ["make"]:
        make(socket.socket(fileno=int(sys.argv[2])))
    elif sys.argv[1:2] == ["read"]:
        read(int(sys.argv[2]))
    else:
        hold()


if __name__ == "__main__":
    main()
