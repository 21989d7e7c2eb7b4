// Maker: a process without a context that creates device memory for another one and keeps a
// descriptor of it, as a broker does with nothing around its driver calls.
//
// Made before the process uses the driver, of which a fork has no use. One thread asks; the maker
// ends with whoever made it. A failure ends the process that has it (fail(), control.h).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <utility>

namespace gpu_test {

/// Memory of device 0 that can be handed on by a descriptor.
CUmemAllocationProp device_memory();

class Maker {
 public:
  Maker();

  /// A descriptor, which is the caller's.
  int create(std::size_t bytes) const;
  /// Closes the maker's descriptor of what was created last.
  void drop() const;

 private:
  void send(std::size_t bytes, int fd) const;
  /// What the other end sent. Descriptor -1: none came with it; -2: the other end has gone.
  std::pair<std::size_t, int> receive() const;
  void serve() const;

  int socket_ = -1;
};

}  // namespace gpu_test
