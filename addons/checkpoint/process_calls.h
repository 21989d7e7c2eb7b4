// ProcessCalls: the driver's checkpoint calls on one process, made for amemd by somebody else.
//
// For the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "addons/checkpoint/answer.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"

namespace amem {

struct CheckpointResult {
  /// kFailedPrecondition: the driver refused. kDeadlineExceeded: no answer by then; the program
  /// was killed. kNotFound: it could not be started. kUnavailable: there is no driver, or it lacks
  /// the calls. kInternal: the program ended without an answer.
  Status status = {};
  std::string error = {};  // where the driver refused: "CUDA_ERROR_ILLEGAL_STATE"
  std::uint64_t us = 0;    // what the driver's call took
  ProcessState state = ProcessState::kUnknown;  // afterwards
};

inline constexpr char kCheckpointProgram[] = "amem-checkpoint";

class ProcessCalls {
 public:
  using Done = std::function<void(const CheckpointResult&)>;

  virtual ~ProcessCalls() = default;
  /// `done` is called once, later, on the loop's thread. What the driver has begun may still happen
  /// after kDeadlineExceeded.
  virtual void call(pid_t pid, CheckpointAction action, Time deadline, Done done) = 0;
};

}  // namespace amem
