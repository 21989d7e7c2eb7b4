#include "shim/phases/pool_view.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "shim/base/log.h"

namespace amem::shim {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Status PoolView::add(const amem_v1_PoolSegment& message, Fd fd) {
  if (const auto known = segments_.find(message.index); known != segments_.end()) {
    if (known->second.size == message.size) return {};
    return {Code::kInternal, "pool segment " + std::to_string(message.index) + " is said to have " +
                                 std::to_string(message.size) + " bytes, and had " +
                                 std::to_string(known->second.size) +
                                 " before: this rank goes on with what it had"};
  }
  Result<Segment> mapped = map(message, fd);
  if (!mapped.ok()) {
    missing_[message.index] = mapped.status();
    return mapped.status();
  }
  missing_.erase(message.index);
  Segment& added = segments_[message.index] = std::move(mapped).value();
  for (int device : prepared_)
    if (Status s = grant(added, device); !s.ok()) return s;
  return {};
}

Result<PoolView::Segment> PoolView::map(const amem_v1_PoolSegment& message, const Fd& fd) {
  Segment segment;
  segment.size = message.size;
  segment.memfd = message.memfd;
  const std::string what = "pool segment " + std::to_string(message.index);
  if (!fd)
    return Status(Code::kResourceExhausted,
                  what + " came without its descriptor" + kNoSpaceForDescriptors);
  if (segment.memfd) {
    void* address = ::mmap(nullptr, segment.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) return errno_status(Code::kInternal, "mapping " + what, errno);
    segment.address = reinterpret_cast<CUdeviceptr>(address);
  } else {
    CUmemGenericAllocationHandle handle = 0;
    if (CUresult r = driver_.cuMemImportFromShareableHandle_(
            &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        r != CUDA_SUCCESS)
      return driver_.error(r, "importing " + what);
    CUmemAllocationProp properties{};
    if (driver_.cuMemGetAllocationPropertiesFromHandle_(&properties, handle) == CUDA_SUCCESS)
      segment.host = properties.location;
    CUresult r = driver_.cuMemAddressReserve_(&segment.address, segment.size, 0, 0, 0);
    if (r == CUDA_SUCCESS) {
      r = driver_.cuMemMap_(segment.address, segment.size, 0, handle, 0);
      if (r != CUDA_SUCCESS) driver_.cuMemAddressFree_(segment.address, segment.size);
    }
    driver_.cuMemRelease_(handle);
    if (r != CUDA_SUCCESS) return driver_.error(r, "mapping " + what);
  }
  return segment;
}

Status PoolView::prepare(int device) {
  if (contains(prepared_, device)) return {};
  prepared_.push_back(device);
  for (auto& [index, segment] : segments_)
    if (Status s = grant(segment, device); !s.ok()) return s;
  return {};
}

void PoolView::forget(int device) {
  std::erase(prepared_, device);
  for (auto& [index, segment] : segments_) {
    std::erase(segment.reachable_from, device);
    // A registration reaches every context, and goes with the one that has made it.
    if (segment.registered_by == device) segment.reachable_from.clear();
    for (const int other : prepared_)
      if (Status s = grant(segment, other); !s.ok()) log_error(s.text());
  }
}

Status PoolView::grant(Segment& segment, int device) {
  if (contains(segment.reachable_from, device)) return {};
  LocalDevices::Use use(devices_, device);
  if (use.result() != CUDA_SUCCESS)
    return driver_.error(use.result(), "the context of device " + std::to_string(device));
  CUresult r = CUDA_SUCCESS;
  if (segment.memfd) {
    // Portable registration reaches every context of the process, so once is enough.
    if (segment.reachable_from.empty()) {
      r = driver_.cuMemHostRegister_(reinterpret_cast<void*>(segment.address), segment.size,
                                     CU_MEMHOSTREGISTER_PORTABLE);
      if (r == CUDA_SUCCESS) segment.registered_by = device;
    }
  } else {
    CUmemAccessDesc desc{};
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    r = driver_.cuMemSetAccess_(segment.address, segment.size, &desc, 1);
  }
  if (r != CUDA_SUCCESS)
    return driver_.error(r, "letting device " + std::to_string(device) + " reach the host pool");
  segment.reachable_from.push_back(device);
  return {};
}

std::uint64_t PoolView::bytes(const amem_v1_Copy& copy) {
  return copy.stored != 0 ? copy.stored : copy.length;
}

Result<CUdeviceptr> PoolView::address(const amem_v1_Copy& copy, int device) {
  const auto it = segments_.find(copy.segment);
  if (it == segments_.end()) {
    const auto why = missing_.find(copy.segment);
    return why != missing_.end()
               ? Status(why->second.code(),
                        why->second.text() + "; the next attempt is given it again")
               : Status(Code::kInternal, "no pool segment " + std::to_string(copy.segment));
  }
  Segment& segment = it->second;
  if (copy.segment_offset > segment.size || bytes(copy) > segment.size - copy.segment_offset)
    return Status(Code::kInternal,
                  "a copy reaches beyond pool segment " + std::to_string(copy.segment));
  if (Status s = grant(segment, device); !s.ok()) return s;
  return segment.address + copy.segment_offset;
}

Result<PoolView::Segment*> PoolView::segment_at(CUdeviceptr pool) {
  const auto it = std::find_if(segments_.begin(), segments_.end(), [&](const auto& entry) {
    const Segment& s = entry.second;
    return pool >= s.address && pool - s.address < s.size;
  });
  if (it == segments_.end())
    return Status(Code::kInternal, "saved bytes in no segment of the pool");
  return &it->second;
}

Status PoolView::let_cpu_read(CUdeviceptr pool) {
  const Result<Segment*> found = segment_at(pool);
  if (!found.ok()) return found.status();
  Segment& segment = *found.value();
  if (segment.memfd || segment.readable) return {};
  CUmemAccessDesc desc{};
  desc.location = segment.host;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (CUresult r = driver_.cuMemSetAccess_(segment.address, segment.size, &desc, 1);
      r != CUDA_SUCCESS)
    return driver_.error(r, "reading saved bytes: letting this process read the host pool");
  segment.readable = true;
  return {};
}

Status PoolView::let_device_reach(CUdeviceptr pool, int device) {
  const Result<Segment*> segment = segment_at(pool);
  return segment.ok() ? grant(*segment.value(), device) : segment.status();
}

}  // namespace amem::shim
