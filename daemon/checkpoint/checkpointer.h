// Checkpointer: makes the driver's checkpoint calls by amem-checkpoint, a process for each call,
// which is killed at its deadline. For the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/checkpoint/process_calls.h"

namespace amem {

class Checkpointer final : public ProcessCalls {
 public:
  /// `program`: empty: amem-checkpoint, in the folder of this process's own executable.
  explicit Checkpointer(EventLoop& loop, std::string program = {});
  /// Kills what is under way; nobody is told.
  ~Checkpointer() override;
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  void call(pid_t pid, ProcessAction action, Duration limit,
            std::function<void(const ProcessAnswer&)> done) override;

 private:
  using Done = std::function<void(const ProcessAnswer&)>;
  struct Call {
    pid_t child = 0;
    Fd process;  // of the child: readable once it has ended
    Fd output;
    EventLoop::WatchId watch = 0;
    EventLoop::TimerId late;
    ProcessAction action = ProcessAction::kState;
    Done done;  // null: it has been told
  };

  Status start(pid_t pid, ProcessAction action, Duration limit, Call& call);
  void ended(std::uint64_t number);
  void passed(std::uint64_t number, Duration limit);

  EventLoop& loop_;
  const std::string program_;
  std::map<std::uint64_t, Call> calls_;
  std::uint64_t last_ = 0;
};

}  // namespace amem
