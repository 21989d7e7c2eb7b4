#include "daemon/memory/devices.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/base/units.h"
#include "daemon/memory/in_driver.h"

namespace amem {
namespace {

CUmemAllocationProp device_properties(int ordinal, bool gpu_direct_rdma) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  properties.allocFlags.gpuDirectRDMACapable = gpu_direct_rdma ? 1 : 0;
  return properties;
}

std::string describe(const Device& device) {
  return "device " + std::to_string(device.ordinal) + " (" + to_string(device.uuid) + ")";
}

}  // namespace

Status Devices::open() {
  if (Status status = driver_.load(); !status.ok())
    return {status.code(), status.text() +
                               ". amemd requires the NVIDIA driver. In a container, provide the "
                               "driver's libraries (--gpus all)"};
  const CUresult initialised = driver_.cuInit_(0);
  if (initialised == CUDA_ERROR_NO_DEVICE)
    return {Code::kUnavailable,
            "the CUDA driver finds no device (cuInit: " + driver_.name(initialised) +
                "). Check that /dev/nvidia0 exists"};
  if (initialised != CUDA_SUCCESS)
    return {Code::kUnavailable,
            "the CUDA driver does not start: cuInit: " + driver_.name(initialised)};
  int count = 0;
  if (const CUresult result = driver_.cuDeviceGetCount_(&count); result != CUDA_SUCCESS)
    return driver_.error(result, "cuDeviceGetCount");
  if (count == 0) return {Code::kUnavailable, "the CUDA driver finds no device"};
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Device device;
    if (Status status = inspect(ordinal, device); !status.ok()) return status;
    devices_.push_back(std::move(device));
  }
  return {};
}

Status Devices::inspect(int ordinal, Device& device) const {
  const std::string which = "device " + std::to_string(ordinal);
  device.ordinal = ordinal;
  CUdevice handle = 0;
  if (const CUresult r = driver_.cuDeviceGet_(&handle, ordinal); r != CUDA_SUCCESS)
    return driver_.error(r, which + ": cuDeviceGet");
  CUuuid uuid{};
  if (const CUresult r = driver_.cuDeviceGetUuid_(&uuid, handle); r != CUDA_SUCCESS)
    return driver_.error(r, which + ": cuDeviceGetUuid");
  device.uuid = make_uuid(uuid.bytes);
  char name[128] = {};
  if (const CUresult r = driver_.cuDeviceGetName_(name, sizeof name - 1, handle); r != CUDA_SUCCESS)
    return driver_.error(r, which + ": cuDeviceGetName");
  device.name = name;
  std::size_t total = 0;
  if (const CUresult r = driver_.cuDeviceTotalMem_(&total, handle); r != CUDA_SUCCESS)
    return driver_.error(r, which + ": cuDeviceTotalMem");
  device.total = total;

  const CUmemAllocationProp properties = device_properties(ordinal, true);
  std::size_t granularity = 0;
  if (const CUresult r = driver_.cuMemGetAllocationGranularity_(&granularity, &properties,
                                                                CU_MEM_ALLOC_GRANULARITY_MINIMUM);
      r != CUDA_SUCCESS)
    return driver_.error(r, which + ": cuMemGetAllocationGranularity");
  device.granularity = granularity;

  // An attribute that this driver does not know reads as "no".
  int value = 0;
  if (driver_.cuDeviceGetAttribute_(&value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, handle) ==
      CUDA_SUCCESS)
    device.numa_node = value;
  value = 0;
  device.host_numa = driver_.cuDeviceGetAttribute_(
                         &value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                         handle) == CUDA_SUCCESS &&
                     value != 0;
  return {};
}

std::uint64_t Devices::total() const {
  std::uint64_t bytes = 0;
  for (const Device& device : devices_) bytes += device.total;
  return bytes;
}

int Devices::numa_node(const DeviceUuid& uuid) const {
  const Device* device = find(uuid);
  return device != nullptr ? device->numa_node : -1;
}

std::uint32_t Devices::lane(const DeviceUuid& uuid) const {
  const Device* device = find(uuid);
  return device != nullptr ? static_cast<std::uint32_t>(device->ordinal) + 1 : 0;
}

