// Nvml: how much memory of a device is in use, by everybody, as the management library says.
//
// libnvidia-ml.so.1 is opened at run time; where it is missing the broker does without: usage is
// unknown and a resume is admitted unseen. Read-only after open(); any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "common/protocol.h"
#include "common/status.h"
#include "daemon/memory/devices.h"

namespace amem {

struct MemoryUse {
  std::uint64_t total = 0;  // bytes
  std::uint64_t used = 0;
  std::uint64_t free = 0;
};

class Nvml {
 public:
  Nvml() = default;
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// kUnavailable: no library, or it does not start; the object is usable and knows nothing.
  Status open(const Devices& devices);

  /// Nothing when unknown.
  std::optional<MemoryUse> memory(const DeviceUuid& uuid) const;
  /// N of /dev/nvidiaN; nothing when unknown.
  std::optional<unsigned> minor(const DeviceUuid& uuid) const;

 private:
  // What we use of nvml.h, so that no header of it is needed.
  struct Memory {
    unsigned long long total, free, used;
  };
  using Handle = void*;
  using Call = int (*)();
  using HandleByUuid = int (*)(const char* uuid, Handle* device);
  using MemoryInfo = int (*)(Handle device, Memory* memory);
  using MinorNumber = int (*)(Handle device, unsigned* minor);

  Call shutdown_ = nullptr;
  MemoryInfo memory_info_ = nullptr;
  MinorNumber minor_number_ = nullptr;
  std::map<DeviceUuid, Handle> handles_;
};

}  // namespace amem
