// Checkpoints of another process of the node.
//
// They do not wait while the calling process is locked itself: it may ask for its own unlocking.
#include <algorithm>
#include <iterator>

#include "tests/sim/entry/api.h"
#include "tests/sim/work/checkpoint_socket.h"

namespace sim {
namespace {

// What is reserved for the future must be zero.
template <typename Reserved>
bool Zeroed(const Reserved& reserved) {
  return std::all_of(std::begin(reserved), std::end(reserved), [](auto each) { return each == 0; });
}

CUresult Take(int pid, StepRequest request) {
  return static_cast<CUresult>(AskForStep(pid, request).result);
}

template <typename T>
CUresult Read(int pid, Step step, T* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const StepReply reply = AskForStep(pid, {step});
  if (reply.result == CUDA_SUCCESS) *out = static_cast<T>(reply.value);
  return static_cast<CUresult>(reply.result);
}

CUresult LockProcess(int pid, const CUcheckpointLockArgs* args) {
  if (args == nullptr) return Take(pid, {Step::kLock});
  if (args->reserved0 != 0 || !Zeroed(args->reserved1)) return CUDA_ERROR_INVALID_VALUE;
  return Take(pid, {Step::kLock, args->timeoutMs});
}

CUresult RestoreProcess(int pid, const CUcheckpointRestoreArgs* args) {
  if (args != nullptr) {
    if (!Zeroed(args->reserved) || args->reserved1 != 0) return CUDA_ERROR_INVALID_VALUE;
    if (args->gpuPairsCount != 0) return CUDA_ERROR_NOT_SUPPORTED;  // onto other GPUs
  }
  return Take(pid, {Step::kRestore});
}

template <typename Args>
CUresult TakeWith(int pid, Step step, const Args* args) {
  return args == nullptr || Zeroed(args->reserved) ? Take(pid, {step}) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace sim

SIM_CALL_NO_GATE(cuCheckpointProcessGetRestoreThreadId, (int pid, int* tid),
                 Read(pid, Step::kRestoreThread, tid))
SIM_CALL_NO_GATE(cuCheckpointProcessGetState, (int pid, CUprocessState* state),
                 Read(pid, Step::kState, state))
SIM_CALL_NO_GATE(cuCheckpointProcessLock, (int pid, CUcheckpointLockArgs* args),
                 LockProcess(pid, args))
SIM_CALL_NO_GATE(cuCheckpointProcessCheckpoint, (int pid, CUcheckpointCheckpointArgs* args),
                 TakeWith(pid, Step::kCheckpoint, args))
SIM_CALL_NO_GATE(cuCheckpointProcessRestore, (int pid, CUcheckpointRestoreArgs* args),
                 RestoreProcess(pid, args))
SIM_CALL_NO_GATE(cuCheckpointProcessUnlock, (int pid, CUcheckpointUnlockArgs* args),
                 TakeWith(pid, Step::kUnlock, args))
