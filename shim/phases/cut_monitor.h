// CutMonitor: watches, while the gate is shut, whether this rank has come to rest, and tells the
// broker.
//
// One monitor thread turns the gate's snapshots and the devices' state into CutStatus messages; one
// drainer thread per device waits for that device to be idle (a context-wide synchronize, which
// sees every stream whoever made it). A drain counts only if nobody has passed the gate since it
// began. A wait that the driver refuses says nothing of the device, unless its context has ended:
// it stays busy, the broker hears why, and the drainer asks again. begin/end/permit from the
// service thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/driver.h"
#include "shim/blocks/heap.h"
#include "shim/driver/local_devices.h"
#include "shim/gate/gate.h"
#include "shim/process/bypass.h"
#include "shim/session/session.h"

namespace amem::shim {

class CutMonitor {
 public:
  CutMonitor(const Driver& driver, LocalDevices& devices, Gate& gate, Heap& heap, Bypass& bypass,
             Session& session)
      : driver_(driver),
        devices_(devices),
        gate_(gate),
        heap_(heap),
        bypass_(bypass),
        session_(session) {}

  /// Shuts the gate and starts to report under this epoch. Like permit() and end() it asks the
  /// driver nothing: one that blocks keeps the monitor from reporting, not the service thread from
  /// opening the gate.
  void begin(std::uint64_t epoch);
  /// Lets one caller that waits with the Permit's device pass.
  void permit(const amem_v1_Permit& permit);
  /// Stops reporting. The gate stays as it is.
  void end();

 private:
  struct Drainer {
    bool started = false;
    std::uint64_t wanted = 0;         // passes count to drain for
    std::uint64_t drained = 0;        // last one reached
    CUresult refused = CUDA_SUCCESS;  // why the last wait failed, and left it busy
  };

  void monitor();
  void drain(int device, Drainer& drainer);
  CUresult wait_until_idle(int device, CUresult refused_before);
  /// A library works past the gate: the pause must not go on, and the broker hears why.
  bool refuse_bypass(std::uint64_t epoch);
  void report(std::uint64_t epoch, const Gate::Snapshot& snapshot);
  void start_drainers();

  const Driver& driver_;
  LocalDevices& devices_;
  Gate& gate_;
  Heap& heap_;
  Bypass& bypass_;  // monitor thread
  Session& session_;

  std::mutex mutex_;  // guards what follows; never held over the driver
  std::condition_variable wake_;
  std::uint64_t epoch_ = 0;  // 0: not reporting
  std::uint64_t cuts_ = 0;   // begun; another broker's may have the same epoch
  std::vector<std::unique_ptr<Drainer>> drainers_;  // by ordinal
  bool monitor_started_ = false;

  std::vector<int> watched_;      // monitor thread, as what follows: the devices in use
  std::uint64_t watched_at_ = 0;  // the gate's passes then
  std::uint64_t quiet_at_ = 0;    // the gate's passes with which the rank was reported quiet
  amem_v1_CutStatus last_ = amem_v1_CutStatus_init_zero;
};

}  // namespace amem::shim
