// Region: the period of a thread's time in which the device memory it allocates has a tag and a
// policy of the program's choice; or in which it is not brokered at all.
//
// Each thread has its own; it owns nothing and needs no broker. What is allocated inside keeps its
// tag after the region has ended. Any thread; no lock.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/packet.h"
#include "common/status.h"

namespace amem::shim {

/// What an allocation is created under.
struct Label {
  std::string tag;
  amem_v1_RegionPolicy policy = amem_v1_RegionPolicy_REGION_POLICY_UNSPECIFIED;
  friend auto operator<=>(const Label&, const Label&) = default;
};

inline constexpr const char* kNcclTag = "nccl";
inline constexpr const char* kHeapTag = "heap";

/// The calling thread's region.
class Region {
 public:
  /// kInvalidArgument: no such tag or policy; kFailedPrecondition: the thread is in a region, or
  /// unbrokered.
  static Status begin(std::string_view tag, int policy);
  /// kFailedPrecondition: the thread is in none, or unbrokered.
  static Status end();
  /// Nothing: the thread is in none. While it is unbrokered: the one that goes on afterwards.
  static std::optional<Label> current();

  /// What the thread allocates from now on is the driver's own; its region goes on afterwards.
  /// kFailedPrecondition: that is so already.
  static Status begin_unbrokered();
  /// kFailedPrecondition: it is not so.
  static Status end_unbrokered();
  static bool unbrokered();
};

/// 1 to 31 characters of [A-Za-z0-9._-]; NCCL's is nobody else's.
bool valid_region_tag(std::string_view tag);

}  // namespace amem::shim
