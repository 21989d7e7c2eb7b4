// libpuppet_rdma.so: a module that is linked to libibverbs, as UCX's and torch's are.
#include <cstddef>

extern "C" {
void* ibv_reg_mr(void* pd, void* address, std::size_t size, int access);
int ibv_dereg_mr(void* region);

__attribute__((visibility("default"))) void* puppet_register(void* address, std::size_t size,
                                                             int access) {
  return ibv_reg_mr(nullptr, address, size, access);
}

__attribute__((visibility("default"))) int puppet_deregister(void* region) {
  return ibv_dereg_mr(region);
}
}
