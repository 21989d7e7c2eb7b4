// Streams: work that takes its time, and a stream capture as programs of CUDA 10.0 begin it, or
// into a graph that there is.
//
// One thread; throws workload::Failure.
#pragma once

#include <cuda.h>

namespace amem::puppet {

class Streams {
 public:
  ~Streams();

  /// Gives a stream of its own so many milliseconds of work, and returns at once.
  void Busy(unsigned milliseconds);
  /// By cuStreamBeginCapture as CUDA 10.0 had it, without a mode, on another stream.
  void BeginCapture();
  /// By cuStreamBeginRecaptureToGraph of CUDA 13.3, into a graph with nothing in it.
  void BeginRecapture();
  /// The driver's result.
  CUresult EndCapture();

 private:
  CUstream busy_ = nullptr;
  CUstream captured_ = nullptr;
  CUgraph again_ = nullptr;  // what is captured into
};

}  // namespace amem::puppet
