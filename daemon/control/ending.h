// Ending: an amemd that is told to end first waits for the operations under way, at most for a
// limit. That no new ones begin is the business of others.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"

namespace amem {

class Ending {
 public:
  /// `under_way`: what an end would call off, for people; empty: nothing. `end` is called once.
  Ending(EventLoop& loop, Duration limit, std::function<std::string()> under_way,
         std::function<void()> end);
  ~Ending();
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  /// The second call ends it at once.
  void begin();
  bool begun() const { return until_.has_value(); }

 private:
  void look();
  void finish();

  EventLoop& loop_;
  const Duration limit_;
  const std::function<std::string()> under_way_;
  const std::function<void()> end_;
  std::optional<Time> until_;
  std::optional<EventLoop::TimerId> next_look_;
  bool ended_ = false;
};

}  // namespace amem
