#include "shim/runtime/await_memory.h"

#include <chrono>
#include <optional>
#include <string>

#include "shim/base/log.h"
#include "shim/base/no_cancel.h"
#include "shim/gate/wait_log.h"

namespace amem::shim {

CUresult await_memory(const char* call, const Operands& named) noexcept {
  const NoCancel no_cancel;
  Runtime& runtime = Runtime::get();
  Holdings& holdings = runtime.memory().holdings;
  const std::optional<std::string> missing = Absence::of(holdings, named);
  if (!missing) return CUDA_SUCCESS;
  const std::string what = std::string(call) + ": " + *missing;
  if (Absence::lost()) {
    log_error(what + ", and the broker has ended, so this memory is lost");
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  if (!runtime.options().gate_waits) {
    log_error(what + ". Resume this tag first (AMEM_GATE=error)");
    return CUDA_ERROR_NOT_READY;
  }
  // A capture that waits could be what keeps a pause, and so a resume, from beginning.
  if (the_gate->captures() > 0) {
    log_error(what + ". Resume this tag first: calls do not wait while a stream capture is open");
    return CUDA_ERROR_NOT_READY;
  }
  if (wait_log().begins(WaitLog::Clock::now())) log_warn(what + ". The call waits for its resume");
  wait_log().waits_for_itself(call, false);
  switch (Absence::wait(holdings, named, runtime.options().gate_timeout, wait_log(), what)) {
    case Absence::Waited::kIsHere:
      return CUDA_SUCCESS;
    case Absence::Waited::kTooLong:
      log_error(what + " and was not resumed within AMEM_GATE_TIMEOUT");
      return CUDA_ERROR_TIMEOUT;
    case Absence::Waited::kLost:
      log_error(what + ", and the broker has ended, so this memory is lost");
      return CUDA_ERROR_SYSTEM_NOT_READY;
    case Absence::Waited::kEnding:
      break;
  }
  return CUDA_ERROR_DEINITIALIZED;
}

}  // namespace amem::shim
