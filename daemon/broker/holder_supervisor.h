// HolderSupervisor: amemd's connection to its holder. Finds or starts one, gets what another amemd
// has left there, and, should the holder end, sees to it that another has everything.
//
// For the loop's thread. attach() waits for a holder, before the loop runs; later the search for
// another has a thread of its own, so the loop serves on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "daemon/base/event_loop.h"
#include "daemon/broker/recovery.h"
#include "daemon/holder/launch.h"
#include "daemon/memory/workers.h"
#include "daemon/record/record.h"
#include "daemon/settings/config.h"

namespace amem {

class HolderSupervisor {
 public:
  /// Everything passed in outlives this object. `runs`: where another holder is looked for.
  HolderSupervisor(EventLoop& loop, const Config& config,
                   Workers::Runs runs = Workers::Runs::kThreads);
  ~HolderSupervisor();
  HolderSupervisor(const HolderSupervisor&) = delete;
  HolderSupervisor& operator=(const HolderSupervisor&) = delete;

  /// Not OK: amemd must not serve; the text says what to do. Where `holder` is auto and there is
  /// none to be had, it serves without, and says so.
  Status attach();
  /// Keeps nothing without a holder.
  Record& record() { return *record_; }
  /// What the holder had. Once.
  HolderDescriptors take_descriptors() { return std::move(descriptors_); }
  /// From now on: when the holder ends, `everything` is called to give all there is to another.
  void watch(std::function<void()> everything);

 private:
  Result<std::shared_ptr<HolderClient>> find(const HolderLaunch& launch,
                                             const std::stop_token& stop = {}) const;
  void took(const HolderClient& holder);
  void look();
  void search();
  void found(const Result<std::shared_ptr<HolderClient>>& holder);

  EventLoop& loop_;
  const HolderUse use_;
  const Workers::Runs runs_;
  HolderLaunch launch_;
  std::unique_ptr<Record> record_;
  HolderDescriptors descriptors_;
  std::function<void()> everything_;
  EventLoop::WatchId watch_ = 0;
  std::optional<EventLoop::TimerId> timer_;
  std::jthread searcher_;
};

}  // namespace amem
