#include "client/ctl/upgrade.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "client/core/json.h"
#include "client/ctl/exit_code.h"
#include "common/status.h"

namespace amem::ctl {
namespace {

using client::ControlClient;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// For all of it. Ranks try to come back for 30 s.
constexpr milliseconds kPatience{30'000};
constexpr milliseconds kLook{20};

milliseconds since(Clock::time_point when) {
  return std::chrono::ceil<milliseconds>(Clock::now() - when);
}

/// The status of an amemd that has begun since then; nothing: there is none yet.
std::optional<v1::NodeStatus> next_broker(ControlClient& broker, Clock::time_point asked) {
  auto status = broker.status();
  if (!status.ok() || milliseconds(status.value().uptime_ms()) > since(asked)) return std::nullopt;
  return status.value();
}

/// Ranks that it knows, once all of them have come back.
std::optional<int> ranks_that_are_back(ControlClient& broker) {
  const auto ranks = broker.ranks("");
  if (!ranks.ok()) return std::nullopt;
  const auto& all = ranks.value().ranks();
  if (std::any_of(all.begin(), all.end(),
                  [](const v1::RankInfo& rank) { return rank.phase() == "comeback"; }))
    return std::nullopt;
  return all.size();
}

std::string in_words(const v1::UpgradeResponse& answer, const v1::NodeStatus& status, int ranks,
                     milliseconds took) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f s", static_cast<double>(took.count()) / 1000);
  return "amemd " + answer.from_version() + " has handed over to " + status.version() + " (" +
         answer.program() + ", pid " + std::to_string(status.pid()) + ") within " + seconds + "; " +
         std::to_string(ranks) + (ranks == 1 ? " rank is" : " ranks are") + " back\n";
}

}  // namespace

int upgrade(const CommandLine& options, ControlClient& broker, Console& console,
            const Interrupt* interrupt) {
  const auto until = Clock::now() + options.timeout.value_or(kPatience);
  const auto interrupted = [&] { return interrupt != nullptr && interrupt->happened(); };
  const auto fail = [&](const Status& status) {
    if (interrupted()) return static_cast<int>(kExitInterrupted);
    console.err << error_line(status, options.json);
    return static_cast<int>(exit_code(status.code()));
  };
  const auto wait = [&] {
    std::this_thread::sleep_for(kLook);
    return Clock::now() < until && !interrupted();
  };

  auto asked = Clock::now();
  auto answer = broker.upgrade();
  while (answer.status().code() == Code::kAborted && wait()) {
    asked = Clock::now();
    answer = broker.upgrade();
  }
  if (!answer.ok()) return fail(answer.status());
  std::optional<v1::NodeStatus> status;
  std::optional<int> ranks;
  do {
    if (!status) status = next_broker(broker, asked);
    if (status) ranks = ranks_that_are_back(broker);
  } while (!ranks && wait());
  if (!ranks)
    return fail({Code::kDeadlineExceeded,
                 status ? "amemd " + status->version() +
                              " serves, but not all ranks have come back; `amemctl ranks` shows who"
                        : answer.value().program() +
                              " has been started in place of amemd, and does not serve; what it "
                              "logs says why"});
  console.out << (options.json ? client::to_json(answer.value()) + "\n"
                               : in_words(answer.value(), *status, *ranks, since(asked)));
  return kExitOk;
}

}  // namespace amem::ctl
