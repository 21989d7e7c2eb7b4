// Fault injection: AMEM_SIM_FAULTS, and AMEM_SIM_FAULT_FILE for a process that runs already.
//
// A rule `name:nth[:action]` counts the calls of one exported name in this process and acts on the
// nth, on `*` all of them or from the `5+`th on. `name` is the exact name or the name without
// version and _ptsz/_ptds. Any thread.
#pragma once

#include <cuda.h>

namespace sim {

/// Called first in every exported call. Sleeps, kills the process or returns the error the rules
/// ask for; CUDA_SUCCESS otherwise.
CUresult CheckFaults(const char* exported_name);

}  // namespace sim
