#include "client/ctl/views/trends.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

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

void Trends::add(const v1::NodeStatus& status) {
  ++refreshes_;
  std::map<std::string, Course> groups;
  for (const v1::GroupInfo& group : status.groups()) {
    const auto known = groups_.find(group.address());
    Course& course = groups[group.address()];
    if (known != groups_.end()) course = std::move(known->second);
    course.name = group.name();
    course.resident.push_back(group.resident_bytes());
    if (course.resident.size() > kMost) course.resident.pop_front();
  }
  groups_ = std::move(groups);
}

std::string Trends::view(std::size_t columns, const Style& style) const {
  if (refreshes_ < 2 || groups_.empty()) return {};
  std::size_t names = std::string_view("GROUP").size();
  std::uint64_t most = 1;
  for (const auto& [address, course] : groups_) {
    names = std::max(names, display_width(printable(course.name)));
    most = std::max(most, *std::max_element(course.resident.begin(), course.resident.end()));
  }
  const std::size_t beside = names + 2 + 12;  // gaps, and what it had at most
  const std::size_t width =
      std::clamp<std::size_t>(columns > beside ? columns - beside : 0, 20, kMost);
  TextTable table({{"GROUP"}, {"ON DEVICES OVER TIME"}, {"MOST", Align::kRight}});
  for (const auto& [address, course] : groups_) {
    const std::size_t shown = std::min(width, course.resident.size());
    std::string line(std::min(width, refreshes_) - shown, ' ');
    for (auto bytes = course.resident.end() - static_cast<std::ptrdiff_t>(shown);
         bytes != course.resident.end(); ++bytes)
      line += block(*bytes, most);
    const std::uint64_t peak = *std::max_element(course.resident.begin(), course.resident.end());
    table.add({course.name, line, format_bytes(peak)});
  }
  return table.render(style) +
         style(Tone::kDim, "a column for each refresh, the last at the right  . nothing") + "\n";
}

}  // namespace amem::ctl
