#include "client/ctl/commands.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/core/json.h"
#include "client/ctl/conclusions/advice.h"
#include "client/ctl/conclusions/forecast.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/views/format.h"
#include "client/ctl/views/progress_view.h"
#include "client/ctl/views/views.h"
#include "common/version.h"

namespace amem::ctl {
namespace {

using client::ControlClient;
using client::to_json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct Invocation {
  const CommandLine& options;
  ControlClient& broker;
  Console& console;
  Interrupt* interrupt;

  bool interrupted() const { return interrupt != nullptr && interrupt->happened(); }

  /// Writes the error, when there is one, and gives the exit code. What an interrupt ended is no
  /// error.
  int end(const Status& status) const {
    if (interrupted() && status.code() == Code::kCancelled) return kExitInterrupted;
    if (!status.ok()) console.err << error_line(status, options.json);
    return exit_code(status.code());
  }
};

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
    if (group.name() == name || group.address() == name) *chosen.add_groups() = group;
  }
  if (chosen.groups().empty()) {
    return Status(Code::kNotFound,
                  "there is no group " + name + "; `amemctl groups` lists what there is");
  }
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

/// Where a trace goes; opened before what it is of begins, so that a bad name stops nothing
/// halfway.
class TraceFile {
 public:
  /// An empty path: none.
  explicit TraceFile(std::string path) : path_(std::move(path)) {}

  Status open() {
    if (path_.empty()) return {};
    errno = 0;
    file_.open(path_, std::ios::trunc);
    return file_ ? Status() : trouble("opening");
  }
  explicit operator bool() const { return !path_.empty(); }
  Status write(const v1::ListHistoryResponse& history) {
    errno = 0;
    file_ << chrome_trace(history);
    file_.close();
    return file_ ? Status() : trouble("writing");
  }

 private:
  Status trouble(const std::string& what) const {
    return errno_status(Code::kUnknown, what + " the trace " + path_, errno);
  }

  std::string path_;
  std::ofstream file_;
};

/// gRPC's health is a flag that it answers from by itself; that amemd's loop turns, an answer of
/// the broker shows.
int health(const Invocation& s) {
  Status status = s.broker.health();
  if (status.ok()) status = s.broker.status().status();
  if (!status.ok()) return s.end(status);
  s.console.out << (s.options.json ? "{\"serving\":true}"
                                   : "amemd at " + s.broker.where() + " serves")
                << '\n';
  return kExitOk;
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
    if (const Status status = trace.write(answer.value()); !status.ok()) return s.end(status);
    // They are in the file.
    for (v1::PastOperation& operation : *answer.value().mutable_operations())
      operation.clear_spans();
  }
  return show(s, answer, history_view);
}

/// Of a transaction that has ended, however that was; 0: nothing has begun.
Status write_trace(const Invocation& s, TraceFile& trace, std::uint64_t transaction) {
  v1::ListHistoryResponse none;
  if (transaction == 0) return trace.write(none);
  v1::ListHistoryRequest request;
  request.set_transaction(transaction);
  request.set_spans(true);
  const auto answer = s.broker.history(request);
  return answer.ok() ? trace.write(answer.value()) : answer.status();
}

/// After an interrupt: the operation goes on in the broker, so say how far it is.
void tell_states(const Invocation& s, const std::vector<std::string>& names) {
  std::string text = "interrupted; the broker goes on with what it has begun";
  if (const auto groups = s.broker.groups(); groups.ok()) {
    for (const v1::GroupInfo& group : groups.value().groups()) {
      for (const std::string& name : names) {
        if (group.name() == name || group.address() == name)
          text += "; " + name + " is " + state_text(group);
      }
    }
  } else {
    text += ", as far as is known: " + groups.status().text();
  }
  s.console.err << error_line({Code::kCancelled, text + ". `amemctl groups` shows how it ends"},
                              s.options.json);
}

