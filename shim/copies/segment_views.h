// SegmentView: this process's view of a segment of the host pool: how it is mapped, what makes it
// accessible to a device and to the CPU, and where a copy finds its bytes. There is one class for
// each place (common/place.h). Service thread only.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/driver.h"
#include "common/fd.h"
#include "common/place.h"
#include "common/status.h"

namespace amem::shim {

class SegmentView {
 public:
  /// What copies on a device do with bytes of the segment.
  enum class Use : std::uint8_t {
    kRead,
    kWrite,   // all of them
    kUpdate,  // some of them; the others stay
  };

  SegmentView(const Driver& driver, std::uint64_t size) : driver_(driver), size_(size) {}
  /// The memory stays the broker's; what is mapped stays mapped until unmap(), or until the process
  /// ends.
  virtual ~SegmentView() = default;
  SegmentView(const SegmentView&) = delete;
  SegmentView& operator=(const SegmentView&) = delete;

  /// Once, before all others, and again after detach(): at the same address. `what`: the segment,
  /// for errors.
  virtual Status map(const Fd& fd, const std::string& what) = 0;
  /// The driver does not checkpoint a process that has this mapped.
  virtual bool must_detach() const { return false; }
  /// Unmaps it. REQUIRES: must_detach(), and no copy is under way.
  virtual Status detach() { return {}; }
  /// For good. After an error it is as before. REQUIRES: no copy is under way, and the context of
  /// the device that was first granted access is current, if one was.
  virtual Status unmap() = 0;
  /// Lets a device reach it. REQUIRES: the device's context is current.
  virtual CUresult grant(int device) = 0;
  /// The program has reset this device. True: other devices reach the segment no more either.
  virtual bool forget(int device) = 0;
  /// Lets this process's own code read it at address().
  virtual CUresult let_cpu_read() { return CUDA_SUCCESS; }
  /// Where copies on a device find these bytes until end_copies(). REQUIRES: the device was granted
  /// access.
  virtual Result<CUdeviceptr> staged_at(std::uint64_t offset, std::uint64_t /*bytes*/,
                                        Use /*use*/) {
    return address_ + offset;
  }
  /// All copies to and from what was staged have ended.
  virtual void end_copies() {}

  /// Between detach() and the next map().
  bool detached() const { return detached_; }
  CUdeviceptr address() const { return address_; }
  std::uint64_t size() const { return size_; }

 protected:
  const Driver& driver_;
  const std::uint64_t size_;
  CUdeviceptr address_ = 0;
  bool detached_ = false;
};

/// A segment in a memfd, which this process maps and registers with the driver.
class MemfdView : public SegmentView {
 public:
  using SegmentView::SegmentView;

  Status map(const Fd& fd, const std::string& what) override;
  Status unmap() override { return unmap(address_); }
  CUresult grant(int device) override { return register_once(address_, device); }
  bool forget(int device) override;

 protected:
  /// Registers size() bytes there. A portable registration reaches every context of the process, so
  /// once is enough, and it goes with the context that has made it.
  CUresult register_once(CUdeviceptr at, int device);
  /// With the registration there, if there is one.
  Status unmap(CUdeviceptr registered);

 private:
  int registered_by_ = -1;  // in this device's context
};

/// Returns the view of a segment in this place.
std::unique_ptr<SegmentView> make_view(Place place, const Driver& driver, std::uint64_t size);
#ifdef AMEM_TEST_SEAMS
std::unique_ptr<SegmentView> make_test_view(const Driver& driver, std::uint64_t size);
#endif

}  // namespace amem::shim
