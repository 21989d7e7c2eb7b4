#include "shim/blocks/parts.h"

#include <algorithm>
#include <bit>

#include "common/protocol.h"
#include "shim/memory/handles.h"

namespace amem::shim {
namespace {

/// A small device has small parts, so that its blocks have some.
constexpr std::uint64_t kPartsOfDevice = 64;

}  // namespace

std::uint64_t part_of(std::uint64_t size, std::uint64_t memory) {
  std::uint64_t part =
      std::clamp(std::bit_floor(memory / kPartsOfDevice), Handles::kUsualGranularity, kLargestPart);
  if (size / part < kFewestParts) return 0;
  while ((size - 1) / part >= kMaxMapsPerMessage) part *= 2;
  return part;
}

}  // namespace amem::shim
