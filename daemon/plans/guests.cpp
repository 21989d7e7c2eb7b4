#include "daemon/plans/guests.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace amem {
namespace {

/// Adds up what is of the same owner, guest and tag.
class Uses {
 public:
  void add(const Allocation& a, const Guest& guest) {
    GuestUse& use = uses_[{a.group, guest.rank, a.tag}];
    use.owner = a.group;
    use.guest = guest;
    use.tag = a.tag;
    ++use.count;
    use.bytes += a.size;
  }
  std::vector<GuestUse> take() {
    std::vector<GuestUse> list;
    for (auto& [key, use] : uses_) list.push_back(std::move(use));
    return list;
  }

 private:
  std::map<std::tuple<GroupId, RankId, std::string>, GuestUse> uses_;
};

const Guest& guest_of(const Allocation& a, RankId rank) {
  return *std::find_if(a.guests.begin(), a.guests.end(),
                       [rank](const Guest& guest) { return guest.rank == rank; });
}

}  // namespace

std::vector<GuestUse> guests_of(const Allocations& table, GroupId owner,
                                const Allocations::Filter& chosen) {
  Uses uses;
  for (const Allocation* a : table.of_group(owner))
    if (chosen(*a))
      for (const Guest& guest : a->guests) uses.add(*a, guest);
  return uses.take();
}

std::vector<GuestUse> opened_by(const Allocations& table, RankId rank) {
  Uses uses;
  for (const Allocation* a : table.opened_by(rank)) uses.add(*a, guest_of(*a, rank));
  return uses.take();
}

void add_opened(const Allocations& table, const std::vector<RankId>& ranks, Plan& plan) {
  for (const RankId rank : ranks)
    for (const Allocation* a : table.opened_by(rank))
      if (guest_of(*a, rank).paused) plan[rank].maps.push_back(a);
}

}  // namespace amem
