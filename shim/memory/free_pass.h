// FreePass: the gate, for a call that only frees, unmaps, releases, closes or destroys.
//
// Such a call never waits for a resume. While the group is paused it needs no device: what it lets
// go of leaves the tables of this process at once, and the broker drops the saved bytes when no
// rank holds the memory any more. While a phase is under way the call waits for the end of that
// phase. Before a call returns whose group is paused, the broker has on record what was freed.
// While no broker is connected nothing is waited for: the next one hears of it at the reconnect.
//
// Any thread, for the length of a scope. The wait for the broker comes after the caller has left
// the gate, because the thread that reads the answer may be waiting for those inside.
#pragma once

#include "shim/gate/gate.h"
#include "shim/memory/brokered_memory.h"
#include "shim/process/fault_points.h"

namespace amem::shim {

class FreePass {
 public:
  FreePass(Gate& gate, BrokeredMemory& brokered) noexcept
      : gate_(gate),
        brokered_(brokered),
        outermost_(!Gate::inside()),
        result_(gate.enter_to_free()) {
    if (gate_.shut()) fault_point("freePasses");
  }
  ~FreePass() {
    if (result_ != CUDA_SUCCESS) return;
    const bool paused = gate_.shut();
    if (paused) fault_point("freeDone");
    gate_.leave_quietly();
    if (paused && outermost_) brokered_.await_frees();
  }
  FreePass(const FreePass&) = delete;
  FreePass& operator=(const FreePass&) = delete;
  /// As Gate::enter().
  CUresult result() const { return result_; }

 private:
  Gate& gate_;
  BrokeredMemory& brokered_;
  bool outermost_;
  CUresult result_;
};

}  // namespace amem::shim
