#include "daemon/memory/packing.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/numbers.h"

namespace amem {
namespace {

using sparse::kBlock;
using sparse::kGroup;

/// One request on its way into the pool.
class Packer {
 public:
  explicit Packer(const PackRequest& request)
      : request_(request),
        sparse_(request.blocks != nullptr && allows(request.form, Form::kSparse) &&
                sparse::save_sparse(request.blocks->content(0, request.size), request.size,
                                    request.form == Form::kSparse)) {}

  std::uint64_t left() const { return request_.size - at_; }
  /// Bytes of the pool that the next piece of this length takes.
  std::uint64_t need(std::uint64_t length) const {
    if (!sparse_) return length;
    return std::min(length, request_.blocks->content(at_, length).stored);
  }
  /// The longest piece that comes next and needs no more than `space`.
  std::uint64_t fit(std::uint64_t space) const {
    if (need(left()) <= space) return left();
    // A block fits in any chunk, and the need of a piece grows with it.
    std::uint64_t fits = 1;
    std::uint64_t too_long = sparse::blocks(left());
    while (too_long - fits > 1) {
      const std::uint64_t middle = (fits + too_long) / 2;
      (need(middle * kBlock) <= space ? fits : too_long) = middle;
    }
    const std::uint64_t end = at_ + fits * kBlock;
    // Pieces that begin with a group need no more of the rank's table than the whole would.
    const std::uint64_t border = end / kGroup * kGroup;
    return (sparse_ && border > at_ ? border : end) - at_;
  }
  void put(const Extent& extent, std::uint64_t length) {
    space_.extents.push_back(extent);
    space_.pieces.push_back({length, std::min(length, extent.length), Form::kDense, 0});
    at_ += length;
  }
  TakenSpace take_space() { return std::move(space_); }

 private:
  const PackRequest& request_;
  const bool sparse_;
  std::uint64_t at_ = 0;
  TakenSpace space_;
};

/// False: the pool is full. Either way it has taken what the place has so far.
bool pack_one(ExtentAllocator& pool, const SegmentOrder& order, Packer& packer) {
  while (packer.left() > 0) {
    std::optional<Extent> run =
        pool.find_run(order, round_up(packer.need(packer.left()), pool.chunk()));
    if (!run) return false;
    const std::uint64_t length = packer.fit(run->length);
    run->length = round_up(packer.need(length), pool.chunk());
    pool.take_run(*run);
    packer.put(*run, length);
  }
  return true;
}

}  // namespace

std::uint64_t packed_size(const PackRequest& request, std::uint64_t chunk) {
  return round_up(Packer(request).need(request.size), chunk);
}

Packing pack(ExtentAllocator& pool, const std::vector<PackRequest>& requests,
             const std::vector<SegmentOrder>& orders) {
  Packing packing;
  for (const PackRequest& request : requests) {
    if (packing.missing > 0) {
      packing.missing += packed_size(request, pool.chunk());
      continue;
    }
    Packer packer(request);
    if (!pack_one(pool, orders[request.order], packer))
      packing.missing = round_up(packer.need(packer.left()), pool.chunk());
    packing.spaces.push_back(packer.take_space());
  }
  if (packing.missing == 0) return packing;
  for (const TakenSpace& space : packing.spaces) (void)pool.give_back(space.extents);  // as taken
  packing.spaces.clear();
  return packing;
}

}  // namespace amem
