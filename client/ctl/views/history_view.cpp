#include "client/ctl/views/history_view.h"

#include <algorithm>
#include <cstdint>

#include "client/core/code_name.h"
#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

/// "save 21.3 ms": the phase that took longest.
std::string longest(const v1::PastOperation& operation) {
  const auto& times = operation.times();
  const auto most = std::max_element(times.begin(), times.end(),
                                     [](const auto& a, const auto& b) { return a.us() < b.us(); });
  return most == times.end() ? "-" : most->phase() + " " + format_micros(most->us());
}

std::string transaction_of(const v1::PastOperation& operation) {
  if (operation.transaction() == 0) return "ranks";
  return std::to_string(operation.transaction()) + (operation.swap() ? " swap" : "");
}

std::string what(const v1::PastOperation& operation) {
  return operation.operation() + (operation.tags().empty() ? "" : " of " + operation.tags());
}

}  // namespace

std::string history_view(const v1::ListHistoryResponse& history, const Style& style) {
  if (history.operations().empty()) return "no operations since amemd began\n";
  TextTable table({{"BEGAN"},
                   {"TRANSACTION"},
                   {"GROUP"},
                   {"OPERATION"},
                   {"TOOK", kRight},
                   {"COPIED", kRight},
                   {"LONGEST PHASE"},
                   {"RESULT"}});
  std::string errors;
  for (const v1::PastOperation& operation : history.operations()) {
    const std::string began = format_time(operation.began_us() / 1000);
    const bool ok = operation.code() == 0;
    table.add({began,
               transaction_of(operation),
               operation.group(),
               what(operation),
               format_micros(operation.us()),
               format_bytes(operation.bytes()),
               longest(operation),
               {ok ? "ok" : client::code_name(static_cast<int>(operation.code())),
                ok ? Tone::kGood : Tone::kBad}});
    if (!ok) errors += began + "  " + printable(operation.error()) + "\n";
  }
  return table.render(style) + (errors.empty() ? "" : "\n" + errors);
}

}  // namespace amem::ctl
