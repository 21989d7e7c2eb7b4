#include "daemon/control/tasks.h"

#include <chrono>
#include <cstddef>

#include "common/packet.h"
#include "common/protocol.h"

namespace amem {
namespace {

constexpr std::size_t kMaxTagLength = sizeof(amem_v1_Create::tag) - 1;

/// Checks that a message to ranks can name these tags.
Status check_tags(const std::set<std::string>& tags) {
  if (tags.size() > kMaxTags)
    return {Code::kInvalidArgument,
            "an operation can name at most " + std::to_string(kMaxTags) +
                " tags. Name fewer, or except some, or name none for all memory"};
  for (const std::string& tag : tags)
    if (tag.empty() || tag.size() > kMaxTagLength)
      return {Code::kInvalidArgument,
              "a tag must have 1 to " + std::to_string(kMaxTagLength) + " characters"};
  return {};
}

/// `Request`: PauseRequest or SwapRequest.
template <class Request>
Status check_deep(const Request& request) {
  if (!request.deep() || request.nodes_size() == 0) return {};
  return {Code::kInvalidArgument,
          "a deep pause is of one node. Pass no nodes with it, and pause each node deep after the "
          "group is paused on all"};
}

/// `Request`: PauseRequest or ResumeRequest.
template <class Request>
Result<Task> read(Operation op, const Request& request) {
  const bool except = request.except_tags_size() > 0;
  if (except && request.tags_size() > 0)
    return Status(Code::kInvalidArgument,
                  "tags and excepted tags exclude each other. Pass one of them");
  const auto& tags = except ? request.except_tags() : request.tags();
  Task task(op, {{tags.begin(), tags.end()}, except});
  if constexpr (requires { request.discard(); })
    task.discard = {request.discard().begin(), request.discard().end()};
  if constexpr (requires { request.force(); }) task.force = request.force();
  if constexpr (requires { request.guests(); }) {
    const Result<GuestPolicy> guests = guest_policy_of(request.guests());
    if (!guests.ok()) return guests.status();
    task.guests = guests.value();
  }
  for (const auto& each : {task.selection.tags, task.discard})
    if (Status status = check_tags(each); !status.ok()) return status;
  if constexpr (requires { request.deep(); }) {
    task.deep = request.deep();
    if (Status status = check_deep(request); !status.ok()) return status;
  }
  return task;
}

}  // namespace

Result<Task> task_of(const v1::PauseRequest& request) { return read(Operation::kPause, request); }

Result<Task> task_of(const v1::ResumeRequest& request) { return read(Operation::kResume, request); }

Result<GuestPolicy> guest_policy_of(v1::GuestPolicy policy) {
  switch (policy) {
    case v1::GUEST_POLICY_UNSPECIFIED:
      return GuestPolicy::kDefault;
    case v1::GUEST_POLICY_PIN:
      return GuestPolicy::kPin;
    case v1::GUEST_POLICY_REFUSE:
      return GuestPolicy::kRefuse;
    default:
      return Status(Code::kInvalidArgument, "guests must be pin or refuse");
  }
}

Stages::Change change_of(const v1::SetTurnRequest& request) {
  Stages::Change change;
  if (request.set_stage()) change.stage = request.stage();
  if (request.weight() > 0) change.weight = request.weight();
  if (request.set_priority()) change.priority = request.priority();
  if (request.set_longest_wait())
    change.longest_wait = std::chrono::milliseconds(
        std::min<std::uint64_t>(request.longest_wait_ms(), std::uint64_t{1} << 32U));
  using Tags = std::vector<std::string>;
  if (request.set_leave_first())
    change.leave_first = Tags(request.leave_first().begin(), request.leave_first().end());
  if (request.set_return_order())
    change.return_order = Tags(request.return_order().begin(), request.return_order().end());
  return change;
}

Result<MetricsWriter> metrics_writer(v1::MetricsFormat format) {
  switch (format) {
    case v1::METRICS_FORMAT_UNSPECIFIED:
    case v1::METRICS_FORMAT_OPENMETRICS:
      return MetricsWriter(open_metrics_text);
    case v1::METRICS_FORMAT_PROMETHEUS:
      return MetricsWriter(prometheus_text);
    default:
      return Status(Code::kInvalidArgument,
                    "the format of metrics must be openmetrics or prometheus");
  }
}

Result<std::vector<std::string>> groups_of(
    const std::string& one, const google::protobuf::RepeatedPtrField<std::string>& several) {
  if (several.empty()) return std::vector<std::string>{one};
  if (!one.empty())
    return Status(Code::kInvalidArgument,
                  "one group and a list of groups exclude each other. Pass one of them");
  return std::vector<std::string>(several.begin(), several.end());
}

Result<std::set<std::string>> discard_of(const v1::SwapRequest& request) {
  std::set<std::string> discard(request.discard().begin(), request.discard().end());
  if (Status status = check_tags(discard); !status.ok()) return status;
  return discard;
}

namespace {

template <class Request>
Result<FleetTransaction> read_transaction(const Request& request) {
  const Result<Task> task = task_of(request);
  if (!task.ok()) return task.status();
  const auto groups = groups_of(request.group(), request.groups());
  if (!groups.ok()) return groups.status();
  FleetTransaction transaction;
  transaction.task = task.value();
  transaction.groups = groups.value();
  transaction.timeout = std::chrono::milliseconds(request.timeout_ms());
  return transaction;
}

}  // namespace

Result<FleetTransaction> transaction_of(const v1::PauseRequest& request) {
  return read_transaction(request);
}

Result<FleetTransaction> transaction_of(const v1::ResumeRequest& request) {
  return read_transaction(request);
}

Result<FleetTransaction> transaction_of(const v1::SwapRequest& request) {
  const Result<std::set<std::string>> discard = discard_of(request);
  if (!discard.ok()) return discard.status();
  const Result<GuestPolicy> guests = guest_policy_of(request.guests());
  if (!guests.ok()) return guests.status();
  if (Status status = check_deep(request); !status.ok()) return status;
  const auto out = groups_of(request.out(), request.out_groups());
  if (!out.ok()) return out.status();
  const auto in = groups_of(request.in(), request.in_groups());
  if (!in.ok()) return in.status();
  FleetTransaction transaction;
  transaction.swap = true;
  transaction.task.discard = discard.value();
  transaction.task.force = request.force();
  transaction.task.guests = guests.value();
  transaction.task.deep = request.deep();
  transaction.groups = out.value();
  transaction.in = in.value();
  transaction.timeout = std::chrono::milliseconds(request.timeout_ms());
  return transaction;
}

Result<FleetTransaction> transaction_of(const v1::FleetBegin& begin) {
  switch (begin.what_case()) {
    case v1::FleetBegin::kPause:
      return transaction_of(begin.pause());
    case v1::FleetBegin::kResume:
      return transaction_of(begin.resume());
    case v1::FleetBegin::kSwap:
      return transaction_of(begin.swap());
    case v1::FleetBegin::WHAT_NOT_SET:
      break;
  }
  return Status(Code::kInvalidArgument, "the operation must be a pause, a resume or a swap");
}

}  // namespace amem
