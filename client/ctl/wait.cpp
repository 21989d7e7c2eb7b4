#include <algorithm>
#include <chrono>
#include <thread>

#include "client/ctl/commands.h"
#include "client/ctl/conclusions/waiting.h"
#include "client/ctl/exit_code.h"

namespace amem::ctl {
namespace {

constexpr std::chrono::milliseconds kWaitLook{50};

/// A broker that is not there yet may come, and one that does not answer yet may answer. Only who
/// waits for operations to end has nothing to wait for without it.
bool may_pass(const Status& status, WaitFor what) {
  return what != WaitFor::kIdle &&
         (status.code() == Code::kUnavailable || status.code() == Code::kDeadlineExceeded);
}

Sight of_failure(const Status& status, WaitFor what) {
  return {false, may_pass(status, what) ? Status() : status, status.text(), {}};
}

}  // namespace

int wait(const CommandLine& options, client::ControlClient& broker, Console& console,
         Interrupt* interrupt) {
  const WaitTarget& awaited = options.awaited;
  const auto patience = options.timeout.value_or(default_patience(awaited.what));
  const auto began = std::chrono::steady_clock::now();
  while (true) {
    Sight sight;
    Code late = Code::kDeadlineExceeded;  // of a wait that takes too long
    if (awaited.what == WaitFor::kPool) {
      const auto node = broker.status();
      if (!node.ok()) late = node.status().code();
      sight = node.ok() ? see_pool(node.value().pool()) : of_failure(node.status(), awaited.what);
    } else {
      const auto groups = broker.groups();
      if (!groups.ok()) late = groups.status().code();
      sight = !groups.ok()                     ? of_failure(groups.status(), awaited.what)
              : awaited.what == WaitFor::kIdle ? see_idle(groups.value())
                                               : see_group(groups.value(), awaited);
    }
    if (interrupt != nullptr && interrupt->happened()) return kExitInterrupted;
    if (sight.met) {
      console.out << (options.json ? sight.json : sight.found) << '\n';
      return kExitOk;
    }
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - began);
    if (passed >= patience || !sight.hopeless.ok()) {
      const Code code = sight.hopeless.ok() ? late : sight.hopeless.code();
      const auto told = sight.hopeless.ok() ? patience : std::min(passed, patience);
      console.err << error_line({code, waited_in_vain(awaited, told, sight.found)}, options.json);
      return exit_code(code);
    }
    std::this_thread::sleep_for(std::min(kWaitLook, patience - passed));
  }
}

}  // namespace amem::ctl
