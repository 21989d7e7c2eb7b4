#include "client/ctl/views/top_view.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "client/ctl/views/format.h"
#include "client/ctl/views/views.h"
#include "common/times.h"

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
  TextTable table({{"DEVICE", kRight},
                   {"NAME"},
                   {"MEMORY"},
                   {"BROKERED", kRight},
                   {"USED", kRight},
                   {"TOTAL", kRight}});
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
                   {"SINCE", kRight},
                   {"RANKS", kRight},
                   {"MEMORY"},
                   {"RESIDENT", kRight},
                   {"SAVED", kRight},
                   {"PAUSE", kRight},
                   {"RESUME", kRight}});
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
               ranks_text(group),
               format_bar(group.resident_bytes(), group.saved_bytes(), largest, width),
               format_bytes(group.resident_bytes()),
               format_bytes(group.saved_bytes()),
               took(group.last_pause_us()),
               took(group.last_resume_us())});
    notes += note_line(group, style);
  }
  if (table.empty()) return "no groups\n";
  return table.render(style) + style(Tone::kDim, "# on devices  = saved in the pool") + "\n" +
         notes;
}

/// A dot for nothing; anything above it shows.
std::string_view block(std::uint64_t bytes, std::uint64_t most) {
  static constexpr std::array<std::string_view, 8> kBlocks = {"▁", "▂", "▃", "▄",
                                                              "▅", "▆", "▇", "█"};
  if (bytes == 0) return ".";
  const double share = static_cast<double>(bytes) / static_cast<double>(most);
  const auto level = static_cast<std::size_t>(share * kBlocks.size());
  return kBlocks[std::min(level, kBlocks.size() - 1)];
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
  const std::size_t shown = rows > 0 ? rows - 1 : 0;
  std::size_t end = 0;
  for (std::size_t i = 0; i < shown; ++i) end = text.find('\n', end) + 1;
  return text.substr(0, end) + (rows > 0 ? std::to_string(lines - shown) + " more lines\n" : "");
}

void Trends::add(const v1::NodeStatus& status) {
  ++refreshes_;
  std::map<std::string, Trend> groups;
  for (const v1::GroupInfo& group : status.groups()) {
    const auto known = groups_.find(group.address());
    Trend& trend = groups[group.address()];
    if (known != groups_.end()) trend = std::move(known->second);
    trend.name = group.name();
    trend.resident.push_back(group.resident_bytes());
    if (trend.resident.size() > kMost) trend.resident.pop_front();
  }
  groups_ = std::move(groups);
}

std::string Trends::view(std::size_t columns, const Style& style) const {
  if (refreshes_ < 2 || groups_.empty()) return {};
  std::size_t names = std::string_view("GROUP").size();
  std::uint64_t most = 1;
  for (const auto& [address, trend] : groups_) {
    names = std::max(names, display_width(printable(trend.name)));
    most = std::max(most, *std::max_element(trend.resident.begin(), trend.resident.end()));
  }
  const std::size_t beside = names + 2 + 12;  // gaps, and what it had at most
  const std::size_t width =
      std::clamp<std::size_t>(columns > beside ? columns - beside : 0, 20, kMost);
  TextTable table({{"GROUP"}, {"ON DEVICES OVER TIME"}, {"MOST", kRight}});
  for (const auto& [address, trend] : groups_) {
    const std::size_t shown = std::min(width, trend.resident.size());
    std::string line(std::min(width, refreshes_) - shown, ' ');
    for (auto bytes = trend.resident.end() - static_cast<std::ptrdiff_t>(shown);
         bytes != trend.resident.end(); ++bytes)
      line += block(*bytes, most);
    const std::uint64_t peak = *std::max_element(trend.resident.begin(), trend.resident.end());
    table.add({trend.name, line, format_bytes(peak)});
  }
  return table.render(style) +
         style(Tone::kDim, "a column for each refresh, the last at the right  . nothing") + "\n";
}

}  // namespace amem::ctl
