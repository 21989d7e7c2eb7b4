// Nic: what a puppet registers with the stand-ins of libibverbs, libmlx5, libgdrapi and
// libcufile
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
  /// Of libcufile, which takes memory of its own at the first.
  void OpenFiles();
  void CloseFiles();
  /// Reads so much of a file, which may be a FIFO.
  void ReadFile(std::uint64_t address, std::size_t bytes, const std::string& path);
  /// The same as work of a stream; its end, which waits for that.
  void BeginRead(std::uint64_t address, std::size_t bytes, const std::string& path);
  void EndRead();
  void WriteFile(std::uint64_t address, std::size_t bytes, const std::string& path);
  /// Begins to read so much in a batch; what arrives later, as Blocks::Fill would write it; its
  /// end.
  void SubmitBatch(std::uint64_t address, std::size_t bytes);
  void BatchArrives(std::size_t bytes, std::uint64_t seed) const;
  void DestroyBatch();

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
  void* batch_ = nullptr;
  struct Transfer {
    int file = -1;
    std::size_t bytes = 0;
    off_t file_offset = 0;
    off_t offset = 0;
    ssize_t done = 0;
    CUstream stream = nullptr;
  };
  Transfer read_;
  std::map<std::uint64_t, Region> regions_;
  std::uint64_t next_ = 1;
};

}  // namespace amem::puppet
