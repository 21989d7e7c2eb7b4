#include "tests/workload/program/ledger.h"

#include <string>

#include "tests/workload/base/failure.h"

namespace amem::workload {

void Ledger::AddMapping(const Mapping& mapping) {
  const std::lock_guard lock(mutex_);
  mappings_[mapping.address] = mapping;
}

Mapping Ledger::RemoveMapping(CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(address);
  if (found == mappings_.end()) throw Failure("nothing is mapped there");
  const Mapping mapping = found->second;
  mappings_.erase(found);
  return mapping;
}

bool Ledger::Mapped(const AllocationKey& key) const {
  const std::lock_guard lock(mutex_);
  return FirstMapping(key).has_value();
}

std::vector<Mapping> Ledger::Mappings() const {
  const std::lock_guard lock(mutex_);
  std::vector<Mapping> all;
  all.reserve(mappings_.size());
  for (const auto& [address, mapping] : mappings_) all.push_back(mapping);
  return all;
}

void Ledger::Publish(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    generations_.emplace(id, 0);
  }
  published_.notify_all();
}

bool Ledger::Published(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return generations_.contains(id);
}

void Ledger::Withdraw(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  generations_.erase(id);
}

std::uint64_t Ledger::Rewrite(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  return ++generations_[id];
}

AllocationSource::Offer Ledger::Retain(std::uint64_t id, Clock::time_point deadline) {
  Offer offer;
  std::optional<Mapping> mapping;
  {
    std::unique_lock lock(mutex_);
    published_.wait_until(lock, deadline, [&] { return generations_.contains(id); });
    mapping = FirstMapping({rank_, id});
    if (!generations_.contains(id) || !mapping) {
      throw Failure("rank " + std::to_string(rank_) + " has no allocation " + std::to_string(id));
    }
    offer.bytes = mapping->bytes;
    offer.generation = generations_[id];
  }
  offer.handle = NcclCalls::Retain(mapping->address);
  return offer;
}

std::uint64_t Ledger::Generation(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = generations_.find(id);
  if (found == generations_.end()) {
    throw Failure("rank " + std::to_string(rank_) + " has no allocation " + std::to_string(id));
  }
  return found->second;
}

std::optional<Mapping> Ledger::FirstMapping(const AllocationKey& key) const {
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.key == key) return mapping;
  }
  return std::nullopt;
}

}  // namespace amem::workload
