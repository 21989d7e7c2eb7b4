// ProcessCalls: the driver's checkpoint calls (CUDA 12.8, cuCheckpointProcess*) on one process,
// made for amemd by somebody else: a call may take long, hang, or end the process that makes it.
//
// For the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"

namespace amem {

enum class ProcessAction : std::uint8_t { kState, kLock, kCheckpoint, kRestore, kUnlock };

/// As the driver says it.
enum class ProcessState : std::uint8_t {
  kUnknown,  // it has not said
  kRunning,
  kLocked,
  kCheckpointed,
  kFailed,  // no call of the process works any more
  kGone,    // it has ended
};

struct ProcessAnswer {
  Status status;
  ProcessState state = ProcessState::kUnknown;  // afterwards
};

class ProcessCalls {
 public:
  virtual ~ProcessCalls() = default;
  /// Answers in a later turn of the loop, after `limit` at the latest. kDeadlineExceeded: the call
  /// had not returned; the driver may still finish it.
  virtual void call(pid_t pid, ProcessAction action, Duration limit,
                    std::function<void(const ProcessAnswer&)> done) = 0;
};

/// Of an amemd that has nobody to make these calls.
class NoProcessCalls final : public ProcessCalls {
 public:
  explicit NoProcessCalls(EventLoop& loop) : loop_(loop) {}
  void call(pid_t, ProcessAction, Duration,
            std::function<void(const ProcessAnswer&)> done) override {
    loop_.post([done = std::move(done)] {
      done({{Code::kUnimplemented, "this amemd cannot checkpoint processes"}, {}});
    });
  }

 private:
  EventLoop& loop_;
};

}  // namespace amem
