#!/usr/bin/env python3
"""Takes the process by which amemd proves deep pauses through cycles of lock, checkpoint, restore and unlock, for each set of visible
devices that is named.

    proof.py [--program .../bin/amem-checkpoint] [--pool memfd|host_numa|none] [--maker 0,1] [--cycles 2] [VISIBLE ...]

VISIBLE is the process's CUDA_VISIBLE_DEVICES, such as "1" or "1,0"; without any the variable is not set. With host_numa another process
makes the pool's memory, as amemd does; it sees the devices of --maker (all). NCCL is the libnccl.so.2 that the loader finds; --library-path
names folders for it. Needs a driver of CUDA 12.8 or newer, and no PyTorch. Prints a line for each set. Exit status: 0: all were right;
1: one was not.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import time

STEPS = ("lock", "checkpoint", "restore", "unlock")
HERE = pathlib.Path(__file__).resolve()


class Failed(Exception):
    """What went wrong, for people."""


# ---- the process that makes the pool's memory


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]


def make_pool(to, size):
    """Sends a descriptor of pinned memory of NUMA node 0, and keeps it until its standard input ends."""
    cuda = ctypes.CDLL("libcuda.so.1")
    pinned, descriptor, host_numa = 1, 1, 3
    properties = Properties(pinned, descriptor, Location(host_numa, 0))
    handle, fd = ctypes.c_ulonglong(), ctypes.c_int()
    for name, *arguments in (("cuInit", 0), ("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties),
                                             ctypes.c_ulonglong(0)),
                             ("cuMemExportToShareableHandle", ctypes.byref(fd), handle, descriptor, ctypes.c_ulonglong(0))):
        if result := getattr(cuda, name)(*arguments):
            sys.exit(f"{name}: CUDA error {result}")
    socket.send_fds(to, [b"x"], [fd.value])
    sys.stdin.read()


@contextlib.contextmanager
def pool(options):
    """The descriptor, or None where the pool has none."""
    if options.pool != "host_numa":
        yield None
        return
    ours, its = socket.socketpair()
    with subprocess.Popen([sys.executable, "-B", str(HERE), "--as-maker", str(its.fileno()), "--bytes", str(options.bytes)],
                          env=environment(options, options.maker), stdin=subprocess.PIPE, pass_fds=[its.fileno()]) as maker:
        its.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        if not fds:
            raise Failed("the pool's memory could not be made")
        try:
            yield fds[0]
        finally:
            os.close(fds[0])
            maker.stdin.close()


# ---- the process that is checkpointed


def environment(options, visible):
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES" and not name.startswith("NCCL_")}
    env.update(NCCL_CUMEM_ENABLE="0", NCCL_CUMEM_HOST_ENABLE="0", NCCL_NVLS_ENABLE="0", NCCL_RAS_ENABLE="0")  # as amemd has it
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    if options.library_path:
        env["LD_LIBRARY_PATH"] = options.library_path
    return env


class Target:
    def __init__(self, options, visible, descriptor):
        self.options, self.descriptor = options, descriptor
        self.step, self.nccl, self.rest = "its start", "?", b""
        self.socket, its = socket.socketpair()
        place = [] if options.pool == "none" else ["--pool", options.pool, "--bytes", str(options.bytes)]
        self.process = subprocess.Popen([options.program, "target", *place], env=environment(options, visible), stdin=its, stdout=its,
                                        stderr=its)
        its.close()

    def check(self):
        """Uses all that the process has. Raises Failed with its reason."""
        fds = [] if self.descriptor is None else [self.descriptor]
        with contextlib.suppress(BrokenPipeError):  # it has said why
            socket.send_fds(self.socket, [b"check\n"], fds)
        until = time.monotonic() + self.options.seconds
        while True:
            line = self.line(until)
            word, _, text = line.partition(" ")
            if line == "right":
                return
            if word == "failed":
                raise Failed(text)
            if word == "step":
                self.step = text
            elif word == "nccl":
                self.nccl = text
            elif line.startswith("no nccl "):
                self.nccl = "none"
                print(f"# without NCCL: {line[len('no nccl '):]}", flush=True)

    def line(self, until):
        while b"\n" not in self.rest:
            if not select.select([self.socket], [], [], max(0, until - time.monotonic()))[0]:
                raise Failed(f"no answer within {self.options.seconds} s: {self.step}")
            more = self.socket.recv(65536)
            if not more:
                raise Failed(f"it has ended, exit status {self.process.wait()}: {self.rest.decode(errors='replace').strip() or self.step}")
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode(errors="replace")

    def take(self, step):
        """Milliseconds."""
        try:
            done = subprocess.run([self.options.program, step, str(self.process.pid)], env=environment(self.options, None),
                                  capture_output=True, text=True, timeout=self.options.seconds, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"{step}: no answer within {self.options.seconds} s") from None
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise Failed(f"{step}: {done.stderr.strip() or done.stdout.strip()}") from None
        if answer["result"] != 0:
            raise Failed(f"{step}: {answer['name']} ({answer['result']}), state {answer['state']}")
        return answer["us"] / 1000

    def close(self):
        self.process.kill()
        self.process.wait()
        self.socket.close()


def prove(options, visible):
    """A line of figures: times of each step in ms, of each cycle."""
    with pool(options) as descriptor:
        target = Target(options, visible, descriptor)
        try:
            target.check()
            cycles = []
            for _ in range(options.cycles):
                cycles.append("/".join(f"{target.take(step):.0f}" for step in STEPS))
                target.check()
            return f"right, NCCL {target.nccl}, {'/'.join(STEPS)} in ms: {'  '.join(cycles)}"
        finally:
            target.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("visible", nargs="*", metavar="VISIBLE")
    parser.add_argument("--program", default=str(HERE.parents[3] / "build/release/bin/amem-checkpoint"))
    parser.add_argument("--pool", choices=("none", "memfd", "host_numa"), default="memfd")
    parser.add_argument("--maker", help="CUDA_VISIBLE_DEVICES of the process that makes the memory of host_numa")
    parser.add_argument("--bytes", type=int, default=2 << 20, help="of that memory")
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="for each check and step")
    parser.add_argument("--library-path", help="LD_LIBRARY_PATH of the processes")
    parser.add_argument("--as-maker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_maker is not None:
        return make_pool(socket.socket(fileno=options.as_maker), options.bytes)
    wrong = 0
    for visible in options.visible or [None]:
        name = "unset" if visible is None else visible
        try:
            print(f"CUDA_VISIBLE_DEVICES={name}, pool {options.pool}: {prove(options, visible)}", flush=True)
        except Failed as why:
            wrong = 1
            print(f"CUDA_VISIBLE_DEVICES={name}, pool {options.pool}: WRONG: {why}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
