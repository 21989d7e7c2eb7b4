#include "daemon/memory/segment_sources.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr std::uint64_t kReserveAtOnce = 64ULL
                                         << 20;  // of a memfd, reserved at once: `stop` is heard

class HostNumaSource final : public SegmentSource {
 public:
  HostNumaSource(Place place, const Devices& devices) : place_(place), devices_(devices) {}

  Status supported() const override {
    if (devices_.host_memory_supported()) return {};
    return {Code::kFailedPrecondition, "the driver does not support cuMem host memory here"};
  }
  Result<PoolSegment> make(std::uint64_t size, int numa_node, const std::atomic<bool>&) override {
    Result<Fd> fd = devices_.create_host(numa_node, size);
    if (!fd.ok()) return fd.status();
    return PoolSegment{std::make_shared<const Fd>(std::move(fd).value()), size, place_, numa_node};
  }
  /// It goes with the last process that has it.
  void give_back(const PoolSegment&) override {}

 private:
  const Place place_;
  const Devices& devices_;
};

/// While this lives, the calling thread's new pages come from one NUMA node, while that has any.
/// Containers may forbid the call; then they come from anywhere.
class PreferredNode {
 public:
  explicit PreferredNode(int node) {
    if (node < 0 || node >= kMostNodes) return;
    Mask mask{};
    mask[static_cast<std::size_t>(node) / kBits] = 1UL << (static_cast<unsigned>(node) % kBits);
    set_ = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), kMostNodes + 1) == 0;
  }
  ~PreferredNode() {
    if (set_) ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
  }
  PreferredNode(const PreferredNode&) = delete;
  PreferredNode& operator=(const PreferredNode&) = delete;
  bool is_set() const { return set_; }

 private:
  static constexpr int kMostNodes = 1024;
  static constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  using Mask = std::array<unsigned long, kMostNodes / kBits>;
  bool set_ = false;
};

class MemfdSource final : public SegmentSource {
 public:
  MemfdSource(Place place, const Devices&) : place_(place) {}

  Status supported() const override { return {}; }
  Result<PoolSegment> make(std::uint64_t size, int numa_node,
                           const std::atomic<bool>& stop) override {
    const PreferredNode preferred(numa_node);
    Fd fd(::memfd_create("amem-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) return errno_status(Code::kResourceExhausted, "memfd_create", errno);
    // Taken now, not when a pause writes to it.
    for (std::uint64_t at = 0; at < size; at += kReserveAtOnce) {
      if (stop) return Status(Code::kCancelled, "amemd is ending");
      const std::uint64_t part = std::min(kReserveAtOnce, size - at);
      if (::fallocate(fd.get(), 0, static_cast<off_t>(at), static_cast<off_t>(part)) != 0)
        return errno_status(Code::kResourceExhausted,
                            "reserving " + format_size(size) + " of memfd", errno);
    }
    // Every rank gets a descriptor; one that made the file shorter would take the others' bytes,
    // and have them killed by SIGBUS.
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      return errno_status(Code::kInternal, "sealing " + format_size(size) + " of memfd", errno);
    return PoolSegment{std::make_shared<const Fd>(std::move(fd)), size, place_,
                       preferred.is_set() ? numa_node : -1};
  }
  /// The pages go even where somebody has kept a descriptor or a mapping.
  void give_back(const PoolSegment& segment) override {
    ::fallocate(segment.fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                static_cast<off_t>(segment.size));
  }

 private:
  const Place place_;
};

template <class Source>
std::unique_ptr<SegmentSource> make(Place place, const Devices& devices) {
  return std::make_unique<Source>(place, devices);
}

// The table of sources: one for each place.
constexpr std::array kSources = {
    std::pair{Place::kHostNuma, &make<HostNumaSource>},
    std::pair{Place::kMemfd, &make<MemfdSource>},
#ifdef AMEM_TEST_SEAMS
    std::pair{Place::kPageable, &make<MemfdSource>},
#endif
};
static_assert(kSources.size() == kPlaces.size());

}  // namespace

std::map<Place, std::unique_ptr<SegmentSource>> make_sources(const Devices& devices) {
  std::map<Place, std::unique_ptr<SegmentSource>> sources;
  for (const auto& [place, make] : kSources) sources[place] = make(place, devices);
  return sources;
}

}  // namespace amem
