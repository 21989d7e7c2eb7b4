// A simulated libnvidia-ml.so.1: the node's devices, and the memory that the kernel says is in use.
//
// As in reality it needs no CUDA, sees all processes and ignores CUDA_VISIBLE_DEVICES.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/sim/node/node.h"
#include "tests/sim/node/usage.h"
#include "tests/sim/nvml_sim.h"

#define SIM_NVML extern "C" __attribute__((visibility("default"))) nvmlReturn_t

namespace sim {
namespace {

std::atomic<int> g_users{0};

nvmlDevice_t Handle(int physical) {
  return reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(physical) + 1);
}

int Physical(nvmlDevice_t handle) {
  const auto value = reinterpret_cast<uintptr_t>(handle);
  return value >= 1 && value <= static_cast<uintptr_t>(Node().devices) ? static_cast<int>(value) - 1
                                                                       : -1;
}

nvmlReturn_t CheckDevice(nvmlDevice_t device, const void* out) {
  if (g_users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  return out == nullptr || Physical(device) < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t CopyText(const std::string& text, char* out, unsigned length) {
  if (text.size() + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

uint64_t Used(nvmlDevice_t device) { return UsedBytes()[static_cast<size_t>(Physical(device))]; }

// Other users' memory, or a smaller AMEM_SIM_MEMORY than theirs, can make the use exceed our
// capacity.
uint64_t Free(uint64_t used) { return used < Node().memory ? Node().memory - used : 0; }

}  // namespace
}  // namespace sim

SIM_NVML nvmlInit_v2(void) {
  sim::Node();
  ++sim::g_users;
  return NVML_SUCCESS;
}

SIM_NVML nvmlShutdown(void) {
  int users = sim::g_users.load();
  while (users > 0 && !sim::g_users.compare_exchange_weak(users, users - 1)) {
  }
  return users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
      return "Argument version mismatch";
    case NVML_ERROR_UNKNOWN:
      break;
  }
  return "Unknown Error";
}

SIM_NVML nvmlDeviceGetCount_v2(unsigned* count) {
  if (sim::g_users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = static_cast<unsigned>(sim::Node().devices);
  return NVML_SUCCESS;
}

SIM_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  if (sim::g_users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  if (device == nullptr || index >= static_cast<unsigned>(sim::Node().devices)) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = sim::Handle(static_cast<int>(index));
  return NVML_SUCCESS;
}

SIM_NVML nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (sim::g_users.load() <= 0) return NVML_ERROR_UNINITIALIZED;
  if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < sim::Node().devices; ++i) {
    if (sim::DeviceUuidString(i) != uuid) continue;
    *device = sim::Handle(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

SIM_NVML nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  const nvmlReturn_t result = sim::CheckDevice(device, index);
  if (result == NVML_SUCCESS) *index = static_cast<unsigned>(sim::Physical(device));
  return result;
}

SIM_NVML nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* minor) {
  return nvmlDeviceGetIndex(device, minor);
}

SIM_NVML nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  const nvmlReturn_t result = sim::CheckDevice(device, uuid);
  if (result != NVML_SUCCESS) return result;
  return sim::CopyText(sim::DeviceUuidString(sim::Physical(device)), uuid, length);
}

SIM_NVML nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  const nvmlReturn_t result = sim::CheckDevice(device, name);
  return result != NVML_SUCCESS ? result : sim::CopyText(sim::kDeviceName, name, length);
}

SIM_NVML nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const nvmlReturn_t result = sim::CheckDevice(device, memory);
  if (result != NVML_SUCCESS) return result;
  memory->total = sim::Node().memory;
  memory->used = sim::Used(device);
  memory->free = sim::Free(memory->used);
  return NVML_SUCCESS;
}

SIM_NVML nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  const nvmlReturn_t result = sim::CheckDevice(device, memory);
  if (result != NVML_SUCCESS) return result;
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  memory->total = sim::Node().memory;
  memory->reserved = 0;
  memory->used = sim::Used(device);
  memory->free = sim::Free(memory->used);
  return NVML_SUCCESS;
}
