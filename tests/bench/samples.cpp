#include "tests/bench/samples.h"

#include <algorithm>
#include <cstdio>

namespace amem::bench {

double Samples::median() const {
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 != 0 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double Samples::min() const { return *std::min_element(values_.begin(), values_.end()); }
double Samples::max() const { return *std::max_element(values_.begin(), values_.end()); }

std::string Samples::json() const {
  if (empty()) return "null";
  char text[160];
  std::snprintf(text, sizeof text, "{\"median\":%.6g,\"min\":%.6g,\"max\":%.6g,\"n\":%zu}",
                median(), min(), max(), values_.size());
  return text;
}

}  // namespace amem::bench
