// How much host memory the broker may still take without driving the host, or its own container,
// into the out-of-memory killer. Stateless; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace amem {

struct HostMemory {
  std::uint64_t bytes = 0;  // that may be taken
  std::string limited_by;   // for people: "the host", or a control group's limit
};

/// The least of two figures. The first is what the host has available, less a reserve of 1/16 of
/// the host for everybody else. The second is what the limits of our control group, and of those
/// above it, leave; files in the page cache, which the kernel gives up when memory is short, do not
/// count as used there. A container's limit is for the container alone, so it has no reserve.
/// `root`: where /proc and /sys are looked for; for tests.
HostMemory available_host_memory(const std::string& root = "");

/// The broker's own resident memory in bytes.
std::uint64_t resident_memory();

}  // namespace amem
