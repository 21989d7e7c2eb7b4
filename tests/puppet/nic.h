// Nic: what a puppet registers with the stand-ins of libibverbs, libmlx5 and libgdrapi
// (tests/puppet/rdma), by number. Loads each as programs do that can do without it.
//
// One thread; throws workload::Failure.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace amem::puppet {

class Nic {
 public:
  explicit Nic(CUdevice device) : device_(device) {}

  /// Memory of several allocations at addresses one behind the other: where it begins.
  CUdeviceptr Row(std::size_t bytes, std::size_t count);
  /// `way`: how the call is found. `fails`: as the stand-in is told to. The registration's number.
  std::uint64_t Register(std::uint64_t address, std::size_t bytes, const std::string& way,
                         bool fails);
  /// The region is of another range from here on.
  void Change(std::uint64_t number, std::uint64_t address, std::size_t bytes, bool fails);
  void Deregister(std::uint64_t number);
  /// What the NIC receives: what Blocks::Fill would write.
  void Fill(std::uint64_t number, std::uint64_t seed) const;
  /// GDRCopy's handle goes with all that was pinned through it.
  void CloseGdr();

 private:
  struct Region {
    std::string way;
    void* object = nullptr;
    unsigned long handle = 0;  // GDRCopy's
    std::size_t bytes = 0;
  };
  Region& At(std::uint64_t number);

  const CUdevice device_;
  void* gdr_ = nullptr;
  std::map<std::uint64_t, Region> regions_;
  std::uint64_t next_ = 1;
};

}  // namespace amem::puppet
