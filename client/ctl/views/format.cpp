#include "client/ctl/views/format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace amem::ctl {
namespace {

/// Three digits: 1.23, 12.3, 123, and 1023 where the unit is binary.
std::string three_digits(double value) {
  // What rounds up to 10 or 100 must not show a digit too many.
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.5 would be written 1024.
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return three_digits(value) + " " + kUnits[unit];
}

std::string format_micros(std::uint64_t us) {
  if (us < 1000) return std::to_string(us) + " us";
  const double ms = static_cast<double>(us) / 1000;
  return ms < 999.5 ? three_digits(ms) + " ms" : three_digits(ms / 1000) + " s";
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.empty() || unit == "s") {
    value *= 1000;
  } else if (unit == "m" || unit == "min") {
    value *= 60'000;
  } else if (unit != "ms") {
    return std::nullopt;
  }
  value = std::round(value);
  // Also false for what is no number.
  if (!(value >= 1 && value <= std::numeric_limits<std::uint32_t>::max())) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(value));
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto c = static_cast<unsigned char>(out[i]);
    if (c < 0x20 || c == 0x7f) out[i] = '?';
    // U+0080 to U+009f are control characters too, and some terminals obey them.
    if (c == 0xc2 && i + 1 < out.size() && static_cast<unsigned char>(out[i + 1]) < 0xa0) {
      out.replace(i, 2, "?");
    }
  }
  return out;
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  }));
}

std::string format_bar(std::uint64_t full, std::uint64_t more, std::uint64_t total,
                       std::size_t width) {
  const std::size_t space = width - 2;
  const auto cells = [&](std::uint64_t part, std::size_t at_most) -> std::size_t {
    if (total == 0 || part == 0 || at_most == 0) return 0;
    const double share = static_cast<double>(part) / static_cast<double>(total);
    const auto exact = std::lround(std::min(share, 1.0) * static_cast<double>(space));
    return std::clamp<std::size_t>(static_cast<std::size_t>(exact), 1, at_most);
  };
  const std::size_t hashes = cells(full, space);
  const std::size_t equals = cells(more, space - hashes);
  return "[" + std::string(hashes, '#') + std::string(equals, '=') +
         std::string(space - hashes - equals, ' ') + "]";
}

}  // namespace amem::ctl
