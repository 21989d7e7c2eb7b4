// What callers of libcufile and its stand-in agree on, laid out as in cufile.h of the CUDA toolkit.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace amem::rdma {

/// CUfileError_t
struct FileError {
  int code = 0;
  int driver = 0;
};

/// CUfileIOParams_t, of a batch
struct FileTransfer {
  int mode;
  void* base;
  off_t file_offset;
  off_t offset;
  std::size_t size;
  void* file;
  int opcode;
  void* cookie;
};

}  // namespace amem::rdma
