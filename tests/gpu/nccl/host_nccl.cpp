// A libnccl.so.2 for the simulated driver, so that the GPU tests' own programs and scripts can be
// tested without a GPU.
//
// Ranks exchange data through shared memory, on the calling thread, in stream order. Only what the
// tests call is there; how NCCL handles its memory is tests/workload's subject. One block of device
// memory per communicator is allocated as NCCL does it, so that it is brokered, and its bytes are
// looked at in every operation: a pause that loses them is an error.
//
// HOST_NCCL_CORRUPT=N spoils one byte of the N-th result of a process: the tests must notice.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/driver.h"

#define HOST_NCCL_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kMaxRanks = 16;
constexpr std::size_t kSlotBytes = std::size_t{72} << 20;  // sparse
constexpr std::size_t kOwnBytes = std::size_t{2} << 20;
constexpr int kSignature = 0x5eed;

const amem::Driver& driver() {
  static const amem::Driver table = [] {
    amem::Driver d;
    if (const auto status = d.load(); !status.ok()) {
      std::fprintf(stderr, "host NCCL: %s\n", status.text().c_str());
      std::abort();
    }
    return d;
  }();
  return table;
}

thread_local std::string last_error;

ncclResult_t failed(const std::string& why) {
  last_error = why;
  return ncclUnhandledCudaError;
}

/// What one rank has to say in one round.
struct Slot {
  std::atomic<std::uint64_t> published{0};  // rounds
  std::atomic<std::uint64_t> taken{0};      // rounds that this rank has read from all others
  int color = 0;
  int key = 0;
  std::array<std::size_t, kMaxRanks> offset{};  // what is for whom
};

struct Mailbox {
  std::atomic<int> joined{0};
  std::array<Slot, kMaxRanks> slots;
};

std::byte* data_of(Mailbox* box, int rank) {
  return reinterpret_cast<std::byte*>(box) + sizeof(Mailbox) +
         static_cast<std::size_t>(rank) * kSlotBytes;
}

}  // namespace

struct ncclComm {
  std::string name;
  int rank = 0;
  int ranks = 1;
  Mailbox* box = nullptr;
  std::uint64_t round = 0;
  int splits = 0;
  CUcontext context = nullptr;
  CUdevice device = 0;
  CUstream stream = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr own = 0;
};

namespace {

enum class Kind { kReduce, kGather, kReduceScatter, kBroadcast, kSend, kReceive, kSplit };

struct Call {
  ncclComm* comm;
  Kind kind;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // or root
  CUstream stream = nullptr;
  int color = 0;
  int key = 0;
  ncclComm_t* made = nullptr;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> queued;

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 4;
  }
}

float read(const std::byte* at, ncclDataType_t type) {
  if (type == ncclBfloat16) {
    std::uint16_t half = 0;
    std::memcpy(&half, at, sizeof half);
    return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
  }
  if (type == ncclFloat16) {
    _Float16 half = 0;
    std::memcpy(&half, at, sizeof half);
    return static_cast<float>(half);
  }
  if (type == ncclFloat32) {
    float f = 0;
    std::memcpy(&f, at, sizeof f);
    return f;
  }
  int i = 0;
  std::memcpy(&i, at, sizeof i);
  return static_cast<float>(i);
}

void write(std::byte* at, ncclDataType_t type, float value) {
  if (type == ncclBfloat16) {
    const auto half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    std::memcpy(at, &half, sizeof half);
  } else if (type == ncclFloat16) {
    const auto half = static_cast<_Float16>(value);
    std::memcpy(at, &half, sizeof half);
  } else if (type == ncclFloat32) {
    std::memcpy(at, &value, sizeof value);
  } else {
    const int i = static_cast<int>(value);
    std::memcpy(at, &i, sizeof i);
  }
}

bool copy_out(const ncclComm* c, const void* device, std::byte* host, std::size_t bytes,
              CUstream stream) {
  return driver().cuCtxSetCurrent_(c->context) == CUDA_SUCCESS &&
         driver().cuMemcpyDtoHAsync_(host, reinterpret_cast<CUdeviceptr>(device), bytes, stream) ==
             CUDA_SUCCESS &&
         driver().cuStreamSynchronize_(stream) == CUDA_SUCCESS;
}

