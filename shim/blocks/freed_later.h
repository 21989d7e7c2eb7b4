// FreedLater: blocks of the heap that the program has freed and that cannot go yet.
//
// One kind waits behind a stream, until that has done the work that it had at the free. The other
// kind was freed while a capture was open: it waits until none is, and then for its context, which
// only the heap can wait for. What is collected leaves the list, and is the caller's to free.
//
// Any thread. It has no lock: the heap's guards it, and is named where a function lets go of it.
#pragma once

#include <mutex>
#include <vector>

#include "common/driver.h"
#include "shim/blocks/heap_block.h"
#include "shim/memory/mappings.h"

namespace amem::shim {

class FreedLater {
 public:
  FreedLater(const Driver& driver, Mappings& mappings) : driver_(driver), mappings_(mappings) {}

  struct Freed {
    HeapBlock block;
    // Behind a stream: an event there, and the context of both. Else a capture was open.
    CUevent event = nullptr;
    CUstream stream = nullptr;
    CUcontext context = nullptr;
  };

  // ---- without the lock: of one that is in no list ----
  /// Puts it behind what the stream has to do now. Without an event afterwards: that is nothing,
  /// and the block is not on its way back.
  CUresult put_behind(CUstream stream, Freed& freed) const;
  /// Whether its stream has come to its event, which has gone then. A context that has ended does
  /// nothing more. `wait`: for that. REQUIRES: it has an event.
  bool passed(const Freed& freed, bool wait) const;

  // ---- REQUIRES, of all of these: the lock is held ----
  void add(const Freed& freed) { freed_.push_back(freed); }
  bool empty() const { return freed_.empty(); }
  bool any_behind_streams() const;
  /// What waited for captures. REQUIRES: the caller waits for the blocks' contexts.
  std::vector<HeapBlock> collect_captured();
  /// What was behind streams that have come so far. REQUIRES: no capture is open. `wait`: for all
  /// streams, without the lock meanwhile. Else memory that is on its way back is left here: whoever
  /// frees it waits until it is there, and may be who brings it.
  std::vector<HeapBlock> collect_passed(std::unique_lock<std::mutex>& lock, bool wait);
  /// What was of this context or behind its streams. Its events have gone with it.
  std::vector<HeapBlock> collect_of(CUcontext context);

 private:
  template <class Goes>
  std::vector<HeapBlock> collect_if(const Goes& goes);

  const Driver& driver_;
  Mappings& mappings_;
  std::vector<Freed> freed_;  // in the order in which they were freed
};

}  // namespace amem::shim
