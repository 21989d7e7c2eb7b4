#include "shim/phases/backups.h"

#include <algorithm>

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

}  // namespace amem::shim
