// File calls: GPUDirect Storage (libcufile). A buffer that is registered with it is known to the
// kernel's nvidia-fs by its physical addresses, as with a NIC. A read or write goes to the memory
// by DMA, or by way of buffers of libcufile's own, and the driver knows nothing of the first.
//
// Of the library's types only what is read is known here.
#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <cstddef>

namespace amem::shim {

/// CUfileError_t.
struct FileError {
  int code;    // CUfileOpError
  int driver;  // a CUresult
};
inline constexpr FileError kNoFileLibrary{5001, 0};  // CU_FILE_DRIVER_NOT_INITIALIZED

/// The part of CUfileIOParams_t that says what a batch reads or writes.
struct FileTransfer {
  int mode;
  void* base;
  off_t file_offset;
  off_t offset;  // of the memory
  std::size_t size;
  void* file;
  int opcode;
  void* cookie;
};

FileError answer_cuFileBufRegister(FileError (*real)(const void*, std::size_t, int),
                                   const void* base, std::size_t size, int flags);
FileError answer_cuFileBufDeregister(FileError (*real)(const void*), const void* base);
FileError answer_cuFileDriverClose(FileError (*real)());
FileError answer_cuFileDriverClose_v2(FileError (*real)());
ssize_t answer_cuFileRead(ssize_t (*real)(void*, void*, std::size_t, off_t, off_t), void* file,
                          void* base, std::size_t size, off_t file_offset, off_t offset);
ssize_t answer_cuFileWrite(ssize_t (*real)(void*, const void*, std::size_t, off_t, off_t),
                           void* file, const void* base, std::size_t size, off_t file_offset,
                           off_t offset);
using FileAsync = FileError (*)(void*, void*, std::size_t*, off_t*, off_t*, ssize_t*, CUstream);
FileError answer_cuFileReadAsync(FileAsync real, void* file, void* base, std::size_t* size,
                                 off_t* file_offset, off_t* offset, ssize_t* done, CUstream stream);
FileError answer_cuFileWriteAsync(FileAsync real, void* file, void* base, std::size_t* size,
                                  off_t* file_offset, off_t* offset, ssize_t* done,
                                  CUstream stream);
FileError answer_cuFileBatchIOSubmit(FileError (*real)(void*, unsigned, FileTransfer*, unsigned),
                                     void* batch, unsigned count, FileTransfer* transfers,
                                     unsigned flags);
void answer_cuFileBatchIODestroy(void (*real)(void*), void* batch);

}  // namespace amem::shim
