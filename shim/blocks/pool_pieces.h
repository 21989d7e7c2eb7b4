// PoolPieces: the memory of stream-ordered pools in pieces: which are in use, and behind which work
// the others were freed.
//
// A segment is a range of addresses with memory, and each of its pieces is in use or free. What one
// stream was given to do, in its order, is a line here. A free piece is behind a point of a line:
// the line may have it again at once, because what it does next comes later anyway. Others may once
// the line has come so far, or when they wait for it. Neighbours that are free join where they are
// behind one line, or behind none.
// Shelves keep memory apart that must not stand for each other. A piece comes from the smallest
// that is large enough. To take and to give costs the logarithm of the number of pieces.
//
// Pure bookkeeping, no driver calls, no lock: MemoryPools owns one and guards it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shim/memory/allocation_table.h"

namespace amem::shim {

class PoolPieces {
 public:
  /// As aligned as the driver's own.
  static constexpr std::uint64_t kAlignment = 512;

  using Line = std::uint64_t;
  static constexpr Line kNoLine = 0;
  struct Point {
    Line line = kNoLine;      // none: anybody may have it
    std::uint64_t order = 0;  // in the line
  };
  using Shelf = std::uint64_t;
  struct Piece {
    std::uint64_t size = 0;   // rounded up
    std::uint64_t asked = 0;  // in use: bytes, as asked for
    Address segment = 0;
    Shelf shelf = 0;
    bool used = false;
    std::uint64_t number = 0;  // in use: never used twice
    Point freed;               // in use: what its memory was behind before
  };
  /// Nothing: every segment is.
  using Usable = std::function<bool(Address segment)>;

  /// A new segment; anybody may have it. REQUIRES: aligned, overlaps no other.
  void add(Shelf shelf, Address segment, std::uint64_t size);
  /// A piece that the line may have at once; nothing: there is none. REQUIRES: 0 < size.
  std::optional<Address> take(Shelf shelf, std::uint64_t size, Line line, const Usable& usable);
  /// A piece that is free behind any line.
  struct Behind {
    Address address = 0;
    Point point;
  };
  std::optional<Behind> take_behind(Shelf shelf, std::uint64_t size, const Usable& usable);
  /// The piece in use that begins here. nullptr: there is none.
  const Piece* used(Address address) const;
  /// The piece in use that contains the address, and where it begins.
  std::optional<std::pair<Address, Piece>> find(Address address) const;
  /// The address lies in a segment.
  bool owns(Address address) const { return range_at(segments_, address) != segments_.end(); }
  /// The program has freed it. REQUIRES: it is in use.
  void give(Address address, Point freed);
  /// A line has come so far: anybody may have what is behind it.
  void passed(Line line, std::uint64_t order);
  /// Takes segments away that anybody may have whole and that `goes` wants to go, the largest
  /// first.
  std::vector<AddressRange> take_segments(Shelf shelf,
                                          const std::function<bool(const AddressRange&)>& goes);
  /// All segments of a shelf.
  std::vector<AddressRange> segments(Shelf shelf) const;
  /// What is free, behind whatever line, of `least` bytes and more.
  std::vector<AddressRange> unused(std::uint64_t least) const;

 private:
  struct Segment {
    std::uint64_t size = 0;
    Shelf shelf = 0;
  };
  using Pieces = std::map<Address, Piece>;
  using BySize = std::set<std::pair<std::uint64_t, Address>>;

  const BySize::value_type* fit(const BySize& pieces, std::uint64_t size,
                                const Usable& usable) const;
  const BySize* free_of(Line line, Shelf shelf) const;
  Address split(Address address, std::uint64_t asked);
  void put(Address address);
  void take_out(Pieces::const_iterator piece);
  bool joins(Pieces::const_iterator before, Pieces::const_iterator after) const;

  std::map<Address, Segment> segments_;
  std::uint64_t last_ = 0;                         // number
  Pieces pieces_;                                  // of all segments, by address
  std::map<std::pair<Line, Shelf>, BySize> free_;  // by what they are behind
};

}  // namespace amem::shim
