#include "shim/runtime/notices.h"

#include <string>

#include "shim/base/log.h"
#include "shim/memory/paused_memory.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

std::atomic<bool> fault_seen{false};

/// Memory of cudaMalloc would now be brokered.
bool would_be_brokered(const Runtime& runtime) {
  if (Region::unbrokered()) return false;
  return runtime.options().scope == Scope::kHeap ||
         (runtime.options().scope == Scope::kRegions && Region::current().has_value());
}

}  // namespace

std::atomic<bool> stays_noted{false};

void explain_fault(const char* call) noexcept {
  // After the first one the context answers every call so.
  if (fault_seen.exchange(true) || !PausedMemory::any()) return;
  const std::string paused = PausedMemory::tags(Runtime::get().memory().brokered);
  if (paused.empty()) return;
  log_error(std::string(call) +
            ": CUDA_ERROR_ILLEGAL_ADDRESS (700) while memory of this process is paused: " + paused +
            ". A kernel that touches such memory ends its context. Resume these tags before you "
            "launch work that uses them");
}

void note_stays(const char* call, std::size_t bytes) {
  Runtime& runtime = Runtime::get();
  if (runtime.forked() || !would_be_brokered(runtime) || stays_noted.exchange(true)) return;
  if (!runtime.connected()) return;  // on its own, and the log says why
  log_warn(std::string(call) + " of " + std::to_string(bytes) +
           " bytes: amem cannot broker memory of this kind, so it stays on its device during every "
           "pause. A pause reports how much there is. It is managed, of a pool whose memory other "
           "processes may import, or allocated in a stream capture. To free it in a pause, let the "
           "program allocate with cudaMalloc or cudaMallocAsync, and before a capture");
}

}  // namespace amem::shim
