// Finding: what a check of `amemctl doctor` says. Plain data.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace amem::ctl {

using Environment = std::map<std::string, std::string>;

/// The variable's value; empty when it is not set.
inline std::string value_in(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found != environment.end() ? found->second : std::string();
}

struct Finding {
  bool blocks = false;  // the processes would not be brokered; else it only matters
  std::string check;    // a name for programs
  std::string what;
  std::string why;  // it matters
  std::string remedy;
};

using Findings = std::vector<Finding>;

}  // namespace amem::ctl
