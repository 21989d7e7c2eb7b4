"""NCCL itself, by ctypes: what PyTorch has no interface for. Structures and signatures are those of nccl.h 2.28.9.

Blocking communicators only: each call returns when it is done or its work has been given to the stream.
"""

import ctypes

import torch_rank
from torch_rank import NotHere, check, check_equal

import torch

FLOAT32, SUM = 7, 0
WINDOW_SYMMETRIC = 1
POLICY_ZERO = 2  # no GPU threads where copy engines can do it
_UNDEFINED = -1 << 31


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t, by default as NCCL_CONFIG_INITIALIZER has it."""

    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int), ("cgaClusterSize", ctypes.c_int), ("minCTAs", ctypes.c_int),
                ("maxCTAs", ctypes.c_int), ("netName", ctypes.c_char_p), ("splitShare", ctypes.c_int),
                ("trafficClass", ctypes.c_int), ("commName", ctypes.c_char_p), ("collnetEnable", ctypes.c_int),
                ("CTAPolicy", ctypes.c_int), ("shrinkShare", ctypes.c_int), ("nvlsCTAs", ctypes.c_int),
                ("nChannelsPerNetPeer", ctypes.c_int), ("nvlinkCentricSched", ctypes.c_int)]

    def __init__(self, **settings):
        numbers = {name: _UNDEFINED for name, kind in self._fields_ if kind is ctypes.c_int}
        super().__init__(size=ctypes.sizeof(Config), magic=0xcafebeef, version=22809, **{**numbers, **settings})


_POINTER, _OUT, _SIZE, _INT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_int
_CALLS = {
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRankConfig": (_OUT, _INT, UniqueId, _INT, ctypes.POINTER(Config)),
    "ncclCommSplit": (_POINTER, _INT, _INT, _OUT, ctypes.POINTER(Config)),
    "ncclCommDestroy": (_POINTER,),
    "ncclCommAbort": (_POINTER,),
    "ncclMemAlloc": (_OUT, _SIZE),
    "ncclMemFree": (_POINTER,),
    "ncclCommRegister": (_POINTER, _POINTER, _SIZE, _OUT),
    "ncclCommDeregister": (_POINTER, _POINTER),
    "ncclCommWindowRegister": (_POINTER, _POINTER, _SIZE, _OUT, _INT),
    "ncclCommWindowDeregister": (_POINTER, _POINTER),
    "ncclAllReduce": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclAllGather": (_POINTER, _POINTER, _SIZE, _INT, _POINTER, _POINTER),
    "ncclReduceScatter": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
}


class Nccl:
    """The library that torch has loaded, and memory of its allocator."""

    def __init__(self, device):
        self.device = device
        self.library = ctypes.CDLL("libnccl.so.2")  # by this name the loader finds the one that is there
        self.library.ncclGetLastError.restype = ctypes.c_char_p
        self.library.ncclGetLastError.argtypes = [_POINTER]
        for name, types in _CALLS.items():
            if not hasattr(self.library, name):
                raise NotHere(f"this NCCL has no {name}")
            getattr(self.library, name).argtypes = types
        self.allocated = []

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            said = self.library.ncclGetLastError(None) or b""
            check(False, f"{name} returned {result}: {said.decode(errors='replace')}")

    def allocate(self, count):
        """A tensor of float32 in memory of ncclMemAlloc, which free() gives back."""
        address = ctypes.c_void_p()
        self.call("ncclMemAlloc", ctypes.byref(address), 4 * count)
        self.allocated.append(address)
        return torch_rank.tensor_at(address.value, count, self.device)

    def free(self):
        """Of all tensors of allocate(), which must not be used any more."""
        torch.cuda.synchronize()
        while self.allocated:
            self.call("ncclMemFree", self.allocated.pop())


class Communicator:
    """One rank's end: its number `index` among `size`."""

    def __init__(self, nccl, handle, index, size):
        self.nccl = nccl
        self.handle = handle
        self.index = index
        self.size = size

    @classmethod
    def of_all(cls, nccl, rank, **settings):
        """Of all ranks of the program; `settings`: members of ncclConfig_t."""
        unique = UniqueId()
        if rank.rank == 0:
            nccl.call("ncclGetUniqueId", ctypes.byref(unique))
        unique = UniqueId.from_buffer_copy(rank.gather(bytes(unique))[0])
        handle = ctypes.c_void_p()
        nccl.call("ncclCommInitRankConfig", ctypes.byref(handle), rank.world, unique, rank.rank,
                  ctypes.byref(Config(**settings)))
        return cls(nccl, handle, rank.rank, rank.world)

    def split(self, color_of):
        """The ranks with the same color as this one, in reverse order. `color_of`: a function of the number."""
        members = [each for each in reversed(range(self.size)) if color_of(each) == color_of(self.index)]
        handle = ctypes.c_void_p()
        self.nccl.call("ncclCommSplit", self.handle, color_of(self.index), self.size - self.index,
                       ctypes.byref(handle), None)
        return Communicator(self.nccl, handle, members.index(self.index), len(members))

    def destroy(self):
        torch.cuda.synchronize()
        self.nccl.call("ncclCommDestroy", self.handle)

    def abort(self):
        self.nccl.call("ncclCommAbort", self.handle)

    def register(self, tensor):
        handle = ctypes.c_void_p()
        self.nccl.call("ncclCommRegister", self.handle, tensor.data_ptr(), 4 * tensor.numel(), ctypes.byref(handle))
        return handle

    def deregister(self, handle):
        self.nccl.call("ncclCommDeregister", self.handle, handle)

    def open_window(self, tensor, flags):
        window = ctypes.c_void_p()
        self.nccl.call("ncclCommWindowRegister", self.handle, tensor.data_ptr(), 4 * tensor.numel(),
                       ctypes.byref(window), flags)
        return window

    def close_window(self, window):
        self.nccl.call("ncclCommWindowDeregister", self.handle, window)

    def all_reduce(self, send, receive):
        self.nccl.call("ncclAllReduce", send.data_ptr(), receive.data_ptr(), send.numel(), FLOAT32, SUM, self.handle,
                       torch.cuda.current_stream().cuda_stream)

    def all_gather(self, send, receive):
        self.nccl.call("ncclAllGather", send.data_ptr(), receive.data_ptr(), send.numel(), FLOAT32, self.handle,
                       torch.cuda.current_stream().cuda_stream)

    def reduce_scatter(self, send, receive):
        self.nccl.call("ncclReduceScatter", send.data_ptr(), receive.data_ptr(), receive.numel(), FLOAT32, SUM,
                       self.handle, torch.cuda.current_stream().cuda_stream)


