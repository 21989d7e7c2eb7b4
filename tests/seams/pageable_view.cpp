// PageableView: a place for tests: no device reaches the segment. Copies on a device find the bytes
// in a mirror of it, registered memory of this process, which only this view knows. What comes back
// right has been carried between the two by it, and by nothing else. Service thread only.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "shim/phases/segment_views.h"

namespace amem::shim {
namespace {

class PageableView final : public SegmentView {
 public:
  using SegmentView::SegmentView;

  Status map(const Fd& fd, const std::string& what) override {
    void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) return errno_status(Code::kInternal, "mapping " + what, errno);
    address_ = reinterpret_cast<CUdeviceptr>(at);
    return {};
  }
  CUresult grant(int device) override {
    if (registered_by_ != -1) return CUDA_SUCCESS;
    if (mirror_ == MAP_FAILED)
      mirror_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mirror_ == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult r = driver_.cuMemHostRegister_(mirror_, size_, CU_MEMHOSTREGISTER_PORTABLE);
    if (r == CUDA_SUCCESS) registered_by_ = device;
    return r;
  }
  bool forget(int device) override {
    if (registered_by_ != device) return false;
    registered_by_ = -1;
    return true;
  }

  Result<CUdeviceptr> stage(std::uint64_t offset, std::uint64_t bytes, bool load) override {
    if (load)
      std::memcpy(in_mirror(offset), in_segment(offset), bytes);
    else
      saved_.push_back({offset, bytes});
    return reinterpret_cast<CUdeviceptr>(in_mirror(offset));
  }
  void settle() override {
    for (const Range& each : saved_)
      std::memcpy(in_segment(each.offset), in_mirror(each.offset), each.bytes);
    saved_.clear();
    if (mirror_ != MAP_FAILED) std::memset(mirror_, 0xee, size_);
  }

 private:
  struct Range {
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  void* in_mirror(std::uint64_t offset) const { return static_cast<char*>(mirror_) + offset; }
  void* in_segment(std::uint64_t offset) const {
    return reinterpret_cast<void*>(address_ + offset);
  }

  void* mirror_ = MAP_FAILED;  // of the segment; nothing of it outlives a phase
  int registered_by_ = -1;     // the device in whose context the mirror is registered
  std::vector<Range> saved_;
};

}  // namespace

std::unique_ptr<SegmentView> make_test_view(const Driver& driver, std::uint64_t size) {
  return std::make_unique<PageableView>(driver, size);
}

}  // namespace amem::shim
