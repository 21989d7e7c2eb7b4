// Operands: which memory the driver's copies and sets name, also as nodes of graphs, from their
// arguments as they are.
//
// Pure; for the path on which some memory is paused.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/newer_cuda.h"
#include "shim/memory/paused_memory.h"

namespace amem::shim {

using Operands = std::vector<Operand>;

/// What is found in a call's arguments, in their order.
struct NamedMemory {
  std::vector<CUdeviceptr> addresses;
  std::vector<std::size_t> sizes;
  std::size_t element = 0;                        // of a set: bytes of the value; 0: a copy
  std::vector<const CUdeviceptr*> address_lists;  // of a batch
  const std::size_t* size_list = nullptr;         // its first
  Operands operands;                              // of copies that are told by a struct
  const CUDA_MEMCPY3D_BATCH_OP* operations = nullptr;
  const cuda::FabricCopy* fabric = nullptr;
};

/// What nobody can tell may be all there is.
inline constexpr Operand kAnything{0, SIZE_MAX};

/// Length of rows of `width` bytes, `pitch` apart.
inline std::size_t extent(std::size_t width, std::size_t rows, std::size_t pitch) {
  return width == 0 || rows == 0 ? 0 : (rows - 1) * pitch + width;
}

/// The address of a struct or union that CUDA's headers define. The driver's handles are addresses
/// of structs that nobody defines.
template <class Arg>
concept AddressOfStruct = std::is_pointer_v<Arg> && requires {
  sizeof(std::remove_pointer_t<Arg>);
} &&(std::is_class_v<std::remove_pointer_t<Arg>> || std::is_union_v<std::remove_pointer_t<Arg>>);

/// Structs that name no memory of their own: attributes of copies, how nodes of a graph depend.
template <class Struct>
inline constexpr bool kNamesNoMemory = false;
template <>
inline constexpr bool kNamesNoMemory<CUmemcpyAttributes> = true;
template <>
inline constexpr bool kNamesNoMemory<CUgraphEdgeData> = true;

template <class Arg>
void find_memory(NamedMemory&, const Arg&) {}
/// A struct that nothing here knows does not compile: somebody has to look into it.
template <AddressOfStruct Arg>
requires(!kNamesNoMemory<std::remove_cv_t<std::remove_pointer_t<Arg>>>) void find_memory(
    NamedMemory&, const Arg&) = delete;
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
inline void find_memory(NamedMemory& m, cuda::FabricCopy* list) { m.fabric = list; }

inline bool by_address(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}
inline void find_memory(NamedMemory& m, const CUDA_MEMCPY2D* c) {
  if (c == nullptr) return;
  if (by_address(c->srcMemoryType))
    m.operands.push_back({c->srcDevice + c->srcY * c->srcPitch + c->srcXInBytes,
                          extent(c->WidthInBytes, c->Height, c->srcPitch)});
  if (by_address(c->dstMemoryType))
    m.operands.push_back({c->dstDevice + c->dstY * c->dstPitch + c->dstXInBytes,
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
    m.operands.push_back(
        {c->srcDevice + (c->srcZ * c->srcHeight + c->srcY) * c->srcPitch + c->srcXInBytes,
         length(c->srcPitch, c->srcHeight)});
  if (by_address(c->dstMemoryType))
    m.operands.push_back(
        {c->dstDevice + (c->dstZ * c->dstHeight + c->dstY) * c->dstPitch + c->dstXInBytes,
         length(c->dstPitch, c->dstHeight)});
}
inline void find_memory(NamedMemory& m, const CUDA_MEMCPY3D* c) { find_memory_3d(m, c); }
inline void find_memory(NamedMemory& m, const CUDA_MEMCPY3D_PEER* c) { find_memory_3d(m, c); }

inline void find_memory_of_fabric(NamedMemory& m, const cuda::FabricCopy* copies,
                                  std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    for (const cuda::FabricOperand* side : {&copies[i].source, &copies[i].destination})
      if (side->type == cuda::kFabricPointer) m.operands.push_back({side->address, copies[i].size});
}

/// The type as a number: a newer driver may return a value that the headers' enum does not have.
inline int number_of(const CUgraphNodeType& type) {
  static_assert(sizeof(CUgraphNodeType) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &type, sizeof number);
  return number;
}

/// Nodes that copy and set nothing that could be told from them: kernels, whatever waits, signals
/// or orders, memory that the graph owns. All but these, copies and sets, is unknown work.
constexpr bool names_no_memory(int type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return true;
    default:
      return false;
  }
}

/// `Set`: CUDA_MEMSET_NODE_PARAMS or its second version.
template <class Set>
void find_memory_of_set(NamedMemory& m, const Set& s) {
  m.operands.push_back({s.dst, extent(s.width * s.elementSize, s.height, s.pitch)});
}
inline void find_memory(NamedMemory& m, const CUDA_MEMSET_NODE_PARAMS* s) {
  if (s != nullptr) find_memory_of_set(m, *s);
}
/// What headers of CUDA 13.0 do not show of a node.
template <class Params>
Params params_of(const CUgraphNodeParams& node) {
  Params params;
  std::memcpy(&params, &node.reserved1, sizeof params);
  return params;
}
/// Of any node.
inline void find_memory(NamedMemory& m, CUgraphNodeParams* node) {
  if (node == nullptr) return;
  const int type = number_of(node->type);
  switch (type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return find_memory_3d(m, &node->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return find_memory_of_set(m, node->memset);
    case cuda::kCopyBatch: {
      const auto batch = params_of<cuda::CopyBatchNode>(*node);
      for (std::size_t i = 0; i < batch.count; ++i) {
        m.operands.push_back({batch.destinations[i], batch.sizes[i]});
        m.operands.push_back({batch.sources[i], batch.sizes[i]});
      }
      return;
    }
    case cuda::kFabricCopyBatch: {
      const auto batch = params_of<cuda::FabricBatchNode>(*node);
      return find_memory_of_fabric(m, batch.copies, batch.count);
    }
    default:
      if (!names_no_memory(type)) m.operands.push_back(kAnything);
  }
}

/// What a copy or set with these arguments reads and writes. Memory of arrays is never brokered.
template <class... Args>
Operands operands_of(const Args&... args) {
  NamedMemory m;
  (find_memory(m, args), ...);
  if (m.element == 0 && m.operations != nullptr) {
    const std::size_t count = m.sizes.empty() ? 1 : m.sizes.front();
    for (std::size_t i = 0; i < count; ++i) {
      const CUDA_MEMCPY3D_BATCH_OP& op = m.operations[i];
      for (const CUmemcpy3DOperand* side : {&op.src, &op.dst}) {
        if (side->type != CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
        const auto& at = side->op.ptr;
        const std::size_t row = at.rowLength != 0 ? at.rowLength : op.extent.width;
        const std::size_t layer = at.layerHeight != 0 ? at.layerHeight : op.extent.height;
        const std::size_t rows =
            op.extent.depth == 0 ? 0 : (op.extent.depth - 1) * layer + op.extent.height;
        m.operands.push_back({at.ptr, extent(op.extent.width, rows, row)});
      }
    }
  } else if (m.fabric != nullptr) {
    find_memory_of_fabric(m, m.fabric, m.sizes.front());
  } else if (m.size_list != nullptr) {
    for (const CUdeviceptr* list : m.address_lists)
      for (std::size_t i = 0; i < m.sizes.front(); ++i)
        m.operands.push_back({list[i], m.size_list[i]});
  } else if (m.operands.empty() && !m.sizes.empty()) {
    std::size_t bytes = m.sizes.back();
    if (m.element != 0)  // one size, or pitch, width and height
      bytes = m.sizes.size() == 3 ? extent(m.sizes[1] * m.element, m.sizes[2], m.sizes[0])
                                  : bytes * m.element;
    for (const CUdeviceptr address : m.addresses) m.operands.push_back({address, bytes});
  }
  return m.operands;
}

}  // namespace amem::shim
