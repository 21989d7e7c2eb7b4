// Sizes, durations and addresses as people write and read them: "8GiB", "30s". Stateless, any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"
#include "daemon/base/clock.h"

namespace amem {

/// "8GiB", "512 MiB", "1.5GiB", "4096" (bytes), also KB/MB/GB/TB (powers of ten). Case does not
/// matter. kInvalidArgument: the text says what a size looks like.
Result<std::uint64_t> parse_size(std::string_view text);

/// The largest unit that leaves at most one decimal: "8 GiB", "1.5 MiB", "17 B"; inexact ones are
/// rounded to one decimal.
std::string format_size(std::uint64_t bytes);

/// The same size in a form that parse_size reads back exactly: "8GiB", "1536MiB", "17".
std::string exact_size(std::uint64_t bytes);

/// "30s", "250ms", "2min", "1.5s"; a bare number is seconds. Not negative, at most 24 h.
Result<Duration> parse_duration(std::string_view text);

/// "30s", "250ms", in a form that parse_duration reads back exactly for whole milliseconds.
std::string format_duration(Duration duration);

/// For people, rounded: "17 s", "1.5 s", "250 ms".
std::string rounded_duration(Duration duration);

/// "9480" is on the loopback interface, "10.0.0.7:9480" and "[::1]:9480" are as they are: always
/// with an address, "127.0.0.1:9480". kInvalidArgument: no numeric address, or no port of 1 to
/// 65535.
Result<std::string> parse_address(std::string_view text);

}  // namespace amem
