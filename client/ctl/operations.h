// `pause`, `resume` and `swap`. One thread.
#pragma once

#include "client/ctl/invocation.h"

namespace amem::ctl {

/// Whether a pause or resume of the group would find something to do.
bool has_work(Command command, const v1::GroupInfo& group);

/// Writes how they go and how they end. Returns the exit code.
int operate(const Invocation& invocation);

}  // namespace amem::ctl
