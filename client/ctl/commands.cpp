#include "client/ctl/commands.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/core/json.h"
#include "client/ctl/conclusions/groups.h"
#include "client/ctl/conclusions/readiness.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/invocation.h"
#include "client/ctl/operations.h"
#include "client/ctl/trace_file.h"
#include "client/ctl/views/format.h"
#include "client/ctl/views/views.h"
#include "common/version.h"

namespace amem::ctl {
namespace {

using client::ControlClient;
using client::to_json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// A query with one answer: `view` makes it text for people.
template <class Message, class View>
int show(const Invocation& s, const Result<Message>& answer, View view) {
  if (!answer.ok()) return s.end(answer.status());
  s.console.out << (s.options.json ? to_json(answer.value()) + "\n"
                                   : view(answer.value(), s.console.out_style));
  return kExitOk;
}

/// A list, as people have asked for it.
template <class Message, class View>
int show_list(const Invocation& s, const Result<Message>& answer, View usual) {
  return show(s, answer, [&](const Message& message, const Style& style) {
    if constexpr (!std::is_same_v<Message, v1::NodeStatus>)
      if (s.options.detail == Detail::kNames) return names_view(message);
    return s.options.detail == Detail::kWide ? wide_view(message, style) : usual(message, style);
  });
}

/// The groups, or the one that is asked for, which must be there.
Result<v1::ListGroupsResponse> groups(const Invocation& s) {
  auto answer = s.broker.groups();
  const std::string& name = s.options.group;
  if (!answer.ok() || name.empty()) return answer;
  v1::ListGroupsResponse chosen;
  for (const v1::GroupInfo& group : answer.value().groups()) {
    if (is_called(group, name)) *chosen.add_groups() = group;
  }
  if (chosen.groups().empty()) return no_such_group(name);
  return chosen;
}

int allocations(const Invocation& s) {
  const auto& tags = s.options.tags;
  Summary summary;
  std::vector<v1::AllocationInfo> list;
  const Status status =
      s.broker.allocations(s.options.group, [&](const v1::AllocationInfo& allocation) {
        if (!tags.empty() && std::find(tags.begin(), tags.end(), allocation.tag()) == tags.end()) {
          return true;
        }
        if (s.options.summary) {
          summary.add(allocation);
        } else if (s.options.json) {
          s.console.out << to_json(allocation) << '\n';
        } else {
          list.push_back(allocation);
        }
        return static_cast<bool>(s.console.out);
      });
  if (!status.ok()) return s.end(status);
  const Style& style = s.console.out_style;
  if (s.options.summary) {
    if (!s.options.json) {
      s.console.out << summary_view(summary.rows(), style);
    } else {
      for (const SummaryRow& row : summary.rows()) s.console.out << to_json(row) << '\n';
    }
  } else if (!s.options.json) {
    s.console.out << allocations_view(list, style);
  }
  return kExitOk;
}

/// gRPC answers its health check from a flag. An answer of the broker shows that amemd's loop
/// turns.
int health(const Invocation& s) {
  Status status = s.broker.health();
  if (status.ok()) status = s.broker.status().status();
  if (!status.ok()) return s.end(status);
  s.console.out << (s.options.json ? "{\"serving\":true}"
                                   : "amemd at " + s.broker.where() + " serves")
                << '\n';
  return kExitOk;
}

int ready(const Invocation& s) {
  const auto found = groups(s);
  if (!found.ok()) return s.end(found.status());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const Readiness answer =
      readiness(found.value().groups(0),
                static_cast<std::uint64_t>(std::chrono::duration_cast<milliseconds>(now).count()));
  s.console.out << (s.options.json ? answer.json : answer.text) << '\n';
  return answer.ready ? kExitOk : kExitWrongState;
}

int history(const Invocation& s) {
  TraceFile trace(s.options.trace);
  if (const Status status = trace.open(); !status.ok()) return s.end(status);
  v1::ListHistoryRequest request;
  request.set_group(s.options.group);
  request.set_most(s.options.most);
  request.set_spans(static_cast<bool>(trace));
  auto answer = s.broker.history(request);
  if (!answer.ok()) return s.end(answer.status());
  if (trace) {
    if (const Status status = trace.write({{"", answer.value()}}); !status.ok())
      return s.end(status);
    // They are in the file.
    for (v1::PastOperation& operation : *answer.value().mutable_operations())
      operation.clear_spans();
  }
  return show(s, answer, history_view);
}

int set_policy(const Invocation& s) {
  const CommandLine& o = s.options;
  const Status status = s.broker.set_policy(o.group, o.tag, o.policy, o.form, o.force);
  if (!status.ok()) return s.end(status);
  if (o.json) {
    v1::SetPolicyRequest request;
    request.set_group(o.group);
    request.set_tag(o.tag);
    request.set_policy(o.policy);
    request.set_form(o.form);
    request.set_force(o.force);
    s.console.out << to_json(request) << '\n';
  } else {
    std::string what = policy_text(o.policy);
    if (o.form != v1::FORM_UNSPECIFIED)
      what += (what.empty() ? "saved " : ", saved ") + form_text(o.form);
    s.console.out << o.group << ": " << o.tag << " is " << what << " from now on\n";
  }
  return kExitOk;
}

int set_turn(const Invocation& s) {
  v1::SetTurnRequest request = s.options.turn;
  request.set_group(s.options.group);
  const Status status = s.broker.set_turn(request);
  if (!status.ok()) return s.end(status);
  if (s.options.json)
    s.console.out << to_json(request) << '\n';
  else
    s.console.out << s.options.group << ": its turns are set. `amemctl turns` shows them\n";
  return kExitOk;
}

int prepare(const Invocation& s) {
  v1::PrepareRequest request;
  for (const std::string& group : s.options.groups) request.add_groups(group);
  if (s.options.timeout)
    request.set_timeout_ms(static_cast<std::uint32_t>(s.options.timeout->count()));
  const auto answer = s.broker.prepare(request);
  return show(s, answer, [&](const v1::PrepareResponse& prepared, const Style&) {
    std::string text = "a pause copies at most " + format_bytes(prepared.needed_bytes()) +
                       ". amemd pinned " + format_bytes(prepared.pinned_bytes()) +
                       " of host memory for that in " + format_micros(prepared.us()) + "\n";
    if (prepared.available_bytes() < prepared.needed_bytes())
      text += "the pool has space for " + format_bytes(prepared.available_bytes()) +
              " of it, and pool.size or quotas.pool allows no more: the pause looks for zeros\n";
    return text;
  });
}

int lease(const Invocation& s) {
  v1::LeaseRequest request;
  request.set_group(s.options.group);
  request.set_yield(s.options.yield);
  if (!s.options.yield && s.options.timeout)
    request.set_timeout_ms(static_cast<std::uint32_t>(s.options.timeout->count()));
  const auto answer = s.broker.lease(request);
  return show(s, answer, [&](const v1::LeaseResponse& lease, const Style&) {
    return s.options.group +
           (s.options.yield ? ": its turn has ended\n"
                            : " has its turn after " + format_micros(lease.waited_us()) +
                                  ", until `amemctl lease " + s.options.group + " --yield`\n");
  });
}

int watch(const Invocation& s) {
  const Status status = s.broker.watch(s.options.group, [&](const v1::Event& event) {
    s.console.out << (s.options.json ? to_json(event) + "\n"
                                     : event_line(event, s.console.out_style))
                  << std::flush;
    return static_cast<bool>(s.console.out);
  });
  // An interrupt, or a reader who has enough, is how a watch is meant to end.
  return status.code() == Code::kCancelled ? kExitOk : s.end(status);
}

/// Succeeds without a broker too: its version is then not known.
int version(const Invocation& s) {
  const auto status = s.broker.status();
  if (s.options.json) {
    const client::Json broker = status.ok() ? client::Json(status.value().version()) : nullptr;
    s.console.out << client::text_of({{"client", kVersion}, {"broker", broker}}) << '\n';
  } else {
    s.console.out << "amemctl " << kVersion << '\n'
                  << "amemd "
                  << (status.ok() ? status.value().version() : "unknown: " + status.status().text())
                  << '\n';
  }
  return kExitOk;
}

/// For all of an upgrade. Ranks try to reconnect for 30 s.
constexpr milliseconds kUpgradeWithin{30'000};
constexpr milliseconds kUpgradeLook{20};

milliseconds since(Clock::time_point when) {
  return std::chrono::ceil<milliseconds>(Clock::now() - when);
}

/// The status of an amemd that has begun since then; nothing: there is none yet.
std::optional<v1::NodeStatus> next_broker(ControlClient& broker, Clock::time_point asked) {
  auto status = broker.status();
  if (!status.ok() || milliseconds(status.value().uptime_ms()) > since(asked)) return std::nullopt;
  return status.value();
}

/// Returns the number of ranks that the broker knows, once all of them have reconnected.
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
         std::to_string(ranks) + (ranks == 1 ? " rank has" : " ranks have") + " reconnected\n";
}

/// Asks for the upgrade, and again while operations are under way. Then waits until the next amemd
/// serves and all ranks have reconnected to it.
int upgrade(const Invocation& s) {
  const auto until = Clock::now() + s.options.timeout.value_or(kUpgradeWithin);
  const auto fail = [&](const Status& status) {
    return s.interrupted() ? kExitInterrupted : s.end(status);
  };
  const auto wait = [&] {
    std::this_thread::sleep_for(kUpgradeLook);
    return Clock::now() < until && !s.interrupted();
  };

  auto asked = Clock::now();
  auto answer = s.broker.upgrade();
  while (answer.status().code() == Code::kAborted && wait()) {
    asked = Clock::now();
    answer = s.broker.upgrade();
  }
  if (!answer.ok()) return fail(answer.status());
  std::optional<v1::NodeStatus> status;
  std::optional<int> ranks;
  do {
    if (!status) status = next_broker(s.broker, asked);
    if (status) ranks = ranks_that_are_back(s.broker);
  } while (!ranks && wait());
  if (!ranks)
    return fail(
        {Code::kDeadlineExceeded,
         status ? "amemd " + status->version() +
                      " serves, but not all ranks have reconnected; `amemctl ranks` shows which "
                      "are missing"
                : answer.value().program() +
                      " was started in place of amemd, but it does not serve. Its log says why"});
  s.console.out << (s.options.json ? to_json(answer.value()) + "\n"
                                   : in_words(answer.value(), *status, *ranks, since(asked)));
  return kExitOk;
}

int dispatch(const Invocation& s) {
  if (s.options.added.asks) return s.options.added.asks(s);
  switch (s.options.command) {
    case Command::kStatus:
      return show_list(s, s.broker.status(), status_view);
    case Command::kGroups:
      return show_list(s, groups(s), groups_view);
    case Command::kQuotas:
      return show(s, s.broker.quotas(), quotas_view);
    case Command::kMetrics:
      return show(
          s, s.broker.metrics(s.options.metrics),
          [](const v1::GetMetricsResponse& metrics, const Style&) { return metrics.text(); });
    case Command::kHealth:
      return health(s);
    case Command::kReady:
      return ready(s);
    case Command::kHistory:
      return history(s);
    case Command::kRanks:
      return show_list(s, s.broker.ranks(s.options.group), ranks_view);
    case Command::kAllocations:
      return allocations(s);
    case Command::kPause:
    case Command::kResume:
    case Command::kSwap:
      return operate(s);
    case Command::kPrepare:
      return prepare(s);
    case Command::kPolicy:
      return set_policy(s);
    case Command::kTurns:
      return show(s, s.broker.turns(s.options.stage), turns_view);
    case Command::kStage:
      return set_turn(s);
    case Command::kLease:
      return lease(s);
    case Command::kWatch:
      return watch(s);
    case Command::kTop:
      return top(s.options, s.broker, s.console, s.interrupt);
    case Command::kUpgrade:
      return upgrade(s);
    case Command::kWait:
      return wait(s.options, s.broker, s.console, s.interrupt);
    case Command::kVersion:
      return version(s);
    case Command::kAdded:
    case Command::kRun:
      break;  // excluded by REQUIRES
  }
  return kExitUsage;
}

}  // namespace

int execute(const CommandLine& options, ControlClient& broker, Console& console,
            Interrupt* interrupt) {
  if (interrupt != nullptr) interrupt->on_signal([&broker] { broker.cancel(); });
  const int code = dispatch({options, broker, console, interrupt});
  if (interrupt != nullptr) interrupt->on_signal({});  // the broker may go before the interrupt
  console.out.flush();
  return code == kExitOk && !console.out ? kExitFailed : code;
}

}  // namespace amem::ctl
