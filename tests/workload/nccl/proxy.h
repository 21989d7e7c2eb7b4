// Proxy: how the ranks find each other and pass memory, after NCCL's proxy threads.
//
// Each rank listens in the rendezvous directory. A peer that needs a buffer asks its owner's proxy,
// which exports the handle, passes the descriptor with SCM_RIGHTS and closes it; the peer imports
// it and closes its copy. Ranks of one process pass the retained handle itself, as NCCL does. The
// owner's proxy waits (up to the deadline) for memory that is asked for before it exists. Rank 0's
// proxy also counts barriers.
//
// Owns the listening socket, one thread for it and one per peer. Fetch, Generation and Barrier: any
// thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/workload/base/pattern.h"
#include "tests/workload/base/unix_socket.h"
#include "tests/workload/nccl/export.h"
#include "tests/workload/nccl/nccl_calls.h"

namespace amem::workload {

/// What a proxy serves from. Called on the proxy's threads.
class WORKLOAD_EXPORT AllocationSource {
 public:
  struct Offer {
    Handle handle = 0;  // retained for the caller, who releases it
    std::size_t bytes = 0;
    std::uint64_t generation = 0;
  };

  virtual ~AllocationSource() = default;
  /// Waits until the allocation exists and has content. Throws Failure at the deadline.
  virtual Offer Retain(std::uint64_t id, Clock::time_point deadline) = 0;
  /// How often the owner rewrote it. Throws Failure when there is no such allocation.
  virtual std::uint64_t Generation(std::uint64_t id) = 0;
};

class WORKLOAD_EXPORT Proxy {
 public:
  struct Settings {
    int rank = 0;
    int ranks = 1;
    std::string directory;
    std::chrono::milliseconds timeout{30000};  // for a peer to come, or to answer
  };

  struct Fetched {
    Handle handle = 0;  // the caller's to release
    std::size_t bytes = 0;
    std::uint64_t generation = 0;
  };

  Proxy(Settings settings, AllocationSource& source);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  /// A handle of a peer's allocation, imported.
  Fetched Fetch(const AllocationKey& key);
  /// The same from a rank of another rendezvous directory, another job. Throws CudaFailure when the
  /// import is refused.
  Fetched FetchFrom(const std::string& directory, const AllocationKey& key);
  std::uint64_t Generation(const AllocationKey& key);
  /// Returns when every rank has called it as often as this one.
  void Barrier();

 private:
  enum class Ask : std::uint32_t { kExport, kGeneration, kBarrier };
  struct Request {
    Ask ask = Ask::kExport;
    std::int32_t pid = 0;
    std::uint64_t id = 0;
  };
  struct Answer {
    std::uint64_t bytes = 0;
    std::uint64_t generation = 0;
    std::uint64_t handle = 0;
    std::uint32_t ok = 0;
    char text[244] = {};
  };
  struct Exchanged {
    Answer answer;
    Fd descriptor;
  };

  void Accept();
  void Serve(int socket);
  void Respond(const Request& request, Answer* answer, Fd* descriptor);
  void AwaitBarrier(std::uint64_t number);
  Exchanged Exchange(int peer, const Request& request);
  Exchanged ExchangeOn(int socket, const Request& request) const;
  Fetched Redeem(Exchanged exchanged) const;
  Clock::time_point Deadline() const { return Clock::now() + settings_.timeout; }

  const Settings settings_;
  AllocationSource& source_;
  Fd listener_;

  std::mutex peers_mutex_;  // one request at a time to each peer
  std::map<int, Fd> peers_;
  std::uint64_t barriers_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::uint64_t, int> arrived_;  // barrier number -> ranks there; rank 0 only
  std::vector<Fd> served_;                // connections of peers
  std::vector<std::thread> servers_;
  bool stopping_ = false;
  std::thread acceptor_;
};

}  // namespace amem::workload
