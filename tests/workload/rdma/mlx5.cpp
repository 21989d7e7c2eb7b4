// libmlx5.so.1, as far as memory goes: on top of libibverbs, as the library is.
#include <cstddef>
#include <cstdint>

#include "tests/workload/rdma/nic.h"

extern "C" {
void* ibv_reg_mr(void* pd, void* address, std::size_t size, int access);
int ibv_dereg_mr(void* region);
}

RDMA_PUBLIC void* mlx5dv_devx_umem_reg(void* context, void* address, std::size_t size,
                                       std::uint32_t access) {
  return ibv_reg_mr(context, address, size, static_cast<int>(access));
}

RDMA_PUBLIC int mlx5dv_devx_umem_dereg(void* umem) { return ibv_dereg_mr(umem); }
