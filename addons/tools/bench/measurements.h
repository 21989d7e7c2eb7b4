// What `amemctl bench` has measured. Plain data, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace amem::ctl {

/// Times in microseconds, an entry for each round; of plain copies the slowest GPU's, as all copy
/// at the same time.
struct Measurements {
  int gpus = 0;
  std::uint64_t bytes = 0;  // of each GPU
  std::vector<std::uint64_t> copy_out_us;
  std::vector<std::uint64_t> copy_in_us;
  std::vector<std::uint64_t> pause_us;
  std::vector<std::uint64_t> resume_us;
};

/// Of an even number the higher one in the middle. REQUIRES: not empty.
std::uint64_t median(std::vector<std::uint64_t> values);

/// REQUIRES: no list is empty.
std::string measurements_view(const Measurements& measured);
/// One object on one line, newline at the end.
std::string measurements_json(const Measurements& measured);

}  // namespace amem::ctl
