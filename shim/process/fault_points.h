// Fault points: places in the shim's own code where a test holds a thread, delays it or ends the
// process, to bring about a race that is rare.
//
// The simulated driver has the rules (tests/sim/manual.md, "Faults"): a point is a name in
// AMEM_SIM_FAULTS or in the fault file, as a driver call is. With NVIDIA's driver nothing happens.
// Releases are built without them (AMEM_FAULT_POINTS=OFF). Any thread.
#pragma once

namespace amem::shim {

#ifdef AMEM_FAULT_POINTS
void fault_point(const char* name) noexcept;
#else
inline void fault_point(const char* /*name*/) noexcept {}
#endif

}  // namespace amem::shim
