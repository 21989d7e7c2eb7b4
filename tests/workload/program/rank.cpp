#include "tests/workload/program/rank.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "common/fd.h"
#include "tests/workload/base/bytes.h"
#include "tests/workload/base/commands.h"

namespace amem::workload {
namespace {

// NOLINTBEGIN(performance-no-int-to-ptr): device addresses are numbers to the API, pointers to
// kernels
template <typename T>
T* KernelPointer(CUdeviceptr address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}
// NOLINTEND(performance-no-int-to-ptr)

std::string ReplaceRank(std::string path, int rank) {
  const std::size_t at = path.find("%r");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(rank));
  return path;
}

/// Communicators' buffers in memory of the host that the ranks of several nodes share, as NCCL's
/// are that go over sockets: a file in the rendezvous directory, zero at first. Mapped until the
/// process ends: kernels use it.
CommunicatorBuffer* MapNetwork(const Options& options) {
  const std::size_t bytes = std::size_t{options.communicators} *
                            static_cast<unsigned>(options.ranks) * sizeof(CommunicatorBuffer);
  const std::string path = options.rendezvous + "/network";
  const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  void* memory = MAP_FAILED;
  if (fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0)
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) throw Failure("mapping " + path + ": " + std::strerror(errno));
  return static_cast<CommunicatorBuffer*>(memory);
}

