// Blocks: the device memory of a puppet, by number.
//
// A block is mapped memory (cuMemCreate, cuMemMap), memory of the older calls (cuMemAlloc) or
// another process's (cuIpcOpenMemHandle; a descriptor). Its content is a function of a seed that
// the test names. The device's context must be current. One thread; throws workload::Failure.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace amem::puppet {

/// What a seed says of this many bytes.
std::vector<std::uint64_t> Pattern(std::size_t bytes, std::uint64_t seed);

class Blocks {
 public:
  explicit Blocks(CUdevice device) : device_(device) {}
  ~Blocks();

  /// Each returns the new block's number.
  /// `whole`: as who asks for the recommended granularity, so that it is never packed.
  /// On the device, whose context need not be there.
  std::uint64_t Map(std::size_t bytes, bool whole, CUdevice device);
  std::uint64_t Map(std::size_t bytes, bool whole) { return Map(bytes, whole, device_); }
  std::uint64_t Allocate(std::size_t bytes);
  /// Which the shim never brokers.
  std::uint64_t AllocateManaged(std::size_t bytes);
  std::uint64_t Open(const std::string& handle, unsigned flags);
  /// Of a mapped block of another puppet, which offers it through this directory.
  std::uint64_t Take(const std::string& directory, std::size_t bytes);
  void Free(std::uint64_t id);
  /// Gives a mapped block to one puppet that takes it through this directory, in a thread.
  void Offer(std::uint64_t id, const std::string& directory);
  /// Of a mapped block: all of Free but the last call, which frees its address.
  void Unmap(std::uint64_t id);
  /// Whether anything is mapped there or not; of the block nothing is left when that works.
  void FreeAddress(std::uint64_t id);
  /// The interprocess handle of the block's `offset`th byte, in hexadecimal.
  std::string Share(std::uint64_t id, std::size_t offset) const;

  void Fill(std::uint64_t id, std::uint64_t seed) const;
  void Clear(std::uint64_t id) const;
  /// All bits of one byte become their opposites.
  void Flip(std::uint64_t id, std::size_t offset) const;
  /// Throws unless every byte is as Fill with this seed left it.
  void Verify(std::uint64_t id, std::uint64_t seed) const;
  /// Throws unless every byte is zero.
  void ExpectZero(std::uint64_t id) const;

  enum class Kind { kMapped, kPlain, kShared };
  struct Block {
    Kind kind = Kind::kMapped;
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;  // kMapped; 0: only the address is left
  };
  const Block& At(std::uint64_t id) const;

 private:
  std::uint64_t Add(const Block& block);
  void Expect(std::uint64_t id, const std::vector<std::uint64_t>& expected) const;
  void MapAt(Block& block, CUdevice device);

  const CUdevice device_;
  std::map<std::uint64_t, Block> blocks_;
  std::uint64_t next_id_ = 1;
  std::thread offer_;
};

}  // namespace amem::puppet
