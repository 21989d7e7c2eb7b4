// Rank: one rank of the job on one device: its memory, its communicators, its peers.
//
// Every call needs the device current in its thread (Bind) and comes from one thread at a time, but
// for StopLoop. Throws Failure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/workload/base/answer.h"
#include "tests/workload/nccl/communicator.h"
#include "tests/workload/nccl/nccl_calls.h"
#include "tests/workload/nccl/proxy.h"
#include "tests/workload/program/contents.h"
#include "tests/workload/program/ledger.h"
#include "tests/workload/program/options.h"
#include "tests/workload/program/replay.h"

namespace amem::workload {

class Rank {
 public:
  Rank(const Options& options, int number, int ordinal, int ordinals);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Makes the device's primary context current in this thread.
  void Bind() const;
  /// Allocates, shares, fills; ends when every rank of the job has.
  void BringUp();
  /// Replays the trace's teardown run. Collectives are over then.
  void TearDown();

  /// Runs `count` collective rounds on every communicator and waits for them.
  void Step(std::uint64_t count);
  /// Collectives without end, in threads of their own, until StopLoop on any rank.
  void StartLoop();
  /// Ends the loop of all ranks with the same round.
  void StopLoop();
  bool looping() const { return !loops_.empty(); }

  /// Records `count` rounds of every communicator into a graph. EndCapture may come later.
  void BeginCapture(std::uint64_t count);
  void EndCapture();
  void LaunchGraph(std::uint64_t count);

  /// Compares every mapped byte with what it must be.
  void Verify(Answer* answer);
  void Checksum(Answer* answer);
  void Addresses(Answer* answer) const;
  /// The device's memory as the driver tells it.
  void MemoryInfo(Answer* answer) const;
  /// Throws unless all collectives so far came to an end and saw what they must see; adds the count
  /// of rounds.
  void Report(Answer* answer) const;

  /// An allocation that no peer has. The number it got.
  std::uint64_t Allocate(std::size_t bytes);
  void FreePlain(std::uint64_t id);
  /// New bytes in every own allocation but the communicators'. Peers learn of it when they verify.
  void Rewrite();
  /// Flips a bit of an own allocation, for tests of what notices.
  void Corrupt(std::uint64_t id, std::size_t offset);
  /// Imports an allocation of another job's rank and drops it again.
  void ImportForeign(const std::string& directory, const AllocationKey& key);

  // For what brings the rank up.
  int number() const { return number_; }
  int ordinal() const { return calls_.device(); }
  int ordinals() const { return ordinals_; }
  const NcclCalls& calls() const { return calls_; }
  Ledger& ledger() { return ledger_; }
  Proxy& proxy() { return proxy_; }
  /// Writes an own, new allocation and lets peers have it.
  void FillAndPublish(const Mapping& mapping);

 private:
  struct Capture {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    bool open = false;
  };

  std::size_t Rounded(std::size_t bytes, bool symmetric) const;
  void SetUpSynthetic();
  void SetUpCommunicators();
  /// Of all ranks, by number: brokered memory of each, or the network's.
  std::vector<CommunicatorBuffer*> DeviceBuffers(unsigned communicator);
  std::vector<CommunicatorBuffer*> NetworkBuffers(CommunicatorBuffer* network,
                                                  unsigned communicator) const;
  void RunLoop(const std::vector<Communicator*>& communicators);
  void RequireStopped(const char* what) const;
  void RequireCollectives(const char* what) const;
  Progress ProgressOf(const AllocationKey& key) const;
  std::uint64_t GenerationOf(const AllocationKey& key);

  const Options options_;
  const int number_;
  const int ordinals_;
  const NcclCalls calls_;
  CUcontext context_ = nullptr;
  Ledger ledger_;
  Proxy proxy_;
  Contents contents_;
  std::unique_ptr<Replay> replay_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<Capture> captures_;  // by communicator
  std::vector<std::thread> loops_;
  std::uint64_t loop_ = 0;  // number of the last loop
  std::mutex loop_mutex_;
  std::string loop_error_;
  std::map<AllocationKey, std::uint64_t> generations_;  // of imported allocations, as last heard
  bool torn_down_ = false;
  std::uint64_t next_plain_id_ = kFirstPlainId;
};

}  // namespace amem::workload
