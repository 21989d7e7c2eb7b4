// Failure: how the workload reports that something did not go as NCCL would expect it to. It is a
// test program, so unlike amem itself it throws; threads catch and pass the text on.
#pragma once

#include <cuda.h>

#include <stdexcept>
#include <string>

namespace amem::workload {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A driver call failed. `result()` is what it returned.
class CudaFailure : public Failure {
 public:
  CudaFailure(const std::string& text, CUresult result) : Failure(text), result_(result) {}
  CUresult result() const { return result_; }

 private:
  CUresult result_;
};

}  // namespace amem::workload
