#include "shim/blocks/segment_cache.h"

#include <algorithm>
#include <iterator>

namespace amem::shim {

std::vector<Address> SegmentCache::add(const Kind& kind, Address address, Time now) {
  if (kind.size > kMost) return {address};
  entries_.push_back({kind, address, now});
  bytes_ += kind.size;
  std::vector<Address> out;
  auto first = entries_.begin();
  for (; bytes_ > kMost; ++first) {
    bytes_ -= first->kind.size;
    out.push_back(first->address);
  }
  entries_.erase(entries_.begin(), first);
  return out;
}

std::optional<Address> SegmentCache::take(const Kind& kind,
                                          const std::function<bool(Address address)>& usable) {
  const auto it = std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry& entry) {
    return entry.kind == kind && usable(entry.address);
  });
  if (it == entries_.rend()) return std::nullopt;
  const Address address = it->address;
  bytes_ -= kind.size;
  entries_.erase(std::next(it).base());
  return address;
}

std::vector<Address> SegmentCache::take_older(Time time,
                                              const std::function<bool(Address address)>& usable) {
  std::vector<Address> out;
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.since > time || !usable(entry.address)) return false;
    bytes_ -= entry.kind.size;
    out.push_back(entry.address);
    return true;
  });
  return out;
}

std::optional<SegmentCache::Time> SegmentCache::oldest() const {
  if (entries_.empty()) return std::nullopt;
  return entries_.front().since;
}

}  // namespace amem::shim
