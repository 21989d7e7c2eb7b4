#!/usr/bin/env python3
"""Whether processes that die with kernels in flight disturb others on the same GPU, without amem and in scope heap.

PyTorch's own tests failed twice in scope heap with "an illegal instruction was encountered" in a loop of sparse products, seconds
after other processes on that GPU had died by abort(). Here processes die so several times a second, beside survivors that run this
loop and check its results. On device 0:

    python3 death_beside.py --seconds 200
    amemctl run --group train --scope heap -- python3 death_beside.py --seconds 200
    python3 death_beside.py --seconds 200 --drain       # the dying have nothing in flight

The last line is a JSON object. Exit status: 0: nothing was disturbed; 1.
"""

import argparse
import ctypes
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time

MEMORY = 256 << 20
SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 memory, .param .u32 turns)
{
  .reg .u64 %rd<4>; .reg .u32 %r<6>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [memory];
  ld.param.u32 %r1, [turns];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.u32 %r4, %r2, %r3, %r4;
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd3, %rd1, %rd2;
again:
  st.global.u32 [%rd3], %r1;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra again;
  ret;
}
\0"""


def die(drain):
    """Launches kernels and aborts in the middle of them, or after them."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        if result := getattr(library, name)(*arguments):
            print(f"{name} returned {result}", file=sys.stderr)
            os._exit(3)
    device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory, turns = ctypes.c_uint64(), ctypes.c_uint32(20000)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(MEMORY))
    call("cuModuleLoadData", ctypes.byref(module), SPIN)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(turns))
    for _ in range(200):
        call("cuLaunchKernel", kernel, 1024, 1, 1, 256, 1, 1, 0, None, parameters, None)
    time.sleep(random.uniform(0, 0.1))
    if drain:
        call("cuCtxSynchronize")
    os.abort()


def survive(seconds):
    """Two threads multiply by a sparse matrix on streams of their own, as PyTorch's test does."""
    import torch

    size, turns = 1024, 500
    weight = torch.ones((size, size), device="cuda").to_sparse()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results, rounds, end = {}, 0, time.monotonic() + seconds
    errors = []

    def multiply(number):
        try:
            with torch.cuda.stream(streams[number]):
                for _ in range(turns):
                    results[number] = weight.mm(results[number])
                    results[number].div_(float(size))
        except Exception as error:  # noqa: BLE001: whatever it is, it is reported
            errors.append(str(error))
    while time.monotonic() < end and not errors:
        for number in range(2):
            results[number] = torch.ones((size, size), device="cuda")
        torch.cuda.synchronize()
        threads = [threading.Thread(target=multiply, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        wrong = [total for result in results.values() if (total := result.sum().item()) != size * size]
        if wrong and not errors:
            errors.append(f"sums {wrong}")
        rounds += 1
    print(json.dumps({"rounds": rounds, "errors": errors}), flush=True)
    os._exit(1 if errors else 0)


def control(options):
    def start(*what):
        return subprocess.Popen([sys.executable, __file__, *map(str, what)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)
    began = time.monotonic()
    survivors = [start("--as", "survivor", "--seconds", options.seconds) for _ in range(options.survivors)]
    time.sleep(options.settle)
    dying, deaths, refused = [], 0, {}
    while time.monotonic() < began + options.seconds:
        dying.append(start("--as", "dying", *(["--drain"] if options.drain else [])))
        time.sleep(random.expovariate(options.rate))
        for each in [each for each in dying if each.poll() is not None]:
            dying.remove(each)
            deaths += 1
            if each.returncode != -6:
                said = each.stdout.read()[-200:]
                refused[said] = refused.get(said, 0) + 1
    stopped = time.monotonic() - began
    # One that is disturbed says so at the end of its round.
    ends = []
    for each in survivors:
        try:
            text = each.communicate(timeout=options.seconds + 60)[0]
        except subprocess.TimeoutExpired:
            each.kill()
            text = each.communicate()[0] + "\nhung"
        ends.append((each.returncode, text.strip()[-600:]))
    for each in dying:
        each.wait(60)
    disturbed = [end for end in ends if end[0] != 0]
    rounds = sum(json.loads(text.splitlines()[-1])["rounds"] for code, text in ends if code == 0)
    print(json.dumps({"program": "death_beside", "shim": "amem" in os.environ.get("LD_PRELOAD", ""), "drained": options.drain,
                      "survivors": options.survivors, "rounds": rounds, "deaths": deaths, "seconds": round(stopped, 1),
                      "otherwise_ended": refused, "disturbed": disturbed}), flush=True)
    return 1 if disturbed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--survivors", type=int, default=12)
    parser.add_argument("--rate", type=float, default=5, help="deaths a second")
    parser.add_argument("--settle", type=float, default=15, help="seconds that survivors have for their start")
    parser.add_argument("--drain", action="store_true", help="the dying wait for their kernels first")
    parser.add_argument("--as", dest="role", choices=("control", "survivor", "dying"), default="control")
    options = parser.parse_args()
    if options.role == "dying":
        die(options.drain)
    if options.role == "survivor":
        survive(options.seconds)
    return control(options)


if __name__ == "__main__":
    sys.exit(main())
