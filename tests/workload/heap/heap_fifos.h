// HeapFifos: receive buffers as NCCL makes them, with the table that names them, and what of them a
// pause has brought back. One thread; throws Failure.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/workload/base/answer.h"

namespace amem::workload {

class HeapFifos {
 public:
  /// Makes one of NCCL's, filled with bytes that are neither zero nor 0xff. `ahead`: by what its
  /// sender has sent something that nobody has received: "simple", "ll128" or "".
  void Make(int device, const std::string& ahead);
  /// "kept", "zero", "spoilt" or "wrong" of each: item "counters", item "ll", item "rest".
  void Report(Answer* answer) const;

 private:
  struct Buffer {
    CUdeviceptr address = 0;
    std::vector<unsigned char> bytes;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace amem::workload
