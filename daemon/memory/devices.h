// Devices: the node's GPUs, by UUID, and the making of physical memory on them.
//
// The broker calls cuInit and never has a context: physical memory is created and exported, and
// once its handle is released one descriptor is all that keeps it alive. Nothing here clears
// memory; ranks do.
//
// Filled once by open(), read-only afterwards; create() may be called from any thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "common/protocol.h"
#include "common/status.h"

namespace amem {

struct Device {
  DeviceUuid uuid;
  int ordinal = 0;  // in the broker, which sees all devices
  std::string name;
  std::uint64_t total = 0;        // bytes
  std::uint64_t granularity = 0;  // of cuMemCreate, with gpuDirectRDMACapable set
  int numa_node = -1;             // of the host, -1 unknown
  bool host_numa = false;         // cuMem host memory can be mapped on it
};

/// The driver's handle of memory that was made here: it keeps the memory alive as a descriptor
/// does, and is released at its end. Movable; the driver outlives it.
class MemoryHandle {
 public:
  MemoryHandle(const Driver& driver, CUmemGenericAllocationHandle handle)
      : driver_(&driver), handle_(handle) {}
  MemoryHandle(MemoryHandle&& other) noexcept
      : driver_(other.driver_), handle_(std::exchange(other.handle_, 0)) {}
  MemoryHandle& operator=(MemoryHandle&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~MemoryHandle();

 private:
  const Driver* driver_;
  CUmemGenericAllocationHandle handle_;  // 0: none
};

/// Physical memory: a descriptor (close-on-exec), and the handle that it was made with.
struct CreatedMemory {
  Fd fd;
  MemoryHandle handle;
};

class Devices {
 public:
  /// Loads the driver, initialises it and looks at every device. kUnavailable: no driver or no
  /// device; the text says what to do.
  /// REQUIRES: CUDA_VISIBLE_DEVICES is not set, and no other thread runs.
  Status open();

  const std::vector<Device>& all() const { return devices_; }
  /// Bytes of all devices.
  std::uint64_t total() const;
  const Device* find(const DeviceUuid& uuid) const;
  /// Returns the host's NUMA node nearest to the device; -1: unknown.
  int numa_node(const DeviceUuid& uuid) const;
  const Driver& driver() const { return driver_; }
  /// In which of its lanes (daemon/holder/wire.h) the holder closes memory of this device.
  std::uint32_t lane(const DeviceUuid& uuid) const;

  /// Physical memory on `device`. Who hands the descriptor on at once may keep the handle until
  /// that is done: releasing it takes time of the driver's, and slows down those who import.
  /// kResourceExhausted: the device is full. kInvalidArgument: size is not a multiple of the
  /// granularity. Memory that was asked for with gpu_direct_rdma and cannot be made so is an error.
  Result<CreatedMemory> create(const Device& device, std::uint64_t size,
                               bool gpu_direct_rdma) const;

  /// Checks what a process says is memory of `device` that it has made. kInvalidArgument: the
  /// descriptor is of something else, or size is not a multiple of the granularity.
  Status check(const Device& device, std::uint64_t size, const Fd& fd) const;

  /// The NUMA nodes of the devices; empty when unknown.
  std::set<int> numa_nodes() const;

  /// Pinned host memory on a NUMA node, which its descriptor alone keeps alive. kUnimplemented: not
  /// supported here.
  Result<Fd> create_host(int numa_node, std::uint64_t size) const;
  /// Whether create_host() can work: every device maps such memory.
  bool host_memory_supported() const;
  /// The device to which the driver counts memory of create_host(): the first that its maker sees
  /// (measured with driver 580). A process that maps such memory opens that device, also where
  /// CUDA_VISIBLE_DEVICES hides it, and one that may not open it cannot map it. Zeros: no device.
  DeviceUuid host_memory_device() const;

 private:
  Status inspect(int ordinal, Device& device) const;
  static Status check_size(const Device& device, std::uint64_t size);
  /// `what` makes the text of an error.
  template <class What>
  Result<CreatedMemory> create_and_export(const CUmemAllocationProp& properties, std::uint64_t size,
                                          const What& what) const;

  Driver driver_;
  std::vector<Device> devices_;
};

}  // namespace amem
