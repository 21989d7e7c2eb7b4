// Team: a multicast object of a puppet, alone or shared with other puppets.
//
// The calls come in NCCL's order: one puppet creates the object, the others import it, each adds
// its device, binds memory of its own, and maps the object. The device's context must be current.
// One thread; throws workload::Failure.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "tests/puppet/blocks.h"

namespace amem::puppet {

class Team {
 public:
  explicit Team(CUdevice device) : device_(device) {}
  ~Team();

  void Create(std::size_t bytes, unsigned devices);
  /// Hands the object to one puppet that joins through this directory, in a thread of its own.
  void Offer(const std::string& directory);
  void Join(const std::string& directory, std::size_t bytes);
  void AddDevice() const;

  /// The whole of the block, at this place of the object; by its handle or by its address.
  void Bind(const Blocks::Block& block, std::size_t at) const;
  void BindAddress(const Blocks::Block& block, std::size_t at) const;
  /// The same by the calls of CUDA 13.1, which name the device.
  void BindFor(const Blocks::Block& block, std::size_t at) const;
  void BindAddressFor(const Blocks::Block& block, std::size_t at) const;
  void Unbind(const Blocks::Block& block, std::size_t at) const;

  void Map();
  void Unmap();
  /// Gives the handle back. A mapping keeps the object.
  void Release();
  /// Writes what Blocks::Fill would, to the memory of every device.
  void Write(std::uint64_t seed) const;
  void Set(unsigned char value) const;

 private:
  const CUdevice device_;
  CUmemGenericAllocationHandle object_ = 0;
  std::size_t bytes_ = 0;
  CUdeviceptr address_ = 0;
  std::thread offer_;
};

}  // namespace amem::puppet
