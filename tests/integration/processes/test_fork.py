"""A child of fork without exec: each driver call gives there what it gives without amem."""
import json
import os
import re
import subprocess
import sys

import pytest

from sim_node import patience

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
NOT_INITIALIZED = 3

# Makes memory of each kind, and calls each symbol of argv in a child of its own: with the same argument everywhere, with the
# address or the handle of that memory in each place, and then as programs call it, where that is more than an address.
PROGRAM = """
import ctypes, json, os, struct, sys

own = ctypes.CDLL(None)
cuda = ctypes.CDLL("libcuda.so.1")
U64, Size, Void = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
MIB = 1 << 20

def check(result):
    assert result == 0, result

class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]

check(cuda.cuInit(0))
context = Void()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
block, mapped, handle, shared = U64(), U64(), U64(), IpcHandle()
check(cuda.cuMemAlloc_v2(ctypes.byref(block), Size(4096)))
check(cuda.cuIpcGetMemHandle(ctypes.byref(shared), block))
properties = (ctypes.c_int * 16)(1, 1, 1, 0)  # pinned, with a descriptor, of device 0
check(cuda.cuMemCreate(ctypes.byref(handle), Size(2 * MIB), properties, U64(0)))
check(cuda.cuMemAddressReserve(ctypes.byref(mapped), Size(4 * MIB), Size(0), U64(0), U64(0)))
check(cuda.cuMemMap(mapped, Size(2 * MIB), Size(0), handle, U64(0)))
descriptor = ctypes.c_int()
check(cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, U64(0)))
if os.environ.get("PAUSED") and hasattr(own, "amem_shim_pause"):
    check(own.amem_shim_pause(None, Size(0), ctypes.c_uint32(0), ctypes.create_string_buffer(200), Size(200)))

buffer = ctypes.create_string_buffer(4096)
host = ctypes.addressof(buffer)
at = ctypes.byref(buffer)
lists = [[each] * 10 for each in (0, 1, host, block.value, mapped.value, handle.value)]
for place in range(6):
    for each in (block.value, mapped.value, handle.value):
        lists.append([host] * place + [each] + [host] * (9 - place))
lists = [[U64(each) for each in values] for values in lists]
ordinary = {
    "cuMemAlloc_v2": (at, Size(4096)),
    "cuMemAllocPitch_v2": (at, at, Size(100), Size(10), 4),
    "cuMemAllocManaged": (at, Size(4096), 1),
    "cuMemCreate": (at, Size(2 * MIB), properties, U64(0)),
    "cuMemFree_v2": (block,),
    "cuMemMap": (U64(mapped.value + 2 * MIB), Size(2 * MIB), Size(0), handle, U64(0)),
    "cuMemUnmap": (mapped, Size(2 * MIB)),
    "cuMemSetAccess": (mapped, Size(2 * MIB), (ctypes.c_int * 4)(1, 0, 3, 0), Size(1)),
    "cuMemAddressReserve": (at, Size(2 * MIB), Size(0), U64(0), U64(0)),
    "cuMemAddressFree": (mapped, Size(4 * MIB)),
    "cuMemGetAllocationGranularity": (at, properties, 0),
    "cuMemRetainAllocationHandle": (at, mapped),
    "cuMemRelease": (handle,),
    "cuMemExportToShareableHandle": (at, handle, 1, U64(0)),
    "cuMemImportFromShareableHandle": (at, Void(descriptor.value), 1),
    "cuIpcOpenMemHandle": (at, shared, 1),
    "cuIpcOpenMemHandle_v2": (at, shared, 1),
    "cuIpcGetMemHandle": (at, block),
    "cuPointerGetAttribute": (at, 2, block),
    "cuMemcpyDtoH_v2": (at, block, Size(16)),
}
results = {}
for symbol in sys.argv[1:]:
    if not hasattr(cuda, symbol):
        continue
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        call = getattr(cuda, symbol)
        for values in [*lists, *([ordinary[symbol]] if symbol in ordinary else [])]:
            os.write(writer, struct.pack("i", call(*values)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = [each for each, in struct.iter_unpack("i", pipe.read())]
    results[symbol] = [sorted(set(told)), len(told), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
print(json.dumps({"results": results, "ordinary": sorted(ordinary)}))
"""


def wrapped():
    """The symbols that the shim wraps, with their classes; without lookups of symbols, which need no driver."""
    with open(os.path.join(ROOT, "shim", "calls", "driver_calls.inc")) as file:
        rows = re.findall(r"^(\w+)\(\w+, \d+, \w+, (\w+)\)", file.read(), re.MULTILINE)
    return {symbol: kind for kind, symbol in rows if not symbol.startswith("cuGetProcAddress")}


def called(node, symbols, **settings):
    done = subprocess.run([sys.executable, "-B", "-c", PROGRAM, *symbols], env=node.env(settings), capture_output=True, text=True,
                          timeout=patience(60))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("settings", [{"AMEM_SCOPE": "heap"}, {"AMEM_SCOPE": "heap", "AMEM_REQUIRED": "1"},
                                      {"AMEM_REQUIRED": "1", "AMEM_MODULES": "libffi,_ctypes"},
                                      {"AMEM_SCOPE": "heap", "AMEM_REQUIRED": "1", "PAUSED": "1"}])
def test_calls_of_a_forked_child_give_what_they_give_without_amem(node, settings):
    symbols = wrapped()
    assert {"ANSWERED", "COUNTED", "FREES", "GATED"} <= set(symbols.values())
    bare, _ = called(node, symbols)
    for symbol, (results, _, ended) in bare["results"].items():
        assert results == [NOT_INITIALIZED] and ended == 0, symbol
    assert set(bare["ordinary"]) <= set(bare["results"])
    shim = os.path.join(node.build.directory, "lib", "libamem_shim.so")
    preloaded, errors = called(node, symbols, LD_PRELOAD=shim, AMEM_GROUP="train", AMEM_LOG="info", **settings)
    assert "of group train" in errors, "the parent is a rank"
    differ = {symbol: (kind, preloaded["results"].get(symbol)) for symbol, kind in symbols.items()
              if preloaded["results"].get(symbol) != bare["results"].get(symbol)}
    assert not differ
