#include "shim/process/fault_points.h"

#ifdef AMEM_FAULT_POINTS

#include <atomic>

#include "shim/process/symbols.h"

namespace amem::shim {

namespace {

using Reached = void (*)(const char* name);
std::atomic<Reached> reached{nullptr};

}  // namespace

void find_fault_points() noexcept {
  reached.store(reinterpret_cast<Reached>(driver_symbol("amemSimFaultPoint")));
}

void fault_point(const char* name) noexcept {
  if (const Reached found = reached.load(std::memory_order_relaxed); found != nullptr) found(name);
}

}  // namespace amem::shim

#endif
