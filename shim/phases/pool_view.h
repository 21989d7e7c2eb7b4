// PoolView: this rank's view of the host pool. Each segment is mapped once, and made accessible to
// a device when the rank begins to use that device, so that no pause pays for it. Service thread
// only.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "common/status.h"
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
  /// Lets the device reach every segment, also those that come later.
  Status prepare(int device);
  /// The program has reset this device: the registrations of segments in its context have gone.
  void forget(int device);

  /// Bytes of the copy's place: it may be shorter than the piece.
  static std::uint64_t bytes(const amem_v1_Copy& copy);
  /// Where the copy's place is; the device reaches it.
  Result<CUdeviceptr> address(const amem_v1_Copy& copy, int device);
  /// REQUIRES of both: an address of address().
  Status let_device_reach(CUdeviceptr pool, int device);
  Status let_cpu_read(CUdeviceptr pool);

 private:
  struct Segment {
    CUdeviceptr address = 0;
    std::uint64_t size = 0;
    bool memfd = false;
    std::vector<int> reachable_from;  // device ordinals that have been granted access
    int registered_by = -1;           // memfd: the device in whose context it is registered
    CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, {0}};  // where it is, if it is no memfd
    bool readable = false;                               // by this process's own code, too
  };

  Result<Segment> map(const amem_v1_PoolSegment& message, const Fd& fd);
  Status grant(Segment& segment, int device);
  Result<Segment*> segment_at(CUdeviceptr pool);

  const Driver& driver_;
  LocalDevices& devices_;
  std::map<std::uint32_t, Segment> segments_;
  std::map<std::uint32_t, Status> missing_;  // segments that could not be taken, and why
  std::vector<int> prepared_;
};

}  // namespace amem::shim
