#include "tests/workload/base/answer.h"

#include <cstdio>

namespace amem::workload {

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

void Answer::Number(const std::string& name, std::uint64_t value) { numbers_[name] += value; }

void Answer::Text(const std::string& name, const std::string& value) {
  texts_.emplace(name, value);
}

void Answer::Item(const std::string& name, const std::string& json) {
  lists_[name].push_back(json);
}

void Answer::List(const std::string& name) { lists_[name]; }

void Answer::Fail(const std::string& error) {
  if (error_.empty()) error_ = error;
}

void Answer::Merge(const Answer& other) {
  if (!other.ok()) Fail(other.error_);
  for (const auto& [name, value] : other.numbers_) Number(name, value);
  for (const auto& [name, value] : other.texts_) Text(name, value);
  for (const auto& [name, items] : other.lists_) {
    List(name);
    for (const std::string& item : items) Item(name, item);
  }
}

std::string Answer::Json() const {
  std::string json = ok() ? "{\"ok\":true" : "{\"ok\":false,\"error\":" + Quote(error_);
  for (const auto& [name, value] : numbers_)
    json += "," + Quote(name) + ":" + std::to_string(value);
  for (const auto& [name, value] : texts_) json += "," + Quote(name) + ":" + Quote(value);
  for (const auto& [name, items] : lists_) {
    json += "," + Quote(name) + ":[";
    for (std::size_t i = 0; i < items.size(); ++i) json += (i == 0 ? "" : ",") + items[i];
    json += "]";
  }
  return json + "}";
}

}  // namespace amem::workload
