// libibverbs.so.1, as far as memory regions go. `kFails` among the access flags makes a call fail.
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "tests/workload/rdma/nic.h"

namespace {

constexpr unsigned kFails = 1U << 15;
constexpr int kChangeTranslation = 1;

void* Register(void* address, std::size_t size, unsigned access) {
  if ((access & kFails) != 0) {
    errno = ENOMEM;
    return nullptr;
  }
  auto* region = new amem::rdma::Region;
  if (region->learn(static_cast<char*>(address), size)) return region;
  delete region;
  return nullptr;
}

}  // namespace

RDMA_PUBLIC void* ibv_reg_mr_iova2(void*, void* address, std::size_t size, std::uint64_t,
                                   unsigned access) {
  return Register(address, size, access);
}

// As in the library, by another exported call.
RDMA_PUBLIC void* ibv_reg_mr(void* pd, void* address, std::size_t size, int access) {
  return ibv_reg_mr_iova2(pd, address, size, reinterpret_cast<std::uint64_t>(address),
                          static_cast<unsigned>(access));
}

RDMA_PUBLIC void* ibv_reg_mr_iova(void* pd, void* address, std::size_t size, std::uint64_t iova,
                                  int access) {
  return ibv_reg_mr_iova2(pd, address, size, iova, static_cast<unsigned>(access));
}

RDMA_PUBLIC void* ibv_reg_dmabuf_mr(void*, std::uint64_t, std::size_t, std::uint64_t, int, int) {
  errno = EOPNOTSUPP;
  return nullptr;
}

RDMA_PUBLIC int ibv_rereg_mr(void* region, int flags, void*, void* address, std::size_t size,
                             int access) {
  if ((static_cast<unsigned>(access) & kFails) != 0) return -1;
  auto* known = static_cast<amem::rdma::Region*>(region);
  if ((flags & kChangeTranslation) == 0) return 0;
  known->forget();
  return known->learn(static_cast<char*>(address), size) ? 0 : -4;
}

RDMA_PUBLIC int ibv_dereg_mr(void* region) {
  auto* known = static_cast<amem::rdma::Region*>(region);
  known->forget();
  delete known;
  return 0;
}

// ---- one device, of which nothing but memory regions can be used ----

RDMA_PUBLIC void** ibv_get_device_list(int* count) {
  static int device = 0;
  static void* devices[] = {&device, nullptr};
  *count = 1;
  return devices;
}

RDMA_PUBLIC void* ibv_open_device(void* device) { return device; }

RDMA_PUBLIC void* ibv_alloc_pd(void* context) { return context; }

/// What the NIC receives.
RDMA_PUBLIC void rdma_write(void* region, std::size_t offset, const void* bytes, std::size_t size) {
  static_cast<amem::rdma::Region*>(region)->write(offset, bytes, size);
}
