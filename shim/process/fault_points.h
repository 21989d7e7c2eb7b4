// Fault points: places in the shim's own code where a test holds a thread, delays it or ends the
// process, to bring about a race that is rare.
//
// The simulated driver has the rules (tests/sim/manual.md, "Faults"): a point is a name in
// AMEM_SIM_FAULTS or in the fault file, as a driver call is. With NVIDIA's driver nothing happens.
// Releases are built without them (AMEM_FAULT_POINTS=OFF). Any thread.
#pragma once

namespace amem::shim {

#ifdef AMEM_FAULT_POINTS
/// Looks for the rules in the driver, once it is loaded: that takes the loader's lock, which no
/// step of a pause may wait for.
void find_fault_points() noexcept;
void fault_point(const char* name) noexcept;
#else
inline void find_fault_points() noexcept {}
inline void fault_point(const char* /*name*/) noexcept {}
#endif

}  // namespace amem::shim
