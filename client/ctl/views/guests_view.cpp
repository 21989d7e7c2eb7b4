#include "client/ctl/views/guests_view.h"

#include <set>
#include <tuple>

#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

std::string rank_text(const v1::GuestUsage& usage) {
  return usage.rank() < 0 ? "-" : std::to_string(usage.rank());
}

}  // namespace

std::string guest_table(const Groups& groups, const Style& style) {
  TextTable table({{"GUEST"},
                   {"RANK", Align::kRight},
                   {"PID", Align::kRight},
                   {"HAS OPENED OF"},
                   {"TAG"},
                   {"ALLOCS", Align::kRight},
                   {"SIZE", Align::kRight},
                   {"GUEST IS"}});
  // The owner's list and the guest's have the same entries.
  std::set<std::tuple<std::string, std::uint32_t, std::string>> seen;
  for (const v1::GroupInfo& group : groups) {
    for (const auto* list : {&group.guests(), &group.opened()}) {
      for (const v1::GuestUsage& usage : *list) {
        if (!seen.emplace(usage.owner(), usage.rank_id(), usage.tag()).second) continue;
        table.add({usage.guest(), rank_text(usage), std::to_string(usage.pid()),
                   usage.owner().empty() ? "(freed by its group)" : usage.owner(), usage.tag(),
                   std::to_string(usage.allocation_count()), format_bytes(usage.bytes()),
                   usage.paused() ? "paused" : "running"});
      }
    }
  }
  return table.empty() ? std::string() : "\n" + table.render(style);
}

std::string guest_text(const v1::Progress& progress) {
  std::string text;
  for (const v1::GuestUsage& usage : progress.guests()) {
    text += (text.empty() ? "" : ", ") + format_bytes(usage.bytes()) + " open in group '" +
            printable(usage.guest()) + "' (rank " + rank_text(usage) + ", pid " +
            std::to_string(usage.pid()) + ", tag " + printable(usage.tag()) + ")";
  }
  return text;
}

}  // namespace amem::ctl
