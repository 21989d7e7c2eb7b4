#!/usr/bin/env python3
"""What the driver's checkpoint of a process does with what the process holds: each kind in a process of its own, without amem.

    sudo python3 checkpoint_holders.py --prefix /opt/amem [--only KIND...]

Needs PyTorch, a driver of CUDA 12.8 or newer, and root. Two devices, where there are two. Prints a row for each kind: the results of lock,
checkpoint, restore and unlock, and whether the process's bytes are right. What hangs is killed and noted. Exit status: 0: all was tried.
"""

import argparse
import ctypes
import json
import pathlib
import subprocess
import sys
import time

from checkpoint_callers import STEPS, Caller, Clock, OutOfTime, Target, Wedged, row

LIMIT_S = 12  # of a step


def restore_elsewhere(pid):
    """Restores the process with both GPUs exchanged, as CUDA 13 allows. The result's name."""
    class Pair(ctypes.Structure):
        _fields_ = [("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16)]

    class Arguments(ctypes.Structure):
        _fields_ = [("pairs", ctypes.POINTER(Pair)), ("count", ctypes.c_uint), ("reserved", ctypes.c_char * 44), ("reserved1", ctypes.c_uint64)]

    library = ctypes.CDLL("libcuda.so.1")
    library.cuInit(0)
    uuids = []
    for ordinal in range(2):
        handle, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        library.cuDeviceGet(ctypes.byref(handle), ordinal)
        library.cuDeviceGetUuid_v2(uuid, handle)
        uuids.append(uuid)
    pairs = (Pair * 2)(Pair(uuids[0], uuids[1]), Pair(uuids[1], uuids[0]))
    arguments = Arguments(pairs, 2)
    name = ctypes.c_char_p()
    library.cuGetErrorName(library.cuCheckpointProcessRestore(pid, ctypes.byref(arguments)), ctypes.byref(name))
    return name.value.decode()


class Holder:
    """What a target has beside its tensor. `prepare` runs in the target."""

    def __init__(self, torch):
        self.torch, self.data = torch, torch.arange(1 << 26, dtype=torch.int32, device="cuda")
        self.kept = []

    def call(self, name, *arguments):
        if result := getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments):
            raise RuntimeError(f"{name} returned {result}")

    def nothing(self):
        pass

    def two_devices(self):
        self.kept.append(self.torch.arange(1 << 20, device="cuda:1"))

    def two_devices_with_peer_access(self):
        self.kept.append(self.data[:1 << 20].to("cuda:1"))

    def pinned_memory(self):
        self.kept.append(self.torch.empty(1 << 26, dtype=self.torch.uint8, pin_memory=True))

    def profiler_running(self):
        profiler = self.torch.profiler.profile()
        profiler.__enter__()
        self.data.add_(0)
        self.kept.append(profiler)

    def profiler_before(self):
        with self.torch.profiler.profile():
            self.data.add_(0)
            self.torch.cuda.synchronize()

    def pool_memory(self):
        address, stream = ctypes.c_uint64(), ctypes.c_void_p()
        self.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(1 << 26), stream)

    def ipc_handle(self):
        self.kept.append(self.data.untyped_storage()._share_cuda_())

    def opened_by_another(self):
        """Another process has this process's memory open, and is not checkpointed."""
        import torch.multiprocessing as processes
        context = processes.get_context("spawn")
        self.queue = context.Queue()
        self.other = context.Process(target=hold_open, args=(self.queue,), daemon=True)
        self.other.start()
        self.queue.put(self.data)
        time.sleep(8)

    def exported_handle(self):
        """A descriptor of memory, which nobody has imported."""
        class Location(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]

        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p),
                        ("flags", ctypes.c_ubyte * 8)]
        properties = Properties(1, 1, Location(1, 0), None)
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(1 << 25), ctypes.byref(properties), ctypes.c_uint64(0))
        self.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, ctypes.c_uint64(0))

    def right(self):
        return bool((self.data == self.torch.arange(1 << 26, dtype=self.torch.int32, device="cuda")).all())


def hold_open(queue):
    data = queue.get()
    assert int(data[5]) == 5
    time.sleep(3600)


KINDS = [name for name in vars(Holder) if not name.startswith("_") and name not in ("call", "right")]


def target(kind):
    import torch
    holder = Holder(torch)
    if kind.startswith("two_devices") and torch.cuda.device_count() < 2:
        print("ready no second device", flush=True)
        return
    getattr(holder, kind)()
    torch.cuda.synchronize()
    print("ready PyTorch", flush=True)
    for _ in sys.stdin:
        try:
            said = "right" if holder.right() else "wrong data"
        except Exception as error:  # noqa: BLE001: whatever it is, it is reported
            said = f"error: {str(error).splitlines()[0]}"
        print(said, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--prefix", type=pathlib.Path, help="a bundle: amem-checkpoint is in its bin")
    parser.add_argument("--only", nargs="*", default=[*KINDS, "other_gpu"])
    parser.add_argument("--seconds", type=float, default=240, help="for everything")
    parser.add_argument("--as-target", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_target:
        return target(options.as_target)
    options.program = str(options.prefix.resolve() / "bin" / "amem-checkpoint")
    clock = Clock(options.seconds)
    caller, table = Caller(options, clock), []
    widths = (30, 30, 30, 30, 30, 20)
    row(("the process holds", *STEPS, "data"), widths)
    for kind in options.only:
        argv = [sys.executable, "-B", str(pathlib.Path(__file__).resolve()), "--as-target", "two_devices" if kind == "other_gpu" else kind]
        try:
            it = Target.of(argv, clock)
        except Wedged as why:
            row((kind, f"the target does not start: {why}"), widths)
            continue
        said = {}
        try:
            if it.has != "PyTorch":
                row((kind, it.has), widths)
                continue
            for step in STEPS:
                if kind == "other_gpu" and step == "restore":
                    done = subprocess.run([sys.executable, "-c", "import sys, checkpoint_holders as h; print(h.restore_elsewhere(int(sys.argv[1])))",
                                           str(it.pid)], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, timeout=30, check=False)
                    said[step] = done.stdout.strip() or done.stderr.strip().splitlines()[-1]
                    continue
                answer = caller.step(step, it.pid, seconds=LIMIT_S)
                said[step] = f"{answer['name'].replace('CUDA_', '')} {answer['us'] / 1000:.0f} ms"
                if answer["result"] is None:
                    break
            said["data"] = it.check(10)
        except (Wedged, OutOfTime, subprocess.TimeoutExpired) as why:
            said["data"] = str(why) or "no time left"
        finally:
            ended = it.end()
        table.append({"holds": kind, **said, "ended": ended})
        row((kind, *(said.get(step, "-") for step in STEPS), said.get("data", "-") + ("" if ended else ", cannot be killed")), widths)
    print(json.dumps({"program": "checkpoint_holders", "rows": table}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
