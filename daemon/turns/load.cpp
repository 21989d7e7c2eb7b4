#include "daemon/turns/load.h"

#include <algorithm>

namespace amem {
namespace {

template <class Of>
DeviceShares shares_of(const GroupView& group, Of of) {
  DeviceShares shares(group.on.size());
  std::transform(group.on.begin(), group.on.end(), shares.begin(), of);
  return shares;
}

}  // namespace

DeviceShares running(const GroupView& group) {
  const bool starts = group.first_turn == FirstTurn::kDue;
  return shares_of(group, [starts](const Footprint& on) {
    return starts && on.used ? DeviceShare{0, true, true} : DeviceShare{on.needs, on.used, false};
  });
}

DeviceShares coming(const GroupView& group) {
  DeviceShares shares = running(group);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Footprint& on = group.on[i];
    shares[i].bytes = on.needs;
    shares[i].restore = on.restore;
    shares[i].there = on.stays + on.remainder;
  }
  return shares;
}

DeviceShares left_over(const GroupView& group) {
  return shares_of(group, [](const Footprint& on) {
    return DeviceShare{on.stays, false, false, 0};
  });
}

DeviceShares remaining(const GroupView& group) {
  return shares_of(group, [](const Footprint& on) {
    return DeviceShare{on.stays + on.remainder, on.remainder > 0, false};
  });
}

StageLoad::StageLoad(const StageView& view) : on_(view.devices.size()) {
  for (std::size_t i = 0; i < on_.size(); ++i) {
    on_[i].usable = view.devices[i].usable();
    on_[i].margin = view.devices[i].margin;
    const std::uint64_t taken = i < view.taken.size() ? view.taken[i] : 0;
    on_[i].available = on_[i].usable - std::min(on_[i].usable, taken);
  }
}

void StageLoad::add(const DeviceShares& shares) {
  for (std::size_t i = 0; i < on_.size(); ++i) {
    on_[i].used += shares[i].bytes;
    on_[i].restores += shares[i].restore;
    on_[i].users += shares[i].user ? 1U : 0U;
    on_[i].alone += shares[i].alone ? 1U : 0U;
  }
}

void StageLoad::remove(const DeviceShares& shares) {
  for (std::size_t i = 0; i < on_.size(); ++i) {
    on_[i].used -= shares[i].bytes;
    on_[i].restores -= shares[i].restore;
    on_[i].users -= shares[i].user ? 1U : 0U;
    on_[i].alone -= shares[i].alone ? 1U : 0U;
  }
}

bool StageLoad::has_space(const OnDevice& on, const DeviceShare& share) {
  if (share.user && on.alone > 0) return false;
  if (share.alone && on.users > 0) return false;
  // What is over its limit on a device has no say on the others.
  if (share.bytes <= share.there && share.restore == 0) return true;
  if (on.used > on.available) return false;
  const std::uint64_t left = on.available - on.used;
  // The margin is for contexts, which a restore brings back.
  return share.bytes <= left && share.bytes + share.restore + on.restores <= left + on.margin;
}

bool StageLoad::has_space_for(const DeviceShares& shares) const {
  for (std::size_t i = 0; i < on_.size(); ++i)
    if (!has_space(on_[i], shares[i])) return false;
  return true;
}

std::size_t StageLoad::lacks_space(const DeviceShares& shares) const {
  std::size_t i = 0;
  while (i + 1 < on_.size() && has_space(on_[i], shares[i])) ++i;
  return i;
}

std::uint64_t StageLoad::free_on(std::size_t device) const {
  const OnDevice& on = on_[device];
  return on.available - std::min(on.available, on.used);
}

bool StageLoad::within_limits() const {
  return std::all_of(on_.begin(), on_.end(),
                     [](const OnDevice& on) { return on.used <= on.usable; });
}

bool StageLoad::fits() const {
  return within_limits() && std::all_of(on_.begin(), on_.end(), [](const OnDevice& on) {
           return on.alone == 0 || on.users == 1;
         });
}

}  // namespace amem
