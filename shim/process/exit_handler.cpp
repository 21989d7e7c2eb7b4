#include "shim/process/exit_handler.h"

// Of the C++ ABI, which declares them in no header.
extern "C" {
int __cxa_atexit(void (*function)(void*), void* argument, void* owner);
void __cxa_finalize(void* owner);
}

namespace amem::shim {
namespace {

// This thread is taking its handler out, not ending the process.
thread_local bool rearming = false;

}  // namespace

void ExitHandler::exiting(void* self) {
  auto& handler = *static_cast<ExitHandler*>(self);
  if (!rearming && !handler.begun_.exchange(true)) handler.run_();
}

void ExitHandler::arm() {
  // An owner of its own can be "unloaded", which runs and forgets its handlers: the place is used
  // again, so that the list does not grow with every arm().
  rearming = true;
  __cxa_finalize(this);
  rearming = false;
  // Refused when exit() has run all handlers, maybe while this one was out.
  if (__cxa_atexit(&ExitHandler::exiting, this, this) != 0) exiting(this);
}

}  // namespace amem::shim
