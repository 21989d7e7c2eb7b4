// Device memory that stays on the GPU in a pause because amem does not broker it: how much, in
// which ranks and on which devices, why, and what to do. For `amemctl advise` and `doctor`. Pure;
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"

namespace amem::ctl {

/// Less than that stays without anybody noticing.
constexpr std::uint64_t kWorthNaming = 64ULL << 20U;

/// Of one group, what stays for one reason.
struct Staying {
  /// Of one rank on one device, of one kind.
  struct Part {
    std::string rank;  // "rank 0 (pid 4711)"
    std::int64_t pid = 0;
    std::string uuid;
    std::string kind;  // as v1::UnbrokeredUsage has it
    std::uint64_t bytes = 0;
  };
  std::string group;
  std::string check;  // the reason, for programs
  std::uint64_t bytes = 0;
  std::vector<Part> parts;  // the largest first
  std::string what;         // "the driver's stream-ordered pools"
  std::string why;
  std::string remedy;
};

/// Of each group in the answer and each reason, the largest first; without what is not worth
/// naming.
std::vector<Staying> what_stays(const v1::ListRanksResponse& ranks);

/// "2.00 GiB of managed memory stays on the GPU: rank 0 (pid 4711) on GPU-01234567 2.00 GiB". Names
/// the largest parts.
std::string text_of(const Staying& staying);

}  // namespace amem::ctl