bool copy_in(const ncclComm* c, void* device, const std::byte* host, std::size_t bytes,
             CUstream stream) {
  return driver().cuCtxSetCurrent_(c->context) == CUDA_SUCCESS &&
         driver().cuMemcpyHtoDAsync_(reinterpret_cast<CUdeviceptr>(device), host, bytes, stream) ==
             CUDA_SUCCESS &&
         driver().cuStreamSynchronize_(stream) == CUDA_SUCCESS;
}

// ---- communicators
// ----------------------------------------------------------------------------------------------

/// New memory at the address that is reserved.
ncclResult_t place_own(ncclComm* c) {
  const amem::Driver& d = driver();
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->device};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUmemAccessDesc access{.location = prop.location,
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const int signature = kSignature;
  if (d.cuMemCreate_(&c->handle, kOwnBytes, &prop, 0) != CUDA_SUCCESS ||
      d.cuMemMap_(c->own, kOwnBytes, 0, c->handle, 0) != CUDA_SUCCESS ||
      d.cuMemSetAccess_(c->own, kOwnBytes, &access, 1) != CUDA_SUCCESS ||
      !copy_in(c, reinterpret_cast<void*>(c->own), reinterpret_cast<const std::byte*>(&signature),
               sizeof signature, c->stream))
    return failed("cannot allocate a communicator's own memory");
  return ncclSuccess;
}

ncclResult_t allocate_own(ncclComm* c) {
  const amem::Driver& d = driver();
  if (d.cuStreamCreate_(&c->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      d.cuMemAddressReserve_(&c->own, kOwnBytes, 0, 0, 0) != CUDA_SUCCESS)
    return failed("cannot reserve a communicator's addresses");
  return place_own(c);
}

ncclResult_t join(const std::string& name, int rank, int ranks, ncclComm_t* out) {
  auto c = std::make_unique<ncclComm>();
  c->name = name;
  c->rank = rank;
  c->ranks = ranks;
  const std::size_t bytes = sizeof(Mailbox) + static_cast<std::size_t>(ranks) * kSlotBytes;
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0)
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) ::close(fd);
  if (memory == MAP_FAILED) return failed("no shared memory");
  c->box = static_cast<Mailbox*>(memory);  // all zero is its initial state
  if (c->box->joined.fetch_add(1) + 1 == ranks) ::shm_unlink(name.c_str());
  if (driver().cuCtxGetCurrent_(&c->context) != CUDA_SUCCESS ||
      driver().cuCtxGetDevice_(&c->device) != CUDA_SUCCESS)
    return failed("no current context");
  if (const ncclResult_t result = allocate_own(c.get()); result != ncclSuccess) return result;
  *out = c.release();
  return ncclSuccess;
}

// ---- one round
// --------------------------------------------------------------------------------------------------

template <class Condition>
void wait_until(const Condition& condition) {
  while (!condition()) ::usleep(20);
}

ncclResult_t publish(ncclComm* c, const std::vector<Call>& calls) {
  wait_until([&] {
    for (int r = 0; r < c->ranks; ++r)
      if (c->box->slots[static_cast<std::size_t>(r)].taken.load() < c->round) return false;
    return true;
  });
  int signature = 0;
  if (!copy_out(c, reinterpret_cast<void*>(c->own), reinterpret_cast<std::byte*>(&signature),
                sizeof signature, c->stream) ||
      signature != kSignature)
    return failed("a communicator's own memory has changed");
  Slot& mine = c->box->slots[static_cast<std::size_t>(c->rank)];
  std::byte* data = data_of(c->box, c->rank);
  std::size_t used = 0;
  for (const Call& call : calls) {
    mine.color = call.color;
    mine.key = call.key;
    if (call.kind == Kind::kReceive || call.kind == Kind::kSplit) continue;
    std::size_t bytes = call.count * size_of(call.type);
    if (call.kind == Kind::kReduceScatter) bytes *= static_cast<std::size_t>(c->ranks);
    if (used + bytes > kSlotBytes) return failed("larger than this NCCL can do");
    if (!copy_out(c, call.send, data + used, bytes, call.stream))
      return failed("cannot read a send buffer");
    if (call.kind == Kind::kSend)
      mine.offset[static_cast<std::size_t>(call.peer)] = used;
    else
      mine.offset.fill(used);
    used += bytes;
  }
  mine.published.store(c->round + 1);
  return ncclSuccess;
}

