// EventLoop: the one thread that owns the broker's state, as an epoll loop with timers and jobs
// from other threads.
//
// run(), watch(), change(), unwatch(), at() and cancel() are for the loop's thread (or for the one
// that is going to call run()); post() and stop() are for any thread. Handlers may change watches
// and timers, their own included.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/clock.h"

namespace amem {

class EventLoop {
 public:
  using Job = std::function<void()>;
  using Handler = std::function<void(std::uint32_t events)>;
  using WatchId = std::uint64_t;  // never 0
  using TimerId = std::pair<Time, std::uint64_t>;

  EventLoop() = default;
  /// What handlers and jobs hold may cancel timers when it goes.
  ~EventLoop();

  /// Call once, before anything else.
  Status open();

  /// Until stop(). It may run again after that.
  void run();
  void stop();

  /// Runs `job` on the loop's thread, after what is being handled now; jobs keep their order.
  /// Jobs that come after stop() are destroyed unrun.
  void post(Job job);

  /// Calls `handler` while one of `events` (EPOLLIN, …) holds; level-triggered. 0: the kernel
  /// refused. `fd` must stay open until unwatch().
  WatchId watch(int fd, std::uint32_t events, Handler handler);
  void change(WatchId id, std::uint32_t events);
  void unwatch(WatchId id);

  /// Runs `job` once, not before `time`. One that a timer sets runs in the next turn of the loop
  /// at the earliest: descriptors are looked at between the two.
  TimerId at(Time time, Job job);
  void cancel(const TimerId& timer) { timers_.erase(timer); }

 private:
  struct Watch {
    int fd;
    std::shared_ptr<Handler> handler;
  };

  int wait_ms() const;
  void run_jobs();
  void run_timers();

  Fd epoll_;
  Fd wake_;
  bool stopped_ = false;
  std::uint64_t next_id_ = 1;
  std::unordered_map<WatchId, Watch> watches_;
  std::map<TimerId, Job> timers_;

  std::mutex mutex_;
  std::vector<Job> jobs_;  // under mutex_
};

}  // namespace amem
