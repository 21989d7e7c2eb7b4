#include "shim/process/python.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "shim/process/symbols.h"

namespace amem::shim {
namespace {

std::atomic<int (*)()> is_finalizing{nullptr};
std::atomic<void* (*)()> this_thread_state{nullptr};
std::atomic<bool> told{false};

template <class Function>
void find(std::atomic<Function>& function, const char* name) {
  if (void* found = real_dlsym()(RTLD_DEFAULT, name); found != nullptr)
    function.store(reinterpret_cast<Function>(found), std::memory_order_release);
}

}  // namespace

void Python::look() {
  find(this_thread_state, "PyGILState_GetThisThreadState");
  find(is_finalizing, "_Py_IsFinalizing");  // until 3.12
  find(is_finalizing, "Py_IsFinalizing");
}

bool Python::found() { return is_finalizing.load(std::memory_order_acquire) != nullptr; }

bool Python::ending() {
  const auto ask = is_finalizing.load(std::memory_order_acquire);
  return told.load(std::memory_order_acquire) || (ask != nullptr && ask() != 0);
}

void Python::tell_ending() { told.store(true, std::memory_order_release); }

bool Python::ends_this_thread() {
  const auto state = this_thread_state.load(std::memory_order_acquire);
  // glibc has gettid() since 2.30.
  return state != nullptr && state() != nullptr && ::syscall(SYS_gettid) != ::getpid();
}

}  // namespace amem::shim