const std::byte* from(const ncclComm* c, int rank) {
  const Slot& slot = c->box->slots[static_cast<std::size_t>(rank)];
  return data_of(c->box, rank) + slot.offset[static_cast<std::size_t>(c->rank)];
}

std::vector<std::byte> reduce(const ncclComm* c, const Call& call, std::size_t first) {
  const std::size_t size = size_of(call.type);
  std::vector<std::byte> out(call.count * size);
  for (std::size_t i = 0; i < call.count; ++i) {
    float total = read(from(c, 0) + (first + i) * size, call.type);
    for (int r = 1; r < c->ranks; ++r) {
      const float next = read(from(c, r) + (first + i) * size, call.type);
      total = call.op == ncclMax ? std::max(total, next) : total + next;
    }
    write(&out[i * size], call.type, total);
  }
  return out;
}

std::vector<std::byte> result_of(const ncclComm* c, const Call& call) {
  const std::size_t bytes = call.count * size_of(call.type);
  std::vector<std::byte> out;
  switch (call.kind) {
    case Kind::kReduce:
      return reduce(c, call, 0);
    case Kind::kReduceScatter:
      return reduce(c, call, static_cast<std::size_t>(c->rank) * call.count);
    case Kind::kGather:
      for (int r = 0; r < c->ranks; ++r) out.insert(out.end(), from(c, r), from(c, r) + bytes);
      return out;
    case Kind::kBroadcast:
    case Kind::kReceive:
      return {from(c, call.peer), from(c, call.peer) + bytes};
    case Kind::kSend:
    case Kind::kSplit:
      break;
  }
  return out;
}

ncclResult_t split(ncclComm* c, const Call& call) {
  *call.made = nullptr;
  const int number = c->splits++;
  if (call.color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  int ranks = 0;
  int rank = 0;
  for (int r = 0; r < c->ranks; ++r) {
    const Slot& slot = c->box->slots[static_cast<std::size_t>(r)];
    if (slot.color != call.color) continue;
    ++ranks;
    if (slot.key < call.key || (slot.key == call.key && r < c->rank)) ++rank;
  }
  const std::string name =
      c->name + "." + std::to_string(number) + "." + std::to_string(call.color);
  if (driver().cuCtxSetCurrent_(c->context) != CUDA_SUCCESS) return failed("cuCtxSetCurrent");
  return join(name, rank, ranks, call.made);
}

void corrupt_if_told(std::vector<std::byte>& result) {
  static const char* const told = std::getenv("HOST_NCCL_CORRUPT");
  static std::atomic<long> left{told != nullptr ? std::atol(told) : 0};
  if (told != nullptr && left.fetch_sub(1) == 1) result[result.size() / 2] ^= std::byte{0x10};
}

ncclResult_t collect(ncclComm* c, const std::vector<Call>& calls) {
  wait_until([&] {
    for (int r = 0; r < c->ranks; ++r)
      if (c->box->slots[static_cast<std::size_t>(r)].published.load() <= c->round) return false;
    return true;
  });
  ncclResult_t outcome = ncclSuccess;
  for (const Call& call : calls) {
    if (call.kind == Kind::kSplit) {
      outcome = split(c, call);
      continue;
    }
    std::vector<std::byte> result = result_of(c, call);
    if (result.empty()) continue;
    corrupt_if_told(result);
    if (!copy_in(c, call.receive, result.data(), result.size(), call.stream))
      outcome = failed("cannot write a receive buffer");
  }
  c->box->slots[static_cast<std::size_t>(c->rank)].taken.store(++c->round);
  return outcome;
}

ncclResult_t run_group() {
  std::vector<Call> calls;
  calls.swap(queued);
  std::vector<std::pair<ncclComm*, std::vector<Call>>> by_comm;
  for (const Call& call : calls) {
    auto it = std::find_if(by_comm.begin(), by_comm.end(),
                           [&](const auto& entry) { return entry.first == call.comm; });
    if (it == by_comm.end()) it = by_comm.insert(by_comm.end(), {call.comm, {}});
    it->second.push_back(call);
  }
  // All ranks of this thread speak before any listens.
  for (auto& [c, work] : by_comm)
    if (const ncclResult_t result = publish(c, work); result != ncclSuccess) return result;
  for (auto& [c, work] : by_comm)
    if (const ncclResult_t result = collect(c, work); result != ncclSuccess) return result;
  return ncclSuccess;
}

ncclResult_t add(const Call& call) {
  queued.push_back(call);
  return group_depth > 0 ? ncclSuccess : run_group();
}

}  // namespace

