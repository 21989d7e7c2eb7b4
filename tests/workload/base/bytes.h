// Bytes of device memory, and what they must be, through the driver's copies. A word of the content
// is a function of its index. The device's context must be current; any thread; throws Failure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/workload/base/driver.h"
#include "tests/workload/base/pattern.h"

namespace amem::workload {

inline constexpr std::size_t kWord = sizeof(std::uint64_t);
inline constexpr std::size_t kChunk = std::size_t{2} << 20U;  // of one copy

constexpr std::size_t RoundedUp(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// What a seed says of a whole block.
struct Body {
  std::uint64_t seed;
  std::uint64_t operator()(std::size_t index) const { return BodyWord(seed, index); }
};

/// Writes word(0), word(1), …; the last may be cut off.
template <class Word>
void WriteBytes(CUdeviceptr address, std::size_t bytes, const Word& word) {
  std::vector<std::uint64_t> words;
  for (std::size_t at = 0; at < bytes; at += words.size() * kWord) {
    words.resize((std::min(kChunk, bytes - at) + kWord - 1) / kWord);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(at / kWord + i);
    Check(Cuda().cuMemcpyHtoD(address + at, words.data(), std::min(kChunk, bytes - at)),
          "cuMemcpyHtoD");
  }
}

/// Calls use(words, index of the first) for one part after another, in order, until it says false.
/// Behind the last byte there are zeros.
template <class Use>
void ReadBytes(CUdeviceptr address, std::size_t bytes, const Use& use) {
  std::vector<std::uint64_t> words;
  for (std::size_t at = 0; at < bytes; at += words.size() * kWord) {
    words.resize((std::min(kChunk, bytes - at) + kWord - 1) / kWord);
    words.back() = 0;
    Check(Cuda().cuMemcpyDtoH(words.data(), address + at, std::min(kChunk, bytes - at)),
          "cuMemcpyDtoH");
    if (!use(words, at / kWord)) return;
  }
}

/// The first byte that is not as WriteBytes would write it.
template <class Word>
std::optional<std::size_t> FirstWrongByte(CUdeviceptr address, std::size_t bytes,
                                          const Word& word) {
  std::optional<std::size_t> wrong;
  ReadBytes(address, bytes, [&](const std::vector<std::uint64_t>& words, std::size_t first) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::uint64_t differs = words[i] ^ word(first + i);
      const auto at = (first + i) * kWord + static_cast<std::size_t>(std::countr_zero(differs)) / 8;
      if (differs == 0 || at >= bytes) continue;
      wrong = at;
      return false;
    }
    return true;
  });
  return wrong;
}

/// So that a test of what notices has something to notice; twice: as before.
inline void FlipBits(CUdeviceptr address, unsigned char mask) {
  unsigned char byte = 0;
  Check(Cuda().cuMemcpyDtoH(&byte, address, 1), "cuMemcpyDtoH");
  byte = static_cast<unsigned char>(byte ^ mask);
  Check(Cuda().cuMemcpyHtoD(address, &byte, 1), "cuMemcpyHtoD");
}

}  // namespace amem::workload
