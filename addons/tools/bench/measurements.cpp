#include "addons/tools/bench/measurements.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "client/core/json.h"
#include "client/ctl/views/format.h"
#include "client/ctl/views/text_table.h"

namespace amem::ctl {
namespace {

std::string number(double value, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f%s", value, unit);
  return text;
}

/// Of all GPUs together, in powers of ten, as links are measured.
std::string rate(const Measurements& m, std::uint64_t us) {
  const double bytes = static_cast<double>(m.bytes) * m.gpus;
  return us == 0 ? "-" : number(bytes / 1e3 / static_cast<double>(us), " GB/s");
}

}  // namespace

std::uint64_t median(std::vector<std::uint64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string measurements_view(const Measurements& m) {
  TextTable table({{""},
                   {"MEDIAN", kRight},
                   {"SLOWEST", kRight},
                   {"RATE", kRight},
                   {"OF A PLAIN COPY", kRight}});
  const auto add = [&](const char* what, const std::vector<std::uint64_t>& us,
                       const std::vector<std::uint64_t>* plain) {
    const std::uint64_t usual = median(us);
    table.add({what, format_micros(usual), format_micros(*std::max_element(us.begin(), us.end())),
               rate(m, usual),
               plain == nullptr || usual == 0 ? ""
                                              : number(100.0 * static_cast<double>(median(*plain)) /
                                                           static_cast<double>(usual),
                                                       " %")});
  };
  add("plain copy out", m.copy_out_us, nullptr);
  add("pause", m.pause_us, &m.copy_out_us);
  add("plain copy in", m.copy_in_us, nullptr);
  add("resume", m.resume_us, &m.copy_in_us);
  return std::to_string(m.gpus) + (m.gpus == 1 ? " GPU, " : " GPUs, ") + format_bytes(m.bytes) +
         (m.gpus == 1 ? "" : " each") + ", " + std::to_string(m.pause_us.size()) +
         (m.pause_us.size() == 1 ? " round" : " rounds") + "; all bytes were restored\n" +
         table.render({});
}

std::string measurements_json(const Measurements& m) {
  return client::text_of({{"gpus", m.gpus},
                          {"bytes", m.bytes},
                          {"copy_out_us", m.copy_out_us},
                          {"pause_us", m.pause_us},
                          {"copy_in_us", m.copy_in_us},
                          {"resume_us", m.resume_us}}) +
         "\n";
}

}  // namespace amem::ctl
