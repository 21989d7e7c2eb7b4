// Captures: the stream captures that are open in this process. A pause waits for their end, and
// what would break them is put off until then.
//
// Each is known by the stream that it began on: it ends with cuStreamEndCapture, or with the stream
// or its context. Any thread.
#pragma once

#include <cuda.h>

#include <mutex>
#include <thread>
#include <vector>

#include "shim/gate/gate.h"

namespace amem::shim {

class Captures {
 public:
  explicit Captures(Gate& gate) : gate_(gate) {}

  /// `per_thread`: the call was of the kind for which stream 0 is the thread's own.
  void began(CUstream stream, bool per_thread, CUcontext context);
  /// One of ours begins on this stream.
  bool open(CUstream stream, bool per_thread);
  /// The calling thread has begun one that is open. Unless that is relaxed, nobody else can end it.
  bool begun_here();
  void ended(CUstream stream, bool per_thread);
  /// The context is gone, and its streams with it.
  void context_gone(CUcontext context);

 private:
  struct Origin {
    CUstream stream = nullptr;
    std::thread::id thread;  // of a thread's own default stream; else none
    bool operator==(const Origin&) const = default;
  };
  struct Capture {
    Origin origin;
    CUcontext context = nullptr;
    std::thread::id begun_by;
  };
  static Origin origin(CUstream stream, bool per_thread);

  Gate& gate_;
  std::mutex mutex_;  // guards open_; taken before Gate's
  std::vector<Capture> open_;
};

}  // namespace amem::shim
