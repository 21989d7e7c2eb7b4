// Initialisation and devices.
#include <strings.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"
#include "tests/sim/entry/proc_address.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/checkpoint.h"
#include "tests/sim/work/device.h"

namespace sim {
namespace {

int Attribute(CUdevice_attribute attribute, int physical) {
  if (amem::cuda::of_logical_endpoints(attribute)) return 1;
  if (attribute == amem::cuda::kDecompressAlgorithms) return Node().decompresses ? 7 : 0;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return 1980000;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return physical + 1;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      return 0;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return 1;
    default:
      return 0;  // whatever else it is, this device does not have it
  }
}

CUresult CopyUuid(CUuuid* out, CUdevice device) {
  int physical = 0;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(out->bytes, DeviceUuid(physical).data(), sizeof out->bytes);
  return CUDA_SUCCESS;
}

CUresult CopyText(const std::string& text, char* out, int length) {
  if (out == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t n = std::min(text.size(), static_cast<size_t>(length) - 1);
  memcpy(out, text.data(), n);
  out[n] = '\0';
  return CUDA_SUCCESS;
}

CUresult ByPciBusId(CUdevice* out, const char* id) {
  if (out == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < VisibleDevices().size(); ++i) {
    const std::string full = DevicePciBusId(VisibleDevices()[i]);
    // With or without the domain, in either case.
    if (strcasecmp(full.c_str(), id) != 0 && strcasecmp(full.c_str() + 5, id) != 0) continue;
    *out = static_cast<CUdevice>(i);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

bool FindDevice(CUdevice device, int* physical) {
  if (device < 0 || static_cast<size_t>(device) >= VisibleDevices().size()) return false;
  *physical = VisibleDevices()[static_cast<size_t>(device)];
  return true;
}

}  // namespace sim

SIM_API cuInit(unsigned flags) {
  return sim::Call("cuInit", sim::Need::kNothing, [&]() -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim::Initialize();
    static std::once_flag once;
    if (result == CUDA_SUCCESS) std::call_once(once, sim::OfferCheckpoints);
    return result;
  });
}

SIM_API cuDriverGetVersion(int* version) {
  return sim::Call("cuDriverGetVersion", sim::Need::kNothing, [&]() -> CUresult {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = sim::DriverVersion();
    return CUDA_SUCCESS;
  });
}

SIM_CALL(cuDeviceGetCount, (int* count),
         count == nullptr ? CUDA_ERROR_INVALID_VALUE
                          : (*count = static_cast<int>(VisibleDevices().size()), CUDA_SUCCESS))

SIM_CALL(cuDeviceGet, (CUdevice * device, int ordinal), [&] {
  int physical = 0;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(ordinal, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}())

SIM_CALL(cuDeviceGetName, (char* name, int length, CUdevice device), [&] {
  int physical = 0;
  return FindDevice(device, &physical) ? CopyText(kDeviceName, name, length)
                                       : CUDA_ERROR_INVALID_DEVICE;
}())

SIM_CALL(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), CopyUuid(uuid, device))
SIM_CALL(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), CopyUuid(uuid, device))

SIM_CALL(cuDeviceGetPCIBusId, (char* id, int length, CUdevice device), [&] {
  int physical = 0;
  return FindDevice(device, &physical) ? CopyText(DevicePciBusId(physical), id, length)
                                       : CUDA_ERROR_INVALID_DEVICE;
}())

SIM_CALL(cuDeviceGetByPCIBusId, (CUdevice * device, const char* id), ByPciBusId(device, id))

SIM_CALL(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), [&] {
  int physical = 0;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = Node().memory;
  return CUDA_SUCCESS;
}())

SIM_CALL(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device), [&] {
  int physical = 0;
  if (value == nullptr || attribute <= 0 || attribute > AttributesOf(DriverVersion())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  *value = Attribute(attribute, physical);
  return CUDA_SUCCESS;
}())

SIM_CALL(cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer), [&] {
  int first = 0;
  int second = 0;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &first) || !FindDevice(peer, &second)) return CUDA_ERROR_INVALID_DEVICE;
  *can = first != second ? 1 : 0;
  return CUDA_SUCCESS;
}())

SIM_CALL(cuDeviceGetP2PAttribute,
         (int* value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer), [&] {
           int first = 0;
           int second = 0;
           if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
           if (!FindDevice(device, &first) || !FindDevice(peer, &second) || first == second) {
             return CUDA_ERROR_INVALID_DEVICE;
           }
           *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
           return CUDA_SUCCESS;
         }())

SIM_CALL(cuDeviceGetCliqueCount, (size_t * count, CUdevice device), [&] {
  int physical = 0;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  *count = 1;
  return CUDA_SUCCESS;
}())

SIM_CALL(cuDeviceGetTeleportCount, (int* count, CUdevice device), [&] {
  int physical = 0;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  *count = 42;
  return CUDA_SUCCESS;
}())
