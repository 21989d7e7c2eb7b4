// How log lines look, in amemd and in its holder: text, or JSON with one object a line.
#pragma once

#include <spdlog/formatter.h>

#include <memory>
#include <string>

namespace amem {

/// `json`: {"time":"…","level":"info","message":"…"}; else "TIME LEVEL MESSAGE". `prefix` comes
/// before each message: whose it is, where several write to one place.
std::unique_ptr<spdlog::formatter> log_formatter(bool json, std::string prefix);

}  // namespace amem
