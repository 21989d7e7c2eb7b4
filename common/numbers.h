// Numbers: rounding of sizes, and numbers that are written as text. Pure; any thread.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace amem {

// REQUIRES, of both: the sum of the two numbers fits.
/// How many pieces of `unit` hold `size`.
constexpr std::uint64_t divide_up(std::uint64_t size, std::uint64_t unit) {
  return (size + unit - 1) / unit;
}

/// The next multiple of `unit`.
constexpr std::uint64_t round_up(std::uint64_t size, std::uint64_t unit) {
  return divide_up(size, unit) * unit;
}

/// All of the text as a decimal number. Nothing: it is none, or too large for the type.
template <class Number>
std::optional<Number> number_of_text(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace amem
