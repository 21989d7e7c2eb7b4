#include "daemon/node/operation_reports.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include "daemon/node/history.h"
#include "daemon/node/names.h"

namespace amem {
namespace {

bool may_see(const Caller& caller, const PastOperation& past) {
  return caller.sees_all || caller.operates ||
         (caller.account != nullptr && caller.account->owner() == past.owner);
}

std::string address_of(const PastOperation& past) { return past.group + "@" + key_of(past.owner); }

/// As name_for(), of a group that may be gone: short where no other owner has one of that name.
std::string name_for(const History& history, const Caller& caller, const PastOperation& past) {
  if (caller.account != nullptr && caller.account->owner() == past.owner) return past.group;
  for (const PastOperation& other : history.all())
    if (other.group == past.group && other.owner != past.owner && may_see(caller, other))
      return address_of(past);
  return past.group;
}

bool asked_for(const v1::ListHistoryRequest& request, const PastOperation& past) {
  if (request.transaction() != 0 && past.transaction != request.transaction()) return false;
  const std::string& name = request.group();
  if (name.empty()) return true;
  return name.find('@') == std::string::npos ? name == past.group : name == address_of(past);
}

void report_calls(Duration command, const char* name, Duration time, const Period& when,
                  v1::RankSpan& message) {
  if (when.to == Duration::zero()) return;
  v1::CallSpan& call = *message.add_calls();
  call.set_name(name);
  call.set_begin_us(to_us(command + when.from));
  call.set_us(to_us(when.to - when.from));
  call.set_in_calls_us(to_us(time));
}

void report_span(const PastOperation& past, const RankSpan& span, v1::RankSpan& message) {
  message.set_id(span.rank);
  const auto face = past.ranks.find(span.rank);
  message.set_rank(face != past.ranks.end() ? face->second.number : -1);
  if (face != past.ranks.end()) message.set_pid(face->second.pid);
  message.set_work(std::string(to_string(span.what)));
  // A rank says for how long it was busy, not since when; the answer's way here is counted too.
  const CommandTimes& spent = span.spent;
  const Duration busy = std::min(spent.busy, span.answered);
  const Duration command = span.answered - busy;
  message.set_begin_us(to_us(command));
  message.set_us(to_us(busy));
  message.set_bytes(span.bytes);
  report_calls(command, "copy", spent.copy, spent.when_copy, message);
  report_calls(command, "cuMemImportFromShareableHandle", spent.import, spent.when_import, message);
  report_calls(command, "cuMemMap", spent.map, spent.when_map, message);
  report_calls(command, "cuMemSetAccess", spent.access, spent.when_access, message);
  report_calls(command, "cuMemUnmap", spent.unmap, spent.when_unmap, message);
  report_calls(command, "cuMemRelease", spent.release, spent.when_release, message);
}

void report_past(const PastOperation& past, bool spans, v1::PastOperation& message) {
  const Outcome& outcome = past.outcome;
  message.set_transaction(past.transaction);
  message.set_swap(past.swap);
  message.set_operation(std::string(to_string(outcome.task.op)));
  message.set_tags(to_string(outcome.task.selection));
  message.set_began_us(to_us(past.began.time_since_epoch()));
  message.set_us(to_us(outcome.total));
  message.set_code(static_cast<std::uint32_t>(outcome.status.code()));
  message.set_error(outcome.status.text());
  message.set_bytes(copied(outcome));
  const auto number = [&](RankId rank) {
    const auto face = past.ranks.find(rank);
    return face != past.ranks.end() ? face->second.number : -1;
  };
  report_phase_times(outcome.times, number, *message.mutable_times());
  if (!spans) return;
  for (const PhaseSpan& phase : outcome.spans) {
    v1::PhaseSpan& span = *message.add_spans();
    span.set_phase(std::string(phase_name(phase.phase)));
    span.set_begin_us(to_us(phase.begin));
    span.set_us(to_us(phase.end - phase.begin));
    for (const RankSpan& rank : phase.ranks) report_span(past, rank, *span.add_ranks());
  }
}

}  // namespace

void report_phase_times(const std::vector<PhaseTime>& times, const RankNumber& number,
                        google::protobuf::RepeatedPtrField<v1::PhaseTime>& messages) {
  for (const PhaseTime& time : times) {
    v1::PhaseTime& phase = *messages.Add();
    phase.set_phase(std::string(phase_name(time.phase)));
    phase.set_us(to_us(time.time));
    phase.set_broker_us(to_us(time.broker));
    phase.set_driver_us(to_us(time.driver));
    for (const RankTime& each : time.ranks) {
      v1::RankTime& rank = *phase.add_ranks();
      rank.set_id(each.rank);
      rank.set_rank(number(each.rank));
      rank.set_us(to_us(each.time));
      rank.set_busy_us(to_us(each.spent.busy));
      rank.set_bytes(each.copied);
      rank.set_copy_us(to_us(each.spent.copy));
      rank.set_import_us(to_us(each.spent.import));
      rank.set_map_us(to_us(each.spent.map));
      rank.set_access_us(to_us(each.spent.access));
      rank.set_unmap_us(to_us(each.spent.unmap));
      rank.set_release_us(to_us(each.spent.release));
      rank.set_handles(static_cast<std::uint32_t>(each.spent.handles));
    }
  }
}

Status report_history(Node& node, const Caller& caller, const v1::ListHistoryRequest& request,
                      v1::ListHistoryResponse& response) {
  std::vector<const PastOperation*> chosen;
  for (const PastOperation& past : node.history.all())
    if (may_see(caller, past) && asked_for(request, past)) chosen.push_back(&past);
  if (chosen.empty() && !request.group().empty() && request.transaction() == 0)
    if (const auto group = find_group(node, caller, request.group()); !group.ok())
      return group.status();
  const std::size_t skipped =
      request.most() > 0 && chosen.size() > request.most() ? chosen.size() - request.most() : 0;
  for (std::size_t i = skipped; i < chosen.size(); ++i) {
    v1::PastOperation& message = *response.add_operations();
    message.set_group(name_for(node.history, caller, *chosen[i]));
    report_past(*chosen[i], request.spans(), message);
  }
  return {};
}

}  // namespace amem
