// Successor: the program that this process was started as, in whatever version lies there now, and
// how it takes this process's place.
//
// Any thread, become() when all others have ended.
#pragma once

#include <string>

#include "common/status.h"
#include "daemon/base/clock.h"

namespace amem {

class Successor {
 public:
  /// `argv` is main()'s, or ends with a null pointer like it, and outlives this object. Looks where
  /// the program lies, which a package may replace later. `speaks`: what --speaks writes here.
  Successor(char* const* argv, std::string speaks);

  const std::string& program() const { return program_; }
  /// Runs it with --version, --speaks, and --check-config with this process's arguments. Its
  /// version; or why it would not serve what this process serves, in its own words where it has
  /// some. Blocks for `limit` at most.
  Result<std::string> examine(Duration limit) const;
  /// Process id, arguments, environment and standard streams stay, other descriptors go. Returns
  /// only when it fails.
  Status become() const;

 private:
  const std::string program_;
  char* const* const argv_;
  const std::string speaks_;
};

}  // namespace amem
