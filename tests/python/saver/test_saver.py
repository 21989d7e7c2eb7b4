"""The distribution torch_memory_saver on the simulated driver: its hook library is preloaded, nothing says a group."""
import os
from typing import Protocol

import pytest
from conftest import Python
from sim_node.node import Build, Node

PROGRAM = """
import ctypes, os
import amem
from torch_memory_saver import torch_memory_saver as saver

cuda = ctypes.CDLL("libcuda.so.1")
SIZE = 3 << 20

def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)

def start():
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)

class Memory:
    def __init__(self, value):
        self.address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(SIZE))
        call("cuMemcpyHtoD_v2", self.address, bytes([value]) * SIZE, ctypes.c_size_t(SIZE))
    def value(self):
        read = ctypes.create_string_buffer(SIZE)
        call("cuMemcpyDtoH_v2", read, self.address, ctypes.c_size_t(SIZE))
        values = set(read.raw)
        assert len(values) == 1, values
        return values.pop()

def paused():
    return {each.tag: each.paused_bytes for each in amem.stats().brokered}

def unbrokered():
    return sum(each.bytes for each in amem.stats().unbrokered)
"""


class Preloaded(Protocol):
    def __call__(self, script: str, **variables: str) -> str: ...


@pytest.fixture
def preloaded(build: Build, node: Node, python: Python) -> Preloaded:
    """Runs a script after PROGRAM as a launcher of torch_memory_saver's would."""
    def run(script: str, **variables: str) -> str:
        dropin = os.path.join(build.directory, "dropin")
        env = node.env({"PYTHONPATH": f"{dropin}:{build.directory}/python", **variables})
        hook = os.path.join(dropin, "torch_memory_saver_hook_mode_preload.abi3.so")
        return python.run(PROGRAM + script, {**env, "LD_PRELOAD": hook})
    return run


def test_regions(preloaded: Preloaded) -> None:
    preloaded("""
start()
outside = Memory(1)
with saver.region("weights", enable_cpu_backup=True):
    weights = Memory(2)
with saver.region():
    scratch = Memory(3)
    with saver.disable():
        stays = Memory(4)
assert amem.group().startswith(f"tms-{os.getpid()}-"), amem.group()
assert saver.enabled and unbrokered() == 2 * SIZE
saver.pause("weights")
assert paused() == {"weights": SIZE, "default": 0}
saver.pause()
assert paused() == {"weights": SIZE, "default": SIZE}
assert (outside.value(), stays.value()) == (1, 4), "the program runs on"
saver.resume()
assert paused() == {"weights": 0, "default": 0}
assert (weights.value(), scratch.value()) == (2, 0)
""")


