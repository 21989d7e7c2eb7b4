// Calls that name memory of the program's. Some of it may be paused while the program runs. Plain
// functions; the program's threads.
#pragma once

#include <cuda.h>

#include "shim/gate/gate.h"
#include "shim/memory/operands.h"
#include "shim/memory/paused_memory.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {

/// Some of this is paused: waits for it as callers wait at the gate, outside of it, because what
/// brings it back may have to shut the gate. A call of a capture does not wait, because a pause
/// waits for the capture's end: neither in the thread that has begun one, nor if it becomes part of
/// one. The others wait, until a pause has waited a second for captures, which may be open because
/// of them. `call`: its name, for messages; `work`: where its work goes. CUDA_SUCCESS: the memory
/// is here, or was when somebody last looked.
CUresult await_memory(const char* call, const Operands& named,
                      const Gate::Submission& work) noexcept;

/// Makes a call when all memory that it names is here. `work`: says where its work goes, asked only
/// when it has to wait; `named`: says what it names, asked only when something is paused; `make`:
/// makes it.
template <class Work, class Named, class Make>
CUresult with_memory(const char* call, const Work& work, const Named& named, const Make& make) {
  while (true) {
    {
      const Pass pass(*the_gate, the_gate->enter(work));
      if (pass.result() != CUDA_SUCCESS) return pass.result();
      if (!PausedMemory::any()) [[likely]]
        return make();
      // What is here stays here while the pass lasts.
      if (!PausedMemory::of(Runtime::get().memory().brokered, named())) return make();
    }
    if (const CUresult r = await_memory(call, named(), work()); r != CUDA_SUCCESS) return r;
  }
}

}  // namespace amem::shim
