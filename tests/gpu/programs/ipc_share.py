#!/usr/bin/env python3
"""CUDA IPC across pauses: tensors shared by torch.multiprocessing, and buffers shared by cudaIpcGetMemHandle.

With all memory brokered (scope heap). Run as the name of a part says, the first and the last without expandable segments:

    amemctl run --group train --scope heap -- python3 ipc_share.py tensors
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \\
    amemctl run --group train --scope heap -- python3 ipc_share.py expandable
    amemctl run --group train --scope heap -- torchrun --standalone --nproc-per-node 2 ipc_share.py buffers

"tensors": two processes on one GPU. "expandable": the same with memory of cuMemCreate, of which cudaIpcGetMemHandle must give no
handle; with --pause none it runs without amem. "buffers": each rank reads its peers' buffers, as all-reduces that programs bring along
do. Exit status: torch_rank.py.
"""

import argparse
import ctypes
import json
import sys

import torch_rank
from torch_rank import CheckFailed, MIB, Rank, check, check_equal

import torch
import torch.multiprocessing as multiprocessing

LAZY_PEERS = 1  # cudaIpcMemLazyEnablePeerAccess
LIMIT_S = 60  # for an answer of the other process


# ---- two processes on one GPU -----------------------------------------------------------------------------------


def values(count, seed):
    return torch_rank.values(1, 0, count, seed, torch.device("cuda", 0))


def other_process(orders, answers):
    """Holds tensors that it is sent; checks, changes and answers as it is told."""
    torch.cuda.set_device(0)
    held = []
    try:
        while True:
            order, *arguments = orders.get(timeout=LIMIT_S * 3)
            if order == "end":
                break
            if order == "take":
                held.append(arguments[0])
            elif order == "check":
                index, seed = arguments
                check_equal(f"shared tensor {index}, seen by the other process", held[index],
                            values(held[index].numel(), seed))
            elif order == "write":
                index, seed = arguments
                held[index].copy_(values(held[index].numel(), seed))
            torch.cuda.synchronize()
            answers.put("ok")
        del held
        answers.put("ok")
    except BaseException as error:  # noqa: BLE001: told to the other process, which fails then
        answers.put(f"{type(error).__name__}: {error}")


class Tensors:
    def __init__(self, options):
        self.options = options
        self.operator = torch_rank.Operator(options.group)
        context = multiprocessing.get_context("spawn")
        self.orders, self.answers = context.Queue(), context.Queue()
        torch.cuda.set_device(0)
        self.mine = []
        self.checks = 0
        self.other = context.Process(target=other_process, args=(self.orders, self.answers), daemon=True)
        self.other.start()

    def tell(self, *order):
        torch.cuda.synchronize()
        self.orders.put(order)
        answer = self.answers.get(timeout=LIMIT_S)
        check(answer == "ok", f"{order[0]}: {answer}")
        self.checks += order[0] == "check"

    def share(self, count, seed):
        self.mine.append(values(count, seed))
        self.tell("take", self.mine[-1])

    def exchange(self, seed):
        """Each of them writes every tensor once and the other one sees it."""
        for index, tensor in enumerate(self.mine):
            tensor.copy_(values(tensor.numel(), seed + index))
            self.tell("check", index, seed + index)
            self.tell("write", index, seed + index + 100)
            check_equal(f"shared tensor {index}, written by the other process", tensor,
                        values(tensor.numel(), seed + index + 100))

    def run(self):
        # Small ones share a segment with others of torch's, large ones have their own.
        for count in (1000, 1 << 18, 64 * MIB // 4):
            self.share(count, 1)
        self.exchange(1000)
        freed = []
        for cycle in range(1, self.options.cycles + 1):
            free, _ = torch.cuda.mem_get_info()
            self.operator.run("pause", self.options.group)
            status = self.operator.group_status()
            check(status["rank_count"] == 2, f"{status['rank_count']} ranks in the group, 2 are right")
            check(status["resident_bytes"] == 0, f"{status['resident_bytes']} B resident while paused")
            freed.append((torch.cuda.mem_get_info()[0] - free) >> 20)
            check(abs(freed[-1] - (status["allocated_bytes"] >> 20)) <= self.options.tolerance_mib,
                  f"freed {freed[-1]} MiB, {status['allocated_bytes'] >> 20} are allocated")
            self.operator.run("resume", self.options.group)
            self.exchange(1000 * (cycle + 1))
            if cycle == 1:
                self.share(1 << 20, 2)  # a handle made after a pause
        self.tell("end")
        self.other.join(LIMIT_S)
        print(json.dumps({"program": "ipc_share tensors", "tensors": len(self.mine), "checks": self.checks,
                          "cycles": self.options.cycles, "freed_mib": freed}), flush=True)


class Expandable(Tensors):
    def handle_results(self):
        """What cudaIpcGetMemHandle gives for a tensor, for an address within it, and for memory of cudaMalloc."""
        at = self.mine[-1].data_ptr()
        return [self.runtime.handle_result(address) for address in (at, at + 40 * MIB, self.own.value)]

    def run(self):
        """The program falls back to what PyTorch's tensor sharing does: descriptors of all pieces."""
        self.runtime = Runtime()
        self.own = self.runtime.allocate(MIB)
        self.share(64 * MIB // 4, 1)
        results = [self.handle_results()]
        self.exchange(1000)
        for cycle in range(1, self.options.cycles + 1 if self.options.pause != "none" else 1):
            self.operator.run("pause", self.options.group)
            results.append(self.handle_results())
            self.operator.run("resume", self.options.group)
            results.append(self.handle_results())
            self.exchange(1000 * (cycle + 1))
        self.tell("end")
        self.other.join(LIMIT_S)
        check(all(each == results[0] for each in results), f"cudaIpcGetMemHandle gives {results}")
        print(json.dumps({"program": "ipc_share expandable", "handles": results[0], "checks": self.checks,
                          "cycles": self.options.cycles}), flush=True)


# ---- a buffer per GPU -------------------------------------------------------------------------------------------


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 64)]


