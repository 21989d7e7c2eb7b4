// libpuppet_file.so: a module that is linked to libcufile, as torch's is.
#include "tests/workload/rdma/cufile.h"

using amem::rdma::FileError;

extern "C" {
FileError cuFileBufRegister(const void* base, std::size_t size, int flags);
FileError cuFileBufDeregister(const void* base);

__attribute__((visibility("default"))) FileError puppet_register_buffer(const void* base,
                                                                        std::size_t size,
                                                                        int flags) {
  return cuFileBufRegister(base, size, flags);
}

__attribute__((visibility("default"))) FileError puppet_deregister_buffer(const void* base) {
  return cuFileBufDeregister(base);
}
}
