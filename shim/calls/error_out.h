// How the calls that the shim exports answer: a Status becomes a code, and its text the caller's.
#pragma once

#include <cstddef>

#include "common/status.h"

namespace amem::shim {

/// AMEM_DISABLE=1: what a call that asks for something answers.
inline Status turned_off() {
  return {Code::kFailedPrecondition, "amem is turned off in this process (AMEM_DISABLE)"};
}

/// `error`: where the text goes, cut to `size` bytes with its end; may be null.
inline int report(const Status& status, char* error, std::size_t size) {
  if (error != nullptr && size > 0) {
    const std::size_t n = status.text().copy(error, size - 1);
    error[n] = '\0';
  }
  return static_cast<int>(status.code());
}

}  // namespace amem::shim
