#include "tests/sim/work/checkpoint.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "tests/sim/entry/gate.h"
#include "tests/sim/memory/checkpoint.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/checkpoint_socket.h"
#include "tests/sim/work/context.h"
#include "tests/sim/work/thread.h"

namespace sim {
namespace {

std::atomic<CUprocessState> g_state{CU_PROCESS_STATE_RUNNING};  // changed with the steps' mutex
std::atomic<int> g_thread{0};
CUresult g_loss = CUDA_SUCCESS;  // what the restore says, if the checkpoint has lost the process

std::mutex& StepsMutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

void AwaitWork() {
  Lock lock = LockDriver();
  for (int device = 0; device < Node().devices; ++device) SynchronizeDevice(lock, device);
}

CUresult LockProcess(unsigned timeout_ms) {
  if (!ShutGate(timeout_ms)) return CUDA_ERROR_NOT_READY;
  g_state = CU_PROCESS_STATE_LOCKED;
  return CUDA_SUCCESS;
}

CUresult LoseProcess(CUresult result) {
  g_state = CU_PROCESS_STATE_FAILED;
  BreakGate();
  return result;
}

CUresult CheckpointProcess() {
  AwaitWork();
  EndBesideUnheld();
  if (Node().checkpoints == Checkpoints::kLoseAtOnce) return LoseProcess(CUDA_ERROR_UNKNOWN);
  const bool shared = HoldsSharedMemory();
  while (shared && Node().checkpoints == Checkpoints::kHang) pause();
  const CUresult result = GiveBackDeviceMemory();
  if (result != CUDA_SUCCESS) return result;
  if (Node().checkpoints == Checkpoints::kLoseAll ||
      (shared && Node().checkpoints == Checkpoints::kLose)) {
    g_loss = CUDA_ERROR_NOT_SUPPORTED;
  } else if (MappedHiddenMemory()) {
    g_loss = CUDA_ERROR_OPERATING_SYSTEM;
  }
  g_state = CU_PROCESS_STATE_CHECKPOINTED;
  return CUDA_SUCCESS;
}

CUresult RestoreProcess() {
  if (g_loss != CUDA_SUCCESS) return LoseProcess(g_loss);
  const CUresult result = TakeDeviceMemoryAgain();
  if (result == CUDA_SUCCESS) g_state = CU_PROCESS_STATE_LOCKED;
  return result;
}

CUresult UnlockProcess() {
  g_state = CU_PROCESS_STATE_RUNNING;
  OpenGate();
  return CUDA_SUCCESS;
}

CUprocessState Needed(Step step) {
  switch (step) {
    case Step::kLock:
      return CU_PROCESS_STATE_RUNNING;
    case Step::kRestore:
      return CU_PROCESS_STATE_CHECKPOINTED;
    default:
      return CU_PROCESS_STATE_LOCKED;
  }
}

CUresult TakeStep(const StepRequest& request) {
  // A step that hangs holds up those that follow, but nobody who asks for the state.
  const std::lock_guard<std::mutex> lock(StepsMutex());
  if (g_state != Needed(request.step)) return CUDA_ERROR_ILLEGAL_STATE;
  switch (request.step) {
    case Step::kLock:
      return LockProcess(request.timeout_ms);
    case Step::kCheckpoint:
      return CheckpointProcess();
    case Step::kRestore:
      return RestoreProcess();
    case Step::kUnlock:
      return UnlockProcess();
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

StepReply Answer(const StepRequest& request) {
  if (request.step == Step::kState) return {CUDA_SUCCESS, g_state};
  if (request.step == Step::kRestoreThread) return {CUDA_SUCCESS, g_thread};
  return {TakeStep(request), 0};
}

}  // namespace

void OfferCheckpoints() {
  if (Node().checkpoints == Checkpoints::kNone) return;
  BuildGate();
  StartThread([listener = ListenForSteps()] {
    g_thread = static_cast<int>(::syscall(SYS_gettid));  // glibc has gettid() since 2.30
    AnswerSteps(listener, Answer);
  });
}

}  // namespace sim
