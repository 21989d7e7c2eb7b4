#include "daemon/memory/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

namespace amem {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

struct Meminfo {
  std::uint64_t total = kUnlimited;
  std::uint64_t available = kUnlimited;
};

Meminfo meminfo() {
  Meminfo info;
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::string unit;
  std::uint64_t kib = 0;
  while (file >> key >> kib && std::getline(file, unit)) {
    if (key == "MemTotal:") info.total = kib * 1024;
    if (key == "MemAvailable:") info.available = kib * 1024;
  }
  return info;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // no such file, or "max"
}

/// What our control group (version 2) and those above it leave.
std::uint64_t cgroup_headroom() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::uint64_t headroom = kUnlimited;
  while (std::getline(file, line)) {
    if (!line.starts_with("0::")) continue;
    std::string path = line.substr(3);
    for (;;) {
      const std::string dir = "/sys/fs/cgroup" + path;
      const auto limit = number_in(dir + "/memory.max");
      const auto used = number_in(dir + "/memory.current");
      if (limit && used) headroom = std::min(headroom, *limit > *used ? *limit - *used : 0);
      const std::size_t slash = path.rfind('/');
      if (slash == std::string::npos || path.size() <= 1) break;
      path.resize(slash);
    }
  }
  return headroom;
}

}  // namespace

std::uint64_t available_host_memory() {
  const Meminfo info = meminfo();
  const std::uint64_t available = std::min(info.available, cgroup_headroom());
  const std::uint64_t reserve = info.total == kUnlimited ? 0 : info.total / 16;
  return available > reserve ? available - reserve : 0;
}

std::uint64_t resident_memory() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  file >> pages >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace amem
