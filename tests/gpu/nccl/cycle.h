// The life of a crew in amem_nccl_cycle: communicators, pauses with checks in between, or the loop.
#pragma once

#include "tests/gpu/nccl/rank.h"

namespace gpu_test {

/// Runs the test for one crew and returns when it has passed; a failure ends the process through
/// fail(). All crews call it, each from its own thread or process, with the same options.
void run_crew(Crew& crew, const Options& options, const PauseCalls& calls,
              const SuspendCalls& suspend);

}  // namespace gpu_test
