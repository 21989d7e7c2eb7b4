// RestoreSpace: the space that the driver needs to restore the processes of a deep group.
//
// Nothing reserves it while the group is paused. Before the restore so much memory is made on each
// device as a trial, and freed. From the trial until the restore has answered, nobody else may make
// brokered memory on these devices: who would asks claimed() and waits.
//
// A process outside amem, and memory that a rank has made before it asks, can still take the space.
//
// For the loop's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/memory/workers.h"
#include "daemon/operations/evictor.h"
#include "daemon/transactions/headroom.h"

namespace amem {

class RestoreSpace {
 public:
  /// How often those who wait look again.
  static constexpr Duration kPollInterval = std::chrono::milliseconds(20);

  /// Keeps others from the devices while it lives. May outlive this object.
  using Claim = RestoreClaim;

  /// `workers` outlives this object.
  explicit RestoreSpace(Workers& workers) : workers_(workers) {}

  /// The trial, on all devices at once, which takes `limit` at the most. `done` gets a claim, or:
  /// kResourceExhausted: a device is full; kUnavailable: another restore has one of the devices, or
  /// a rank makes memory there; kDeadlineExceeded: a device hangs.
  void attempt(const BytesByDevice& bytes, Duration limit, std::function<void(Result<Claim>)> done);
  bool claimed(const DeviceUuid& device) const { return claimed_->contains(device); }
  bool any_claimed() const { return !claimed_->empty(); }
  /// A rank was told to make memory on the device, and no trial begins there while this lives.
  Claim making(const DeviceUuid& device);

 private:
  using Counts = std::map<DeviceUuid, std::size_t>;
  static Claim count(const std::shared_ptr<Counts>& counts, const DeviceUuid& device);

  Workers& workers_;
  std::shared_ptr<Counts> claimed_ = std::make_shared<Counts>();
  std::shared_ptr<Counts> making_ = std::make_shared<Counts>();
};

}  // namespace amem
