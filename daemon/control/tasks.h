// What the requests of the control API ask the broker to do. kInvalidArgument, and what is wrong,
// for one that says nothing sensible. Plain functions; any thread.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "amem/v1/fleet.pb.h"
#include "common/status.h"
#include "daemon/fleet/participant.h"
#include "daemon/phases/task.h"
#include "daemon/reports/book.h"
#include "daemon/stages/stages.h"

namespace amem {

Result<Task> task_of(const v1::PauseRequest& request);
Result<Task> task_of(const v1::ResumeRequest& request);
/// The groups that a request is about, which names one or several.
Result<std::vector<std::string>> groups_of(
    const std::string& one, const google::protobuf::RepeatedPtrField<std::string>& several);
/// What the pause of a request does with guests.
Result<GuestPolicy> guest_policy_of(v1::GuestPolicy policy);
/// The tags whose bytes the pause of a swap drops.
Result<std::set<std::string>> discard_of(const v1::SwapRequest& request);

/// All of a request, without its nodes.
Result<FleetTransaction> transaction_of(const v1::PauseRequest& request);
Result<FleetTransaction> transaction_of(const v1::ResumeRequest& request);
Result<FleetTransaction> transaction_of(const v1::SwapRequest& request);
/// What another node's broker asks of this one.
Result<FleetTransaction> transaction_of(const v1::FleetBegin& begin);

Stages::Change change_of(const v1::SetTurnRequest& request);

/// How metrics are written down.
using MetricsWriter = std::function<std::string(const Families& families)>;
Result<MetricsWriter> metrics_writer(v1::MetricsFormat format);

}  // namespace amem
