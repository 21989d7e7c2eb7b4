#include "common/process_stat.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

#include "common/fd.h"

namespace amem {

std::optional<ProcessStat> process_stat(pid_t pid, const std::string& proc) {
  const std::string path = proc + "/" + std::to_string(pid) + "/stat";
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[256];  // the name has at most 64 bytes
  const ssize_t size = file ? ::read(file.get(), buffer, sizeof buffer) : -1;
  if (size < 0) return std::nullopt;  // it may end between the two calls
  // "PID (NAME) STATE PARENT ...". The name may have parentheses and spaces.
  const std::string_view text(buffer, static_cast<std::size_t>(size));
  const std::size_t name = text.rfind(") ");
  if (name == std::string_view::npos || name + 4 >= text.size()) return std::nullopt;
  ProcessStat stat{text[name + 2]};
  const auto [end, error] = std::from_chars(buffer + name + 4, buffer + text.size(), stat.parent);
  return error == std::errc() ? std::optional(stat) : std::nullopt;
}

}  // namespace amem
