#include "daemon/memory/nvml.h"

#include <dlfcn.h>

#include <string>

#include "daemon/memory/in_driver.h"

namespace amem {

Status Nvml::open(const Devices& devices) {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return {Code::kUnavailable, why != nullptr ? why : "libnvidia-ml.so.1 cannot be opened"};
  }
  const auto init = reinterpret_cast<Call>(::dlsym(library, "nvmlInit_v2"));
  const auto by_uuid =
      reinterpret_cast<HandleByUuid>(::dlsym(library, "nvmlDeviceGetHandleByUUID"));
  const auto info = reinterpret_cast<MemoryInfo>(::dlsym(library, "nvmlDeviceGetMemoryInfo"));
  const auto shutdown = reinterpret_cast<Call>(::dlsym(library, "nvmlShutdown"));
  if (init == nullptr || by_uuid == nullptr || info == nullptr || shutdown == nullptr)
    return {Code::kUnavailable, "libnvidia-ml.so.1 lacks calls that amemd requires"};
  if (const int result = init(); result != 0)
    return {Code::kUnavailable, "nvmlInit_v2 returned " + std::to_string(result)};
  shutdown_ = shutdown;
  memory_info_ = info;
  minor_number_ = reinterpret_cast<MinorNumber>(::dlsym(library, "nvmlDeviceGetMinorNumber"));
  for (const Device& device : devices.all()) {
    Handle handle = nullptr;
    if (by_uuid(to_string(device.uuid).c_str(), &handle) == 0)
      handles_.emplace(device.uuid, handle);
  }
  return {};
}

std::optional<unsigned> Nvml::minor(const DeviceUuid& uuid) const {
  const auto it = handles_.find(uuid);
  unsigned minor = 0;
  if (it == handles_.end() || minor_number_ == nullptr || minor_number_(it->second, &minor) != 0)
    return std::nullopt;
  return minor;
}

Nvml::~Nvml() {
  if (shutdown_ != nullptr) shutdown_();
}

std::optional<MemoryUse> Nvml::memory(const DeviceUuid& uuid) const {
  const auto it = handles_.find(uuid);
  Memory memory{};
  const InDriver timed;
  if (it == handles_.end() || memory_info_(it->second, &memory) != 0) return std::nullopt;
  return MemoryUse{memory.total, memory.used, memory.free};
}

}  // namespace amem
