// Reports of operations that have ended, as messages of the control API. Reads only.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "common/status.h"
#include "daemon/node/node.h"
#include "daemon/owners/caller.h"
#include "daemon/phases/phase_times.h"

namespace amem {

/// The launcher's number of a rank; -1: not known.
using RankNumber = std::function<int(RankId)>;
void report_phase_times(const std::vector<PhaseTime>& times, const RankNumber& number,
                        google::protobuf::RepeatedPtrField<v1::PhaseTime>& messages);

/// What the caller may see of what it asks for. kNotFound, kInvalidArgument: as find_group(), where
/// nothing is remembered of such a group either.
Status report_history(Node& node, const Caller& caller, const v1::ListHistoryRequest& request,
                      v1::ListHistoryResponse& response);

}  // namespace amem
