// Checkpointer: lets amem-checkpoint take the steps of the CUDA driver's checkpoints of processes.
//
// amemd never makes these calls itself: they may hang. Each step is a process of its own, which is
// killed at its deadline. What the driver has begun then may still happen: ask for the state.
//
// For the loop's thread. Nothing blocks, but the destructor for a moment.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "addons/checkpoint/process_calls.h"
#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"

namespace amem {

class Checkpointer final : public ProcessCalls {
 public:
  /// `loop` outlives this object. `program`: empty: amem-checkpoint, in the folder of this
  /// process's own executable.
  explicit Checkpointer(EventLoop& loop, std::string program = {});
  /// Kills what runs. Nothing more is reported.
  ~Checkpointer() override;
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Several at a time, also for one process. `done` is called once, later, on the loop's thread,
  /// and may destroy this object. A lock gives up a little before the deadline, and then leaves the
  /// process running.
  void call(pid_t pid, CheckpointAction action, Time deadline, Done done) override;
  /// Programs that have not ended, also those whose end is no longer waited for.
  std::size_t running() const;

 private:
  struct Call {
    pid_t pid = 0;
    CheckpointAction action = CheckpointAction::kState;
    Time began{};
    Time deadline{};
    Done done;        // empty: it has been called
    pid_t child = 0;  // 0: none was started
    Fd process;       // a pidfd of the child
    Fd output;        // its standard output and error
    EventLoop::WatchId ends = 0;
    EventLoop::WatchId writes = 0;
    EventLoop::TimerId timer{};
    std::string said;  // the end of its output
    bool killed = false;
    int exit = 0;  // as waitpid() has it
  };
  using Calls = std::map<std::uint64_t, Call>;

  Status start(Call& call) const;
  void heard(Call& call);
  void stop_reading(Call& call);
  void ended(std::uint64_t id);
  void late(std::uint64_t id);
  CheckpointResult result_of(const Call& call) const;
  std::string what(const Call& call) const;
  void report_later(std::uint64_t id, CheckpointResult result);
  void forget(Calls::iterator it);

  EventLoop& loop_;
  const std::string program_;
  std::uint64_t next_ = 1;
  Calls calls_;
};

}  // namespace amem