CUdevice DeviceOf(int ordinal) {
  CUdevice device = 0;
  Check(Cuda().cuDeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

}  // namespace

Rank::Rank(const Options& options, int number, int ordinal, int ordinals)
    : options_(options),
      number_(number),
      ordinals_(ordinals),
      calls_(DeviceOf(ordinal)),
      ledger_(number),
      proxy_({number, options.ranks, options.rendezvous, options.peer_timeout}, ledger_),
      contents_(options.ranks, options.communicators, options.zeros) {
  Check(Cuda().cuDevicePrimaryCtxRetain(&context_, calls_.device()), "cuDevicePrimaryCtxRetain");
}

Rank::~Rank() {
  for (const auto& communicator : communicators_) communicator->report().stop_requested = true;
  for (std::thread& loop : loops_) loop.join();
}

void Rank::Bind() const { Check(Cuda().cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

void Rank::BringUp() {
  if (options_.trace.empty()) {
    SetUpSynthetic();
  } else {
    replay_ = std::make_unique<Replay>(*this, ReadTrace(ReplaceRank(options_.trace, number_)),
                                       options_.scale);
    replay_->Run();
  }
  SetUpCommunicators();
  proxy_.Barrier();
}

void Rank::TearDown() {
  RequireStopped("teardown");
  if (replay_ == nullptr) throw Failure("only a trace has a teardown run");
  proxy_.Barrier();  // a peer may still be in its last round
  torn_down_ = true;
  replay_->Teardown();
}

void Rank::FillAndPublish(const Mapping& mapping) {
  contents_.Fill(mapping, 0, 0);
  ledger_.Publish(mapping.key.id);
}

std::size_t Rank::Rounded(std::size_t bytes, bool symmetric) const {
  return RoundedUp(bytes, calls_.Granularity(symmetric));
}

void Rank::SetUpSynthetic() {
  for (std::uint64_t id = 1; id <= options_.allocations; ++id) {
    Handle handle = 0;
    const bool symmetric = id % 8 == 0;
    const std::size_t bytes = Rounded(options_.bytes, symmetric);
    const Mapping mapping{calls_.Alloc(bytes, symmetric, &handle), bytes, {number_, id}, false};
    ledger_.AddMapping(mapping);
    FillAndPublish(mapping);
  }
  const auto shared =
      static_cast<std::uint64_t>(std::lround(options_.shared * options_.allocations));
  for (int peer = 0; peer < options_.ranks; ++peer) {
    for (std::uint64_t id = 1; peer != number_ && id <= shared; ++id) {
      const Proxy::Fetched got = proxy_.Fetch({peer, id});
      ledger_.AddMapping({calls_.Place(got.bytes, 0, got.handle), got.bytes, {peer, id}, true});
      // NCCL keeps the handles of peer-to-peer buffers and drops those of symmetric memory.
      if (id % 2 == 0) NcclCalls::Release(got.handle);
    }
  }
}

std::vector<CommunicatorBuffer*> Rank::DeviceBuffers(unsigned communicator) {
  const std::size_t bytes = Rounded(sizeof(CommunicatorBuffer), false);
  const std::uint64_t id = kFirstCommunicatorId + communicator;
  Handle handle = 0;
  const Mapping mapping{calls_.Alloc(bytes, false, &handle), bytes, {number_, id}, false};
  ledger_.AddMapping(mapping);
  FillAndPublish(mapping);
  std::vector<CommunicatorBuffer*> buffers;
  for (int peer = 0; peer < options_.ranks; ++peer) {
    CUdeviceptr address = mapping.address;
    if (peer != number_) {
      const Proxy::Fetched got = proxy_.Fetch({peer, id});
      address = calls_.Place(got.bytes, 0, got.handle);
      ledger_.AddMapping({address, got.bytes, {peer, id}, true});
    }
    buffers.push_back(KernelPointer<CommunicatorBuffer>(address));
  }
  return buffers;
}

std::vector<CommunicatorBuffer*> Rank::NetworkBuffers(CommunicatorBuffer* network,
                                                      unsigned communicator) const {
  std::vector<CommunicatorBuffer*> buffers;
  for (int peer = 0; peer < options_.ranks; ++peer)
    buffers.push_back(network + communicator * static_cast<unsigned>(options_.ranks) + peer);
  *buffers[static_cast<std::size_t>(number_)] =
      InitialBuffer({number_, kFirstCommunicatorId + communicator}, communicator);
  return buffers;
}

void Rank::SetUpCommunicators() {
  CommunicatorBuffer* const network = options_.network ? MapNetwork(options_) : nullptr;
  for (unsigned index = 0; index < options_.communicators; ++index) {
    CollectivePlan plan;
    plan.rank = number_;
    plan.communicator = index;
    plan.timeout = options_.kernel_timeout;
    plan.buffers = network != nullptr ? NetworkBuffers(network, index) : DeviceBuffers(index);

    std::set<std::uint64_t> stamped;  // a double mapping is one allocation
    for (const Mapping& each : ledger_.Mappings()) {
      if (ContentOf(each.key.id) != Content::kStamped ||
          CommunicatorOf(each.key.id, options_.communicators) != index) {
        continue;
      }
      const Stamped stamp{KernelPointer<std::uint64_t>(each.address), each.key};
      if (each.imported) {
        plan.peers.push_back(stamp);
      } else if (stamped.insert(each.key.id).second) {
        plan.own.push_back(stamp);
      }
    }
    communicators_.push_back(std::make_unique<Communicator>());
    communicators_.back()->SetPlan(std::move(plan));
  }
  captures_.resize(communicators_.size());
}

void Rank::Step(std::uint64_t count) {
  RequireCollectives("step");
  for (std::uint64_t i = 0; i < count; ++i) {
    for (const auto& communicator : communicators_) communicator->Launch(0);
    if (i % options_.depth == options_.depth - 1) {
      for (const auto& communicator : communicators_) communicator->Synchronize();
    }
  }
  for (const auto& communicator : communicators_) communicator->Synchronize();
}

void Rank::StartLoop() {
  RequireCollectives("loop on");
  ++loop_;
  loop_error_.clear();
  std::vector<std::vector<Communicator*>> shares(options_.loop_threads);
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    communicators_[i]->report().stop_requested = false;
    shares[i % shares.size()].push_back(communicators_[i].get());
  }
  for (std::vector<Communicator*>& share : shares) {
    loops_.emplace_back([this, mine = std::move(share)] { RunLoop(mine); });
  }
}

void Rank::RunLoop(const std::vector<Communicator*>& communicators) {
  const auto runs = [this](Communicator* each) {
    return !each->report().failed() && each->report().loop_ended.load() != loop_;
  };
  try {
    Bind();
    while (std::any_of(communicators.begin(), communicators.end(), runs)) {
      // In the same order on all ranks, as NCCL demands of its callers.
      for (unsigned i = 0; i < options_.depth; ++i) {
        for (Communicator* each : communicators) each->Launch(loop_);
      }
      for (Communicator* each : communicators) each->Synchronize();
    }
  } catch (const Failure& failure) {
    const std::lock_guard lock(loop_mutex_);
    loop_error_ = failure.what();
  }
}

void Rank::StopLoop() {
  for (const auto& communicator : communicators_) communicator->report().stop_requested = true;
  for (std::thread& loop : loops_) loop.join();
  loops_.clear();
  if (!loop_error_.empty()) throw Failure("the loop ended early: " + loop_error_);
}

void Rank::BeginCapture(std::uint64_t count) {
  RequireCollectives("capture");
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    Capture& capture = captures_[i];
    if (capture.open) throw Failure("a capture is open already");
    if (capture.exec != nullptr) {
      Check(Cuda().cuGraphExecDestroy(std::exchange(capture.exec, nullptr)), "cuGraphExecDestroy");
      Check(Cuda().cuGraphDestroy(std::exchange(capture.graph, nullptr)), "cuGraphDestroy");
    }
    Check(Cuda().cuStreamBeginCapture(communicators_[i]->stream(), CU_STREAM_CAPTURE_MODE_GLOBAL),
          "cuStreamBeginCapture");
    capture.open = true;
    for (std::uint64_t round = 0; round < count; ++round) communicators_[i]->Launch(0);
  }
}

void Rank::EndCapture() {
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    Capture& capture = captures_[i];
    if (!std::exchange(capture.open, false)) throw Failure("no capture is open");
    Check(Cuda().cuStreamEndCapture(communicators_[i]->stream(), &capture.graph),
          "cuStreamEndCapture");
  }
  // Not before the last capture has ended: instantiation is not allowed beside a global-mode
  // capture.
  for (Capture& capture : captures_) {
    Check(Cuda().cuGraphInstantiateWithFlags(&capture.exec, capture.graph, 0),
          "cuGraphInstantiateWithFlags");
  }
}

