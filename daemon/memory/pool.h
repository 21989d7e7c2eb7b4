// HostPool: makes the pinned host memory that saved bytes live in.
//
// A thread of its own creates segment after segment (pinning takes seconds) and hands each to the
// loop as soon as it is there; it owns nothing afterwards. Segments are spread over the devices'
// NUMA nodes. Their place (common/place.h) is the first of a list that this node supports.
// When memory runs out the pool stays as large as it got.
//
// start(), renew(), more(), release() and the destructor: the loop's thread. The callbacks come on
// the pool's own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/place.h"
#include "common/status.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/segment_sources.h"

namespace amem {

class HostPool {
 public:
  struct Callbacks {
    std::function<void(PoolSegment)> ready;
    /// Once, when the pool is complete; `error` says why it is smaller than configured, or is
    /// empty.
    std::function<void(std::string error)> finished;
    /// A segment could not be made anew, and why. It is tried again, less and less often. Empty:
    /// by now all have been made.
    std::function<void(std::string error)> troubled;
    /// What more() asked for is not to be had, and why. It is not tried again.
    std::function<void(std::uint64_t size, Status why)> refused;
  };

  /// `place`: of all segments. Nothing: the first automatic place that this node supports and all
  /// processes can use: on a node with several devices that is not the driver's host memory.
  HostPool(const Devices& devices, std::optional<Place> place);
  ~HostPool() { stop(); }
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// Begins to create `size` bytes in pieces of `segment`.
  void start(std::uint64_t size, std::uint64_t segment, Callbacks callbacks);
  /// Gives a segment back to the system and makes another of its size, with nobody's bytes in it,
  /// after all that was asked for before. Where the host has no memory for it, it tries again until
  /// there is some. REQUIRES: start().
  void renew(PoolSegment segment);
  /// Makes one more segment, once, after all that start() was asked for. The NUMA nodes take turns.
  /// REQUIRES: start().
  void more(std::uint64_t size);
  /// Gives a segment back to the system, which may take seconds, and makes no other.
  void release(PoolSegment segment);
  /// Ends the thread; what was being created is given up within a fraction of a second.
  void stop();

 private:
  void run(std::uint64_t size, std::uint64_t segment, const Callbacks& callbacks);
  /// Serves renew(), more() and release().
  void serve_until_stopped(const Callbacks& callbacks);
  /// A segment like that one, which has been given back to the system.
  Result<PoolSegment> create_again(const PoolSegment& old);
  Result<PoolSegment> create_more(std::uint64_t size);
  /// The devices' NUMA nodes.
  std::vector<int> nodes() const;
  Result<PoolSegment> create(std::uint64_t size, int numa_node);
  /// To the system.
  void give_back(PoolSegment& segment);

  const Devices& devices_;
  const std::map<Place, std::unique_ptr<SegmentSource>> sources_;
  std::deque<Place> places_;  // to be made in, the first before the others; of the pool's thread
  std::atomic<bool> stop_ = false;
  std::size_t turn_ = 0;  // of nodes(), whose turn it is; of the pool's thread
  std::mutex mutex_;      // guards the three below
  std::condition_variable asked_;
  std::deque<PoolSegment> renewals_;
  std::deque<std::uint64_t> more_;  // sizes
  std::deque<PoolSegment> releases_;
  std::thread thread_;
};

}  // namespace amem
