// How much host memory the broker may still take without driving the host, or its own container,
// into the out-of-memory killer. Stateless; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace amem {

/// Bytes, after leaving a reserve of 1/16 of the host for everybody else: the least of what the
/// host has available and what the limits of our control group leave.
std::uint64_t available_host_memory();

/// The broker's own resident memory in bytes.
std::uint64_t resident_memory();

}  // namespace amem
