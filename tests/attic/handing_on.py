#!/usr/bin/env python3
"""What the driver takes where GPU memory changes hands: a maker without a context keeps descriptors, and ranks map the memory in turn.

    python3 handing_on.py [T5 T6 T9 T10 T11 T12] [--json]

Needs a GPU and a driver of CUDA 12.8 or newer, for T11 two GPUs, for T9 root. Prints a table for each trial, with --json also a line for
each figure. Each process is a fork that has the driver to itself. Exit status: 0: all was tried; 1: a trial failed, or a process was left.
"""

import argparse
import ctypes
import ctypes.util
import glob
import json
import os
import resource
import select
import signal
import socket
import statistics
import sys
import time
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

KINDS = {"p": c_void_p, "h": c_uint64, "s": c_size_t, "i": c_int, "u": c_uint, "b": c_ubyte}  # h: also addresses, and flags of 64 bits
SIGNATURES = dict(each.split(":") for each in """
    cuInit:u cuDriverGetVersion:p cuDeviceGetCount:p cuDeviceGet:pi cuDeviceGetName:pii cuDeviceGetAttribute:pii
    cuDevicePrimaryCtxRetain:pi cuCtxSetCurrent:p cuCtxSynchronize: cuMemCreate:psph cuMemRelease:h cuMemExportToShareableHandle:phih
    cuMemImportFromShareableHandle:ppi cuMemAddressReserve:psshh cuMemAddressFree:hs cuMemMap:hsshh cuMemUnmap:hs cuMemSetAccess:hsps
    cuMemAlloc_v2:ps cuMemFree_v2:h cuMemsetD8Async:hbsp cuMemcpyHtoD_v2:hps cuMemcpyDtoH_v2:phs cuMemcpyDtoD_v2:hhs
    cuMemGetAddressRange_v2:pph cuPointerGetAttribute:pih cuMemGetHandleForAddressRange:phsih
    cuCheckpointProcessLock:ip cuCheckpointProcessCheckpoint:ip cuCheckpointProcessRestore:ip cuCheckpointProcessUnlock:ip""".split())
PINNED, BY_DESCRIPTOR, DEVICE, READ_WRITE, DMA_BUF = 1, 1, 1, 3, 1
RUNS, LIMIT_S = 5, 30


class Properties(ctypes.Structure):  # CUmemAllocationProp, 32 bytes
    _fields_ = [("type", c_int), ("handle_types", c_int), ("location_type", c_int), ("location_id", c_int), ("win32", c_void_p),
                ("compression", c_ubyte), ("rdma", c_ubyte), ("usage", ctypes.c_ushort), ("reserved", c_ubyte * 4)]


class Access(ctypes.Structure):  # CUmemAccessDesc, 12 bytes
    _fields_ = [("location_type", c_int), ("location_id", c_int), ("flags", c_int)]


class Failed(Exception):
    """Its text says what."""


