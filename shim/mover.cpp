#include "shim/mover.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace amem::shim {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Status Mover::add_segment(const amem_v1_PoolSegment& message, Fd fd) {
  Segment segment;
  segment.size = message.size;
  segment.memfd = message.memfd;
  const std::string what = "pool segment " + std::to_string(message.index);
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
    CUresult r = driver_.cuMemAddressReserve_(&segment.address, segment.size, 0, 0, 0);
    if (r == CUDA_SUCCESS) r = driver_.cuMemMap_(segment.address, segment.size, 0, handle, 0);
    driver_.cuMemRelease_(handle);
    if (r != CUDA_SUCCESS) return driver_.error(r, "mapping " + what);
  }
  Segment& added = segments_[message.index] = std::move(segment);
  for (int device : prepared_)
    if (Status s = grant(added, device); !s.ok()) return s;
  return {};
}

Status Mover::prepare(int device) {
  if (contains(prepared_, device)) return {};
  prepared_.push_back(device);
  if (Result<CUstream> s = stream(device); !s.ok()) return s.status();
  for (auto& [index, segment] : segments_)
    if (Status s = grant(segment, device); !s.ok()) return s;
  return {};
}

void Mover::forget(int device) {
  streams_.erase(device);
  std::erase(prepared_, device);
}

Status Mover::grant(Segment& segment, int device) {
  if (contains(segment.reachable_from, device)) return {};
  Devices::Use use(devices_, device);
  if (use.result() != CUDA_SUCCESS)
    return driver_.error(use.result(), "the context of device " + std::to_string(device));
  CUresult r = CUDA_SUCCESS;
  if (segment.memfd) {
    // Portable registration reaches every context of the process, so once is enough.
    if (segment.reachable_from.empty())
      r = driver_.cuMemHostRegister_(reinterpret_cast<void*>(segment.address), segment.size,
                                     CU_MEMHOSTREGISTER_PORTABLE);
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

Result<CUstream> Mover::stream(int device) {
  if (const auto it = streams_.find(device); it != streams_.end()) return it->second;
  Devices::Use use(devices_, device);
  CUstream stream = nullptr;
  CUresult r = use.result();
  if (r == CUDA_SUCCESS) r = driver_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING);
  if (r != CUDA_SUCCESS)
    return driver_.error(r, "a stream for copies on device " + std::to_string(device));
  streams_[device] = stream;
  return stream;
}

Result<CUdeviceptr> Mover::pool_address(const amem_v1_Copy& copy, int device) {
  const auto it = segments_.find(copy.segment);
  if (it == segments_.end())
    return Status(Code::kInternal, "no pool segment " + std::to_string(copy.segment));
  Segment& segment = it->second;
  if (copy.segment_offset > segment.size || copy.length > segment.size - copy.segment_offset)
    return Status(Code::kInternal,
                  "a copy reaches beyond pool segment " + std::to_string(copy.segment));
  if (Status s = grant(segment, device); !s.ok()) return s;
  return segment.address + copy.segment_offset;
}

Status Mover::copy(const amem_v1_Copy& copy, bool to_pool) {
  Result<Memory::Site> site = memory_.site(copy.id);
  if (!site.ok()) return site.status();
  const int device = site.value().device;
  Result<CUstream> stream = this->stream(device);
  if (!stream.ok()) return stream.status();
  const CUdeviceptr at = site.value().address + copy.offset;

  if (bytes_ == 0) copies_began_ = SteadyClock::now();
  Devices::Use use(devices_, device);
  CUresult r = use.result();
  if (r == CUDA_SUCCESS && !to_pool && copy.segment == kZeroSegment) {
    r = driver_.cuMemsetD8Async_(at, 0, copy.length, stream.value());
  } else if (r == CUDA_SUCCESS) {
    Result<CUdeviceptr> pool = pool_address(copy, device);
    if (!pool.ok()) return pool.status();
    void* host = reinterpret_cast<void*>(pool.value());
    r = to_pool ? driver_.cuMemcpyDtoHAsync_(host, at, copy.length, stream.value())
                : driver_.cuMemcpyHtoDAsync_(at, host, copy.length, stream.value());
  }
  if (r != CUDA_SUCCESS)
    return driver_.error(r, std::string(to_pool ? "saving" : "loading") + " " +
                                std::to_string(copy.length) + " bytes of allocation " +
                                std::to_string(copy.id) + " on device " + std::to_string(device));
  bytes_ += copy.length;
  return {};
}

Status Mover::save(const amem_v1_Copies& copies) {
  for (pb_size_t i = 0; i < copies.copies_count; ++i)
    if (Status s = copy(copies.copies[i], true); !s.ok()) return s;
  return {};
}

Status Mover::load(const amem_v1_Copies& copies) {
  for (pb_size_t i = 0; i < copies.copies_count; ++i) {
    // A program that runs while its memory comes back may have freed this meanwhile.
    if (!memory_.holds(copies.copies[i].id)) continue;
    if (Status s = copy(copies.copies[i], false); !s.ok()) return s;
  }
  return {};
}

Status Mover::finish(std::uint64_t& bytes) {
  Status result;
  for (const auto& [device, stream] : streams_) {
    Devices::Use use(devices_, device);
    CUresult r = use.result();
    if (r == CUDA_SUCCESS) r = driver_.cuStreamSynchronize_(stream);
    if (r != CUDA_SUCCESS && result.ok())
      result = driver_.error(r, "copies on device " + std::to_string(device));
  }
  copy_time_ = bytes_ > 0 ? SteadyClock::now() - copies_began_ : SteadyClock::duration();
  memory_.drop_scratch();
  bytes = std::exchange(bytes_, 0);
  return result;
}

}  // namespace amem::shim
