// PoolView: this rank's view of the host pool. Each segment is mapped once, and made accessible to
// a device when the rank begins to use that device, so that no pause pays for it. What that means
// in the segment's place, its view knows (segment_views.h). Service thread only.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "common/status.h"
#include "shim/copies/segment_views.h"
#include "shim/driver/local_devices.h"
#include "shim/session/session.h"

namespace amem::shim {

class PoolView {
 public:
  PoolView(const Driver& driver, LocalDevices& devices) : driver_(driver), devices_(devices) {}

  /// Takes the descriptor; the pool's memory stays the broker's. A segment that is here already
  /// changes nothing; kInternal if that has another size. After an error the copies that need it
  /// fail with that, until the broker has sent it again.
  Status add(const amem_v1_PoolSegment& segment, Fd fd);
  /// The broker needs nothing of it, and may come with another of that number. OK: it is not here,
  /// or not any more. kFailedPrecondition: the program may read it. REQUIRES: no copy is under way.
  Status unmap(std::uint32_t index);
  /// Lets the device reach every segment, also those that come later.
  Status prepare(int device);
  /// The program has reset this device: the registrations of segments in its context have gone.
  void forget(int device);

  /// Where the bytes of a copy lie.
  struct Spot {
    CUdeviceptr address = 0;  // for let_cpu_read() and load_again()
    CUdeviceptr staged = 0;   // for copies on the device, until end_copies()
    std::uint64_t bytes = 0;  // of the pool from there on: it may be shorter than the piece
  };
  Result<Spot> staged_at(const amem_v1_Copy& copy, int device, SegmentView::Use use);
  /// REQUIRES of both: an address of a Spot.
  Result<CUdeviceptr> load_again(CUdeviceptr address, std::uint64_t bytes, int device);
  Status let_cpu_read(CUdeviceptr address);
  /// The program itself has the address from now on, until views_end().
  void lend(CUdeviceptr address);
  void views_end();
  /// All copies have ended.
  void end_copies();
  /// Unmaps the segments that the driver does not checkpoint. The broker sends them again before
  /// copies that need them; until then nothing can be read there.
  Status detach();
  /// Why not: the program may read what would be unmapped.
  Status can_detach() const;

 private:
  struct Segment {
    std::unique_ptr<SegmentView> view;
    std::vector<int> reachable_from;  // device ordinals that have been granted access
    bool lent = false;
  };

  Result<Segment> map(const amem_v1_PoolSegment& message, const Fd& fd);
  Status map_view(SegmentView& view, const amem_v1_PoolSegment& message, const Fd& fd,
                  const std::string& what);
  Status attach(Segment& segment, const amem_v1_PoolSegment& message, const Fd& fd);
  Status grant(Segment& segment, int device);
  Result<CUdeviceptr> staged_at(Segment& segment, std::uint64_t offset, std::uint64_t bytes,
                                int device, SegmentView::Use use);
  Result<Segment*> segment_at(CUdeviceptr address);

  const Driver& driver_;
  LocalDevices& devices_;
  std::map<std::uint32_t, Segment> segments_;
  std::map<std::uint32_t, Status> missing_;  // segments that could not be taken, and why
  std::vector<int> prepared_;
};

}  // namespace amem::shim