HOST_NCCL_API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
HOST_NCCL_API const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "host NCCL failed";
}
HOST_NCCL_API const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

HOST_NCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> number{0};
  std::snprintf(id->internal, sizeof id->internal, "/host-nccl.%d.%d", ::getpid(), number++);
  return ncclSuccess;
}
HOST_NCCL_API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id,
                                            int rank) {
  return join(id.internal, rank, ranks, comm);
}
HOST_NCCL_API ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    if (driver().cuDeviceGet_(&device, devices[i]) != CUDA_SUCCESS ||
        driver().cuDevicePrimaryCtxRetain_(&context, device) != CUDA_SUCCESS ||
        driver().cuCtxSetCurrent_(context) != CUDA_SUCCESS)
      return failed("no context");
    if (const ncclResult_t result = join(id.internal, i, count, &comms[i]); result != ncclSuccess)
      return result;
  }
  return ncclSuccess;
}
HOST_NCCL_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                                         ncclConfig_t*) {
  return add({.comm = comm, .kind = Kind::kSplit, .color = color, .key = key, .made = made});
}
HOST_NCCL_API ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return ncclSuccess;
}
HOST_NCCL_API ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
HOST_NCCL_API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const amem::Driver& d = driver();
  const bool freed = d.cuMemUnmap_(comm->own, kOwnBytes) == CUDA_SUCCESS &&
                     d.cuMemRelease_(comm->handle) == CUDA_SUCCESS &&
                     d.cuMemAddressFree_(comm->own, kOwnBytes) == CUDA_SUCCESS;
  ::munmap(comm->box, sizeof(Mailbox) + static_cast<std::size_t>(comm->ranks) * kSlotBytes);
  delete comm;
  return freed ? ncclSuccess : failed("cannot free a communicator's own memory");
}

#ifndef HOST_NCCL_OLD
// As NCCL's: the memory goes, its address stays reserved.
HOST_NCCL_API ncclResult_t ncclCommSuspend(ncclComm_t comm, int) {
  const amem::Driver& d = driver();
  return d.cuMemUnmap_(comm->own, kOwnBytes) == CUDA_SUCCESS &&
                 d.cuMemRelease_(comm->handle) == CUDA_SUCCESS
             ? ncclSuccess
             : failed("cannot suspend");
}
HOST_NCCL_API ncclResult_t ncclCommResume(ncclComm_t comm) { return place_own(comm); }
#endif

HOST_NCCL_API ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
HOST_NCCL_API ncclResult_t ncclGroupEnd() { return --group_depth > 0 ? ncclSuccess : run_group(); }

HOST_NCCL_API ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream) {
  return add({comm, Kind::kReduce, send, receive, count, type, op, 0, stream});
}
HOST_NCCL_API ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclComm_t comm,
                                         cudaStream_t stream) {
  return add({comm, Kind::kGather, send, receive, count, type, ncclSum, 0, stream});
}
HOST_NCCL_API ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                             ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                             cudaStream_t stream) {
  return add({comm, Kind::kReduceScatter, send, receive, count, type, op, 0, stream});
}
HOST_NCCL_API ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, int root, ncclComm_t comm,
                                         cudaStream_t stream) {
  return add({comm, Kind::kBroadcast, send, receive, count, type, ncclSum, root, stream});
}
HOST_NCCL_API ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
  return add({comm, Kind::kSend, send, nullptr, count, type, ncclSum, peer, stream});
}
HOST_NCCL_API ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
  return add({comm, Kind::kReceive, nullptr, receive, count, type, ncclSum, peer, stream});
}
