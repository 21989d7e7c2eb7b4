// WORKLOAD_EXPORT marks what libnccl_workload.so offers to the program; everything else in it is
// hidden.
#pragma once

#define WORKLOAD_EXPORT __attribute__((visibility("default")))