void Rank::LaunchGraph(std::uint64_t count) {
  RequireCollectives("graph");
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::size_t c = 0; c < communicators_.size(); ++c) {
      if (captures_[c].exec == nullptr) throw Failure("nothing was captured");
      Check(Cuda().cuGraphLaunch(captures_[c].exec, communicators_[c]->stream()), "cuGraphLaunch");
    }
  }
  for (const auto& communicator : communicators_) communicator->Synchronize();
}

void Rank::Report(Answer* answer) const {
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    const CollectiveReport& report = communicators_[i]->report();
    const std::string who =
        "rank " + std::to_string(number_) + ", communicator " + std::to_string(i);
    answer->Number("rounds", report.rounds.load());
    answer->Number("mismatches", report.mismatches.load());
    if (report.failed()) {
      answer->Fail(who + ": rank " + std::to_string(report.missing.load()) +
                   " did not come to round " + std::to_string(report.rounds.load() + 1) +
                   " before the kernel's deadline");
    } else if (report.mismatches.load() != 0) {
      answer->Fail(who + ": collectives read wrong bytes, first of allocation " +
                   std::to_string(report.first_bad_id.load()) + " of rank " +
                   std::to_string(report.first_bad_owner.load()));
    }
  }
}

std::uint64_t Rank::Allocate(std::size_t bytes) {
  bytes = Rounded(bytes, false);
  Handle handle = 0;
  const std::uint64_t id = next_plain_id_++;
  const Mapping mapping{calls_.Alloc(bytes, false, &handle), bytes, {number_, id}, false};
  ledger_.AddMapping(mapping);
  FillAndPublish(mapping);
  return id;
}

void Rank::FreePlain(std::uint64_t id) {
  for (const Mapping& mapping : ledger_.Mappings()) {
    if (mapping.key != AllocationKey{number_, id}) continue;
    if (ContentOf(id) != Content::kPlain) break;
    ledger_.Withdraw(id);
    ledger_.RemoveMapping(mapping.address);
    NcclCalls::Free(mapping.address);
    return;
  }
  throw Failure("no allocation " + std::to_string(id) + " made by alloc");
}

