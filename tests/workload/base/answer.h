// Answer: one line of JSON on stdout, the reply to one command.
//
// Several ranks of one process give one answer: numbers add up, lists join, the first error stands.
// Plain value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace amem::workload {

class Answer {
 public:
  void Number(const std::string& name, std::uint64_t value);
  void Text(const std::string& name, const std::string& value);
  /// `json` is an element of the list, ready-made.
  void Item(const std::string& name, const std::string& json);
  /// Makes sure that the list is there, even empty.
  void List(const std::string& name);
  void Fail(const std::string& error);

  bool ok() const { return error_.empty(); }
  void Merge(const Answer& other);
  /// {"ok":true,...} or {"ok":false,"error":"...",...}
  std::string Json() const;

 private:
  std::string error_;
  std::map<std::string, std::uint64_t> numbers_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::vector<std::string>> lists_;
};

/// A JSON string, quoted and escaped.
std::string Quote(const std::string& text);

}  // namespace amem::workload
