// Interposition: the shim supplies `dlsym`, and wraps what it and cuGetProcAddress hand out.
//
// A wrapper is one row of a table: API name, first API version of its signature, exported symbol.
// Whoever looks a driver call up gets the wrapper of the row that the driver would have chosen, and
// the row remembers the driver's function.
#pragma once

#include <atomic>

namespace amem::shim {

struct Call {
  const char* api;     // as cuGetProcAddress names it
  int version;         // first CUDA version of this signature
  bool per_thread;     // the variant for per-thread default streams
  const char* symbol;  // as libcuda.so.1 exports it
  void* wrapper;
  std::atomic<void*>* real;  // the driver's function, once anybody has asked for it
};

/// The row for an exported symbol; nullptr when we do not wrap it.
const Call* find_symbol(const char* symbol);
/// The row that the driver chooses for this name, version and kind of default stream.
const Call* find_call(const char* api, int version, bool per_thread);

/// dlsym of the C library, without us.
using Dlsym = void* (*)(void* handle, const char* name);
Dlsym real_dlsym();

/// Rows of shim/calls_*.cpp.
struct CallList {
  const Call* begin;
  const Call* end;
};
CallList memory_calls();
CallList capture_calls();
CallList heap_calls();
CallList slab_calls();
CallList unbrokered_calls();
CallList ipc_calls();
CallList multicast_calls();
CallList work_calls();

}  // namespace amem::shim
