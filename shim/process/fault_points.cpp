#include "shim/process/fault_points.h"

#ifdef AMEM_FAULT_POINTS

#include "shim/process/symbols.h"

namespace amem::shim {

void fault_point(const char* name) noexcept {
  using Reached = void (*)(const char* name);
  static const auto reached = reinterpret_cast<Reached>(driver_symbol("amemSimFaultPoint"));
  if (reached != nullptr) reached(name);
}

}  // namespace amem::shim

#endif
