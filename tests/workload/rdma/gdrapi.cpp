// libgdrapi.so.2: pins buffers of one GDRCopy handle. A size of 1 makes pinning fail.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "tests/workload/rdma/nic.h"

namespace {

struct Gdr {
  std::map<unsigned long, amem::rdma::Region> buffers;
  unsigned long next = 1;
};

/// What a process leaves open is the library's at its end, and no leak.
std::set<Gdr*>& Open() {
  static auto* const open = new std::set<Gdr*>;
  return *open;
}

}  // namespace

struct GdrHandle {
  unsigned long number;
};

RDMA_PUBLIC void* gdr_open() { return *Open().insert(new Gdr).first; }

RDMA_PUBLIC int gdr_close(void* gdr) {
  auto* known = static_cast<Gdr*>(gdr);
  for (auto& [number, region] : known->buffers) region.forget();
  Open().erase(known);
  delete known;
  return 0;
}

RDMA_PUBLIC int gdr_pin_buffer_v2(void* gdr, unsigned long address, std::size_t size, std::uint32_t,
                                  GdrHandle* handle) {
  auto* known = static_cast<Gdr*>(gdr);
  amem::rdma::Region region;
  if (size == 1) return EINVAL;
  if (!region.learn(reinterpret_cast<char*>(address), size)) return errno;
  handle->number = known->next++;
  known->buffers[handle->number] = region;
  return 0;
}

RDMA_PUBLIC int gdr_pin_buffer(void* gdr, unsigned long address, std::size_t size, std::uint64_t,
                               std::uint32_t, GdrHandle* handle) {
  return gdr_pin_buffer_v2(gdr, address, size, 0, handle);
}

RDMA_PUBLIC int gdr_unpin_buffer(void* gdr, GdrHandle handle) {
  auto* known = static_cast<Gdr*>(gdr);
  const auto buffer = known->buffers.find(handle.number);
  if (buffer == known->buffers.end()) return EINVAL;
  buffer->second.forget();
  known->buffers.erase(buffer);
  return 0;
}
