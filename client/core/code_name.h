// Names of the canonical codes, as gRPC and broker.proto spell them. Any thread.
#pragma once

#include <array>
#include <cstddef>

namespace amem::client {

/// Returns "NOT_FOUND" for 5, and "UNKNOWN" for an invalid code. Static storage.
inline const char* code_name(int code) {
  static constexpr std::array kNames = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "DEADLINE_EXCEEDED",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS"};
  const bool known = code >= 0 && static_cast<std::size_t>(code) < kNames.size();
  return known ? kNames[static_cast<std::size_t>(code)] : "UNKNOWN";
}

}  // namespace amem::client