const Device* Devices::find(const DeviceUuid& uuid) const {
  const auto it = std::find_if(devices_.begin(), devices_.end(),
                               [&](const Device& device) { return device.uuid == uuid; });
  return it != devices_.end() ? &*it : nullptr;
}

MemoryHandle::~MemoryHandle() {
  if (handle_ == 0) return;
  const InDriver timed;
  if (const CUresult r = driver_->cuMemRelease_(handle_); r != CUDA_SUCCESS)
    spdlog::error("cuMemRelease: {}. The memory stays allocated until amemd ends",
                  driver_->name(r));
}

template <class What>
Result<CreatedMemory> Devices::create_and_export(const CUmemAllocationProp& properties,
                                                 std::uint64_t size, const What& what) const {
  const InDriver timed;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver_.cuMemCreate_(&handle, size, &properties, 0);
  if (result == CUDA_ERROR_NOT_SUPPORTED)
    return Status(Code::kUnimplemented, what() + ": cuMemCreate: " + driver_.name(result));
  if (result != CUDA_SUCCESS) return driver_.error(result, what() + ": cuMemCreate");
  MemoryHandle created(driver_, handle);
  int fd = -1;
  result = driver_.cuMemExportToShareableHandle_(&fd, handle,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) {
    Status status = driver_.error(result, what() + ": cuMemExportToShareableHandle");
    if (result != CUDA_ERROR_OPERATING_SYSTEM) return status;
    return Status(status.code(), status.text() +
                                     ". amemd may have reached its limit of open files, one for "
                                     "each allocation. Raise the limit (LimitNOFILE, ulimit -Hn)");
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return CreatedMemory{Fd(fd), std::move(created)};
}

Status Devices::check_size(const Device& device, std::uint64_t size) {
  if (size != 0 && size % device.granularity == 0) return {};
  return {Code::kInvalidArgument, "an allocation of " + std::to_string(size) + " bytes on " +
                                      describe(device) + ": the size must be a multiple of " +
                                      std::to_string(device.granularity)};
}

Result<CreatedMemory> Devices::create(const Device& device, std::uint64_t size,
                                      bool gpu_direct_rdma) const {
  if (Status status = check_size(device, size); !status.ok()) return status;
  return create_and_export(device_properties(device.ordinal, gpu_direct_rdma), size, [&] {
    return format_size(size) + " on " + describe(device) +
           (gpu_direct_rdma ? ", RDMA-capable" : "");
  });
}

Status Devices::check(const Device& device, std::uint64_t size, const Fd& fd) const {
  if (Status status = check_size(device, size); !status.ok()) return status;
  const InDriver timed;
  const auto refused = [&](const std::string& why) {
    return Status(Code::kInvalidArgument,
                  format_size(size) + " that a rank has made: its descriptor is not memory of " +
                      describe(device) + ": " + why);
  };
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver_.cuMemImportFromShareableHandle_(
      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS)
    return refused("cuMemImportFromShareableHandle: " + driver_.name(result));
  const MemoryHandle imported(driver_, handle);
  CUmemAllocationProp properties{};
  result = driver_.cuMemGetAllocationPropertiesFromHandle_(&properties, handle);
  if (result != CUDA_SUCCESS)
    return refused("cuMemGetAllocationPropertiesFromHandle: " + driver_.name(result));
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      properties.location.id != device.ordinal)
    return refused("it is on another device");
  return {};
}

std::set<int> Devices::numa_nodes() const {
  std::set<int> nodes;
  for (const Device& device : devices_)
    if (device.numa_node >= 0) nodes.insert(device.numa_node);
  return nodes;
}

Result<Fd> Devices::create_host(int numa_node, std::uint64_t size) const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  properties.location.id = numa_node;
  Result<CreatedMemory> made = create_and_export(properties, size, [&] {
    return format_size(size) + " of host memory on NUMA node " + std::to_string(numa_node);
  });
  if (!made.ok()) return made.status();
  return std::move(made.value().fd);
}

bool Devices::host_memory_supported() const {
  return std::all_of(devices_.begin(), devices_.end(),
                     [](const Device& device) { return device.host_numa; });
}

DeviceUuid Devices::host_memory_device() const {
  return devices_.empty() ? DeviceUuid{} : devices_.front().uuid;
}

}  // namespace amem
