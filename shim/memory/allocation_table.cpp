#include "shim/memory/allocation_table.h"

#include <algorithm>
#include <iterator>

namespace amem::shim {

BrokeredAllocation& AllocationTable::add(const BrokeredAllocation& allocation) {
  BrokeredAllocation& a = allocations_.try_emplace(allocation.id, allocation).first->second;
  ++a.refs;
  empty_.store(false, std::memory_order_release);
  return a;
}

BrokeredAllocation* AllocationTable::find(std::uint64_t id) {
  const auto it = allocations_.find(id);
  return it == allocations_.end() ? nullptr : &it->second;
}

void AllocationTable::move(BrokeredAllocation& a, Where where) {
  if (a.arriving() && where == Where::kHere) ++returns_;
  if (!a.usable()) --paused_;
  a.where_ = where;
  if (!a.usable()) ++paused_;
}

void AllocationTable::forget(std::uint64_t id) {
  const auto it = allocations_.find(id);
  if (it == allocations_.end()) return;
  if (!it->second.usable()) --paused_;
  allocations_.erase(it);
  empty_.store(allocations_.empty(), std::memory_order_release);
}

Mapping& AllocationTable::add_mapping(std::uint64_t id, Address address) {
  BrokeredAllocation& a = allocations_.at(id);
  a.mapped_at.push_back(address);
  return mappings_.emplace(address, Mapping{address, a.size, id, {}, {}, false}).first->second;
}

Mapping* AllocationTable::mapping_at(Address address) {
  const auto it = range_at(mappings_, address);
  return it != mappings_.end() ? &it->second : nullptr;
}

std::vector<Mapping*> AllocationTable::overlapping(Address address, std::uint64_t size) {
  std::vector<Mapping*> found;
  auto it = mappings_.upper_bound(address);
  if (it != mappings_.begin() && std::prev(it)->first + std::prev(it)->second.size > address) --it;
  for (; it != mappings_.end() && it->first < address + size; ++it) found.push_back(&it->second);
  return found;
}

void AllocationTable::remove_mapping(Address address) {
  const auto it = mappings_.find(address);
  std::erase(allocations_.at(it->second.id).mapped_at, address);
  mappings_.erase(it);
}

void AllocationTable::grant(Mapping& mapping, const Access& access) {
  const auto same =
      std::find_if(mapping.access.begin(), mapping.access.end(),
                   [&](const Access& a) { return a.type == access.type && a.id == access.id; });
  if (access.flags == 0) {
    if (same != mapping.access.end()) mapping.access.erase(same);
  } else if (same != mapping.access.end()) {
    *same = access;
  } else {
    mapping.access.push_back(access);
  }
}

std::vector<AllocationTable::Run> AllocationTable::runs(const std::vector<Mapping*>& sorted,
                                                        bool with_access) {
  std::vector<Run> runs;
  for (const Mapping* m : sorted) {
    if (!runs.empty() && runs.back().address + runs.back().size == m->address &&
        runs.back().size + m->size <= kLongestRun &&
        (!with_access || runs.back().access == m->access))
      runs.back().size += m->size;
    else
      runs.push_back({m->address, m->size, with_access ? m->access : std::vector<Access>{}});
  }
  return runs;
}

}  // namespace amem::shim
