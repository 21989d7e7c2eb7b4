#include "tests/gpu/nccl/rank.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "common/protocol.h"
#include "tests/gpu/driver/empty_kernel.h"

namespace gpu_test {
namespace {

// A receive buffer is filled with this first, so that a result that never arrived is no leftover of
// the last one.
constexpr unsigned char kNothing = 0xee;
constexpr std::size_t kBurstBytes = 1U << 20;
constexpr int kBurstLength = 16;
constexpr std::size_t kAlign = 256;

ncclDataType_t nccl_type(Type type) {
  constexpr std::array<ncclDataType_t, kTypes> kNames = {ncclInt32, ncclFloat32, ncclBfloat16,
                                                         ncclFloat16};
  return kNames[static_cast<std::size_t>(type)];
}

std::uint64_t seed_of(std::uint64_t round, int c, Op op, std::size_t size_index) {
  return ((round * kMaxComms + static_cast<std::uint64_t>(c)) * kOps +
          static_cast<std::uint64_t>(op)) *
             8 +
         size_index;
}

}  // namespace

Crew::Crew(const Cuda& cuda, const Nccl& nccl, Control& control, const Options& options, int first,
           int count, int world)
    : cuda_(cuda),
      nccl_(nccl),
      control_(control),
      options_(options),
      first_(first),
      world_(world),
      crews_(world / count),
      // One part per rank of at least one element, whatever the size asked for.
      capacity_(std::max<std::size_t>(options.max_bytes, 4096U * static_cast<unsigned>(world))),
      ranks_(static_cast<std::size_t>(count)) {
  for (int i = 0; i < count; ++i) {
    Rank& rank = ranks_[static_cast<std::size_t>(i)];
    rank.index = first + i;
    rank.slot = &control.ranks[static_cast<std::size_t>(rank.index)];
  }
}

void Crew::cuda(CUresult result, const char* call) const { cuda_.must(result, call); }

void Crew::nccl(ncclResult_t result, const char* call) const {
  if (result != ncclSuccess)
    fail(std::string(call) + ": " + nccl_.ncclGetErrorString(result) + ": " +
         nccl_.ncclGetLastError(nullptr));
}

void Crew::barrier() {
  for (Rank& rank : ranks_) rank.slot->beats.fetch_add(1, std::memory_order_relaxed);
  control_.barrier(crews_);
}

void Crew::enter(const Rank& rank) const {
  cuda(cuda_.cuCtxSetCurrent_(rank.context), "cuCtxSetCurrent");
}

void Crew::open_devices() {
  doing("opening devices");
  for (Rank& rank : ranks_) open(rank);
}

void Crew::open(Rank& rank) {
  CUdevice device = 0;
  int devices = 0;
  cuda(cuda_.cuDeviceGetCount_(&devices), "cuDeviceGetCount");
  cuda(cuda_.cuDeviceGet_(&device, rank.index % devices), "cuDeviceGet");
  CUuuid uuid{};
  cuda(cuda_.cuDeviceGetUuid_(&uuid, device), "cuDeviceGetUuid");
  rank.uuid = amem::to_string(amem::make_uuid(&uuid));
  cuda(cuda_.cuDevicePrimaryCtxRetain_(&rank.context, device), "cuDevicePrimaryCtxRetain");
  enter(rank);
  cuda(cuda_.cuMemAlloc_(&rank.send, capacity_), "cuMemAlloc");
  cuda(cuda_.cuMemAlloc_(&rank.receive, capacity_), "cuMemAlloc");
  void* host = nullptr;
  cuda(cuda_.cuMemHostAlloc_(&host, capacity_, 0), "cuMemHostAlloc");
  rank.staging_in = static_cast<std::byte*>(host);
  cuda(cuda_.cuMemHostAlloc_(&host, capacity_, 0), "cuMemHostAlloc");
  rank.staging_out = static_cast<std::byte*>(host);
  rank.streams.resize(static_cast<std::size_t>(comm_count()));
  for (CUstream& stream : rank.streams)
    cuda(cuda_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (!options_.capture) return;
  CUmodule module = nullptr;
  cuda(cuda_.cuModuleLoadData_(&module, kEmptyKernel), "cuModuleLoadData");
  cuda(cuda_.cuModuleGetFunction_(&rank.empty_kernel, module, kEmptyKernelName),
       "cuModuleGetFunction");
}

std::uint64_t Crew::device_memory_used(const Rank& rank) const {
  enter(rank);
  std::size_t free = 0;
  std::size_t total = 0;
  cuda(cuda_.cuMemGetInfo_(&free, &total), "cuMemGetInfo");
  return total - free;
}

// ---- communicators
// ----------------------------------------------------------------------------------------------

void Crew::count_comm(Rank& rank, int c, ncclComm_t handle) {
  Comm& comm = rank.comms[static_cast<std::size_t>(c)];
  comm.handle = handle;
  if (handle == nullptr) return;
  nccl(nccl_.ncclCommCount(handle, &comm.ranks), "ncclCommCount");
  nccl(nccl_.ncclCommUserRank(handle, &comm.me), "ncclCommUserRank");
}

void Crew::split(int c, const std::vector<int>& colors) {
  std::vector<ncclComm_t> made(ranks_.size(), nullptr);
  nccl(nccl_.ncclGroupStart(), "ncclGroupStart");
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    enter(ranks_[i]);
    nccl(nccl_.ncclCommSplit(ranks_[i].comms[0].handle,
                             colors[static_cast<std::size_t>(ranks_[i].index)], ranks_[i].index,
                             &made[i], nullptr),
         "ncclCommSplit");
  }
  nccl(nccl_.ncclGroupEnd(), "ncclGroupEnd after ncclCommSplit");
  for (std::size_t i = 0; i < ranks_.size(); ++i) count_comm(ranks_[i], c, made[i]);
}

void Crew::create_comms() {
  const auto world = static_cast<std::size_t>(world_);
  for (Rank& rank : ranks_) rank.comms.assign(static_cast<std::size_t>(comm_count()), Comm{});
  for (int c = 0; c < options_.comms; ++c) {
    doing("creating a communicator", c);
    if (c > 0 && options_.split) {
      split(c, std::vector<int>(world, 0));
    } else if (ranks_.size() > 1) {
      std::vector<ncclComm_t> made(ranks_.size());
      std::vector<int> devices(ranks_.size());
      for (std::size_t i = 0; i < devices.size(); ++i) devices[i] = static_cast<int>(i);
      nccl(nccl_.ncclCommInitAll(made.data(), world_, devices.data()), "ncclCommInitAll");
      for (std::size_t i = 0; i < ranks_.size(); ++i) count_comm(ranks_[i], c, made[i]);
    } else {
      ncclUniqueId& id = control_.ids[static_cast<std::size_t>(c)];
      if (leads()) nccl(nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId");
      barrier();
      enter(ranks_[0]);
      ncclComm_t made = nullptr;
      nccl(nccl_.ncclCommInitRank(&made, world_, id, first_), "ncclCommInitRank");
      count_comm(ranks_[0], c, made);
    }
  }
  if (!options_.subsets) return;
  std::vector<int> alternate(world);
  std::vector<int> halves(world);
  std::vector<int> all_but_last(world);
  for (int r = 0; r < world_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    alternate[i] = r % 2;
    halves[i] = r / 2;
    all_but_last[i] = r == world_ - 1 ? NCCL_SPLIT_NOCOLOR : 0;
  }
  int c = options_.comms;
  for (const auto& colors : {alternate, halves, all_but_last}) {
    doing("splitting off part of the ranks", c);
    split(c++, colors);
  }
}

void Crew::destroy_comms() {
  doing("destroying communicators");
  barrier();
  for (int c = comm_count() - 1; c >= 0; --c)
    for (Rank& rank : ranks_) {
      Comm& comm = rank.comms[static_cast<std::size_t>(c)];
      if (comm.handle == nullptr) continue;
      enter(rank);
      nccl(nccl_.ncclCommDestroy(comm.handle), "ncclCommDestroy");
      comm = {};
    }
  barrier();
}

// ---- collectives
// ------------------------------------------------------------------------------------------------

std::vector<Crew::Job> Crew::jobs(int c, Op op, Type type, std::size_t bytes, std::uint64_t seed,
                                  std::size_t offset) {
  std::vector<Job> out;
  for (Rank& rank : ranks_) {
    const Comm& comm = rank.comms[static_cast<std::size_t>(c)];
    if (comm.handle != nullptr)
      out.push_back({&rank, plan(op, type, bytes, comm.ranks, seed), offset});
  }
  return out;
}

/// As NCCL says where a buffer must lie for it to be in place.
Crew::Places Crew::places(const Comm& comm, const Job& job) const {
  Places at{job.rank->send + job.offset, job.rank->receive + job.offset};
  if (!job.in_place) return at;
  const std::size_t mine =
      static_cast<std::size_t>(comm.me) * job.plan.chunk * size_of(job.plan.type);
  switch (job.plan.op) {
    case Op::kAllReduce:
    case Op::kBroadcast:
      at.send = at.receive;
      break;
    case Op::kAllGather:
      at.send = at.receive + mine;
      break;
    case Op::kReduceScatter:
      at.receive = at.send + mine;
      break;
    case Op::kAllToAll:
    case Op::kRing:
      break;
  }
  return at;
}

void Crew::stage_input(int c, const Job& job) {
  Rank& rank = *job.rank;
  const auto stream = rank.streams[static_cast<std::size_t>(c)];
  const Comm& comm = rank.comms[static_cast<std::size_t>(c)];
  const Places at = places(comm, job);
  const std::size_t size = size_of(job.plan.type);
  enter(rank);
  write_input(job.plan, comm.me, rank.staging_in + job.offset);
  // The input last: in place it lies where the output will.
  cuda(cuda_.cuMemsetD8Async_(at.receive, kNothing, job.plan.recv_count * size, stream),
       "cuMemsetD8Async");
  cuda(cuda_.cuMemcpyHtoDAsync_(at.send, rank.staging_in + job.offset, job.plan.send_count * size,
                                stream),
       "cuMemcpyHtoDAsync");
}

void Crew::launch(const Comm& comm, const Job& job, CUstream stream) const {
  const Plan& p = job.plan;
  const auto type = nccl_type(p.type);
  const auto at = [](CUdeviceptr address, std::size_t bytes = 0) {
    return reinterpret_cast<void*>(address + bytes);
  };
  const Places places = this->places(comm, job);
  void* send = at(places.send);
  void* receive = at(places.receive);
  switch (p.op) {
    case Op::kAllReduce:
      nccl(nccl_.ncclAllReduce(send, receive, p.send_count, type, ncclSum, comm.handle, stream),
           "ncclAllReduce");
      break;
    case Op::kAllGather:
      nccl(nccl_.ncclAllGather(send, receive, p.chunk, type, comm.handle, stream), "ncclAllGather");
      break;
    case Op::kReduceScatter:
      nccl(nccl_.ncclReduceScatter(send, receive, p.chunk, type, ncclSum, comm.handle, stream),
           "ncclReduceScatter");
      break;
    case Op::kBroadcast:
      nccl(nccl_.ncclBroadcast(send, receive, p.send_count, type, p.root, comm.handle, stream),
           "ncclBroadcast");
      break;
    case Op::kRing:
      nccl(
          nccl_.ncclSend(send, p.send_count, type, (comm.me + 1) % comm.ranks, comm.handle, stream),
          "ncclSend");
      nccl(nccl_.ncclRecv(receive, p.recv_count, type, (comm.me + comm.ranks - 1) % comm.ranks,
                          comm.handle, stream),
           "ncclRecv");
      break;
    case Op::kAllToAll:
      for (int peer = 0; peer < comm.ranks; ++peer) {
        const std::size_t part = static_cast<std::size_t>(peer) * p.chunk * size_of(p.type);
        nccl(nccl_.ncclSend(at(job.rank->send, job.offset + part), p.chunk, type, peer, comm.handle,
                            stream),
             "ncclSend");
        nccl(nccl_.ncclRecv(at(job.rank->receive, job.offset + part), p.chunk, type, peer,
                            comm.handle, stream),
             "ncclRecv");
      }
      break;
  }
}

void Crew::launch(int c, const std::vector<Job>& jobs) {
  nccl(nccl_.ncclGroupStart(), "ncclGroupStart");
  for (const Job& job : jobs) {
    enter(*job.rank);
    launch(job.rank->comms[static_cast<std::size_t>(c)], job,
           job.rank->streams[static_cast<std::size_t>(c)]);
  }
  nccl(nccl_.ncclGroupEnd(), "ncclGroupEnd");
}

void Crew::check_output(int c, const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    Rank& rank = *job.rank;
    enter(rank);
    const Places at = places(rank.comms[static_cast<std::size_t>(c)], job);
    cuda(cuda_.cuMemcpyDtoHAsync_(rank.staging_out + job.offset, at.receive,
                                  job.plan.recv_count * size_of(job.plan.type),
                                  rank.streams[static_cast<std::size_t>(c)]),
         "cuMemcpyDtoHAsync");
  }
  for (const Job& job : jobs) {
    Rank& rank = *job.rank;
    const int me = rank.comms[static_cast<std::size_t>(c)].me;
    enter(rank);
    cuda(cuda_.cuStreamSynchronize_(rank.streams[static_cast<std::size_t>(c)]),
         "cuStreamSynchronize");
    const std::string wrong = gpu_test::verify(job.plan, me, rank.staging_out + job.offset);
    if (!wrong.empty())
      fail(std::string("wrong data after ") + name(job.plan.op) + " of " +
           std::to_string(job.plan.recv_count) + " " + name(job.plan.type) + " on GPU " +
           std::to_string(rank.index) + ": " + wrong);
    rank.slot->verified.fetch_add(1, std::memory_order_relaxed);
    rank.slot->beats.fetch_add(1, std::memory_order_relaxed);
  }
}

void Crew::verify(int c, Op op, Type type, std::size_t bytes, std::uint64_t seed, bool in_place) {
  std::vector<Job> work = jobs(c, op, type, bytes, seed, 0);
  for (Job& job : work) job.in_place = in_place;
  if (work.empty()) return;
  for (const Job& job : work) stage_input(c, job);
  launch(c, work);
  check_output(c, work);
}

void Crew::verify_first() {
  for (int c = 0; c < comm_count(); ++c) {
    doing("the first collective", c);
    verify(c, Op::kAllReduce, Type::kFloat32, 4096, seed_of(7, c, Op::kAllReduce, 2));
  }
}

void Crew::suspend_comms(const SuspendCalls& calls) {
  for (int c = 0; c < comm_count(); ++c) {
    doing("suspending a communicator", c);
    nccl(nccl_.ncclGroupStart(), "ncclGroupStart");
    for (Rank& rank : ranks_) {
      enter(rank);
      nccl(calls.suspend(rank.comms[static_cast<std::size_t>(c)].handle, SuspendCalls::kMemory),
           "ncclCommSuspend");
    }
    nccl(nccl_.ncclGroupEnd(), "ncclGroupEnd after ncclCommSuspend");
  }
}

void Crew::resume_comms(const SuspendCalls& calls) {
  for (int c = 0; c < comm_count(); ++c) {
    doing("resuming a communicator", c);
    nccl(nccl_.ncclGroupStart(), "ncclGroupStart");
    for (Rank& rank : ranks_) {
      enter(rank);
      nccl(calls.resume(rank.comms[static_cast<std::size_t>(c)].handle), "ncclCommResume");
    }
    nccl(nccl_.ncclGroupEnd(), "ncclGroupEnd after ncclCommResume");
  }
}

void Crew::verify_all(std::uint64_t round) {
  // Round 0 makes NCCL allocate what it needs for every size.
  const std::size_t largest = options_.check_bytes > 0 && round > 0
                                  ? std::min(options_.check_bytes, options_.max_bytes)
                                  : options_.max_bytes;
  const std::array<std::size_t, 5> sizes = {4, 1000, 4096, 256U << 10, largest};
  for (int c = 0; c < comm_count(); ++c) {
    for (int o = 0; o < kOps; ++o) {
      const Op op = static_cast<Op>(o);
      doing(name(op), c);
      for (std::size_t s = 0; s < sizes.size(); ++s) {
        if (sizes[s] > largest) continue;
        const auto type = static_cast<Type>((round + static_cast<std::uint64_t>(o) + s) % kTypes);
        verify(c, op, type, sizes[s], seed_of(round, c, op, s),
               options_.in_place && round % 2 == 1);
      }
    }
  }
}

void Crew::burst(std::uint64_t round) {
  doing("staging a burst");
  const auto comms = static_cast<std::size_t>(comm_count());
  const std::size_t slice = capacity_ / comms / kAlign * kAlign;
  const std::size_t bytes = std::min(slice, kBurstBytes);
  const auto last = static_cast<Op>(round % kOps);
  const auto type = static_cast<Type>(round / kOps % kTypes);
  std::vector<std::vector<Job>> final(comms);
  for (std::size_t c = 0; c < comms; ++c) {
    const int comm = static_cast<int>(c);
    final[c] = jobs(comm, last, type, bytes, seed_of(round, comm, last, 7), c * slice);
    for (const Job& job : final[c]) stage_input(comm, job);
  }
  for (int i = 0; i < kBurstLength; ++i) {
    // Ranks drift apart, so that a pause finds one inside a collective that another has not begun.
    if (std::rand() % 8 == 0) ::usleep(static_cast<unsigned>(std::rand()) % 1000);
    doing("launching a burst");
    for (std::size_t c = 0; c < comms; ++c) {
      // The inputs stay those of the last operation, which begins with the same elements of the
      // same buffer.
      const bool is_last = i == kBurstLength - 1;
      const Op op =
          is_last ? last : static_cast<Op>((round + static_cast<std::uint64_t>(i)) % kOps);
      const auto work =
          is_last ? final[c] : jobs(static_cast<int>(c), op, type, bytes / 4, round, c * slice);
      if (!work.empty()) launch(static_cast<int>(c), work);
    }
    for (Rank& rank : ranks_) rank.slot->iterations.fetch_add(1, std::memory_order_relaxed);
  }
  doing("waiting for a burst");
  for (std::size_t c = 0; c < comms; ++c) check_output(static_cast<int>(c), final[c]);
}

bool Crew::agree_to_stop(bool mine) {
  doing("agreeing whether to go on", 0);
  const int word = mine ? 1 : 0;
  for (Rank& rank : ranks_) {
    enter(rank);
    std::memcpy(rank.staging_in, &word, sizeof word);
    cuda(cuda_.cuMemcpyHtoDAsync_(rank.send, rank.staging_in, sizeof word, rank.streams[0]),
         "cuMemcpyHtoDAsync");
  }
  nccl(nccl_.ncclGroupStart(), "ncclGroupStart");
  for (Rank& rank : ranks_) {
    enter(rank);
    nccl(nccl_.ncclAllReduce(reinterpret_cast<void*>(rank.send),
                             reinterpret_cast<void*>(rank.receive), 1, ncclInt32, ncclMax,
                             rank.comms[0].handle, rank.streams[0]),
         "ncclAllReduce");
  }
  nccl(nccl_.ncclGroupEnd(), "ncclGroupEnd");
  int agreed = 0;
  for (Rank& rank : ranks_) {
    enter(rank);
    cuda(cuda_.cuMemcpyDtoHAsync_(rank.staging_out, rank.receive, sizeof word, rank.streams[0]),
         "cuMemcpyDtoHAsync");
    cuda(cuda_.cuStreamSynchronize_(rank.streams[0]), "cuStreamSynchronize");
    std::memcpy(&agreed, rank.staging_out, sizeof agreed);
  }
  return agreed != 0;
}

}  // namespace gpu_test
