#include "client/ctl/operations.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "client/core/json.h"
#include "client/ctl/conclusions/groups.h"
#include "client/ctl/node_list.h"
#include "client/ctl/trace_file.h"
#include "client/ctl/views/format.h"
#include "client/ctl/views/progress_view.h"
#include "client/ctl/views/views.h"

namespace amem::ctl {

bool has_work(Command command, const v1::GroupInfo& group) {
  if (command == Command::kPause) return group.state() != v1::GROUP_STATE_PAUSED || group.partial();
  // Of a group that runs, memory of some tags may be paused.
  return group.state() != v1::GROUP_STATE_RUNNING ||
         group.resident_bytes() < group.allocated_bytes();
}

namespace {

using client::to_json;

/// What one node has of an operation.
struct Part {
  std::string node;               // empty: there is only this one
  std::uint64_t transaction = 0;  // as that node counts
};

/// Of an operation that has ended, however that was: its parts by the places of their nodes. A node
/// that does not answer is missing in the trace, and the status names it.
Status write_trace(const Invocation& s, TraceFile& trace,
                   const std::map<std::uint32_t, Part>& parts) {
  const Result<std::vector<std::string>> addresses = nodes_of(s.options);
  if (!addresses.ok()) return addresses.status();
  std::vector<NodeHistory> nodes(parts.size());
  std::vector<Status> failures(parts.size());
  ask_all(parts.size(), [&](std::size_t i) {
    const auto& [place, part] = *std::next(parts.begin(), static_cast<std::ptrdiff_t>(i));
    v1::ListHistoryRequest request;
    request.set_transaction(part.transaction);
    request.set_spans(true);
    const auto answer = part.node.empty()
                            ? s.broker.history(request)
                            : client_of(s.options, addresses.value().at(place)).history(request);
    nodes[i].node = part.node;
    if (answer.ok())
      nodes[i].history = answer.value();
    else
      failures[i] = answer.status();
  });
  const Status written = trace.write(nodes);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (failures[i].ok()) continue;
    const std::string lacks =
        nodes[i].node.empty() ? "" : "the trace lacks node " + nodes[i].node + ": ";
    return {failures[i].code(), lacks + failures[i].text()};
  }
  return written;
}

/// After an interrupt: the operation goes on in the broker, so say how far it is.
void tell_states(const Invocation& s, const std::vector<std::string>& names) {
  s.interrupt->on_signal({});  // it has cancelled by then
  s.broker.allow();
  std::string text = "interrupted. The broker continues the operation";
  if (const auto groups = s.broker.groups(); groups.ok()) {
    for (const v1::GroupInfo& group : groups.value().groups()) {
      for (const std::string& name : names) {
        if (is_called(group, name)) text += "; " + name + " is " + state_text(group);
      }
    }
  } else {
    text += ". Its state is unknown: " + groups.status().text();
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

int operate_once(const Invocation& s) {
  const CommandLine& o = s.options;
  TraceFile trace(o.trace);
  if (const Status status = trace.open(); !status.ok()) return s.end(status);
  std::map<std::uint32_t, Part> parts;
  ProgressView view(s.console.err_style, o.json ? 0 : s.console.err_columns);
  const client::OnProgress on_progress = [&](const v1::Progress& progress) {
    if (trace && progress.transaction() != 0)
      parts[progress.node_number()] = {progress.node(), progress.transaction()};
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
  const client::Choice chosen{o.tags, o.except, o.discard, o.guests, o.deep, o.force};
  Status status;
  if (o.command == Command::kPause) {
    status = s.broker.pause(o.groups, chosen, timeout, on_progress);
  } else if (o.command == Command::kResume) {
    status = s.broker.resume(o.groups, chosen, timeout, on_progress);
  } else {
    status = s.broker.swap(o.groups, o.into, chosen, timeout, on_progress);
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
  const int written = s.end(write_trace(s, trace, parts));
  return code != kExitOk ? code : written;
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
        s.console.out << printable(group.name()) << " is already " << state_text(group) << "\n";
      continue;
    }
    CommandLine one = s.options;
    one.groups = {group.name()};
    ++all;
    const int ended = operate_once({one, s.broker, s.console, s.interrupt});
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
  if (all == 0 && !s.options.json) s.console.out << "there is no group to be " << verb << '\n';
  return code;
}

}  // namespace

int operate(const Invocation& s) { return s.options.all ? operate_on_all(s) : operate_once(s); }

}  // namespace amem::ctl
