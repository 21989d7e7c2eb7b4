// Contexts, and which one is current in a thread.
//
// One mutex, the driver mutex, guards contexts, streams, events, captures and graphs. Whoever waits
// for work waits on a condition variable with it, so nobody's launch is held up by somebody else's
// synchronisation.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/sim/memory/physical.h"

namespace sim {

using Lock = std::unique_lock<std::mutex>;
Lock LockDriver();

class Stream;

struct Context {
  int physical = 0;
  bool primary = false;
  bool alive = false;
  unsigned flags = 0;
  int references = 0;                    // primary only
  CUresult sticky = CUDA_SUCCESS;        // what the first failed work leaves behind, for good
  std::shared_ptr<Physical> own_memory;  // what a context occupies on its device
  std::map<int, size_t> limits;
  std::set<CUcontext> peers;  // whose memory it may use
  // Also streams that were destroyed but have work left.
  std::set<std::shared_ptr<Stream>> streams;
  std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;

  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
};

// REQUIRES for all below: the driver mutex, passed as a Lock where the function may let go of it
// meanwhile.

/// Null if the handle is none of a context that was ever made. A dead context is found too.
Context* FindContext(CUcontext handle);

/// The thread's current context, fit for work: CUDA_ERROR_INVALID_CONTEXT if there is none,
/// CUDA_ERROR_CONTEXT_IS_DESTROYED, or its sticky error.
CUresult CurrentContext(Context** out);

/// The handle that is current, or null.
CUcontext CurrentHandle();
void PushContext(CUcontext handle);
void SetCurrentHandle(CUcontext handle);  // null: none
bool PopContext(CUcontext* out);

Context& PrimaryContext(int physical);
CUresult RetainPrimary(Lock& lock, int physical, CUcontext* out);
CUresult CreateContext(Lock& lock, int physical, unsigned flags, CUcontext* out);

/// Waits for the context's work, then drops its streams, what the older calls allocated in it, and
/// its own memory.
void DestroyContext(Lock& lock, Context& context);

/// Waits for all work of a device in this process.
CUresult SynchronizeDevice(Lock& lock, int physical);

}  // namespace sim
