// Whether ranks would find a broker that takes them. A plain function; any thread.
#pragma once

#include <chrono>
#include <string>

#include "client/ctl/diagnosis/finding.h"

namespace amem::ctl {

/// Connects to the sockets in `runtime_dir` and asks for the broker's version, as far as this user
/// may. Says nothing as a rank, so no group changes.
Findings check_broker_in(const std::string& runtime_dir, std::chrono::milliseconds timeout);

}  // namespace amem::ctl
