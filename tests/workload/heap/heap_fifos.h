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
  /// Makes so many of NCCL's in a row, filled with bytes that are neither zero nor 0xff. `ahead`:
  /// by what their senders have sent something that nobody has received: "simple", "ll", "ll128" or
  /// "". "late": nobody has, and their steps are half way to where LL's flags begin again.
  void Make(int device, const std::string& ahead, std::uint64_t count);
  /// "kept", "zero", "spoilt" or "wrong" of each: item "counters", item "ll", item "rest".
  void Report(Answer* answer) const;

 private:
  void MakeBuffer(int device, const std::string& ahead);
  static void MakeTable(int device, CUdeviceptr buffer, std::uint64_t step);

  struct Buffer {
    CUdeviceptr address = 0;
    std::vector<unsigned char> bytes;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace amem::workload
