// How a process asks another one of its node for a step of a checkpoint: by a socket in the node's
// directory that is named by the other's pid.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace sim {

enum class Step : int32_t { kRestoreThread, kState, kLock, kCheckpoint, kRestore, kUnlock };

struct StepRequest {
  Step step = Step::kState;
  uint32_t timeout_ms = 0;  // kLock; 0: none
};

struct StepReply {
  int32_t result = CUDA_ERROR_UNKNOWN;
  int32_t value = 0;  // kRestoreThread, kState
};

/// Waits for the answer, for as long as it takes. Any thread. CUDA_ERROR_INVALID_VALUE: there is no
/// such process, or it has ended before it answered. CUDA_ERROR_NOT_SUPPORTED: it does not listen.
/// CUDA_ERROR_NOT_PERMITTED: it is another user's.
StepReply AskForStep(int pid, const StepRequest& request);

/// A descriptor that callers reach this process by. They wait until AnswerSteps runs.
int ListenForSteps();

/// Answers them, each in a thread of its own; what was asked is done even if the caller is gone by
/// then. Returns when somebody has closed the descriptor.
void AnswerSteps(int listener, StepReply (*answer)(const StepRequest&));

}  // namespace sim
