// Where this process's own executable lies, and the programs beside it.
//
// Any thread.
#pragma once

#include <unistd.h>

#include <climits>
#include <cstddef>
#include <string>

namespace amem {

/// Empty: /proc cannot be read.
inline std::string own_executable() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return {path, n > 0 ? static_cast<std::size_t>(n) : 0};
}

/// Beside this process's own executable, as build trees, packages and wheels have it.
inline std::string program_beside(const std::string& name) {
  const std::string own = own_executable();
  return own.substr(0, own.rfind('/') + 1) + name;
}

}  // namespace amem
