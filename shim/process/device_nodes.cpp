#include "shim/process/device_nodes.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace amem::shim {
namespace {

/// ".../nvidia" and a number: not nvidiactl, nvidia-uvm or nvidia-caps.
bool names_a_device(std::string_view path) {
  constexpr std::string_view kPrefix = "nvidia";
  constexpr std::string_view kDeleted = " (deleted)";  // it has been made anew since
  if (path.ends_with(kDeleted)) path.remove_suffix(kDeleted.size());
  path.remove_prefix(path.rfind('/') + 1);
  if (!path.starts_with(kPrefix)) return false;
  path.remove_prefix(kPrefix.size());
  return !path.empty() &&
         std::all_of(path.begin(), path.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Calls `take` with the name of each entry.
template <class Take>
void for_each_entry(const std::string& dir, const Take& take) {
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir(dir.c_str()), &::closedir);
  while (const dirent* entry = all != nullptr ? ::readdir(all.get()) : nullptr)
    take(::dirfd(all.get()), entry->d_name);
}

}  // namespace

std::vector<Fd> open_device_nodes(const std::string& dir) {
  std::vector<Fd> nodes;
  std::vector<dev_t> known;
  for_each_entry("/proc/self/fd", [&](int all, const char* name) {
    char target[256];
    const ssize_t length = ::readlinkat(all, name, target, sizeof target);
    if (length <= 0 || !names_a_device({target, static_cast<std::size_t>(length)})) return;
    Fd copy(::fcntl(std::atoi(name), F_DUPFD_CLOEXEC, 0));
    struct stat st {};
    if (!copy || ::fstat(copy.get(), &st) != 0 || !S_ISCHR(st.st_mode) ||
        std::find(known.begin(), known.end(), st.st_rdev) != known.end())
      return;
    known.push_back(st.st_rdev);
    nodes.push_back(std::move(copy));
  });
  return nodes.empty() ? openable_device_nodes(dir) : std::move(nodes);
}

std::vector<Fd> openable_device_nodes(const std::string& dir) {
  std::vector<Fd> nodes;
  for_each_entry(dir, [&](int all, const char* name) {
    if (!names_a_device(name)) return;
    if (Fd node(::openat(all, name, O_RDWR | O_CLOEXEC)); node) nodes.push_back(std::move(node));
  });
  return nodes;
}

}  // namespace amem::shim
