#include "client/ctl/views/top_view.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "client/ctl/views/format.h"
#include "client/ctl/views/views.h"

namespace amem::ctl {
namespace {

constexpr std::size_t kNarrowest = 60;
constexpr std::size_t kLongestBar = 50;

/// What a line needs beside its bar.
constexpr std::size_t kDeviceText = 50;
constexpr std::size_t kGroupText = 78;

std::size_t bar_width(std::size_t columns, std::size_t text) {
  const std::size_t space = columns > text ? columns - text : 0;
  return std::clamp<std::size_t>(space, 10, kLongestBar);
}

std::string devices(const v1::NodeStatus& status, std::size_t columns, const Style& style) {
  const std::size_t width = bar_width(columns, kDeviceText);
  TextTable table({{"DEVICE", Align::kRight},
                   {"NAME"},
                   {"MEMORY"},
                   {"BROKERED", Align::kRight},
                   {"USED", Align::kRight},
                   {"TOTAL", Align::kRight}});
  for (const v1::DeviceStatus& device : status.devices()) {
    const bool known = device.usage_known();
    const std::uint64_t brokered = device.brokered_bytes();
    const std::uint64_t others =
        device.used_bytes() > brokered ? device.used_bytes() - brokered : 0;
    table.add({std::to_string(device.ordinal()), device.name(),
               known ? format_bar(brokered, others, device.total_bytes(), width) : "?",
               format_bytes(brokered), known ? format_bytes(device.used_bytes()) : "?",
               known ? format_bytes(device.total_bytes()) : "?"});
  }
  return table.empty()
             ? "no devices\n"
             : table.render(style) +
                   style(Tone::kDim, "# brokered  = everything else on the device") + "\n";
}

std::string groups(const v1::NodeStatus& status, std::size_t columns, const Style& style) {
  const std::size_t width = bar_width(columns, kGroupText);
  TextTable table({{"GROUP"},
                   {"STATE"},
                   {"SINCE", Align::kRight},
                   {"RANKS", Align::kRight},
                   {"MEMORY"},
                   {"RESIDENT", Align::kRight},
                   {"SAVED", Align::kRight},
                   {"PAUSE", Align::kRight},
                   {"RESUME", Align::kRight}});
  // One scale for all groups, so that the bars can be compared.
  std::uint64_t largest = 0;
  for (const v1::GroupInfo& group : status.groups()) {
    largest = std::max({largest, group.allocated_bytes(), group.resident_bytes()});
  }
  std::string notes;
  for (const v1::GroupInfo& group : status.groups()) {
    table.add({group.name(),
               {state_text(group), state_tone(group.state())},
               format_age(group.since_ms()),
               std::to_string(group.rank_count()),
               format_bar(group.resident_bytes(), group.saved_bytes(), largest, width),
               format_bytes(group.resident_bytes()),
               format_bytes(group.saved_bytes()),
               group.last_pause_us() == 0 ? "-" : format_micros(group.last_pause_us()),
               group.last_resume_us() == 0 ? "-" : format_micros(group.last_resume_us())});
    if (!group.note().empty()) {
      notes += style(Tone::kBad, printable(group.name() + ": " + group.note())) + "\n";
    }
  }
  if (table.empty()) return "no groups\n";
  return table.render(style) + style(Tone::kDim, "# on devices  = saved in the pool") + "\n" +
         notes;
}

}  // namespace

std::string top_view(const v1::NodeStatus& status, std::size_t columns, const Style& style) {
  columns = std::max(columns, kNarrowest);
  return node_line(status, style) + pool_line(status.pool(), style) + "\n" +
         devices(status, columns, style) + "\n" + groups(status, columns, style);
}

std::string fit_rows(const std::string& text, std::size_t rows) {
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  if (lines <= rows) return text;
  const std::size_t kept = rows > 0 ? rows - 1 : 0;
  std::size_t end = 0;
  for (std::size_t i = 0; i < kept; ++i) end = text.find('\n', end) + 1;
  return text.substr(0, end) + (rows > 0 ? std::to_string(lines - kept) + " more lines\n" : "");
}

}  // namespace amem::ctl
