#include "tests/workload/rdma/nic.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace amem::rdma {

bool Region::learn(char* address, std::size_t size) {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return false;
  char* at = address;
  char* const end = address + size;
  char line[512];
  while (at < end && std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long from = 0;
    unsigned long to = 0;
    char flags[5] = "";
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, flags) != 3) continue;
    char* const begin = reinterpret_cast<char*>(from);
    char* const limit = reinterpret_cast<char*>(to);
    if (limit <= at || begin > at || flags[0] != 'r') continue;
    Part part{at, static_cast<std::size_t>(std::min(end, limit) - at)};
    if (flags[3] == 's') {
      // A second mapping of the same pages, which outlives the first.
      part.mapped_size = to - from;
      void* const alias = ::mremap(begin, 0, part.mapped_size, MREMAP_MAYMOVE);
      if (alias == MAP_FAILED) break;
      part.mapped = static_cast<char*>(alias);
      part.alias = part.mapped + (at - begin);
    }
    parts_.push_back(part);
    at += part.size;
  }
  std::fclose(maps);
  if (at == end) return true;
  forget();
  errno = EFAULT;
  return false;
}

void Region::write(std::size_t offset, const void* bytes, std::size_t size) {
  const char* from = static_cast<const char*>(bytes);
  for (const Part& part : parts_) {
    if (offset >= part.size) {
      offset -= part.size;
      continue;
    }
    const std::size_t here = std::min(size, part.size - offset);
    std::memcpy(part.alias + offset, from, here);
    from += here;
    size -= here;
    offset = 0;
    if (size == 0) return;
  }
}

void Region::forget() {
  for (const Part& part : parts_)
    if (part.mapped != nullptr) ::munmap(part.mapped, part.mapped_size);
  parts_.clear();
}

}  // namespace amem::rdma
