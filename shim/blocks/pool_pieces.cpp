#include "shim/blocks/pool_pieces.h"

#include <algorithm>
#include <iterator>

#include "common/numbers.h"

namespace amem::shim {

void PoolPieces::add(Shelf shelf, Address segment, std::uint64_t size) {
  segments_.emplace(segment, Segment{size, shelf});
  pieces_.emplace(segment, Piece{size, 0, segment, shelf, false, 0, {}});
  put(segment);
}

// ---- taking ----

const PoolPieces::BySize::value_type* PoolPieces::fit(const BySize& pieces, std::uint64_t size,
                                                      const Usable& usable) const {
  for (auto it = pieces.lower_bound({size, 0}); it != pieces.end(); ++it)
    if (!usable || usable(pieces_.at(it->second).segment)) return &*it;
  return nullptr;
}

const PoolPieces::BySize* PoolPieces::free_of(Line line, Shelf shelf) const {
  const auto found = free_.find({line, shelf});
  return found != free_.end() ? &found->second : nullptr;
}

std::optional<Address> PoolPieces::take(Shelf shelf, std::uint64_t size, Line line,
                                        const Usable& usable) {
  const std::uint64_t rounded = round_up(size, kAlignment);
  const BySize::value_type* best = nullptr;
  for (const Line each : {line, kNoLine}) {
    const BySize* const pieces = free_of(each, shelf);
    const auto* const found = pieces != nullptr ? fit(*pieces, rounded, usable) : nullptr;
    if (found != nullptr && (best == nullptr || found->first < best->first)) best = found;
  }
  if (best == nullptr) return std::nullopt;
  return split(best->second, size);
}

std::optional<PoolPieces::Behind> PoolPieces::take_behind(Shelf shelf, std::uint64_t size,
                                                          const Usable& usable) {
  const std::uint64_t rounded = round_up(size, kAlignment);
  const BySize::value_type* best = nullptr;
  for (const auto& [where, pieces] : free_) {
    if (where.second != shelf) continue;
    const auto* const found = fit(pieces, rounded, usable);
    if (found != nullptr && (best == nullptr || found->first < best->first)) best = found;
  }
  if (best == nullptr) return std::nullopt;
  const Address address = best->second;
  const Point point = pieces_.at(address).freed;
  return Behind{split(address, size), point};
}

/// Of a free piece: the beginning is in use from now on, and the rest a piece of its own.
Address PoolPieces::split(Address address, std::uint64_t asked) {
  const auto it = pieces_.find(address);
  take_out(it);
  Piece& piece = it->second;
  const std::uint64_t size = round_up(asked, kAlignment);
  if (piece.size > size) {
    Piece rest = piece;
    rest.size -= size;
    pieces_.emplace_hint(std::next(it), address + size, rest);
    put(address + size);
    piece.size = size;
  }
  piece.used = true;
  piece.asked = asked;
  piece.number = ++last_;
  return address;
}

// ---- giving ----

/// Among what is free.
void PoolPieces::put(Address address) {
  const Piece& piece = pieces_.at(address);
  free_[{piece.freed.line, piece.shelf}].emplace(piece.size, address);
}

/// Not among what is free any more.
void PoolPieces::take_out(Pieces::const_iterator piece) {
  free_.find({piece->second.freed.line, piece->second.shelf})
      ->second.erase({piece->second.size, piece->first});
}

bool PoolPieces::joins(Pieces::const_iterator before, Pieces::const_iterator after) const {
  return !before->second.used && !after->second.used &&
         before->second.segment == after->second.segment &&
         before->second.freed.line == after->second.freed.line;
}

void PoolPieces::give(Address address, Point freed) {
  auto it = pieces_.find(address);
  it->second.used = false;
  it->second.freed = freed;
  const auto swallow = [this](Pieces::iterator into, Pieces::iterator gone) {
    into->second.size += gone->second.size;
    into->second.freed.order = std::max(into->second.freed.order, gone->second.freed.order);
    pieces_.erase(gone);
  };
  if (const auto next = std::next(it); next != pieces_.end() && joins(it, next)) {
    take_out(next);
    swallow(it, next);
  }
  if (it != pieces_.begin() && joins(std::prev(it), it)) {
    const auto before = std::prev(it);
    take_out(before);
    swallow(before, it);
    it = before;
  }
  put(it->first);
}

void PoolPieces::passed(Line line, std::uint64_t order) {
  if (line == kNoLine) return;
  std::vector<Address> free;
  for (auto it = free_.lower_bound({line, 0}); it != free_.end() && it->first.first == line;) {
    for (const auto& [size, address] : it->second)
      if (pieces_.at(address).freed.order <= order) free.push_back(address);
    it = it->second.empty() ? free_.erase(it) : std::next(it);
  }
  for (const Address address : free) {
    take_out(pieces_.find(address));
    give(address, {});
  }
}

// ---- looking up ----

const PoolPieces::Piece* PoolPieces::used(Address address) const {
  const auto it = pieces_.find(address);
  return it != pieces_.end() && it->second.used ? &it->second : nullptr;
}

std::optional<std::pair<Address, PoolPieces::Piece>> PoolPieces::find(Address address) const {
  const auto it = range_at(pieces_, address);
  if (it == pieces_.end() || !it->second.used || address - it->first >= it->second.asked)
    return std::nullopt;
  return *it;
}

// ---- segments ----

std::vector<AddressRange> PoolPieces::take_segments(
    Shelf shelf, const std::function<bool(const AddressRange&)>& goes) {
  const BySize* const pieces = free_of(kNoLine, shelf);
  if (pieces == nullptr) return {};
  std::vector<AddressRange> gone;
  for (auto it = pieces->rbegin(); it != pieces->rend(); ++it) {
    const auto segment = segments_.find(it->second);
    if (segment != segments_.end() && segment->second.size == it->first &&
        goes({it->second, it->first}))
      gone.push_back({it->second, it->first});
  }
  for (const AddressRange& range : gone) {
    take_out(pieces_.find(range.address));
    pieces_.erase(range.address);
    segments_.erase(range.address);
  }
  return gone;
}

std::vector<AddressRange> PoolPieces::segments(Shelf shelf) const {
  std::vector<AddressRange> all;
  for (const auto& [address, segment] : segments_)
    if (segment.shelf == shelf) all.push_back({address, segment.size});
  return all;
}

std::vector<AddressRange> PoolPieces::unused(std::uint64_t least) const {
  std::vector<AddressRange> all;
  for (const auto& [address, piece] : pieces_) {
    if (piece.used) continue;
    // Behind different lines, so that they have not joined.
    if (!all.empty() && all.back().address + all.back().size == address && address != piece.segment)
      all.back().size += piece.size;
    else
      all.push_back({address, piece.size});
  }
  std::erase_if(all, [least](const AddressRange& range) { return range.size < least; });
  return all;
}

}  // namespace amem::shim
