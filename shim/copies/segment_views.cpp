#include "shim/copies/segment_views.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

// Debian 12's and Ubuntu 24.04's headers have it; those of older systems do not.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace amem::shim {
namespace {

class HostNumaView final : public SegmentView {
 public:
  using SegmentView::SegmentView;

  Status map(const Fd& fd, const std::string& what) override {
    CUmemGenericAllocationHandle handle = 0;
    if (CUresult r = driver_.cuMemImportFromShareableHandle_(
            &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        r != CUDA_SUCCESS)
      return driver_.error(r, "importing " + what);
    CUmemAllocationProp properties{};
    if (driver_.cuMemGetAllocationPropertiesFromHandle_(&properties, handle) == CUDA_SUCCESS)
      location_ = properties.location;
    // Saved bytes are known by their addresses, so a segment that was detached has it still.
    CUresult r =
        address_ != 0 ? CUDA_SUCCESS : driver_.cuMemAddressReserve_(&address_, size_, 0, 0, 0);
    if (r == CUDA_SUCCESS) {
      r = driver_.cuMemMap_(address_, size_, 0, handle, 0);
      if (r != CUDA_SUCCESS && !detached_) {
        driver_.cuMemAddressFree_(address_, size_);
        address_ = 0;
      }
    }
    driver_.cuMemRelease_(handle);
    if (r != CUDA_SUCCESS) return driver_.error(r, "mapping " + what);
    detached_ = readable_ = false;
    return {};
  }
  /// A process that has imported memory mapped cannot be checkpointed.
  bool must_detach() const override { return true; }
  Status detach() override {
    if (const CUresult r = driver_.cuMemUnmap_(address_, size_); r != CUDA_SUCCESS)
      return driver_.error(r, "unmapping a segment of the host pool");
    detached_ = true;
    readable_ = false;
    return {};
  }
  Status unmap() override {
    if (!detached_)
      if (Status s = detach(); !s.ok()) return s;
    driver_.cuMemAddressFree_(address_, size_);
    return {};
  }
  CUresult grant(int device) override {
    return allow({CU_MEM_LOCATION_TYPE_DEVICE, {device}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  bool forget(int) override { return false; }
  CUresult let_cpu_read() override {
    if (readable_) return CUDA_SUCCESS;
    const CUresult r = allow(location_, CU_MEM_ACCESS_FLAGS_PROT_READ);
    readable_ = r == CUDA_SUCCESS;
    return r;
  }

 private:
  CUresult allow(CUmemLocation whom, CUmemAccess_flags what) {
    CUmemAccessDesc access{};
    access.location = whom;
    access.flags = what;
    return driver_.cuMemSetAccess_(address_, size_, &access, 1);
  }

  CUmemLocation location_{CU_MEM_LOCATION_TYPE_HOST, {0}};
  bool readable_ = false;
};

template <class View>
std::unique_ptr<SegmentView> make(const Driver& driver, std::uint64_t size) {
  return std::make_unique<View>(driver, size);
}

// The table of views: one for each place.
constexpr std::array kViews = {
    std::pair{Place::kHostNuma, &make<HostNumaView>},
    std::pair{Place::kMemfd, &make<MemfdView>},
#ifdef AMEM_TEST_SEAMS
    std::pair{Place::kPageable, &make_test_view},
#endif
};
static_assert(kViews.size() == kPlaces.size());

}  // namespace

Status MemfdView::map(const Fd& fd, const std::string& what) {
  void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return errno_status(Code::kInternal, "mapping " + what, errno);
  // A child that the program forks has no use for it, and would keep the memory after amemd's end.
  ::madvise(at, size_, MADV_DONTFORK);
  address_ = reinterpret_cast<CUdeviceptr>(at);
  return {};
}

CUresult MemfdView::register_once(CUdeviceptr at, int device) {
  if (registered_by_ != -1) return CUDA_SUCCESS;
  // The driver faults the pages in one by one, which takes several times as long. Linux before 5.14
  // cannot do it at once.
  ::madvise(reinterpret_cast<void*>(at), size_, MADV_POPULATE_READ);
  const CUresult r =
      driver_.cuMemHostRegister_(reinterpret_cast<void*>(at), size_, CU_MEMHOSTREGISTER_PORTABLE);
  if (r == CUDA_SUCCESS) registered_by_ = device;
  return r;
}

Status MemfdView::unmap(CUdeviceptr registered) {
  if (registered_by_ != -1)
    if (const CUresult r = driver_.cuMemHostUnregister_(reinterpret_cast<void*>(registered));
        r != CUDA_SUCCESS)
      return driver_.error(r, "unregistering a segment of the host pool");
  registered_by_ = -1;
  ::munmap(reinterpret_cast<void*>(address_), size_);
  return {};
}

bool MemfdView::forget(int device) {
  if (registered_by_ != device) return false;
  registered_by_ = -1;
  return true;
}

std::unique_ptr<SegmentView> make_view(Place place, const Driver& driver, std::uint64_t size) {
  const auto* const view = std::find_if(kViews.begin(), kViews.end(),
                                        [&](const auto& each) { return each.first == place; });
  return view->second(driver, size);
}

}  // namespace amem::shim
