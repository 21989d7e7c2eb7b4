// Histograms: how long pauses and resumes have taken since the broker began, by phase.
//
// Those that succeeded, of all groups, with and without tags. Bounds never change, so they can be
// added up over brokers. For the loop's thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>

#include "daemon/phases/actions.h"

namespace amem {

struct Histogram {
  /// Upper bounds, the bound included; what is longer counts in a last bucket of its own.
  static constexpr std::array<std::chrono::milliseconds::rep, 13> kBoundsMs = {
      1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000};

  std::uint64_t count = 0;
  Duration sum{};
  std::array<std::uint64_t, kBoundsMs.size() + 1> buckets{};

  void add(Duration time);
};

class Histograms {
 public:
  void add(const Outcome& outcome);

  /// By operation and phase; kNone: the whole.
  const std::map<std::pair<Operation, Phase>, Histogram>& all() const { return all_; }

 private:
  std::map<std::pair<Operation, Phase>, Histogram> all_;
};

}  // namespace amem
