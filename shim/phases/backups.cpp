#include "shim/phases/backups.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/sparse.h"

namespace amem::shim {

void Backups::drop_others(const std::function<bool(std::uint64_t id)>& paused) {
  std::erase_if(pieces_, [&](const auto& entry) { return !paused(entry.first); });
}

std::vector<Piece> Backups::find(std::uint64_t id, std::uint64_t offset,
                                 std::uint64_t length) const {
  const auto entry = pieces_.find(id);
  if (entry == pieces_.end()) return {};
  std::vector<Piece> found;
  auto it = entry->second.upper_bound(offset);
  if (it == entry->second.begin()) return {};
  const std::uint64_t end = offset + length;
  std::uint64_t at = offset;
  for (--it; it != entry->second.end() && at < end; ++it) {
    const Piece& piece = it->second;
    if (piece.offset > at || piece.offset + piece.length <= at) return {};
    found.push_back(piece);
    at = piece.offset + piece.length;
  }
  return at >= end ? found : std::vector<Piece>();
}

void read_copy(const Piece& piece, const std::byte* pool, std::uint64_t offset,
               std::uint64_t length, std::byte* out) {
  if (piece.form == Form::kDense) {
    std::memcpy(out, pool + offset, length);
    return;
  }
  const std::byte* blocks = pool + sparse::index_bytes(piece.length);
  while (length > 0) {
    const std::uint64_t block = offset / sparse::kBlock;
    const std::uint64_t within = offset % sparse::kBlock;
    const std::uint64_t n = std::min(length, sparse::kBlock - within);
    sparse::Entry entry{};
    std::memcpy(&entry, pool + block / sparse::kBlocksPerGroup * sizeof entry, sizeof entry);
    const std::uint32_t bit = 1U << (block % sparse::kBlocksPerGroup);
    if ((entry.mask & bit) == 0) {
      std::memset(out, 0, n);
    } else {
      const std::uint64_t slot =
          entry.first + static_cast<std::uint64_t>(std::popcount(entry.mask & (bit - 1)));
      std::memcpy(out, blocks + slot * sparse::kBlock + within, n);
    }
    out += n;
    offset += n;
    length -= n;
  }
}

}  // namespace amem::shim
