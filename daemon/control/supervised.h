// Supervised: keeps the service manager informed while amemd serves: what it does, that its loop
// runs, and whether the manager may kill it should the loop hang.
//
// A kill costs nothing while a holder has everything. Without one it would cost all jobs their
// memory, so the watchdog is off then.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/base/service_manager.h"

namespace amem {

class Supervised {
 public:
  struct State {
    std::string text;       // for people, one line
    bool outlives = false;  // an end now would lose nothing
  };

  /// Everything passed in outlives this object.
  Supervised(EventLoop& loop, const ServiceManager& manager, std::function<State()> look);
  ~Supervised();
  Supervised(const Supervised&) = delete;
  Supervised& operator=(const Supervised&) = delete;

  /// Reports that amemd is ready, then all that changes.
  void begin();
  /// Nothing is reported any more.
  void end();

 private:
  void tick();

  EventLoop& loop_;
  const ServiceManager& manager_;
  const std::function<State()> look_;
  std::optional<EventLoop::TimerId> next_;
  bool ready_ = false;  // the manager knows
  std::string told_;
  std::optional<bool> guarded_;
  Time alive_{};  // when the manager was last told so
};

}  // namespace amem
