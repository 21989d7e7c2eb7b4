// The calls of NCCL's API that the shim looks at, with NCCL's names. Part of libnccl_workload.so.
#pragma once

#include <cstddef>

#include "tests/workload/nccl/export.h"

extern "C" {

/// What the variable WORKLOAD_NCCL_VERSION says; 1, a failure, where there is none.
WORKLOAD_EXPORT int ncclGetVersion(int* version);

/// As NCCL 2.32 at the first window of a communicator: makes a small buffer of its own as a window,
/// and maps it a second time. `comm`: points to the device's number, an int. `window`: where it is
/// mapped. 1: a driver call failed. What it made stays.
WORKLOAD_EXPORT int ncclCommWindowRegister(void* comm, void* buffer, std::size_t size,
                                           void** window, int flags);
}
