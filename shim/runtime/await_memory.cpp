#include "shim/runtime/await_memory.h"

#include <chrono>
#include <optional>
#include <string>

#include "shim/base/log.h"
#include "shim/base/no_cancel.h"
#include "shim/gate/wait_log.h"

namespace amem::shim {
namespace {

/// For how long a pause waits for captures before callers that wait get out of its way. A capture
/// that does not depend on them ends sooner.
constexpr std::chrono::seconds kCapturesEnd{1};

/// How long a call waits until a thread of this process asks for the resume of what the process has
/// paused itself. The thread that will ask for it may not have run yet.
constexpr std::chrono::seconds kResumeBegins{1};

/// A capture is not to wait for a resume: a pause, and so perhaps the resume, waits for its end.
bool captures(Runtime& runtime, const Gate::Submission& work) {
  if (the_gate->captures() == 0) return false;
  LocalDevices* const devices = runtime.devices();
  return runtime.captures().begun_here() ||
         (work.on_stream && devices != nullptr && devices->capturing(work.stream));
}

/// Finds whether a pause waits for the end of captures, and has for long. Any thread may keep one
/// open: it may hold up the thread that will end it.
class CapturesAwaited {
 public:
  bool operator()() {
    if (!the_gate->shut() || the_gate->captures() == 0) {
      since_.reset();
      return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!since_) since_ = now;
    return now >= *since_ + kCapturesEnd;
  }

 private:
  std::optional<std::chrono::steady_clock::time_point> since_;
};

}  // namespace

CUresult await_memory(const char* call, const Operands& named,
                      const Gate::Submission& work) noexcept {
  const NoCancel no_cancel;
  Runtime& runtime = Runtime::get();
  BrokeredMemory& brokered = runtime.memory().brokered;
  const std::optional<PausedMemory::Missing> missing = PausedMemory::of(brokered, named);
  if (!missing) return CUDA_SUCCESS;
  const std::string what = std::string(call) + ": " + missing->text;
  if (PausedMemory::lost()) {
    log_error(what + ", and the broker has ended, so this memory is lost");
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  if (!runtime.options().gate_waits) {
    log_error(what + ". Resume this tag first (AMEM_GATE=error)");
    return CUDA_ERROR_NOT_READY;
  }
  if (captures(runtime, work)) {
    log_error(what +
              ". Resume this tag first: calls of a stream capture do not wait, nor do calls of the "
              "thread that has begun it");
    return CUDA_ERROR_NOT_READY;
  }
  const std::chrono::milliseconds patience = runtime.options().gate_timeout;
  if (missing->by_itself && PausedMemory::wait(
                                brokered, named, kResumeBegins, [] { return wait_log().resumes(); },
                                wait_log(), what) == PausedMemory::Waited::kTooLong) {
    log_error(
        what +
        ", and this process has paused it itself, so the call would wait for ever. Resume tag '" +
        missing->tag + "' before this call (amem.resume)");
    return CUDA_ERROR_NOT_READY;
  }
  if (wait_log().begins(WaitLog::Clock::now())) log_warn(what + ". The call waits for its resume");
  switch (PausedMemory::wait(brokered, named, patience, CapturesAwaited(), wait_log(), what)) {
    case PausedMemory::Waited::kIsHere:
      return CUDA_SUCCESS;
    case PausedMemory::Waited::kTooLong:
      log_error(what + " and was not resumed within the time of AMEM_GATE");
      return CUDA_ERROR_TIMEOUT;
    case PausedMemory::Waited::kInTheWay:
      log_error(what +
                ". The call no longer waits for its resume: a pause waits for the end of a stream "
                "capture, which may wait for this call. Resume this tag before captures");
      return CUDA_ERROR_NOT_READY;
    case PausedMemory::Waited::kLost:
      log_error(what + ", and the broker has ended, so this memory is lost");
      return CUDA_ERROR_SYSTEM_NOT_READY;
    case PausedMemory::Waited::kEnding:
      break;
  }
  return CUDA_ERROR_DEINITIALIZED;
}

}  // namespace amem::shim
