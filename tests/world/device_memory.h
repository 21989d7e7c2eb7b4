// What ranks do with the simulated driver's memory, by its descriptors.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <string>

#include "common/fd.h"
#include "daemon/memory/devices.h"

namespace amem::world {

bool has_bytes(const Fd& fd, std::uint64_t size, std::uint8_t value);
std::string read_bytes(const Fd& fd, std::uint64_t offset, std::uint64_t length);
void write_bytes(const Fd& fd, std::uint64_t offset, const std::string& bytes);
void fill(const Fd& fd, std::uint64_t size, std::uint8_t value);
/// kResourceExhausted: there is no space.
Result<CreatedMemory> made_on(const Devices& devices, const DeviceUuid& device, std::uint64_t size,
                              bool gpu_direct_rdma = false);
/// What memory it is, whoever has a descriptor of it.
struct MemoryId {
  dev_t device = 0;
  ino_t inode = 0;
  friend auto operator<=>(const MemoryId&, const MemoryId&) = default;
};
MemoryId memory_id(const Fd& fd);

}  // namespace amem::world
