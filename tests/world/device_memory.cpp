#include "tests/world/device_memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/world/check.h"

namespace amem::world {

bool has_bytes(const Fd& fd, std::uint64_t size, std::uint8_t value) {
  static std::string bytes;  // kept: all of everything is looked at after each event
  bytes.resize(std::max(bytes.size(), size));
  return ::pread(fd.get(), bytes.data(), size, 0) == static_cast<ssize_t>(size) &&
         static_cast<std::uint8_t>(bytes[0]) == value &&
         std::memcmp(bytes.data(), bytes.data() + 1, size - 1) == 0;  // each is as the next
}

Result<CreatedMemory> made_on(const Devices& devices, const DeviceUuid& device, std::uint64_t size,
                              bool gpu_direct_rdma) {
  return devices.create(*devices.find(device), size, gpu_direct_rdma);
}

MemoryId memory_id(const Fd& fd) {
  struct stat is {};
  require(::fstat(fd.get(), &is) == 0, "a descriptor of memory is open");
  return {is.st_dev, is.st_ino};
}

std::string read_bytes(const Fd& fd, std::uint64_t offset, std::uint64_t length) {
  std::string bytes(length, '\0');
  require(::pread(fd.get(), bytes.data(), length, static_cast<off_t>(offset)) ==
              static_cast<ssize_t>(length),
          "bytes are read");
  return bytes;
}

void write_bytes(const Fd& fd, std::uint64_t offset, const std::string& bytes) {
  require(::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
              static_cast<ssize_t>(bytes.size()),
          "bytes are written");
}

void fill(const Fd& fd, std::uint64_t size, std::uint8_t value) {
  write_bytes(fd, 0, std::string(size, static_cast<char>(value)));
}

}  // namespace amem::world
