// Whether amemd has what it needs on its node, as it says itself and as the kernel knows it.
#pragma once

#include <cstdint>
#include <optional>

#include "amem/v1/broker.pb.h"
#include "client/ctl/diagnosis/driver_check.h"
#include "client/ctl/diagnosis/finding.h"

namespace amem::ctl {

/// The soft limit of open files of a process, from /proc/PID/limits; nothing: this user may not
/// read it, or the process is elsewhere.
std::optional<std::uint64_t> open_files_of(std::int64_t pid);

/// Pure. `driver`: this process's, whose GPUs amemd must have too. `open_files`: amemd's limit.
Findings check_node(const v1::NodeStatus& status, const DriverFacts& driver,
                    std::optional<std::uint64_t> open_files);

/// Pure. Driver calls that ranks' shims do not know, and that nobody has signed off.
Findings check_ranks(const v1::ListRanksResponse& ranks);

}  // namespace amem::ctl
