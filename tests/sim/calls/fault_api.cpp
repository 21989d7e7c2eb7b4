// The fault points of programs.
#include "tests/sim/entry/fault.h"
#include "tests/sim/sim.h"

extern "C" __attribute__((visibility("default"))) void amemSimFaultPoint(const char* name) {
  sim::CheckFaults(name);
}