def test_a_whole_process(preloaded: Preloaded) -> None:
    preloaded("""
start()
heap = Memory(1)
with saver.region("grads"):
    grads = Memory(2)
cdll = saver._impl._binary_wrapper.cdll
assert cdll.tms_get_interesting_region()
saver.pause("default")
assert paused() == {"heap": SIZE, "grads": 0}
saver.pause()
assert paused() == {"heap": SIZE, "grads": SIZE}
with saver.disable():
    stays = Memory(3)
cdll.tms_set_interesting_region(False)
more = Memory(4)
cdll.tms_set_interesting_region(True)
assert unbrokered() == 2 * SIZE and (stays.value(), more.value()) == (3, 4)
saver.resume()
assert (heap.value(), grads.value(), stays.value()) == (1, 0, 3)
""", TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1")


def test_processes_that_it_starts(preloaded: Preloaded) -> None:
    said = preloaded("""
import subprocess, sys
from torch_memory_saver import configure_subprocess
os.environ["LD_PRELOAD"] = "/nowhere/libamem_shim.so"
script = "import amem, ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0); print(amem.is_active(), amem.stats().scope, amem.group())"
with configure_subprocess():
    print(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30).stdout)
""")
    active, scope, group = said.split()
    assert (active, scope) == ("True", "regions") and group.startswith("tms-")


def test_children_of_fork_are_groups_by_themselves(preloaded: Preloaded) -> None:
    preloaded("""
assert amem.group().startswith(f"tms-{os.getpid()}-")  # the shim is in use, and the driver not initialised
ends = []
for _ in range(2):
    read, write = os.pipe()
    if os.fork() == 0:
        start()
        with saver.region():
            Memory(1)
        assert amem.group().startswith(f"tms-{os.getpid()}-"), amem.group()
        os.write(write, amem.group().encode())
        os._exit(0)
    os.close(write)
    ends.append(os.fdopen(read))
groups = {end.read() for end in ends}
assert len(groups) == 2 and all(each.startswith("tms-") for each in groups), groups
for _ in ends:
    assert os.wait()[1] == 0
""")


def test_without_the_hook_library(build: Build, bare_node: Node, python: Python) -> None:
    """Regions do nothing, and a pause says what is missing."""
    env = bare_node.env({"PYTHONPATH": f"{build.directory}/dropin:{build.directory}/python"})
    python.run("""
from torch_memory_saver import torch_memory_saver as saver
with saver.region("a"), saver.disable():
    pass
try:
    saver.pause()
    raise SystemExit("nothing was raised")
except RuntimeError as error:
    assert "libamem_shim.so is not loaded" in str(error), error
""", env)


def test_the_hook_mode_torch_without_the_hook_library(build: Build, bare_node: Node, python: Python) -> None:
    """Megatron and NeMo-RL set it, and preload nothing: regions would do nothing without a word."""
    env = bare_node.env({"PYTHONPATH": f"{build.directory}/dropin:{build.directory}/python"})
    python.run("""
import io, logging
said = io.StringIO()
logging.getLogger("amem").addHandler(logging.StreamHandler(said))
from torch_memory_saver import torch_memory_saver as saver
saver.hook_mode = "preload"
assert said.getvalue() == ""
from torch_memory_saver.hooks.base import HookUtilBase
for _ in range(2):
    HookUtilBase.create(hook_mode="torch")
    saver.hook_mode = "torch"
assert said.getvalue().count("does not load libamem_shim.so") == 1, said.getvalue()
""", env)


def test_without_a_broker(build: Build, bare_node: Node, python: Python) -> None:
    dropin = f"{build.directory}/dropin"
    env = bare_node.env({"PYTHONPATH": f"{dropin}:{build.directory}/python",
                         "LD_PRELOAD": f"{dropin}/torch_memory_saver_hook_mode_preload.abi3.so"})
    python.run(PROGRAM + """
start()
with saver.region("a"):
    assert Memory(7).value() == 7
try:
    saver.pause()
    raise SystemExit("nothing was raised")
except amem.UnavailableError as error:
    assert "Start amemd" in str(error), error
""", env)


def test_saved_bytes_can_be_read(preloaded: Preloaded) -> None:
    preloaded("""
from amem import _shim

def read(memory, begin=0, size=SIZE):
    out = ctypes.create_string_buffer(size)
    _shim.call("amem_shim_backup_read", memory.address.value + begin, size, out)
    return out.raw

def view(memory, begin=0, size=SIZE):
    at = ctypes.c_void_p()
    _shim.call("amem_shim_backup_view", memory.address.value + begin, size, ctypes.byref(at))
    return None if at.value is None else ctypes.string_at(at.value, size)

def refused(error, call, *arguments):
    try:
        call(*arguments)
    except error as raised:
        return str(raised)
    raise SystemExit(f"no {error}")

start()
outside = Memory(1)
with saver.region("weights", enable_cpu_backup=True):
    dense, sparse = Memory(2), Memory(0)
with saver.region():
    dropped = Memory(3)
BLOCK = 64 << 10
some = bytes([7]) * BLOCK
call("cuMemcpyHtoD_v2", ctypes.c_uint64(sparse.address.value + 20 * BLOCK), some, ctypes.c_size_t(BLOCK))
expected = bytes(20 * BLOCK) + some + bytes(SIZE - 21 * BLOCK)
refused(amem.NotFoundError, read, dense)

saver.pause()
assert read(dense) == bytes([2]) * SIZE == view(dense)
assert view(dense, 5, 1000) == read(dense, 5, 1000) == bytes([2]) * 1000
assert view(sparse) is None
assert read(sparse) == expected
assert read(sparse, 20 * BLOCK - 3, 9) == bytes(3) + bytes([7]) * 6
assert "dropped" in refused(amem.FailedPreconditionError, read, dropped)
refused(amem.InvalidArgumentError, read, outside)
refused(amem.InvalidArgumentError, view, dense, SIZE - 1, 64 << 20)
saver.resume()
refused(amem.NotFoundError, view, dense)
refused(amem.NotFoundError, read, sparse)

# Of this pause, and not of the one before.
call("cuMemcpyHtoD_v2", dense.address, bytes([9]) * SIZE, ctypes.c_size_t(SIZE))
saver.pause("weights")
assert read(dense) == bytes([9]) * SIZE
saver.pause()
assert read(dense) == bytes([9]) * SIZE, "paused already, while other memory left"
saver.resume()
amem.pause(["weights"], discard=["weights"])
refused(amem.FailedPreconditionError, read, dense)
refused(amem.FailedPreconditionError, view, dense)
saver.resume()
assert dense.value() == 0
""")
