// PausedMemory: the program's memory that is paused while the program may run: of tags that are
// paused, or on its way back with a resume that has not ended. To the driver such addresses are
// empty.
//
// any() is for the fast path of copies: one load. end(): the shim's threads; everything else: any
// thread. One per process.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "shim/gate/wait_log.h"
#include "shim/memory/brokered_memory.h"

namespace amem::shim {

/// Memory that a call names.
struct Operand {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  bool operator==(const Operand&) const = default;
};

class PausedMemory {
 public:
  /// False: nothing is paused.
  static bool any() noexcept { return any_.load(std::memory_order_acquire); }

  /// The first that is paused.
  struct Missing {
    std::string text;  // its address, allocation and tag
    std::string tag;
    bool by_itself = false;  // this process has asked for the pause
  };
  /// Nothing: none is paused.
  static std::optional<Missing> of(BrokeredMemory& brokered, std::span<const Operand> operands);

  /// For messages: the tags of what is paused, with their bytes. Empty: nothing is.
  static std::string tags(BrokeredMemory& brokered);

  enum class Waited : std::uint8_t { kIsHere, kTooLong, kInTheWay, kEnding, kLost };
  /// Waits until none of these is paused. kTooLong: it took longer than `patience`, if that is not
  /// 0, since the process's memory last returned. kInTheWay: `in_the_way` says that others wait for
  /// the caller; it is asked repeatedly, and must not block. kLost: without a broker it does not
  /// return. `what`: of the lines that say that somebody waits.
  static Waited wait(BrokeredMemory& brokered, std::span<const Operand> operands,
                     std::chrono::milliseconds patience, const std::function<bool()>& in_the_way,
                     WaitLog& waits, const std::string& what);

  /// Call it after memory has left or returned, or what was paused has been given up. REQUIRES: the
  /// lock of `brokered` is held.
  static void update(BrokeredMemory& brokered);
  /// The broker is gone.
  static void fail();
  /// Returns whether it is gone.
  static bool lost();
  /// In a child of fork nobody asks: locks may be held for good.
  static void reset_after_fork();
  /// The process is ending: nobody waits any more.
  static void end();

 private:
  static std::atomic<bool> any_;
};

}  // namespace amem::shim
