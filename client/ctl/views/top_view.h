// What `amemctl top` shows: one screen of text for a status. Does no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "amem/v1/broker.pb.h"
#include "client/ctl/views/text_table.h"

namespace amem::ctl {

/// Devices and groups with memory bars, as many columns wide as there are (at least 60). Newline at
/// the end of every line.
std::string top_view(const v1::NodeStatus& status, std::size_t columns, const Style& style);

/// At most `rows` lines of the text, the last of them saying how many more there are.
std::string fit_rows(const std::string& text, std::size_t rows);

/// What groups had on devices at the last refreshes, as a line of blocks. A plain value that one
/// thread has.
class Trends {
 public:
  static constexpr std::size_t kMost = 240;  // refreshes

  /// A group that is not there any more is forgotten.
  void add(const v1::NodeStatus& status);
  /// A line for each group, the newest refresh at its right, on one scale for all; as many columns
  /// wide as there are. Empty before the second refresh.
  std::string view(std::size_t columns, const Style& style) const;

 private:
  struct Trend {
    std::string name;
    std::deque<std::uint64_t> resident;  // of all refreshes since the group came
  };
  std::map<std::string, Trend> groups_;  // by address
  std::size_t refreshes_ = 0;
};

}  // namespace amem::ctl
