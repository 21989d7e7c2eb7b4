// How amemctl writes numbers and other people's text. Pure functions; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace amem::ctl {

/// About three digits and a binary unit: "0 B", "512 B", "2.00 MiB", "3.36 GiB", "141 GiB".
std::string format_bytes(std::uint64_t bytes);

/// How long something took: "850 us", "12.4 ms", "143 ms", "1.24 s", "75.0 s".
std::string format_micros(std::uint64_t us);

/// "500ms", "1.5s", "2m", or a bare number of seconds; whole milliseconds from 1 to 2^32-1.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

/// The text with control characters (of a program's name, say) as '?': a terminal must not obey it.
std::string printable(std::string_view text);

/// Columns that the text takes on a terminal: code points, which is right for the text we print.
std::size_t display_width(std::string_view text);

/// `width` columns of '[###==   ]', the border included: `full` of `total` as '#', then `more` of
/// it as '='. Anything above 0 shows. An unknown total (0) is an empty bar. REQUIRES: width > 2.
std::string format_bar(std::uint64_t full, std::uint64_t more, std::uint64_t total,
                       std::size_t width);

}  // namespace amem::ctl
