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
  space_.add(slab.pool, slab.address, slab.size);
  sizes_.added(slab.pool, slab.size);
}

Slab* SlabBook::slab_at(Address address) {
  const auto it = range_at(slabs_, address);
  return it != slabs_.end() ? &it->second : nullptr;
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
  return space_.take(pool, size, [&](Address slab) { return usable(slabs_.at(slab)); });
}

std::optional<Slab> SlabBook::give(Address address, bool reusable) {
  Slab& slab = *slab_at(address);
  const bool empty =
      slab.imported ? --slab.buffers == 0 : space_.give(address, reusable).has_value();
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
  for (auto& [address, unused] : space_.unused(least)) gaps.emplace(slabs_.at(address).id, unused);
  return gaps;
}

void SlabBook::add(std::uint64_t number, const SlabBuffer& buffer) {
  buffer_addresses_.emplace(buffer.address, number);
  buffers_.emplace(number, buffer);
}

SlabBuffer* SlabBook::buffer(std::uint64_t number) {
  const auto it = buffers_.find(number);
  return it == buffers_.end() ? nullptr : &it->second;
}

std::uint64_t SlabBook::buffer_at(Address address) const {
  auto it = buffer_addresses_.upper_bound(address);
  if (it == buffer_addresses_.begin()) return 0;
  --it;
  return address < it->first + buffers_.at(it->second).size ? it->second : 0;
}

std::uint64_t SlabBook::buffer_from(Address address) const {
  const auto it = buffer_addresses_.find(address);
  return it == buffer_addresses_.end() ? 0 : it->second;
}

std::vector<OwnBuffer> SlabBook::own() const {
  std::vector<OwnBuffer> list;
  for (const auto& [address, number] : buffer_addresses_) {
    const auto slab = std::prev(slabs_.upper_bound(address));
    const SlabBuffer& buffer = buffers_.at(number);
    if (!buffer.imported)
      list.push_back({address, buffer.size, buffer.device, slab->second.id, address - slab->first});
  }
  return list;
}

void SlabBook::move(SlabBuffer& buffer, std::uint64_t own) {
  buffer.own = own;
  buffer_addresses_.erase(std::exchange(buffer.address, 0));
}

std::optional<SlabBuffer> SlabBook::forget_if_unused(std::uint64_t number) {
  const auto it = buffers_.find(number);
  if (it->second.refs > 0 || it->second.reservations > 0) return std::nullopt;
  SlabBuffer buffer = std::move(it->second);
  buffers_.erase(it);
  if (buffer.own == 0) buffer_addresses_.erase(buffer.address);
  return buffer;
}

}  // namespace amem::shim
