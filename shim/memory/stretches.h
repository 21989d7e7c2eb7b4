// Stretches: which memory the driver's copies and sets name, also as nodes of graphs, from their
// arguments as they are.
//
// Pure; for the path on which some memory is away.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

#include "shim/memory/absence.h"

namespace amem::shim {

using Stretches = std::vector<Stretch>;

/// What is found in a call's arguments, in their order.
struct NamedMemory {
  std::vector<CUdeviceptr> addresses;
  std::vector<std::size_t> sizes;
  std::size_t element = 0;                        // of a set: bytes of the value; 0: a copy
  std::vector<const CUdeviceptr*> address_lists;  // of a batch
  const std::size_t* size_list = nullptr;         // its first
  Stretches stretches;                            // of copies that are told by a struct
  const CUDA_MEMCPY3D_BATCH_OP* operations = nullptr;
};

/// Length of rows of `width` bytes, `pitch` apart.
inline std::size_t extent(std::size_t width, std::size_t rows, std::size_t pitch) {
  return width == 0 || rows == 0 ? 0 : (rows - 1) * pitch + width;
}

template <class Arg>
void find_memory(NamedMemory&, const Arg&) {}
inline void find_memory(NamedMemory& m, CUdeviceptr address) { m.addresses.push_back(address); }
// A pointer of the host's may be one of the device's: there is one address space.
inline void find_memory(NamedMemory& m, const void* address) {
  m.addresses.push_back(reinterpret_cast<CUdeviceptr>(address));
}
inline void find_memory(NamedMemory& m, void* address) {
  find_memory(m, static_cast<const void*>(address));
}
inline void find_memory(NamedMemory& m, std::size_t size) { m.sizes.push_back(size); }
inline void find_memory(NamedMemory& m, unsigned char) { m.element = 1; }
inline void find_memory(NamedMemory& m, unsigned short) { m.element = 2; }
inline void find_memory(NamedMemory& m, unsigned int) { m.element = 4; }
inline void find_memory(NamedMemory& m, const CUdeviceptr* list) {
  m.address_lists.push_back(list);
}
inline void find_memory(NamedMemory& m, CUdeviceptr* list) { m.address_lists.push_back(list); }
inline void find_memory(NamedMemory& m, const std::size_t* list) {
  if (m.size_list == nullptr) m.size_list = list;
}
inline void find_memory(NamedMemory& m, std::size_t* list) {
  find_memory(m, static_cast<const std::size_t*>(list));
}
inline void find_memory(NamedMemory& m, CUDA_MEMCPY3D_BATCH_OP* list) { m.operations = list; }

inline bool by_address(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}
inline void find_memory(NamedMemory& m, const CUDA_MEMCPY2D* c) {
  if (c == nullptr) return;
  if (by_address(c->srcMemoryType))
    m.stretches.push_back({c->srcDevice + c->srcY * c->srcPitch + c->srcXInBytes,
                           extent(c->WidthInBytes, c->Height, c->srcPitch)});
  if (by_address(c->dstMemoryType))
    m.stretches.push_back({c->dstDevice + c->dstY * c->dstPitch + c->dstXInBytes,
                           extent(c->WidthInBytes, c->Height, c->dstPitch)});
}
/// `Copy`: CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER.
template <class Copy>
void find_memory_3d(NamedMemory& m, const Copy* c) {
  if (c == nullptr) return;
  const auto length = [&](std::size_t pitch, std::size_t height) {
    return c->Depth == 0 ? 0 : extent(c->WidthInBytes, (c->Depth - 1) * height + c->Height, pitch);
  };
  if (by_address(c->srcMemoryType))
    m.stretches.push_back(
        {c->srcDevice + (c->srcZ * c->srcHeight + c->srcY) * c->srcPitch + c->srcXInBytes,
         length(c->srcPitch, c->srcHeight)});
  if (by_address(c->dstMemoryType))
    m.stretches.push_back(
        {c->dstDevice + (c->dstZ * c->dstHeight + c->dstY) * c->dstPitch + c->dstXInBytes,
         length(c->dstPitch, c->dstHeight)});
}
inline void find_memory(NamedMemory& m, const CUDA_MEMCPY3D* c) { find_memory_3d(m, c); }
inline void find_memory(NamedMemory& m, const CUDA_MEMCPY3D_PEER* c) { find_memory_3d(m, c); }

/// `Set`: CUDA_MEMSET_NODE_PARAMS or its second version.
template <class Set>
void find_memory_of_set(NamedMemory& m, const Set& s) {
  m.stretches.push_back({s.dst, extent(s.width * s.elementSize, s.height, s.pitch)});
}
inline void find_memory(NamedMemory& m, const CUDA_MEMSET_NODE_PARAMS* s) {
  if (s != nullptr) find_memory_of_set(m, *s);
}
/// Of any node.
inline void find_memory(NamedMemory& m, CUgraphNodeParams* node) {
  if (node == nullptr) return;
  if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY) find_memory_3d(m, &node->memcpy.copyParams);
  if (node->type == CU_GRAPH_NODE_TYPE_MEMSET) find_memory_of_set(m, node->memset);
}

/// What a copy or set with these arguments reads and writes. Memory of arrays is never brokered.
template <class... Args>
Stretches stretches_of(const Args&... args) {
  NamedMemory m;
  (find_memory(m, args), ...);
  if (m.element == 0 && m.operations != nullptr) {
    for (std::size_t i = 0; i < m.sizes.front(); ++i) {
      const CUDA_MEMCPY3D_BATCH_OP& op = m.operations[i];
      for (const CUmemcpy3DOperand* side : {&op.src, &op.dst}) {
        if (side->type != CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
        const auto& at = side->op.ptr;
        const std::size_t row = at.rowLength != 0 ? at.rowLength : op.extent.width;
        const std::size_t layer = at.layerHeight != 0 ? at.layerHeight : op.extent.height;
        const std::size_t rows =
            op.extent.depth == 0 ? 0 : (op.extent.depth - 1) * layer + op.extent.height;
        m.stretches.push_back({at.ptr, extent(op.extent.width, rows, row)});
      }
    }
  } else if (m.size_list != nullptr) {
    for (const CUdeviceptr* list : m.address_lists)
      for (std::size_t i = 0; i < m.sizes.front(); ++i)
        m.stretches.push_back({list[i], m.size_list[i]});
  } else if (m.stretches.empty() && !m.sizes.empty()) {
    std::size_t bytes = m.sizes.back();
    if (m.element != 0)  // one size, or pitch, width and height
      bytes = m.sizes.size() == 3 ? extent(m.sizes[1] * m.element, m.sizes[2], m.sizes[0])
                                  : bytes * m.element;
    for (const CUdeviceptr address : m.addresses) m.stretches.push_back({address, bytes});
  }
  return m.stretches;
}

}  // namespace amem::shim
