#include "shim/blocks/slab_book.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace amem::shim {
namespace {

Access access_of(const CUmemAccessDesc& desc) {
  return {static_cast<int>(desc.location.type), desc.location.id, static_cast<int>(desc.flags)};
}

bool same_place(const Access& a, const Access& b) { return a.type == b.type && a.id == b.id; }

}  // namespace

void SlabBook::add(const Slab& slab) {
  slabs_.emplace(slab.address, slab);
  if (slab.imported) return;
  room_.add(slab.pool, slab.address, slab.size);
  sizes_.added(slab.pool, slab.size);
}

Slab* SlabBook::slab_at(Address address) {
  auto it = slabs_.upper_bound(address);
  if (it == slabs_.begin()) return nullptr;
  --it;
  return address < it->first + it->second.size ? &it->second : nullptr;
}

Slab* SlabBook::slab_of(std::uint64_t id) {
  const auto it =
      std::find_if(slabs_.begin(), slabs_.end(), [&](const auto& s) { return s.second.id == id; });
  return it == slabs_.end() ? nullptr : &it->second;
}

void SlabBook::retire(const std::vector<std::uint64_t>& ids) {
  for (const std::uint64_t id : ids)
    if (Slab* slab = slab_of(id); slab != nullptr) slab->retired = true;
}

std::optional<Address> SlabBook::take(const SmallBlocks::Pool& pool, std::uint64_t size,
                                      const std::function<bool(const Slab&)>& usable) {
  return room_.take(pool, size, [&](Address slab) { return usable(slabs_.at(slab)); });
}

std::optional<Slab> SlabBook::give(Address address, bool reusable) {
  Slab& slab = *slab_at(address);
  const bool empty = slab.imported ? --slab.pieces == 0 : room_.give(address, reusable).has_value();
  slab.reused = true;
  if (!empty) return std::nullopt;
  if (!slab.imported) sizes_.gone(slab.pool, slab.size);
  return std::move(slabs_.extract(slab.address).mapped());
}

std::vector<CUmemAccessDesc> SlabBook::fresh(const Slab& slab, const CUmemAccessDesc* grants,
                                             std::size_t count) {
  std::vector<CUmemAccessDesc> fresh;
  std::copy_if(grants, grants + count, std::back_inserter(fresh), [&](const CUmemAccessDesc& d) {
    const Access wanted = access_of(d);
    // Each flag is more than the ones of lower numbers.
    return wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
           std::none_of(slab.access.begin(), slab.access.end(), [&](const Access& there) {
             return same_place(there, wanted) && there.flags >= wanted.flags;
           });
  });
  return fresh;
}

void SlabBook::grant(Address address, const std::vector<CUmemAccessDesc>& grants) {
  const auto slab = slabs_.find(address);
  if (slab == slabs_.end()) return;
  for (const CUmemAccessDesc& desc : grants) {
    const Access more = access_of(desc);
    std::erase_if(slab->second.access, [&](const Access& a) { return same_place(a, more); });
    slab->second.access.push_back(more);
  }
}

Gaps SlabBook::unused(std::uint64_t least) const {
  Gaps gaps;
  for (auto& [address, unused] : room_.unused(least)) gaps.emplace(slabs_.at(address).id, unused);
  return gaps;
}

void SlabBook::add(std::uint64_t number, const SlabPiece& piece) {
  piece_addresses_.emplace(piece.address, number);
  pieces_.emplace(number, piece);
}

SlabPiece* SlabBook::piece(std::uint64_t number) {
  const auto it = pieces_.find(number);
  return it == pieces_.end() ? nullptr : &it->second;
}

std::uint64_t SlabBook::piece_at(Address address) const {
  auto it = piece_addresses_.upper_bound(address);
  if (it == piece_addresses_.begin()) return 0;
  --it;
  return address < it->first + pieces_.at(it->second).size ? it->second : 0;
}

std::uint64_t SlabBook::piece_from(Address address) const {
  const auto it = piece_addresses_.find(address);
  return it == piece_addresses_.end() ? 0 : it->second;
}

std::vector<OwnPiece> SlabBook::own() const {
  std::vector<OwnPiece> list;
  for (const auto& [address, number] : piece_addresses_) {
    const auto slab = std::prev(slabs_.upper_bound(address));
    const SlabPiece& piece = pieces_.at(number);
    if (!piece.imported)
      list.push_back({address, piece.size, piece.device, slab->second.id, address - slab->first});
  }
  return list;
}

void SlabBook::move(SlabPiece& piece, std::uint64_t own) {
  piece.own = own;
  piece_addresses_.erase(std::exchange(piece.address, 0));
}

std::optional<SlabPiece> SlabBook::settle(std::uint64_t number) {
  const auto it = pieces_.find(number);
  if (it->second.refs > 0 || it->second.reservations > 0) return std::nullopt;
  SlabPiece piece = std::move(it->second);
  pieces_.erase(it);
  if (piece.own == 0) piece_addresses_.erase(piece.address);
  return piece;
}

}  // namespace amem::shim
