// ProgressView: a pause, resume or swap as it goes, for people: one line that is redrawn on a
// terminal, elsewhere a line per phase and one every 5 s of a copy; and what is said of it when it
// has ended. Makes text and does no I/O; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "amem/v1/broker.pb.h"
#include "client/ctl/views/text_table.h"

namespace amem::ctl {

class ProgressView {
 public:
  /// `columns`: the terminal's width, 0 when there is no terminal.
  ProgressView(Style style, std::size_t columns) : style_(style), columns_(columns) {}

  /// What to write now; may be empty.
  std::string update(const v1::Progress& progress);

  /// What to write before anything else is: clears the line.
  std::string clear();

 private:
  Style style_;
  std::size_t columns_;
  bool drawn_ = false;
  std::map<std::string, std::set<std::string>> told_;  // by group, phases that have had their line
  struct Began {
    std::string phase;
    std::uint64_t elapsed_us = 0;
    std::uint64_t logged_us = 0;  // its last line in a log
  };
  std::map<std::string, Began> began_;  // by group: its phase, and when that was seen first
};

/// "train: paused in 143 ms (quiesce 12.1 ms, save 88.0 ms, ...)", and in a second line what a
/// pause has left on the devices. `verb` is "paused" or "resumed"; `progress` the one with `done`.
std::string result_line(const v1::Progress& progress, const std::string& verb, const Style& style);

/// Where the time of a pause or resume went (`--explain`): a line per phase, under it a line per
/// rank. `done`: the message with which the broker ended it. Lines like
///   map+load 310 ms: broker's CPU 1.20 ms
///     rank 1: 308 ms: import 12.0 ms, map 9.00 ms, access 14.0 ms, 840 handles; copy 282 ms (15.67
///     GB, 55.5 GB/s)
std::string explain(const v1::Progress& done);

}  // namespace amem::ctl
