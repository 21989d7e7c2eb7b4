// What `amemctl history` shows. Pure functions; any thread.
#pragma once

#include <string>

#include "amem/v1/broker.pb.h"
#include "client/ctl/views/text_table.h"

namespace amem::ctl {

/// A line for each operation, then the errors, in full.
std::string history_view(const v1::ListHistoryResponse& history, const Style& style);

}  // namespace amem::ctl