/// " (weights, kv_cache)" or " (all but weights)" behind a verb; nothing without tags.
std::string tag_text(const CommandLine& o) {
  std::string text;
  for (const std::string& tag : o.tags) text += (text.empty() ? " (" : ", ") + tag;
  for (const std::string& tag : o.except) text += (text.empty() ? " (all but " : ", ") + tag;
  return text.empty() ? text : text + ")";
}

int operate(const Invocation& s) {
  const CommandLine& o = s.options;
  TraceFile trace(o.trace);
  if (const Status status = trace.open(); !status.ok()) return s.end(status);
  std::uint64_t transaction = 0;
  ProgressView view(s.console.err_style, o.json ? 0 : s.console.err_columns);
  const client::OnProgress on_progress = [&](const v1::Progress& progress) {
    transaction = progress.transaction();
    if (o.json) {
      s.console.out << to_json(progress) << std::endl;
    } else {
      s.console.err << view.update(progress) << std::flush;
      if (progress.done()) {
        const bool paused =
            o.command != Command::kResume &&
            std::find(o.groups.begin(), o.groups.end(), progress.group()) != o.groups.end();
        const std::string verb = (paused ? "paused" : "resumed") + tag_text(o);
        s.console.out << result_line(progress, verb, s.console.out_style)
                      << (o.explain ? explain(progress) : "") << std::flush;
      }
    }
    return !s.interrupted();
  };

  const auto timeout =
      o.timeout ? static_cast<std::uint32_t>(o.timeout->count()) : std::uint32_t{0};
  Status status;
  if (o.command == Command::kPause) {
    status =
        s.broker.pause(o.groups, {o.tags, o.except, o.discard, o.guests}, timeout, on_progress);
  } else if (o.command == Command::kResume) {
    status = s.broker.resume(o.groups, {o.tags, o.except, {}, {}}, timeout, on_progress);
  } else {
    status = s.broker.swap(o.groups, o.into, o.discard, timeout, on_progress, o.guests);
  }
  s.console.err << view.clear() << std::flush;
  if (s.interrupted() && status.code() == Code::kCancelled) {
    std::vector<std::string> groups = o.groups;
    groups.insert(groups.end(), o.into.begin(), o.into.end());
    tell_states(s, groups);
    return kExitInterrupted;
  }
  const int code = s.end(status);
  if (!trace) return code;
  const int written = s.end(write_trace(s, trace, transaction));
  return code != kExitOk ? code : written;
}

/// Whether a pause or resume would find something to do.
bool has_work(Command command, const v1::GroupInfo& group) {
  if (command == Command::kPause) return group.state() != v1::GROUP_STATE_PAUSED;
  // Of a group that runs, memory of some tags may be paused.
  return group.state() != v1::GROUP_STATE_RUNNING ||
         group.resident_bytes() < group.allocated_bytes();
}

/// Each group in an operation of its own, so that one that fails keeps no other from it.
int operate_on_all(const Invocation& s) {
  const auto groups = s.broker.groups();
  if (!groups.ok()) return s.end(groups.status());
  const std::string verb = s.options.command == Command::kPause ? "paused" : "resumed";
  std::string failed;
  int code = kExitOk;
  int failures = 0;
  int all = 0;
  for (const v1::GroupInfo& group : groups.value().groups()) {
    if (!has_work(s.options.command, group)) {
      if (!s.options.json)
        s.console.out << printable(group.name()) << ": is " << state_text(group) << " already\n";
      continue;
    }
    CommandLine one = s.options;
    one.groups = {group.name()};
    ++all;
    const int ended = operate({one, s.broker, s.console, s.interrupt});
    if (ended == kExitInterrupted) return ended;
    if (ended == kExitOk) continue;
    code = failures == 0 || ended == code ? ended : static_cast<int>(kExitFailed);
    failed += (failed.empty() ? "" : ", ") + group.name();
    ++failures;
  }
  if (failures > 0)
    s.console.err << error_line(
        {Code::kAborted, std::to_string(failures) + " of " + std::to_string(all) +
                             " groups could not be " + verb + ": " + failed},
        s.options.json);
  if (all == 0 && !s.options.json) s.console.out << "no group is to be " << verb << '\n';
  return code;
}

