#include "shim/copies/backups.h"

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

Result<std::vector<BackupReader::SavedRange>> BackupReader::saved_ranges(CUdeviceptr address,
                                                                         std::uint64_t size) {
  const Result<std::vector<Mappings::AbsentRange>> paused = memory_.mappings.paused(address, size);
  if (!paused.ok()) return paused.status();
  std::vector<SavedRange> ranges;
  for (const Mappings::AbsentRange& range : paused.value()) {
    const std::vector<Piece> pieces = backups_.find(range.id, range.offset, range.size);
    if (pieces.empty())
      return Status(Code::kFailedPrecondition,
                    "the bytes of " + memory_.brokered.name(range.id) +
                        " are not saved here: a pause has dropped them (its region or tag has the "
                        "policy discard), or another rank of the group has saved them");
    for (const Piece& piece : pieces) {
      if (Status s = pool_.let_cpu_read(piece.in_segment); !s.ok()) return s;
      const std::uint64_t begin = std::max(range.offset, piece.offset);
      const std::uint64_t end = std::min(range.offset + range.size, piece.offset + piece.length);
      ranges.push_back({piece, begin - piece.offset, end - begin});
    }
  }
  return ranges;
}

Status BackupReader::read(CUdeviceptr address, std::uint64_t size, std::byte* out) {
  const Result<std::vector<SavedRange>> ranges = saved_ranges(address, size);
  if (!ranges.ok()) return ranges.status();
  for (const SavedRange& range : ranges.value()) {
    copiers_.of(range.piece.form)
        .read(range.piece, reinterpret_cast<const std::byte*>(range.piece.in_segment), range.offset,
              range.size, out);
    out += range.size;
  }
  return {};
}

Result<const void*> BackupReader::view(CUdeviceptr address, std::uint64_t size) {
  const Result<std::vector<SavedRange>> ranges = saved_ranges(address, size);
  if (!ranges.ok()) return ranges.status();
  CUdeviceptr next = 0;
  for (const SavedRange& range : ranges.value()) {
    const CUdeviceptr at = range.piece.in_segment + range.offset;
    if (rule(range.piece.form).encoded || (next != 0 && at != next)) return nullptr;
    next = at + range.size;
  }
  for (const SavedRange& range : ranges.value()) pool_.lend(range.piece.in_segment);
  return reinterpret_cast<const void*>(next - size);
}

}  // namespace amem::shim
