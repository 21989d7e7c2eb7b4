#!/usr/bin/env python3
"""How PyTorch programs end, by ways of which each makes a call at the gate when its group is paused.

    python3 exit_paused.py control          # starts the programs, each once running and once paused, and reports
    python3 exit_paused.py WAY              # one of them: says "ready", goes on at a line on stdin

The controller needs amemctl in PATH and AMEM_RUNTIME_DIR; it has no CUDA context. Exit status: 0 all right, 1 a check failed.
"""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import harness

MIB = 1 << 20
BLOCK_MIB = 512
LIMIT_S = 1.0  # by which an end may take longer than without a pause
PATIENCE_S = 60
DRIVER_OWN_MIB = 16  # what the driver takes or gives when a GPU gets its first user
# By way: the status with which the program ends while it is paused; None: any.
WAYS = {
    "sys_exit": 3,
    "exception": 1,
    # While a daemon thread waits at the gate. Before 3.14 Python ends such a thread where it next needs the interpreter, by
    # unwinding, which C++ frames in between may answer with abort(), with amem and without.
    "daemon": None,
    "nccl": 0,  # with a communicator
    "atexit": 0,  # with work for the device in an atexit function
    "interrupt": None,  # Ctrl-C while Python waits for a thread that waits at the gate
    "terminate": -signal.SIGTERM,
}


# ---- the programs -----------------------------------------------------------------------------------------------


class Raw:
    """Memory of the driver's own call, freed when the interpreter takes the module down."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.address = ctypes.c_uint64()
        result = self.cuda.cuMemAlloc_v2(ctypes.byref(self.address), 64 * MIB)
        assert result == 0, result

    def __del__(self, write=os.write):  # the module's names may be gone
        write(2, b"cuMemFree gave %d\n" % self.cuda.cuMemFree_v2(self.address))


raw = None


def program(way):
    global raw
    import torch

    torch.cuda.set_device(0)
    tensors = [torch.ones(BLOCK_MIB * MIB // 4, device="cuda")]
    if way == "nccl":
        import torch.distributed as dist

        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(tensors[0])
    if way == "atexit":
        import atexit

        import amem  # noqa: F401: tells the shim before this function runs

        atexit.register(lambda: tensors[0].add_(1))
    torch.cuda.synchronize()
    raw = Raw()
    print("ready", flush=True)
    sys.stdin.readline()

    if way == "daemon":
        def work():
            print("daemon", flush=True)
            tensors[0].add_(1)
        threading.Thread(target=work, daemon=True).start()
        sys.stdin.readline()
    if way in ("interrupt", "terminate"):
        threading.Thread(target=lambda: tensors[0].add_(1)).start()
        print("main ends", flush=True)
    if way == "sys_exit":
        sys.exit(3)
    if way == "exception":
        raise RuntimeError("the program fails on purpose")


# ---- the controller ---------------------------------------------------------------------------------------------


def amemctl(*arguments):
    subprocess.run(["amemctl", *arguments], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)


def until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise harness.Failure(f"{what}: not within {PATIENCE_S} s")
        time.sleep(0.01)


def group_exists(name):
    done = subprocess.run(["amemctl", "status", "--json"], check=True, stdout=subprocess.PIPE, text=True,
                          timeout=PATIENCE_S)
    return any(group["name"] == name for group in json.loads(done.stdout)["groups"])


def end_of(way, paused, gpus):
    """Has one program end. Returns the milliseconds that it took, and those until its memory was back."""
    group = f"ends-{way.replace('_', '-')}"
    before = gpus.used_mib()[0]
    argv = ["amemctl", "run", "--group", group, "--scope", "heap", "--", sys.executable, __file__, way]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    try:
        def expect(word):
            line = process.stdout.readline().strip()
            if line != word:
                raise harness.Failure(f"{way} said {line!r} instead of {word!r}")

        expect("ready")
        if paused:
            amemctl("pause", group)
        process.stdin.write("\n")
        began = time.monotonic()
        if way == "daemon":
            expect("daemon")
            began = time.monotonic()
            process.stdin.write("\n")
        if way in ("interrupt", "terminate"):
            expect("main ends")
            began = time.monotonic()
            # Again: Python may not wait for its thread yet when the first interrupt comes.
            while process.poll() is None and time.monotonic() < began + PATIENCE_S:
                process.send_signal(signal.SIGINT if way == "interrupt" else signal.SIGTERM)
                time.sleep(0.02)
        status = process.wait(PATIENCE_S)
        ended = time.monotonic()
        if paused and WAYS[way] is not None and status != WAYS[way]:
            raise harness.Failure(f"{way} ended with {status}, {WAYS[way]} is right")
        until(lambda: not group_exists(group), f"{way}: the group is gone")
        until(lambda: gpus.used_mib()[0] <= before + DRIVER_OWN_MIB, f"{way}: {before} MiB in use as before")
        return {"ms": round(1000 * (ended - began)), "back_ms": round(1000 * (time.monotonic() - began)), "status": status}
    finally:
        process.kill()
        process.wait()


def control():
    gpus = harness.Gpus()
    ends = {}
    for way in WAYS:
        ends[way] = {"running": end_of(way, False, gpus), "paused": end_of(way, True, gpus)}
        print(way, json.dumps(ends[way]), file=sys.stderr, flush=True)
    print(json.dumps({"ends": ends}), flush=True)
    slow = {way: end for way, end in ends.items() if end["paused"]["ms"] > end["running"]["ms"] + 1000 * LIMIT_S}
    return f"the end takes longer while the group is paused: {slow}" if slow else ""


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in ("control", *WAYS):
        sys.exit(__doc__)
    if sys.argv[1] != "control":
        return program(sys.argv[1])
    try:
        why = control()
    except (harness.Failure, subprocess.SubprocessError) as failure:
        why = str(failure)
    if why:
        print(f"{pathlib.Path(__file__).name}: {why}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
