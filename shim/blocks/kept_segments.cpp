#include "shim/blocks/kept_segments.h"

#include <algorithm>
#include <iterator>

namespace amem::shim {

std::vector<Address> KeptSegments::keep(const Kind& kind, Address address, Time now) {
  if (kind.size > kMost) return {address};
  kept_.push_back({kind, address, now});
  bytes_ += kind.size;
  std::vector<Address> out;
  auto first = kept_.begin();
  for (; bytes_ > kMost; ++first) {
    bytes_ -= first->kind.size;
    out.push_back(first->address);
  }
  kept_.erase(kept_.begin(), first);
  return out;
}

std::optional<Address> KeptSegments::take(const Kind& kind,
                                          const std::function<bool(Address address)>& usable) {
  const auto it = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) {
    return kept.kind == kind && usable(kept.address);
  });
  if (it == kept_.rend()) return std::nullopt;
  const Address address = it->address;
  bytes_ -= kind.size;
  kept_.erase(std::next(it).base());
  return address;
}

std::vector<Address> KeptSegments::take_older(Time time,
                                              const std::function<bool(Address address)>& usable) {
  std::vector<Address> out;
  std::erase_if(kept_, [&](const Kept& kept) {
    if (kept.since > time || !usable(kept.address)) return false;
    bytes_ -= kept.kind.size;
    out.push_back(kept.address);
    return true;
  });
  return out;
}

std::optional<KeptSegments::Time> KeptSegments::oldest() const {
  if (kept_.empty()) return std::nullopt;
  return kept_.front().since;
}

}  // namespace amem::shim
