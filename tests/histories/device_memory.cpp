#include "tests/histories/device_memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/fuzz/check.h"
#include "tests/fuzz/world.h"

namespace amem::histories {

bool has_bytes(const Fd& fd, std::uint64_t size, std::uint8_t value) {
  static std::string bytes;  // kept: all of everything is looked at after each event
  bytes.resize(std::max(bytes.size(), size));
  return ::pread(fd.get(), bytes.data(), size, 0) == static_cast<ssize_t>(size) &&
         static_cast<std::uint8_t>(bytes[0]) == value &&
         std::memcmp(bytes.data(), bytes.data() + 1, size - 1) == 0;  // each is as the next
}

Result<CreatedMemory> made_on(const DeviceUuid& device, std::uint64_t size) {
  const Devices& devices = fuzz::Ground::get().devices();
  return devices.create(*devices.find(device), size, false);
}

bool same_memory(const Fd& a, const Fd& b) {
  struct stat one {};
  struct stat other {};
  return ::fstat(a.get(), &one) == 0 && ::fstat(b.get(), &other) == 0 &&
         one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

void fill(const Fd& fd, std::uint64_t size, std::uint8_t value) {
  const std::string bytes(size, static_cast<char>(value));
  fuzz::require(::pwrite(fd.get(), bytes.data(), size, 0) == static_cast<ssize_t>(size),
                "memory can be written");
}

}  // namespace amem::histories
