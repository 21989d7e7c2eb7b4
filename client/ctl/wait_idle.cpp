#include "client/ctl/wait_idle.h"

#include <chrono>
#include <string>
#include <thread>

#include "client/ctl/exit_code.h"
#include "client/ctl/views/views.h"
#include "common/status.h"

namespace amem::ctl {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kIdleWithin{30'000};
constexpr milliseconds kIdleLook{50};

/// Empty: nothing.
std::string under_way(const v1::ListGroupsResponse& answer) {
  std::string text;
  for (const v1::GroupInfo& group : answer.groups()) {
    if (group.state() != v1::GROUP_STATE_PAUSING && group.state() != v1::GROUP_STATE_RESUMING)
      continue;
    text += (text.empty() ? "" : "; ") + ("group " + group.name()) + " is " + state_text(group);
  }
  return text;
}

}  // namespace

int wait_idle(const CommandLine& options, client::ControlClient& broker, Console& console,
              const Interrupt* interrupt) {
  const milliseconds patience = options.timeout.value_or(kIdleWithin);
  const auto until = Clock::now() + patience;
  const auto fail = [&](const Status& status) {
    console.err << error_line(status, options.json);
    return static_cast<int>(exit_code(status.code()));
  };
  while (true) {
    const auto groups = broker.groups();
    if (interrupt != nullptr && interrupt->happened()) return kExitInterrupted;
    if (!groups.ok()) return fail(groups.status());
    const std::string what = under_way(groups.value());
    if (what.empty()) break;
    if (Clock::now() >= until)
      return fail(
          {Code::kDeadlineExceeded, what + ", after " + std::to_string(patience.count()) +
                                        " ms; `amemctl ranks` shows whom the broker waits for"});
    std::this_thread::sleep_for(kIdleLook);
  }
  console.out << (options.json ? "{\"idle\":true}" : "no operation is under way") << '\n';
  return kExitOk;
}

}  // namespace amem::ctl
