#include "client/ctl/job/process_tree.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <vector>

#include "common/process_stat.h"

namespace amem::ctl {

namespace fs = std::filesystem;

Parents read_parents(const std::string& proc) {
  Parents parents;
  std::error_code error;
  for (fs::directory_iterator entry(proc, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [last, wrong] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (wrong != std::errc() || last != name.data() + name.size()) continue;
    if (const auto stat = process_stat(pid, proc); stat && stat->parent > 0)
      parents.emplace(pid, stat->parent);
  }
  return parents;
}

std::set<pid_t> below(pid_t top, const Parents& parents) {
  std::map<pid_t, std::vector<pid_t>> children;
  for (const auto& [pid, parent] : parents) children[parent].push_back(pid);
  std::set<pid_t> found;
  std::vector<pid_t> next{top};
  while (!next.empty()) {
    const pid_t pid = next.back();
    next.pop_back();
    for (const pid_t child : children[pid])
      if (child != top && found.insert(child).second) next.push_back(child);
  }
  return found;
}

std::set<pid_t> signal_all_below(int signal, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  std::set<pid_t> signalled;
  std::set<pid_t> refused;
  for (bool again = true; again && std::chrono::steady_clock::now() < until;) {
    again = false;
    for (const pid_t pid : below(::getpid(), read_parents())) {
      if (!signalled.insert(pid).second) continue;
      again = true;
      if (::kill(pid, signal) != 0 && errno != ESRCH) refused.insert(pid);
    }
  }
  return refused;
}

}  // namespace amem::ctl
