// Totals of allocations by group, tag and device (`amemctl allocations --summary`). Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "amem/v1/broker.pb.h"

namespace amem::ctl {

struct SummaryRow {
  std::string group;
  std::string tag;
  std::string device;  // UUID
  v1::Policy policy = v1::POLICY_UNSPECIFIED;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t pinned_bytes = 0;
};

class Summary {
 public:
  void add(const v1::AllocationInfo& allocation);
  /// In order of group, tag, device, policy.
  std::vector<SummaryRow> rows() const;

 private:
  // The policy is in the key: a tag's may have changed between two allocations.
  std::map<std::tuple<std::string, std::string, std::string, int>, SummaryRow> rows_;
};

/// One object on one line, with the names of SummaryRow's members.
std::string to_json(const SummaryRow& row);

}  // namespace amem::ctl
