#include "daemon/base/units.h"

#include <arpa/inet.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "common/numbers.h"

namespace amem {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double factor;
};

constexpr std::array<Unit, 14> kSizes = {{{"", 1.0},
                                          {"b", 1.0},
                                          {"k", 1024.0},
                                          {"kib", 1024.0},
                                          {"m", 1048576.0},
                                          {"mib", 1048576.0},
                                          {"g", 1073741824.0},
                                          {"gib", 1073741824.0},
                                          {"t", 1099511627776.0},
                                          {"tib", 1099511627776.0},
                                          {"kb", 1e3},
                                          {"mb", 1e6},
                                          {"gb", 1e9},
                                          {"tb", 1e12}}};

constexpr std::array<Unit, 7> kDurations = {
    {{"", 1e9}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}}};

constexpr double kLargestSize = 9e15;        // exactly representable, and more than any host has
constexpr double kLongestDuration = 864e11;  // 24 h in nanoseconds

/// A number, then blanks, then a unit. Not a number or no such unit: a negative value.
template <std::size_t N>
double parse(std::string_view text, const std::array<Unit, N>& units) {
  auto trim = [](std::string_view s) {
    while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
    while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
    return s;
  };
  text = trim(text);
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return -1;
  std::string unit;
  for (char c : trim(text.substr(static_cast<std::size_t>(end - text.data()))))
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Unit& u : units)
    if (u.name == unit) return number * u.factor;
  return -1;
}

constexpr std::array<std::string_view, 5> kBinaryNames = {"B", "KiB", "MiB", "GiB", "TiB"};

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  const double bytes = parse(text, kSizes);
  if (bytes < 0 || bytes > kLargestSize || bytes != std::floor(bytes))
    return Status(Code::kInvalidArgument,
                  "\"" + std::string(text) +
                      "\" is not a valid size. Write for example \"8GiB\" or \"512MiB\"");
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < kBinaryNames.size()) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  const double rounded = std::round(value * 10) / 10;
  std::snprintf(text, sizeof text, rounded == std::floor(rounded) ? "%.0f" : "%.1f", rounded);
  return std::string(text) + " " + std::string(kBinaryNames[unit]);
}

std::string exact_size(std::uint64_t bytes) {
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kBinaryNames.size()) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + (unit == 0 ? "" : std::string(kBinaryNames[unit]));
}

Result<Duration> parse_duration(std::string_view text) {
  const double ns = parse(text, kDurations);
  if (ns < 0 || ns > kLongestDuration)
    return Status(
        Code::kInvalidArgument,
        "\"" + std::string(text) +
            "\" is not a valid duration of at most 24h. Write for example \"30s\" or \"250ms\"");
  return std::chrono::duration_cast<Duration>(
      std::chrono::nanoseconds(static_cast<std::int64_t>(ns)));
}

Result<std::string> parse_address(std::string_view text) {
  const Status wrong(Code::kInvalidArgument,
                     "\"" + std::string(text) +
                         "\" is not a valid address. Write a port such as \"9480\", or "
                         "\"10.0.0.7:9480\", or \"[::1]:9480\"");
  const std::size_t colon = text.rfind(':');
  const bool only_port = colon == std::string_view::npos;
  std::string host(only_port ? "127.0.0.1" : text.substr(0, colon));
  const std::optional<unsigned> port =
      number_of_text<unsigned>(only_port ? text : text.substr(colon + 1));
  if (!port || *port == 0 || *port > 65535) return wrong;
  in6_addr any{};
  const bool v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string bare = v6 ? host.substr(1, host.size() - 2) : host;
  if (::inet_pton(v6 ? AF_INET6 : AF_INET, bare.c_str(), &any) != 1) return wrong;
  return host + ":" + std::to_string(*port);
}

std::string format_duration(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  if (ms % 1000 == 0) return std::to_string(ms / 1000) + "s";
  return std::to_string(ms) + "ms";
}

std::string rounded_duration(Duration duration) {
  using std::chrono::round;
  const auto ms = round<std::chrono::milliseconds>(duration).count();
  if (ms != 0 && ms < 1000) return std::to_string(ms) + " ms";
  const auto tenths = (ms + 50) / 100;
  if (tenths >= 100 || tenths % 10 == 0) return std::to_string((tenths + 5) / 10) + " s";
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace amem
