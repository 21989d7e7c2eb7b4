// The gate of a process that others may lock for a checkpoint: calls wait before it while it is
// shut.
//
// Any thread. Without AMEM_SIM_CHECKPOINT there is none, and calls pass.
#pragma once

#include <cuda.h>

namespace sim {

/// From here on calls pass the gate. Once, in cuInit.
void BuildGate();

/// Waits while the gate is shut. `counts`: LeaveGate must follow; a call within a call does not
/// count. CUDA_ERROR_UNKNOWN: the process is lost.
CUresult PassGate(bool* counts);
void LeaveGate();
/// The same for a call that a lock does not hold: it neither waits nor is waited for. In a process
/// that is locked it ends that, as a checkpoint beside such a call does in reality.
CUresult PassUnheld(bool* counts);
void LeaveUnheld();
/// Ends the process if one of these calls is under way.
void EndBesideUnheld();

/// Holds new calls up and waits until those that have passed are done. False: they were not within
/// this time, and the gate is open again; 0: waits for as long as it takes.
bool ShutGate(unsigned milliseconds);
void OpenGate();
/// The process is lost: every call fails, also those that wait.
void BreakGate();

}  // namespace sim
