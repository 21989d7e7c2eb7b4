// Ledger: what one rank has allocated, imported and mapped, and so what its memory must hold.
//
// Bookkeeping only; the one driver call it makes is the retain on behalf of a peer that asks for an
// allocation. Any thread.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/workload/base/pattern.h"
#include "tests/workload/nccl/nccl_calls.h"
#include "tests/workload/nccl/proxy.h"

namespace amem::workload {

struct Mapping {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  AllocationKey key;
  bool imported = false;
};

class Ledger : public AllocationSource {
 public:
  explicit Ledger(int rank) : rank_(rank) {}

  void AddMapping(const Mapping& mapping);
  /// The mapping that begins at the address, taken out. Throws Failure when there is none.
  Mapping RemoveMapping(CUdeviceptr address);
  bool Mapped(const AllocationKey& key) const;
  /// Ordered by address.
  std::vector<Mapping> Mappings() const;

  /// An own allocation has got its content: peers may have it.
  void Publish(std::uint64_t id);
  bool Published(std::uint64_t id) const;
  void Withdraw(std::uint64_t id);
  /// The number of the allocation's next content.
  std::uint64_t Rewrite(std::uint64_t id);

  AllocationSource::Offer Retain(std::uint64_t id, Clock::time_point deadline) override;
  std::uint64_t Generation(std::uint64_t id) override;

 private:
  std::optional<Mapping> FirstMapping(const AllocationKey& key) const;

  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable published_;
  std::map<CUdeviceptr, Mapping> mappings_;
  std::map<std::uint64_t, std::uint64_t> generations_;  // own published allocations
};

}  // namespace amem::workload
