// Declarations from headers of CUDA that are newer than those that amem may be built with (13.0).
//
// Whatever headers there are, amem uses its own declarations, so that a build knows the same calls
// everywhere. tests/newest compares them with CUDA's.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace amem::cuda {

/// CUfabricCpyOperand (13.5).
struct FabricOperand {
  unsigned type = 0;
  unsigned long long address = 0;  // of kFabricPointer
  CUmemLocation hint{};
};
inline constexpr unsigned kFabricPointer = 1;

/// CUDA_FABRIC_COPY_BATCH_OP (13.5).
struct FabricCopy {
  FabricOperand source;
  FabricOperand destination;
  std::size_t size = 0;
  unsigned flags = 0;
};

/// CUDA_MEMCPY_BATCH_NODE_PARAMS (13.4). Its other fields name no memory.
struct CopyBatchNode {
  std::size_t count;
  CUdeviceptr* destinations;
  CUdeviceptr* sources;
  std::size_t* sizes;
};
/// CUDA_FABRIC_CPY_BATCH_NODE_PARAMS (13.5). Its other fields name no memory.
struct FabricBatchNode {
  std::size_t count;
  FabricCopy* copies;
};
/// CUgraphNodeType.
inline constexpr int kCopyBatch = 14;
inline constexpr int kFabricCopyBatch = 18;

/// CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK (12.8); 0: the device has no engine for that.
inline constexpr auto kDecompressAlgorithms = static_cast<CUdevice_attribute>(136);
/// CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS (12.8), of CUmemPoolProps.usage, which is after maxSize.
inline constexpr unsigned short kPoolForDecompression = 2;

/// The newest CUdevice_attribute that the table of driver calls goes with (13.5).
inline constexpr int kLastAttribute = 161;
/// Device attributes that say what logical endpoints can do (13.3).
constexpr bool of_logical_endpoints(int attribute) {
  return (attribute >= 153 && attribute <= 156) || attribute == 158;
}

}  // namespace amem::cuda
