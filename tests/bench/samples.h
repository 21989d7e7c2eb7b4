// Samples: what was measured several times over, and how it is summed up. Plain values.
#pragma once

#include <string>
#include <vector>

namespace amem::bench {

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }

  // REQUIRES: not empty.
  double median() const;
  double min() const;
  double max() const;

  /// {"median":..,"min":..,"max":..,"n":..}; null when empty.
  std::string json() const;

 private:
  std::vector<double> values_;
};

}  // namespace amem::bench
