// Blocks: the device memory of a puppet, by number.
//
// A block is mapped memory (cuMemCreate, cuMemMap) or memory of the older calls (cuMemAlloc). Its
// content is a function of a seed that the test names. The device's context must be current. One
// thread; throws workload::Failure.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace amem::puppet {

class Blocks {
 public:
  explicit Blocks(CUdevice device) : device_(device) {}

  /// Each returns the new block's number.
  std::uint64_t Map(std::size_t bytes);
  std::uint64_t Allocate(std::size_t bytes);
  void Free(std::uint64_t id);

  void Fill(std::uint64_t id, std::uint64_t seed) const;
  /// Throws unless every byte is as Fill with this seed left it.
  void Verify(std::uint64_t id, std::uint64_t seed) const;

  struct Block {
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;  // 0: memory of the older calls
  };
  const Block& At(std::uint64_t id) const;

 private:
  std::uint64_t Add(const Block& block);

  const CUdevice device_;
  std::map<std::uint64_t, Block> blocks_;
  std::uint64_t next_id_ = 1;
};

}  // namespace amem::puppet
