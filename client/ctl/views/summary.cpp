#include "client/ctl/views/summary.h"

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
  using client::json_string;
  return "{\"group\":" + json_string(row.group) + ",\"tag\":" + json_string(row.tag) +
         ",\"device\":" + json_string(row.device) +
         ",\"policy\":" + json_string(v1::Policy_Name(row.policy)) +
         ",\"count\":" + std::to_string(row.count) + ",\"bytes\":" + std::to_string(row.bytes) +
         ",\"resident_bytes\":" + std::to_string(row.resident_bytes) +
         ",\"pinned_bytes\":" + std::to_string(row.pinned_bytes) + "}";
}

}  // namespace amem::ctl
