#include "daemon/memory/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

struct Meminfo {
  std::uint64_t total = kUnlimited;
  std::uint64_t available = kUnlimited;
};

Meminfo meminfo(const std::string& root) {
  Meminfo info;
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  std::string unit;
  std::uint64_t kib = 0;
  while (file >> key >> kib && std::getline(file, unit)) {
    if (key == "MemTotal:") info.total = kib * 1024;
    if (key == "MemAvailable:") info.available = kib * 1024;
  }
  return info;
}

std::uint64_t less(std::uint64_t from, std::uint64_t bytes) {
  return from > bytes ? from - bytes : 0;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // no such file, or "max"
}

/// What the kernel takes back before it refuses memory: of files read long ago, and of its own.
std::uint64_t reclaimable(const std::string& group) {
  std::ifstream file(group + "/memory.stat");
  std::string key;
  std::uint64_t value = 0;
  std::uint64_t bytes = 0;
  while (file >> key >> value)
    if (key == "inactive_file" || key == "slab_reclaimable") bytes += value;
  return bytes;
}

/// What our control group (version 2) and those above it leave.
HostMemory cgroup_headroom(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  HostMemory headroom{kUnlimited, {}};
  while (std::getline(file, line)) {
    if (!line.starts_with("0::")) continue;
    std::string path = line.substr(3);
    for (;;) {
      const std::string dir = root + "/sys/fs/cgroup" + path;
      const auto limit = number_in(dir + "/memory.max");
      const auto used = number_in(dir + "/memory.current");
      if (limit && used) {
        const std::uint64_t left = less(*limit, less(*used, reclaimable(dir)));
        if (left < headroom.bytes)
          headroom = {left, "memory.max of control group " + path + ", " + format_size(*limit) +
                                ", with " + format_size(*used) + " used"};
      }
      const std::size_t slash = path.rfind('/');
      if (slash == std::string::npos || path.size() <= 1) break;
      path.resize(slash == 0 ? 1 : slash);
    }
  }
  return headroom;
}

}  // namespace

HostMemory available_host_memory(const std::string& root) {
  const Meminfo info = meminfo(root);
  const std::uint64_t reserve = info.total == kUnlimited ? 0 : info.total / 16;
  const HostMemory host{less(info.available, reserve), "the host"};
  HostMemory headroom = cgroup_headroom(root);
  return headroom.bytes < host.bytes ? headroom : host;
}

std::uint64_t resident_memory() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  file >> pages >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace amem
