// SegmentSource: makes segments of the pool in one place (common/place.h), and gives their memory
// back to the system. There is one source for each place.
//
// For the pool's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "common/fd.h"
#include "common/place.h"
#include "common/status.h"
#include "daemon/memory/devices.h"

namespace amem {

struct PoolSegment {
  SharedFd fd;
  std::uint64_t size = 0;
  Place place = Place::kHostNuma;
  int numa_node = -1;                                       // -1: none in particular
  enum class Made : std::uint8_t { kFirst, kAnew, kMore };  // by start(), renew() or more()
  Made made = Made::kFirst;
};

class SegmentSource {
 public:
  virtual ~SegmentSource() = default;

  /// kFailedPrecondition: this node cannot have such segments, and why.
  virtual Status supported() const = 0;
  /// On this NUMA node, where the place has one. kResourceExhausted: there is no memory for it.
  /// kCancelled: `stop` has become true. Any other error: no segment can be made in this place.
  virtual Result<PoolSegment> make(std::uint64_t size, int numa_node,
                                   const std::atomic<bool>& stop) = 0;
  /// Gives the memory back to the system, as far as that is possible while descriptors or mappings
  /// of it exist. The caller closes the descriptor.
  virtual void give_back(const PoolSegment& segment) = 0;
};

/// One for each place. `devices` outlives them.
std::map<Place, std::unique_ptr<SegmentSource>> make_sources(const Devices& devices);

}  // namespace amem