/// Asks, and begins nothing.
int dry_run(const Invocation& s) {
  const auto node = s.broker.status();
  if (!node.ok()) return s.end(node.status());
  CommandLine asked = s.options;
  if (asked.all)
    for (const v1::GroupInfo& group : node.value().groups())
      if (has_work(asked.command, group)) asked.groups.push_back(group.name());
  const auto ranks = s.broker.ranks("");
  if (!ranks.ok()) return s.end(ranks.status());
  const auto quotas = s.broker.quotas();
  if (!quotas.ok()) return s.end(quotas.status());
  const auto history = s.broker.history({});
  if (!history.ok()) return s.end(history.status());
  const auto forecast =
      forecast_pause(asked, {node.value(), ranks.value(), quotas.value(), history.value()});
  if (!forecast.ok()) return s.end(forecast.status());
  s.console.out << (s.options.json ? to_json(forecast.value()) + "\n"
                                   : forecast_view(forecast.value()));
  return forecast.value().fit == Fit::kUnsure ? kExitResources : kExitOk;
}

int set_policy(const Invocation& s) {
  const CommandLine& o = s.options;
  const Status status = s.broker.set_policy(o.group, o.tag, o.policy, o.form);
  if (!status.ok()) return s.end(status);
  if (o.json) {
    v1::SetPolicyRequest request;
    request.set_group(o.group);
    request.set_tag(o.tag);
    request.set_policy(o.policy);
    request.set_form(o.form);
    s.console.out << to_json(request) << '\n';
  } else {
    std::string what = policy_text(o.policy);
    if (o.form != v1::FORM_UNSPECIFIED)
      what += (what.empty() ? "saved " : ", saved ") + form_text(o.form);
    s.console.out << o.group << ": " << o.tag << " is " << what << " from now on\n";
  }
  return kExitOk;
}

int advise(const Invocation& s) {
  const auto group = groups(s);
  if (!group.ok()) return s.end(group.status());
  const auto ranks = s.broker.ranks(s.options.group);
  if (!ranks.ok()) return s.end(ranks.status());
  v1::ListHistoryRequest request;
  request.set_group(s.options.group);
  const auto history = s.broker.history(request);
  if (!history.ok()) return s.end(history.status());
  const v1::GroupInfo& asked = group.value().groups(0);
  const auto advice = advice_for(asked, ranks.value(), history.value());
  s.console.out << (s.options.json ? to_json(asked, advice) + "\n" : advice_view(asked, advice));
  return kExitOk;
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

/// For all of an upgrade. Ranks try to come back for 30 s.
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

/// Asks for it, again while operations are under way, then waits until the next amemd serves and
/// all ranks have come back to it.
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
    return fail({Code::kDeadlineExceeded,
                 status ? "amemd " + status->version() +
                              " serves, but not all ranks have come back; `amemctl ranks` shows who"
                        : answer.value().program() +
                              " has been started in place of amemd, and does not serve; what it "
                              "logs says why"});
  s.console.out << (s.options.json ? to_json(answer.value()) + "\n"
                                   : in_words(answer.value(), *status, *ranks, since(asked)));
  return kExitOk;
}

int dispatch(const Invocation& s) {
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
    case Command::kHistory:
      return history(s);
    case Command::kRanks:
      return show_list(s, s.broker.ranks(s.options.group), ranks_view);
    case Command::kAllocations:
      return allocations(s);
    case Command::kPause:
    case Command::kResume:
      if (s.options.dry_run) return dry_run(s);
      return s.options.all ? operate_on_all(s) : operate(s);
    case Command::kSwap:
      return operate(s);
    case Command::kPolicy:
      return set_policy(s);
    case Command::kAdvise:
      return advise(s);
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
    case Command::kBench:
    case Command::kBenchRank:
    case Command::kRun:
    case Command::kDoctor:
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
