// Orphan: what becomes of a rank that waits for memory, and that no broker serves any more
// (AMEM_ORPHAN): it goes on waiting for one, ends its process, or restores the bytes without one.
//
// Service thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "shim/base/options.h"
#include "shim/copies/mover.h"
#include "shim/memory/memory.h"
#include "shim/phases/rank_state.h"
#include "shim/session/session.h"

namespace amem::shim {

class Orphan {
 public:
  static constexpr std::chrono::milliseconds kReminder{60'000};
  /// `options` are read when a broker is lost, and may be filled in until then. `reminder`: how
  /// often the log says that the rank waits.
  Orphan(Memory& memory, Mover& mover, Session& session, const Options& options,
         std::chrono::milliseconds reminder = kReminder)
      : memory_(memory), mover_(mover), session_(session), options_(options), reminder_(reminder) {}

  /// Session::Handler::waits_for_broker(). False also after all memory has been brought back here.
  bool waits_for_broker(RankState state, const Status& why, bool hope);
  /// A broker serves the rank again.
  void ends() { ++waits_; }

 private:
  struct Paused {
    std::uint64_t id = 0;
    std::uint64_t size = 0;
  };
  /// Returns what is paused, if all of it can be restored without a broker.
  Result<std::vector<Paused>> restorable();
  Status restore(RankState state, std::uint64_t bytes_paused);
  bool shares_memory();
  std::string who() const;
  void remind(std::uint64_t wait);

  Memory& memory_;
  Mover& mover_;
  Session& session_;
  const Options& options_;
  const std::chrono::milliseconds reminder_;
  std::uint64_t waits_ = 0;  // begun or ended: reminders of others do not go on
};

}  // namespace amem::shim
