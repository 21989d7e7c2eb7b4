// Times, as people read them. Pure functions of their arguments and of the time zone; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace amem {

/// How long something has lasted, in two units at most: "0 s", "12 s", "3 min 5 s", "2 d 4 h".
std::string format_age(std::uint64_t ms);

/// "2024-05-01 12:34:56.789" in local time.
std::string format_time(std::uint64_t unix_ms);

}  // namespace amem
