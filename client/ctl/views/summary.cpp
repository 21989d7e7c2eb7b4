#include "client/ctl/views/summary.h"

#include <nlohmann/json.hpp>

#include "client/core/json.h"

namespace amem::ctl {

void Summary::add(const v1::AllocationInfo& allocation) {
  SummaryRow& row = rows_[{allocation.group(), allocation.tag(), allocation.device(),
                           static_cast<int>(allocation.policy())}];
  row.group = allocation.group();
  row.tag = allocation.tag();
  row.device = allocation.device();
  row.policy = allocation.policy();
  row.count += 1;
  row.bytes += allocation.size();
  if (allocation.resident()) row.resident_bytes += allocation.size();
  if (allocation.pinned()) row.pinned_bytes += allocation.size();
}

std::vector<SummaryRow> Summary::rows() const {
  std::vector<SummaryRow> rows;
  for (const auto& [key, row] : rows_) rows.push_back(row);
  return rows;
}

std::string to_json(const SummaryRow& row) {
  return client::text_of({{"group", row.group},
                          {"tag", row.tag},
                          {"device", row.device},
                          {"policy", v1::Policy_Name(row.policy)},
                          {"count", row.count},
                          {"bytes", row.bytes},
                          {"resident_bytes", row.resident_bytes},
                          {"pinned_bytes", row.pinned_bytes}});
}

}  // namespace amem::ctl
