// The stand-ins' NIC: physical memory by number, as the simulated driver keeps it.
#pragma once

#include <cstddef>
#include <vector>

#define RDMA_PUBLIC extern "C" __attribute__((visibility("default")))

namespace amem::rdma {

/// What a NIC knows of a range. Writes go to the memory that was there when the range was
/// registered.
class Region {
 public:
  /// False, with errno set: nothing is mapped in some of it.
  bool learn(char* address, std::size_t size);
  void write(std::size_t offset, const void* bytes, std::size_t size);
  void forget();

 private:
  struct Part {
    char* alias = nullptr;  // of the same pages, at another address; host memory's own address
    std::size_t size = 0;
    char* mapped = nullptr;  // what to unmap; nullptr: host memory
    std::size_t mapped_size = 0;
  };
  std::vector<Part> parts_;
};

}  // namespace amem::rdma
