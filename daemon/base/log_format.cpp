#include "daemon/base/log_format.h"

#include <spdlog/pattern_formatter.h>

#include <cstdio>
#include <string_view>
#include <utility>

namespace amem {
namespace {

constexpr char kTimePattern[] = "%Y-%m-%dT%H:%M:%S.%e%z";

class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(std::string prefix) : prefix_(std::move(prefix)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    append(out, "{\"time\":\"");
    time_.format(message, out);
    append(out, "\",\"level\":\"");
    const auto level = spdlog::level::to_string_view(message.level);
    append(out, {level.data(), level.size()});
    append(out, "\",\"message\":\"");
    append(out, prefix_);
    for (char c : message.payload) append_escaped(out, c);
    append(out, "\"}\n");
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(prefix_);
  }

 private:
  static void append(spdlog::memory_buf_t& out, std::string_view text) {
    out.append(text.data(), text.data() + text.size());
  }
  static void append_escaped(spdlog::memory_buf_t& out, char c) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      append(out, escaped);
    } else {
      out.push_back(c);
    }
  }

  const std::string prefix_;
  spdlog::pattern_formatter time_{kTimePattern, spdlog::pattern_time_type::local, ""};
};

}  // namespace

std::unique_ptr<spdlog::formatter> log_formatter(bool json, std::string prefix) {
  if (json) return std::make_unique<JsonFormatter>(std::move(prefix));
  return std::make_unique<spdlog::pattern_formatter>(std::string(kTimePattern) + " %-7l " +
                                                     std::move(prefix) + "%v");
}

}  // namespace amem
