// HostPool: makes the pinned host memory that saved bytes live in.
//
// A thread of its own creates segment after segment (pinning takes seconds) and hands each to the
// loop as soon as it is there; it owns nothing afterwards. Segments are cuMem host memory where the
// driver has it, spread over the devices' NUMA nodes; else memfds, which ranks register. When
// memory runs out the pool stays as large as it got.
//
// start() and the destructor: the loop's thread. The callbacks come on the pool's own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/status.h"
#include "daemon/memory/allocations.h"
#include "daemon/memory/devices.h"

namespace amem {

struct PoolSegment {
  SharedFd fd;
  std::uint64_t size = 0;
  bool memfd = false;  // else a cuMem descriptor
  int numa_node = -1;
};

class HostPool {
 public:
  struct Callbacks {
    std::function<void(PoolSegment)> ready;
    /// Once, at the end; `error` says why the pool is smaller than configured, or is empty.
    std::function<void(std::string error)> finished;
  };

  explicit HostPool(const Devices& devices) : devices_(devices) {}
  ~HostPool() { stop(); }
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// Begins to create `size` bytes in pieces of `segment`.
  void start(std::uint64_t size, std::uint64_t segment, Callbacks callbacks);
  /// Ends the thread; what was being created is given up within a fraction of a second.
  void stop();

 private:
  void run(std::uint64_t size, std::uint64_t segment, const Callbacks& callbacks);
  Result<PoolSegment> create(std::uint64_t size, int numa_node);
  Result<PoolSegment> create_memfd(std::uint64_t size) const;

  const Devices& devices_;
  bool use_memfd_ = false;  // of the pool's thread
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace amem
