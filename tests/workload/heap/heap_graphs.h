// HeapGraph: one CUDA graph whose nodes copy and set memory of the program's, and the executable
// graph made of it.
//
// Owns both. One thread; throws Failure.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

#include "tests/workload/heap/heap_memory.h"

namespace amem::workload {

class HeapGraph {
 public:
  explicit HeapGraph(const HeapMemory& memory);

  /// One step; `id` is the memory that it is about.
  void Do(const std::string& step, std::uint64_t id);

 private:
  CUDA_MEMCPY3D CopyOf(std::uint64_t id);
  void Begin();
  void Add(const std::string& how, std::uint64_t id);
  void Capture(std::uint64_t id);
  void Wrap();
  void Launch();

  const HeapMemory& memory_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
  CUgraphNode node_ = nullptr;  // the last
  CUdeviceptr copied_ = 0;      // by the node; 0: it is a set
  std::vector<unsigned char> bytes_;
};

}  // namespace amem::workload
