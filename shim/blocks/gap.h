// Gap: bytes of an allocation that a pause need not save.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace amem::shim {

struct Gap {
  std::uint64_t offset = 0;  // in the allocation
  std::uint64_t size = 0;
};

/// By allocation, the broker's id.
using Gaps = std::map<std::uint64_t, std::vector<Gap>>;

}  // namespace amem::shim