class Collectives:
    """Collectives of a communicator from and to buffers that stay, out of place. `allocate`: makes a buffer of so many
    float32; `part`: elements of one rank."""

    ALL = ("all_gather", "all_reduce", "reduce_scatter")

    def __init__(self, communicator, allocate, part=1 << 20, calls=ALL):
        self.communicator = communicator
        self.part, self.whole = part, part * communicator.size
        self.calls = calls
        self.sent = {"all_gather": allocate(self.part)}
        if calls != ("all_gather",):
            self.sent["all_reduce"] = self.sent["reduce_scatter"] = allocate(self.whole)
        self.received = {call: allocate(self.part if call == "reduce_scatter" else self.whole) for call in calls}

    def buffers(self):
        """Each of them once, in the same order in every rank."""
        return list({id(tensor): tensor for tensor in (*self.sent.values(), *self.received.values())}.values())

    def fill(self, seed):
        for tensor in {id(tensor): tensor for tensor in self.sent.values()}.values():
            tensor.copy_(torch_rank.values(self.communicator.index, 0, tensor.numel(), seed, tensor.device))
        for tensor in self.received.values():
            tensor.fill_(-99)

    def run(self):
        for call in self.calls:
            getattr(self.communicator, call)(self.sent[call], self.received[call])

    def check(self, seed):
        size, index = self.communicator.size, self.communicator.index
        for call in self.calls:
            got = self.received[call]
            if call == "all_gather":
                wanted = torch.cat([torch_rank.values(each, 0, self.part, seed, got.device) for each in range(size)])
            else:
                begin = index * self.part if call == "reduce_scatter" else 0
                wanted = torch_rank.sums(size, begin, got.numel(), seed, got.device)
            check_equal(call.replace("_", "-"), got, wanted)

    def verify(self, seed):
        self.fill(seed)
        self.run()
        self.check(seed)
