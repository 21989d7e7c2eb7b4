// PageableView: a place for tests: no device reaches the segment. Copies on a device find the bytes
// in a mirror of it, registered memory of this process, which only this view knows. What comes back
// right has been carried between the two by it, and by nothing else. Service thread only.
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "shim/copies/segment_views.h"

namespace amem::shim {
namespace {

class PageableView final : public MemfdView {
 public:
  using MemfdView::MemfdView;

  Status unmap() override {
    if (Status s = MemfdView::unmap(reinterpret_cast<CUdeviceptr>(mirror_)); !s.ok()) return s;
    if (mirror_ != MAP_FAILED) ::munmap(mirror_, size_);
    return {};
  }
  CUresult grant(int device) override {
    if (mirror_ == MAP_FAILED)
      mirror_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mirror_ == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    return register_once(reinterpret_cast<CUdeviceptr>(mirror_), device);
  }

  Result<CUdeviceptr> staged_at(std::uint64_t offset, std::uint64_t bytes, Use use) override {
    if (use != Use::kWrite) std::memcpy(in_mirror(offset), in_segment(offset), bytes);
    if (use != Use::kRead) saved_.push_back({offset, bytes});
    return reinterpret_cast<CUdeviceptr>(in_mirror(offset));
  }
  void end_copies() override {
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
  std::vector<Range> saved_;
};

}  // namespace

std::unique_ptr<SegmentView> make_test_view(const Driver& driver, std::uint64_t size) {
  return std::make_unique<PageableView>(driver, size);
}

}  // namespace amem::shim