class Driver:
    """Its functions by name; each raises Failed."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)
        function.argtypes, function.restype = [KINDS[kind] for kind in SIGNATURES[name]], c_int

        def checked(*arguments):
            if result := function(*arguments):
                text = ctypes.c_char_p()
                self.library.cuGetErrorName(c_int(result), byref(text))
                raise Failed(f"{name}: {text.value.decode() if text.value else result}")
        setattr(self, name, checked)
        return checked


def timed(work, items=(0,)):
    began = time.monotonic()
    for item in items:
        work(item)
    return (time.monotonic() - began) * 1000


class Worker:
    """What runs in a child: a maker, as amemd is without a context; a rank, which has one; or the one that checkpoints a rank."""

    def __init__(self, links=(), pipes=(), number=0):
        # [rank]: links for descriptors, maker's end and rank's end; pipes for a byte for each part that the other rank has let go of.
        self.links, self.pipes, self.number, self.parts = links, pipes, number, 0
        self.cu, self.sock, self.device, self.fds, self.address, self.own = None, None, 0, [], 0, 0

    def serve(self, sock):
        self.sock = sock
        while message := sock.recv(1 << 16):
            name, *arguments = json.loads(message)
            try:
                reply = [getattr(self, name)(*arguments), None]
            except Exception as error:  # noqa: BLE001: whatever it is, the parent says it
                reply = [None, str(error) if isinstance(error, Failed) else repr(error)]
            sock.send(json.dumps(reply).encode())

    def start(self, devices=()):
        self.cu = Driver()
        self.cu.cuInit(0)
        for ordinal in reversed(devices):  # the first stays current
            device, context, self.device = c_int(), c_void_p(), ordinal
            self.cu.cuDeviceGet(byref(device), ordinal)
            self.cu.cuDevicePrimaryCtxRetain(byref(context), device)
            self.cu.cuCtxSetCurrent(context)

    def about(self):
        version, count, device, names, name = c_int(), c_int(), c_int(), [], ctypes.create_string_buffer(100)
        self.cu.cuDriverGetVersion(byref(version))
        self.cu.cuDeviceGetCount(byref(count))
        for i in range(count.value):
            self.cu.cuDeviceGet(byref(device), i)
            self.cu.cuDeviceGetName(name, 100, device)
            names.append(name.value.decode())
        return version.value, names

    # A maker

    def create(self, handle, device, size, rdma=1):
        properties = Properties(PINNED, BY_DESCRIPTOR, DEVICE, device, None, 0, rdma)
        self.cu.cuMemCreate(handle, size, byref(properties), 0)

    def make(self, device, size, count, rdma=1, free=0, wait=0):
        said = {"free": self.free(free)} if free else {}
        time.sleep(wait)
        handles, fds, export = (c_uint64 * count)(), (c_int * count)(), self.cu.cuMemExportToShareableHandle
        said["create"] = timed(lambda i: self.create(byref(handles, 8 * i), device, size, rdma), range(count))
        said["export"] = timed(lambda i: export(byref(fds, 4 * i), handles[i], BY_DESCRIPTOR, 0), range(count))
        timed(self.cu.cuMemRelease, handles)
        self.fds += list(fds)
        return said

    def free(self, count):
        """The oldest."""
        leaving, self.fds = self.fds[:count], self.fds[count:]
        return timed(os.close, leaving)

    def send(self, rank, count):
        for i in range(len(self.fds) - count, len(self.fds), 250):
            socket.send_fds(self.links[rank][0], [b"f"], self.fds[i:i + 250])

    def step(self, name, pid):
        """Each call's arguments have 64 bytes; zeros are right, but for the timeout of the lock, which comes first."""
        arguments = (c_uint * 16)(10000 if name == "Lock" else 0)
        return timed(lambda _: getattr(self.cu, "cuCheckpointProcess" + name)(pid, byref(arguments)))

    # A rank

    def receive(self, size, count):
        """Descriptors of all handles. The first time, a range for them."""
        self.links[self.number][1].settimeout(LIMIT_S)
        while len(self.fds) < count:
            self.fds += socket.recv_fds(self.links[self.number][1], 1, 250)[1]
        if not self.address:
            self.reserve(size, count)

    def reserve(self, size, count):
        self.size, self.count, self.handles, address = size, count, (c_uint64 * count)(), c_uint64()
        self.cu.cuMemAddressReserve(byref(address), size * count, 0, 0, 0)
        self.address = address.value

    def drop(self, range_too=True):
        self.free(len(self.fds))
        if range_too:
            self.cu.cuMemAddressFree(self.address, self.size * self.count)
            self.address = 0

    def chunks(self, by_part):
        return [range(i, i + 1) for i in range(self.count)] if by_part else [range(self.count)]

    def at(self, i):
        return self.address + i * self.size

    def set(self, address, value, size):
        self.cu.cuMemsetD8Async(address, value, size, None)

    def await_parts(self, count):
        while self.parts < count:
            if not select.select([self.pipes[self.number][0]], [], [], LIMIT_S)[0]:
                raise Failed("the other rank let go of nothing")
            self.parts += len(os.read(self.pipes[self.number][0], 4096))

    def import_one(self, i):
        self.cu.cuMemImportFromShareableHandle(byref(self.handles, 8 * i), self.fds[i], BY_DESCRIPTOR)

    def map_one(self, i, access):
        self.cu.cuMemMap(self.at(i), self.size, 0, self.handles[i], 0)
        self.cu.cuMemSetAccess(self.at(i), self.size, access, len(access))

    def take(self, devices, wait=False, by_part=False, clear=True):
        access, said = (Access * len(devices))(*[(DEVICE, each, READ_WRITE) for each in devices]), {"import": 0, "map+access": 0}
        for parts in self.chunks(by_part):
            if wait:
                self.await_parts(parts[-1] + 1)
            said.setdefault("began", time.monotonic())
            said["import"] += timed(self.import_one, parts)
            said["map+access"] += timed(lambda i: self.map_one(i, access), parts)
            said["mapped"] = time.monotonic()
            if clear:
                self.set(self.at(parts[0]), 0, self.size * len(parts))
        self.cu.cuCtxSynchronize()
        said["ended"] = time.monotonic()
        if clear:
            said["clear"] = (said["ended"] - said["mapped"]) * 1000
        self.parts = 0
        return said

    def leave(self, tell=False, by_part=False, at=0):
        """at: when to begin"""
        time.sleep(max(0, at - time.monotonic()))
        said = {"began": time.monotonic(), "unmap": 0, "release": 0}
        for parts in self.chunks(by_part):
            said["unmap"] += timed(lambda i: self.cu.cuMemUnmap(self.at(i), self.size), parts)
            said["release"] += timed(lambda i: self.cu.cuMemRelease(self.handles[i]), parts)
            if tell:
                os.write(self.pipes[1 - self.number][1], b"x" * len(parts))
        said["ended"] = time.monotonic()
        return said

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.cu.cuMemcpyDtoH_v2(data, address, size)
        return data

    def expect(self, address, size, value):
        """This byte everywhere: the first one is, and each is as the one before."""
        data, compare = self.read(address, size), ctypes.CDLL(None).memcmp
        if data[0] != bytes([value & 255]) or compare(data, byref(data, 1), c_size_t(size - 1)):
            raise Failed(f"{address:#x}: other bytes than it expects, {value & 255}")

    def fill(self, value):
        """Each handle with another byte."""
        for i in range(self.count):
            self.set(self.at(i), (value + i) & 255, self.size)
        self.cu.cuCtxSynchronize()

    def check(self, value):
        for i in range(self.count):
            self.expect(self.at(i), self.size, value + i)

    def own_memory(self, size):
        """Memory that nobody else has: what it holds since the last call, and whether it can be set and copied."""
        if self.own:
            self.expect(self.own, size, 0x77)
        else:
            address = c_uint64()
            self.cu.cuMemAlloc_v2(byref(address), size)
            self.own = address.value
        self.set(self.own, 0x12, size)
        self.set(self.own, 0x77, size // 2)
        self.cu.cuMemcpyDtoD_v2(self.own + size // 2, self.own, size // 2)
        self.expect(self.own, size, 0x77)

    def loop(self, kind, size, count):
        """Makes and frees, or fills and checks, until a message comes."""
        times, address, access = [], c_uint64(), (Access * 1)((DEVICE, self.device, READ_WRITE))
        if kind == "VMM":
            self.reserve(size, count)

        def work(_):
            if kind == "cuMemAlloc":
                self.cu.cuMemAlloc_v2(byref(address), size * count)
                self.cu.cuMemFree_v2(address)
            elif kind == "VMM":
                for i in range(count):
                    self.create(byref(self.handles, 8 * i), self.device, size)
                    self.map_one(i, access)
                self.leave()
            else:
                self.fill(len(times))
                self.check(len(times))
        while not times or not select.select([self.sock], [], [], 0)[0]:
            times.append(timed(work))
        if kind == "VMM":
            self.drop()
        return {"rounds": len(times), "round, median": statistics.median(times), "round, maximum": max(times)}

    def stop(self):
        """Its message is what ends a loop."""

    def side_by_side(self, imported, rdma):
        """Eight handles, for which access is granted at once: what can be done there, and what the driver says of it."""
        cu, size, whole, access, said = self.cu, self.size, self.size * self.count, Access(DEVICE, self.device, READ_WRITE), {}
        for i in range(self.count):
            self.import_one(i) if imported else self.create(byref(self.handles, 8 * i), self.device, size, rdma)
            cu.cuMemMap(self.at(i), size, 0, self.handles[i], 0)
        said["cuMemSetAccess over all, ms"] = timed(lambda _: cu.cuMemSetAccess(self.address, whole, byref(access), 1))
        n = min(4 << 20, size // 4)
        pattern, before, inside = os.urandom(n), self.at(1) - n // 2, self.at(1) + size // 2

        def holds(address, want, *calls):
            for call, *arguments in calls:
                call(*arguments)
            return "right" if self.read(address, len(want)).raw == want else "WRONG BYTES"

        def dma_buf(address, length, flags):
            fd = c_int(-1)
            cu.cuMemGetHandleForAddressRange(byref(fd), address, length, DMA_BUF, flags)
            got = os.lseek(fd.value, 0, os.SEEK_END)
            os.close(fd.value)
            return "works" if got == length else f"works, and has {got} of {length} bytes"

        def attribute(number):
            value = c_uint64()
            cu.cuPointerGetAttribute(byref(value), number, inside)
            return value.value

        def device_attribute(number):
            value = c_int()
            cu.cuDeviceGetAttribute(byref(value), number, self.device)
            return str(value.value)

        def extent(start, length):
            return f"from handle {(start - self.address) / size:g}, of {length / size:g} handles"

        def address_range():
            start, length = c_uint64(), c_size_t()
            cu.cuMemGetAddressRange_v2(byref(start), byref(length), inside)
            return extent(start.value, length.value)
        third = self.at(3) - n // 3
        questions = {
            "copy from and to the host over a border": lambda: holds(before, pattern, (cu.cuMemcpyHtoD_v2, before, pattern, n)),
            "copy on the device over two borders": lambda: holds(third, pattern, (cu.cuMemcpyDtoD_v2, third, before, n)),
            "memset over a border": lambda: holds(self.at(5) - 2 * n, b"\x11" * n + b"\xa5" * 2 * n + b"\x11" * n,
                                                  (self.set, self.at(4), 0x11, 2 * size), (self.set, self.at(5) - n, 0xa5, 2 * n)),
            "copy of three handles at once": lambda: holds(self.at(5) - n, b"\x01" * n + b"\x02" * n,
                                                           (self.fill, 1), (cu.cuMemcpyDtoD_v2, self.at(4), self.address, 3 * size)),
            **{f"dma-buf of {what}{how}": lambda at=at, length=length, flags=flags: dma_buf(at, length, flags)
               for flags, how in enumerate(("", ", over PCIe"))  # CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE
               for what, at, length in (("the whole range", self.address, whole), ("a part over a border", inside, size),
                                        ("a handle", self.at(1), size))},
            "cuMemGetAddressRange in handle 1": address_range,
            "RANGE_START_ADDR, RANGE_SIZE there": lambda: extent(attribute(11), attribute(12)),
            "MAPPING_BASE_ADDR, MAPPING_SIZE there": lambda: extent(attribute(19), attribute(18)),
            "IS_GPU_DIRECT_RDMA_CAPABLE there": lambda: str(attribute(15)),
            **{f"the device's attribute: {name}": lambda number=number: device_attribute(number)
               for number, name in ((124, "dma-buf"), (110, "RDMA with VMM"), (116, "RDMA"))},
        }
        for question, work in questions.items():
            try:
                said[question] = work()
            except (Failed, AttributeError) as error:
                said[question] = str(error)
        self.leave()
        return said


class Child:
    """A process with a worker, for the parent, which never calls the driver."""
    running, time_is_up = [], 0

    def __init__(self, name, worker):
        self.name, self.doing, parent = name, "", os.getpid()
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
                if os.getppid() == parent:
                    worker.serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        Child.running.append(self)

    def begin(self, *call):
        self.doing = " ".join(each for each in call if isinstance(each, str))
        try:
            self.sock.send(json.dumps(call).encode())
        except OSError as error:
            raise Failed(f"{self.name}, {self.doing}: it has ended") from error

    def end(self):
        self.sock.settimeout(max(0.001, min(LIMIT_S + 5, Child.time_is_up - time.monotonic())))
        try:
            message = self.sock.recv(1 << 16)
        except TimeoutError as error:
            why = "out of time" if time.monotonic() > Child.time_is_up else "no answer"
            raise Failed(f"{self.name}, {self.doing}: {why}") from error
        except OSError:
            message = b""
        result, error = json.loads(message) if message else (None, "it has ended")
        if error:
            raise Failed(f"{self.name}, {self.doing}: {error}")
        return result

    def do(self, *call):
        self.begin(*call)
        return self.end()

    def stop_loop(self):
        self.begin("stop")
        result = self.end()
        self.end()
        return result


def together(*calls):
    for child, *call in calls:
        child.begin(*call)
    return [child.end() for child, *_ in calls]


def end_children():
    """Whether all have ended. One that does not end by itself is killed."""
    left = Child.running
    for child in left:
        child.sock.shutdown(socket.SHUT_RDWR)  # for the copies too that younger children have
        child.sock.close()
    for kill in (False, True):
        for child in left if kill else ():
            os.kill(child.pid, signal.SIGKILL)
        end = time.monotonic() + 5
        while (left := [child for child in left if os.waitpid(child.pid, os.WNOHANG)[0] == 0]) and time.monotonic() < end:
            time.sleep(0.01)
    for child in left:
        print(f"{child.name}, process {child.pid}, cannot be killed")
    Child.running = []
    return not left


class Group:
    """A maker and its ranks."""

    def __init__(self, device, devices=None, ranks=2):
        self.device = device
        links, pipes = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(ranks)], [os.pipe() for _ in range(2)]
        self.maker = Child(f"maker of GPU {device}", Worker(links))
        self.ranks = [Child(f"rank {i + 1} of GPU {device}", Worker(links, pipes, i)) for i in range(ranks)]
        for pipe in pipes:
            timed(os.close, pipe)
        for end in sum(links, ()):
            end.close()
        together((self.maker, "start"), *((rank, "start", devices or [device]) for rank in self.ranks))

    def hand(self, size, count, ranks=(0, 1)):
        for i in ranks[:len(self.ranks)]:
            together((self.maker, "send", i, count), (self.ranks[i], "receive", size, count))


class Table:
    """Figures of a trial. A cell is the median and, of several, the maximum."""

    def __init__(self):
        self.cells = {}

    def add(self, case, figures, **more):
        for figure, value in (figures | more).items():
            if figure not in ("began", "mapped", "ended"):
                self.cells.setdefault(case, {}).setdefault(figure.replace("_", " "), []).append(value)

    def print(self, trial, title, as_json):
        columns, lines = list(dict.fromkeys(figure for figures in self.cells.values() for figure in figures)), []
        print(f"\n{trial}: {title}\n\n| case | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
        for case, figures in self.cells.items():
            cells = dict.fromkeys(columns, "")
            for figure, values in figures.items():
                line = {"trial": trial, "case": case, "figure": figure, "samples": values}
                if isinstance(values[0], str):
                    cells[figure] = "; ".join(values)
                else:
                    line |= {"median": statistics.median(values), "max": max(values)}
                    cells[figure] = f"{line['median']:.4g}" + (f" ({line['max']:.4g})" if len(values) > 1 else "")
                lines.append(json.dumps(line))
            print(f"| {case} | {' | '.join(cells.values())} |")
        print("\n".join(["", *lines] if as_json else []), flush=True)


def t5(table, options):
    """The second rank's times, ms: alone, on two GPUs at once, beside a process that makes and frees 20 GiB. Median (maximum)."""
    other = 1 if options.devices > 1 else 0
    groups, noise = [Group(device) for device in range(other + 1)], Child("the loop", Worker())
    noise.do("start", [other])

    def measure(where, groups, mib, total_mib):
        size, count = options.bytes(mib), total_mib // mib
        cases = [f"{where}, {count} of {mib} MiB" + (f", GPU {group.device}" if len(groups) > 1 else "") for group in groups]
        made = together(*((group.maker, "make", group.device, size, count) for group in groups))
        for group in groups:
            group.hand(size, count)
        first = together(*((group.ranks[0], "take", [group.device]) for group in groups))
        for case, making, taking in zip(cases, made, first):
            table.add(case, making, first_import=taking["import"], first_map=taking["map+access"])
        for run in range(RUNS):
            goes, comes, at = run % 2, 1 - run % 2, time.monotonic() + 0.005
            said = together(*((group.ranks[goes], "leave", True, False, at) for group in groups),
                            *((group.ranks[comes], "take", [group.device], True) for group in groups))
            for case, left, taken in zip(cases, said, said[len(groups):]):
                table.add(case, left | taken, **{"hand-over": (taken["mapped"] - left["began"]) * 1000})
        together(*((group.ranks[RUNS % 2], "leave") for group in groups))
        together(*((rank, "drop") for group in groups for rank in group.ranks))
        for case, freed in zip(cases, together(*((group.maker, "free", count) for group in groups))):
            table.add(case, {"free": freed})

    amounts = ((1024, 96 << 10), (256, 96 << 10), (20, 24 << 10))
    for amount in amounts:
        measure("GPU 0 alone", groups[:1], *amount)
    for amount in amounts if other else ():
        measure("two GPUs at once", groups, *amount)
    for kind in ("cuMemAlloc", "VMM"):
        where = f"GPU 0 beside {kind} on {'GPU 1' if other else 'the same GPU'}"
        noise.begin("loop", kind, options.bytes(1024), 20)
        time.sleep(0.5)
        for amount in amounts:
            measure(where, groups[:1], *amount)
        table.add(f"{where}: the loop", noise.stop_loop())


def t6(table, options):
    """96 GiB in parts of 256 MiB: rank 2 maps and clears a part while rank 1 unmaps the next one. ms, median (maximum)."""
    group, size, count = Group(0), options.bytes(256), 96 * 4
    group.maker.do("make", 0, size, count)
    group.hand(size, count)
    group.ranks[0].do("take", [0])
    for run in range(12):  # each way in both directions, three times
        goes, comes, by_part = run % 2, 1 - run % 2, run // 2 % 2 == 1
        left, taken = together((group.ranks[goes], "leave", True, by_part, time.monotonic() + 0.005),
                               (group.ranks[comes], "take", [0], True, True))
        table.add("part by part" if by_part else "one after the other", left | taken, wall=(taken["ended"] - left["began"]) * 1000,
                  rank_1=(left["ended"] - left["began"]) * 1000, rank_2=(taken["ended"] - taken["began"]) * 1000)


def t9(table, options):
    """A checkpoint of rank 1, which had 2 GiB before, while rank 2 has them and the maker the descriptors. ms."""
    group, caller, size, count = Group(0), Child("the caller", Worker()), options.bytes(256), 8
    (one, two), take = group.ranks, ("take", [0], False, False, False)
    caller.do("start")
    group.maker.do("make", 0, size, count)
    group.hand(size, count)
    for call in (("own_memory", size), take, ("fill", 1), ("leave",), ("drop", False)):
        one.do(*call)
    two.do(*take)
    two.do("check", 1)
    for case in ("rank 2 looks between the steps", "rank 2 fills and checks all the time"):
        busy, value = "all the time" in case, 50
        two.do("fill", value)
        if busy:
            two.begin("loop", "fill", 0, 0)
        for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
            table.add(case, {step: caller.do("step", step, one.pid)})
            if not busy:
                two.do("check", value)
                value += 50
                two.do("fill", value)
        value = two.stop_loop()["rounds"] - 1 if busy else value
        two.do("check", value)
        one.do("own_memory", size)
        two.do("check", value)
        table.add(case, {"rank 2's bytes": "right", "rank 1's own memory": "right, and works"})
    two.do("leave")
    group.hand(size, count, [0])
    for call in (take, ("check", value), ("fill", 7), ("check", 7)):
        one.do(*call)
    table.add("afterwards", {"rank 1 with what rank 2 had": "right, and works"})


def t10(table, options):
    """8 handles of 256 MiB side by side in one range."""
    group, size, count = Group(0, ranks=1), options.bytes(256), 8
    for rdma in (1, 0):
        group.maker.do("make", 0, size, count, rdma)
        group.hand(size, count)
        for imported in (True, False):
            figure = f"{'imported' if imported else 'own'}, {'RDMA-capable' if rdma else 'not RDMA-capable'}"
            for question, answer in group.ranks[0].do("side_by_side", imported, rdma).items():
                table.add(question, {figure: answer})
        group.ranks[0].do("drop")
        group.maker.do("free", count)
    there = [path for pattern in ("/sys/module/nvidia*", "/sys/module/gdrdrv", "/sys/module/ib_core", "/dev/gdrdrv", "/dev/infiniband",
                                  "/proc/driver/nvidia*", "/usr/lib/*/libibverbs.so*") for path in sorted(glob.glob(pattern))]
    table.add("the machine has", {"imported, RDMA-capable": ", ".join([f"libgdrapi: {ctypes.util.find_library('gdrapi')}", *there])})


def t11(table, options):
    """24 GiB of GPU 0 that two ranks map in turn, for GPU 0 or for both GPUs, ms per GiB. Median (maximum)."""
    if options.devices < 2:
        raise Failed("it needs two GPUs")
    group = Group(0, devices=[0, 1])
    for mib in (256, 384, 510, 512, 1024):
        size, count = options.bytes(mib), (24 << 10) // mib
        for devices, whose in (([0], "GPU 0"), ([0, 1], "both GPUs")):
            for _ in range(3):
                group.maker.do("make", 0, size, count)
                group.hand(size, count)
                for rank, when in ((0, "first"), (1, "second rank"), (0, "first rank again")):
                    took = group.ranks[rank].do("take", devices, False, False, False) | group.ranks[rank].do("leave")
                    for figure in ("map+access", "unmap"):
                        table.add(f"{mib} MiB, for {whose}", {f"{when}: {figure}": took[figure] / (count * mib / 1024)})
                together(*((rank, "drop") for rank in group.ranks))
                group.maker.do("free", count)


def t12(table, options):
    """96 GiB of 1 GiB, made after 60 GiB were freed, ms. Median (maximum)."""
    group, size, count, freed = Group(0, ranks=1), options.bytes(1024), 96, 60
    rank = group.ranks[0]

    def use():
        group.hand(size, count)
        said = rank.do("take", [0])
        rank.do("leave")
        again = rank.do("take", [0])
        rank.do("leave")
        rank.do("drop")
        return said | {"map+access again": again["map+access"]}
    group.maker.do("make", 0, size, count)
    use()
    for waits in [(0, 0), (1, 0), (5, 0), (0, 1)] * 3:
        time.sleep(0.5)  # so that what the last round freed at its end is out of the way
        made = group.maker.do("make", 0, size, count, 1, freed, waits[0])
        time.sleep(waits[1])
        table.add(f"made {waits[0]} s after the free" + (f", mapped {waits[1]} s later" if waits[1] else ""), made | use())
        group.maker.do("free", count - freed)  # the rest of the round before


def main():
    trials = {"T5": t5, "T6": t6, "T9": t9, "T10": t10, "T11": t11, "T12": t12}
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(trials)}; all")
    parser.add_argument("--json", action="store_true", help="a line for each figure")
    parser.add_argument("--scale", type=int, default=1, help="so many times less memory, for the simulated driver (at most 512)")
    parser.add_argument("--seconds", type=float, default=150, help="for everything")
    options = parser.parse_args()
    if unknown := set(options.trials) - set(trials):
        parser.error(f"no trial {', '.join(sorted(unknown))}")
    options.bytes = lambda mib: (mib << 20) // options.scale
    Child.time_is_up = time.monotonic() + options.seconds - 10  # the rest is for ending what hangs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    bad = False
    try:
        first = Child("the first process", Worker())
        first.do("start")
        version, names = first.do("about")
        options.devices = len(names)
        print(f"driver {version}, {', '.join(names)}, Linux {os.uname().release}")
        bad |= not end_children()
        for name in options.trials or trials:
            table, began = Table(), time.monotonic()
            try:
                trials[name](table, options)
            except Failed as error:
                print(f"\n{name} failed: {error}", flush=True)
                bad = True
            bad |= not end_children()
            if table.cells:
                table.print(name, trials[name].__doc__, options.json)
            print(f"{name} took {time.monotonic() - began:.1f} s", flush=True)
    except Failed as error:
        print(f"nothing could be tried: {error}")
        bad = True
    finally:
        bad |= not end_children()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