void Rank::Rewrite() {
  RequireStopped("rewrite");
  std::set<std::uint64_t> written;
  for (const Mapping& mapping : ledger_.Mappings()) {
    if (mapping.imported || ContentOf(mapping.key.id) == Content::kCommunicator ||
        !written.insert(mapping.key.id).second) {
      continue;
    }
    contents_.Fill(mapping, ledger_.Rewrite(mapping.key.id), ProgressOf(mapping.key).round);
  }
}

void Rank::Corrupt(std::uint64_t id, std::size_t offset) {
  for (const Mapping& mapping : ledger_.Mappings()) {
    if (mapping.key != AllocationKey{number_, id}) continue;
    if (offset >= mapping.bytes) break;
    return FlipBits(mapping.address + offset, 1);
  }
  throw Failure("no such byte of an own allocation");
}

void Rank::ImportForeign(const std::string& directory, const AllocationKey& key) {
  NcclCalls::Release(proxy_.FetchFrom(directory, key).handle);
}

void Rank::Verify(Answer* answer) {
  RequireStopped("verify");
  answer->Number("wrong", 0);
  for (const Mapping& mapping : ledger_.Mappings()) {
    answer->Number("mappings", 1);
    answer->Number("bytes", mapping.bytes);
    const auto wrong =
        contents_.Verify(mapping, GenerationOf(mapping.key), ProgressOf(mapping.key));
    if (!wrong) continue;
    answer->Number("wrong", 1);
    answer->Fail("rank " + std::to_string(number_) + ": " + *wrong);
  }
}

void Rank::Checksum(Answer* answer) {
  RequireStopped("checksum");
  std::uint64_t sum = 0;
  for (const Mapping& mapping : ledger_.Mappings()) sum = Mix(sum ^ contents_.Checksum(mapping));
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(sum));
  answer->Item("checksums", Quote(text));
}

void Rank::Addresses(Answer* answer) const {
  answer->List("addresses");
  for (const Mapping& mapping : ledger_.Mappings()) {
    answer->Item("addresses", "{\"rank\":" + std::to_string(number_) +
                                  ",\"va\":" + std::to_string(mapping.address) +
                                  ",\"bytes\":" + std::to_string(mapping.bytes) +
                                  ",\"owner\":" + std::to_string(mapping.key.owner) +
                                  ",\"id\":" + std::to_string(mapping.key.id) +
                                  ",\"imported\":" + (mapping.imported ? "true" : "false") + "}");
  }
}

void Rank::MemoryInfo(Answer* answer) const {
  ReportMemory(answer);
  std::set<AllocationKey> counted;
  for (const Mapping& mapping : ledger_.Mappings()) {
    answer->Number(mapping.imported ? "imported_mappings" : "own_mappings", 1);
    if (counted.insert(mapping.key).second) {
      answer->Number(mapping.imported ? "imported_bytes" : "own_bytes", mapping.bytes);
    }
  }
  if (replay_ != nullptr) answer->Number("refused_creates", replay_->refused());
}

void Rank::RequireStopped(const char* what) const {
  if (looping()) throw Failure(std::string(what) + ": not while the loop is on");
}

void Rank::RequireCollectives(const char* what) const {
  RequireStopped(what);
  if (torn_down_) throw Failure(std::string(what) + ": not after the teardown");
}

Progress Rank::ProgressOf(const AllocationKey& key) const {
  if (communicators_.empty()) return {};
  const CollectiveReport& report =
      communicators_[CommunicatorOf(key.id, options_.communicators)]->report();
  return {report.rounds.load(), report.failed()};
}

std::uint64_t Rank::GenerationOf(const AllocationKey& key) {
  if (key.owner == number_) return ledger_.Generation(key.id);
  std::uint64_t& generation = generations_[key];
  try {
    generation = proxy_.Generation(key);
  } catch (const Failure&) {
    // A dead owner rewrites nothing any more: what it said last stands.
  }
  return generation;
}

}  // namespace amem::workload