class Runtime(torch_rank.Runtime):
    def __init__(self):
        super().__init__()
        # By value: 64 bytes on the stack.
        self.library.cudaIpcOpenMemHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), Handle, ctypes.c_uint]

    def handle_of(self, address):
        handle = Handle()
        self.call("cudaIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle)

    def handle_result(self, address):
        result = self.library.cudaIpcGetMemHandle(ctypes.byref(Handle()), ctypes.c_void_p(address))
        self.library.cudaGetLastError()  # PyTorch must not take it for its own
        return result

    def open(self, handle):
        address = ctypes.c_void_p()
        self.call("cudaIpcOpenMemHandle", ctypes.byref(address), Handle.from_buffer_copy(handle), LAZY_PEERS)
        return address

    def copy(self, target, source, size):
        """Device to device, on the default stream, and waits."""
        self.call("cudaMemcpy", ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size), ctypes.c_int(3))
        self.call("cudaDeviceSynchronize")


class Buffers:
    def __init__(self, options):
        self.options = options
        self.rank = Rank(options)
        self.runtime = Runtime()
        self.size = options.mib * MIB
        self.own = self.runtime.allocate(self.size)
        handles = self.rank.gather(self.runtime.handle_of(self.own))
        self.buffers = [self.own if rank == self.rank.rank else self.runtime.open(handle)
                        for rank, handle in enumerate(handles)]

    def all_reduce(self, seed):
        """Every rank writes its own buffer and reads all of them."""
        count = self.size // 4
        data = torch_rank.values(self.rank.rank, 0, count, seed, self.rank.device)
        torch.cuda.synchronize()
        self.runtime.copy(self.own.value, data.data_ptr(), self.size)
        self.rank.barrier()
        total = torch.zeros(count, device=self.rank.device)
        part = torch.empty(count, device=self.rank.device)
        for buffer in self.buffers:
            torch.cuda.synchronize()
            self.runtime.copy(part.data_ptr(), buffer.value, self.size)
            total += part
        check_equal("the sum of all ranks' buffers", total,
                    torch_rank.sums(self.rank.world, 0, count, seed, self.rank.device))
        self.rank.barrier()

    def run(self):
        self.all_reduce(0)
        for cycle in range(1, self.options.cycles + 1):
            self.rank.cycle(cycle)
            self.all_reduce(cycle)
        for rank, buffer in enumerate(self.buffers):
            if rank != self.rank.rank:
                self.runtime.call("cudaIpcCloseMemHandle", buffer)
        self.rank.barrier()
        self.runtime.call("cudaFree", self.own)
        self.rank.report("ipc_share buffers", mib=self.options.mib)
        self.rank.end()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("part", choices=("tensors", "expandable", "buffers"))
    parser.add_argument("--mib", type=int, default=64, help="size of each buffer")
    torch_rank.add_options(parser, cycles=4)
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    if options.part == "buffers":
        return torch_rank.run_main(lambda: Buffers(options).run())
    if not torch.cuda.is_available():
        print(json.dumps({"skipped": "no GPU"}))
        return 0
    try:
        {"tensors": Tensors, "expandable": Expandable}[options.part](options).run()
    except CheckFailed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
