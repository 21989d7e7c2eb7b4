// Commands: reads a line, lets the ranks of this process do it, prints one line of JSON.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/workload/base/answer.h"
#include "tests/workload/program/rank.h"

namespace amem::workload {

class Commands {
 public:
  explicit Commands(std::vector<std::unique_ptr<Rank>>& ranks) : ranks_(ranks) {}

  /// Runs `action` for each rank, at the same time, each in a thread that has its device current.
  /// Failures become the answer's error.
  Answer OnEveryRank(const std::function<void(Rank&, Answer*)>& action);

  /// Obeys until `exit` or the end of the input.
  void Serve();

 private:
  Answer Obey(const std::vector<std::string>& words);

  std::vector<std::unique_ptr<Rank>>& ranks_;
};

/// Prints the answer to stdout as a line, at once.
void Print(const Answer& answer);

}  // namespace amem::workload
