#include "common/times.h"

#include <cstdio>
#include <ctime>

namespace amem {

std::string format_age(std::uint64_t ms) {
  const std::uint64_t s = ms / 1000;
  const auto two = [](std::uint64_t a, const char* a_unit, std::uint64_t b, const char* b_unit) {
    return std::to_string(a) + " " + a_unit +
           (b == 0 ? std::string() : " " + std::to_string(b) + " " + b_unit);
  };
  if (s < 60) return std::to_string(s) + " s";
  if (s < 3600) return two(s / 60, "min", s % 60, "s");
  if (s < 86400) return two(s / 3600, "h", s / 60 % 60, "min");
  return two(s / 86400, "d", s / 3600 % 24, "h");
}

std::string format_time(std::uint64_t unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char date[32];
  const std::size_t size = std::strftime(date, sizeof date, "%F %T", &local);
  char millis[8];
  std::snprintf(millis, sizeof millis, ".%03u", static_cast<unsigned>(unix_ms % 1000));
  return std::string(date, size) + millis;
}

}  // namespace amem
