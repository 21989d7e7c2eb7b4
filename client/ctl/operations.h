// `pause`, `resume` and `swap`. One thread.
#pragma once

#include "client/ctl/invocation.h"

namespace amem::ctl {

/// Writes how they go and how they end, and gives the exit code. With --dry-run it begins nothing.
int operate(const Invocation& invocation);

}  // namespace amem::ctl
