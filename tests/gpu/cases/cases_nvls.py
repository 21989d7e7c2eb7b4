"""NVLS: NCCL's all-reduces through multicast objects, with brokered memory bound to them.

Makes multicast objects on the GPUs, which not every node can have: so only for whoever asks for it.
"""

import os
import re
import subprocess
import sys

from cases import memory, times
from harness import Failure, MIB, Skip
from registry import case

ASKED_FOR = "NCCL_NVLS_ENABLE"
MULTICAST_SUPPORTED = 132  # CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
# All-reduces have no other algorithm, so NCCL fails where it cannot use NVLS.
ENVIRONMENT = {ASKED_FOR: "1", "NCCL_ALGO": "ring;allreduce:nvls", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NVLS"}
CHANNELS = re.compile(r"(\d+) nvls channels")
BOUND = re.compile(r"multicast bind .* rc=(\d+)$", re.MULTILINE)
# In a process of its own: the runner touches no CUDA.
LOOK = f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for device in range(count.value):
    value = ctypes.c_int()
    assert cuda.cuDeviceGetAttribute(ctypes.byref(value), {MULTICAST_SUPPORTED}, device) == 0
    print(value.value)
"""


def check_asked_for(environment):
    if environment.get(ASKED_FOR) != "1":
        raise Skip(f"it makes multicast objects on the GPUs, so it runs only where {ASKED_FOR}=1 is set")


def check_supported(ranks, look=LOOK):
    done = subprocess.run([sys.executable, "-c", look], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                          check=False)
    if done.returncode != 0:
        raise Skip(f"the driver does not say whether it has multicast: {done.stderr.strip().splitlines()[-1:]}")
    values = [int(line) for line in done.stdout.split()][:ranks]
    if len(values) < ranks or not all(values):
        raise Skip(f"{sum(values)} of {ranks} GPUs have multicast (CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)")


def nvls_channels(logs):
    """Of each communicator, by NCCL's own word."""
    return [int(channels) for log in logs for channels in CHANNELS.findall(log.read_text(errors="replace"))]


def bindings(traces):
    """How many the driver has made, and how many it has refused."""
    results = [int(code) for trace in traces for code in BOUND.findall(trace.read_text(errors="replace"))]
    return results.count(0), len(results) - results.count(0)


@case(300)
def nccl_nvls(bench):
    """All-reduces by NVLS over pauses from inside and by an operator; only with NCCL_NVLS_ENABLE=1."""
    check_asked_for(os.environ)
    bench.needs_peers()
    check_supported(bench.ranks)

    def run(name, limit, *arguments, **how):
        env = {**ENVIRONMENT, "NCCL_DEBUG_FILE": f"{bench.folder}/{name}.nccl.%p", "AMEM_NVLS": "1",
               "AMEM_TRACE": f"{bench.folder}/{name}.trace.%p"}
        finished = bench.nccl_cycle(*arguments, "--comms", 2, "--max-bytes", 16 * MIB, env=env, **how).wait_any(limit)
        return finished, nvls_channels(bench.folder.glob(f"{name}.nccl.*"))

    alone, channels = run("alone", 60, "--cycles", 1, "--pause", "none", shim=False)
    if alone.code != 0 or not channels or min(channels) == 0:
        raise Skip(f"NCCL uses no NVLS here without amem either (status {alone.code}, channels {channels})")
    said = []
    for pause in ("inside", "outside"):
        finished, channels = run(pause, 110, "--cycles", bench.few, "--pause", pause)
        made, refused = bindings(bench.folder.glob(f"{pause}.trace.*"))
        if finished.code != 0:
            raise Failure(f"paused from {pause}: status {finished.code}; {made} bindings made, {refused} refused:\n"
                          f"{finished.err.read_text(errors='replace')[-2000:]}")
        if not channels or min(channels) == 0 or made < bench.ranks or refused > 0:
            raise Failure(f"paused from {pause}: NCCL has NVLS without amem, and here {channels} channels, {made} bindings "
                          f"made, {refused} refused")
        report = finished.report()
        said.append(f"{pause}: {times(report)}, {report['verified']} collectives verified, {made} bindings; {memory(report)}")
    return "; ".join(said)
