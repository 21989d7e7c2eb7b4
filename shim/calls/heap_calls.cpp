// Wrappers of cuMemAlloc and its kin, of what can be asked about their memory, and of what changes
// who owns or reaches it. Brokered blocks are answered by Heap, everything else by the driver.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <iterator>

#include "shim/base/trace.h"
#include "shim/blocks/pointer_attributes.h"
#include "shim/calls/direct.h"
#include "shim/calls/interpose.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

// row, api, version, typedef, symbol, wrapper. The older forms of cuMemAlloc have 32-bit addresses,
// where no brokered memory can be: they are the driver's.
#define AMEM_HEAP_CALLS(X)                                                                        \
  X(alloc, cuMemAlloc, 3020, PFN_cuMemAlloc_v3020, "cuMemAlloc_v2", alloc)                        \
  X(pitch, cuMemAllocPitch, 3020, PFN_cuMemAllocPitch_v3020, "cuMemAllocPitch_v2", alloc_pitch)   \
  X(free, cuMemFree, 3020, PFN_cuMemFree_v3020, "cuMemFree_v2", free)                             \
  X(info, cuMemGetInfo, 3020, PFN_cuMemGetInfo_v3020, "cuMemGetInfo_v2", memory_info)             \
  X(range, cuMemGetAddressRange, 3020, PFN_cuMemGetAddressRange_v3020, "cuMemGetAddressRange_v2", \
    address_range)                                                                                \
  X(attribute, cuPointerGetAttribute, 4000, PFN_cuPointerGetAttribute_v4000,                      \
    "cuPointerGetAttribute", get_attribute)                                                       \
  X(attributes, cuPointerGetAttributes, 7000, PFN_cuPointerGetAttributes_v7000,                   \
    "cuPointerGetAttributes", get_attributes)                                                     \
  X(set, cuPointerSetAttribute, 6000, PFN_cuPointerSetAttribute_v6000, "cuPointerSetAttribute",   \
    set_attribute)                                                                                \
  X(enable_peer, cuCtxEnablePeerAccess, 4000, PFN_cuCtxEnablePeerAccess_v4000,                    \
    "cuCtxEnablePeerAccess", enable_peer)                                                         \
  X(disable_peer, cuCtxDisablePeerAccess, 4000, PFN_cuCtxDisablePeerAccess_v4000,                 \
    "cuCtxDisablePeerAccess", disable_peer)                                                       \
  X(destroy_v1, cuCtxDestroy, 2000, PFN_cuCtxDestroy_v4000, "cuCtxDestroy",                       \
    destroy_context<kRow_destroy_v1>)                                                             \
  X(destroy, cuCtxDestroy, 4000, PFN_cuCtxDestroy_v4000, "cuCtxDestroy_v2",                       \
    destroy_context<kRow_destroy>)                                                                \
  X(reset_v1, cuDevicePrimaryCtxReset, 7000, PFN_cuDevicePrimaryCtxReset_v11000,                  \
    "cuDevicePrimaryCtxReset", reset_device<kRow_reset_v1>)                                       \
  X(reset, cuDevicePrimaryCtxReset, 11000, PFN_cuDevicePrimaryCtxReset_v11000,                    \
    "cuDevicePrimaryCtxReset_v2", reset_device<kRow_reset>)

enum Row {
#define AMEM_ROW(row, ...) kRow_##row,
  AMEM_HEAP_CALLS(AMEM_ROW)
#undef AMEM_ROW
      kRows
};

std::atomic<void*> real_functions[kRows];

template <class Function>
Function real(int row) {
  return reinterpret_cast<Function>(real_functions[row].load(std::memory_order_relaxed));
}

/// The same where the program may have asked for another row only.
template <class Function>
Function found(int row, const char* symbol) {
  if (real_functions[row].load(std::memory_order_relaxed) == nullptr)
    real_functions[row].store(driver_symbol(symbol), std::memory_order_release);
  return real<Function>(row);
}

// ---- allocating and freeing ----

/// Memory that the driver has just given out.
void count(CUdeviceptr address, std::size_t size) {
  Runtime& runtime = Runtime::get();
  Devices* devices = runtime.devices();
  if (devices == nullptr) return;
  runtime.unbrokered().add(Unbrokered::Kind::kDevice, address, size, devices->current(),
                           devices->current_context());
  runtime.report().changed();
}

/// Nothing: this allocation is none of ours.
template <class Allocate>
std::optional<CUresult> allocate_brokered(const void* caller, const Allocate& allocate) {
  Runtime& runtime = Runtime::get();
  const std::optional<Label> label = runtime.label(caller);
  if (!label) return std::nullopt;
  if (!runtime.connected()) {
    if (runtime.may_run_alone()) return std::nullopt;
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  const std::optional<CUresult> r = allocate(*runtime.heap(), *label);
  if (r == CUDA_SUCCESS) runtime.device_used(runtime.devices()->current());
  return r;
}

CUresult alloc(CUdeviceptr* address, std::size_t size) {
  const auto ours = allocate_brokered(
      __builtin_return_address(0),
      [&](Heap& heap, const Label& label) { return heap.allocate(address, size, label); });
  if (ours) {
    trace("alloc va=%llx n=%zu rc=%d", *ours == CUDA_SUCCESS ? *address : 0, size, *ours);
    return *ours;
  }
  const CUresult r = real<PFN_cuMemAlloc_v3020>(kRow_alloc)(address, size);
  if (r == CUDA_SUCCESS) count(*address, size);
  return r;
}

CUresult alloc_pitch(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                     std::size_t height, unsigned element_size) {
  const auto ours =
      allocate_brokered(__builtin_return_address(0), [&](Heap& heap, const Label& label) {
        return heap.allocate_pitch(address, pitch, width, height, element_size, label);
      });
  if (ours) return *ours;
  const CUresult r =
      real<PFN_cuMemAllocPitch_v3020>(kRow_pitch)(address, pitch, width, height, element_size);
  if (r == CUDA_SUCCESS) count(*address, *pitch * height);
  return r;
}

CUresult free(CUdeviceptr address) {
  Runtime& runtime = Runtime::get();
  if (Heap* heap = runtime.heap(); heap != nullptr) {
    if (const auto r = heap->free(address); r.has_value()) {
      trace("free va=%llx rc=%d", address, *r);
      return *r;
    }
  }
  const CUresult r = real<PFN_cuMemFree_v3020>(kRow_free)(address);
  if (r == CUDA_SUCCESS && !runtime.forked() &&
      (runtime.unbrokered().remove(Unbrokered::Kind::kDevice, address) ||
       runtime.unbrokered().remove(Unbrokered::Kind::kManaged, address)))
    runtime.report().changed();
  return r;
}

// ---- what can be asked; answered while the group is paused, too ----

CUresult memory_info(std::size_t* free, std::size_t* total) {
  if (Heap* heap = Runtime::get().heap(); heap != nullptr) heap->settle();
  return real<PFN_cuMemGetInfo_v3020>(kRow_info)(free, total);
}

CUresult address_range(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  Runtime& runtime = Runtime::get();
  if (Heap* heap = runtime.heap(); heap != nullptr) {
    if (const auto block = heap->find(address); block.has_value()) {
      if (base != nullptr) *base = block->address;
      if (size != nullptr) *size = block->size;
      return CUDA_SUCCESS;
    }
    if (heap->owns(address)) return CUDA_ERROR_NOT_FOUND;
  }
  if (!runtime.forked()) {
    if (const auto piece = runtime.ipc().piece(address); piece.has_value()) {
      if (base != nullptr) *base = piece->address;
      if (size != nullptr) *size = piece->size;
      return CUDA_SUCCESS;
    }
    if (auto r = runtime.slabs().address_range(base, size, address); r.has_value()) return *r;
    if (auto r = runtime.memory().address_range(base, size, address); r.has_value()) return *r;
  }
  return real<PFN_cuMemGetAddressRange_v3020>(kRow_range)(base, size, address);
}

/// Tokens stand for physical addresses: who has them must find the memory there.
CUresult get_tokens(void* data, CUdeviceptr address) {
  const Pass pass(*the_gate);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  if (!Runtime::get().memory().arrived(address, 1)) return CUDA_ERROR_SYSTEM_NOT_READY;
  const CUresult r = found<PFN_cuPointerGetAttribute_v4000>(
      kRow_attribute, "cuPointerGetAttribute")(data, CU_POINTER_ATTRIBUTE_P2P_TOKENS, address);
  if (r == CUDA_SUCCESS) Runtime::get().slabs().pin(address, 1);
  return r;
}

/// Nothing: ask the driver.
std::optional<CUresult> attribute_of(Heap& heap, const Heap::Block& block, void* data,
                                     CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) return get_tokens(data, address);
  const unsigned access =
      attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS ? heap.access_flags(block) : 0;
  return pointer_attribute(block, access, address, attribute, data);
}

CUresult get_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (Heap* heap = Runtime::get().heap(); heap != nullptr && data != nullptr) {
    if (const auto block = heap->find(address); block.has_value()) {
      if (const auto r = attribute_of(*heap, *block, data, attribute, address); r.has_value())
        return *r;
    } else if (heap->owns(address)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const CUresult r =
      real<PFN_cuPointerGetAttribute_v4000>(kRow_attribute)(data, attribute, address);
  // Of memory that is away the driver knows nothing. No wait at the gate: whoever asks may hold a
  // lock that the caller of a resume needs.
  if (r != CUDA_ERROR_INVALID_VALUE || data == nullptr || Runtime::get().forked()) return r;
  const auto absent = Runtime::get().memory().absent(address);
  return absent ? pointer_attribute(*absent, address, attribute, data).value_or(r) : r;
}

CUresult get_attributes(unsigned count, CUpointer_attribute* attributes, void** data,
                        CUdeviceptr address) {
  const auto real_call = real<PFN_cuPointerGetAttributes_v7000>(kRow_attributes);
  Runtime& runtime = Runtime::get();
  if (runtime.forked() || count == 0 || attributes == nullptr || data == nullptr)
    return real_call(count, attributes, data, address);
  Heap* heap = runtime.heap();
  const bool of_heap = heap != nullptr && heap->owns(address);
  const auto absent = of_heap ? std::nullopt : runtime.memory().absent(address);
  if (!of_heap && !absent) return real_call(count, attributes, data, address);
  const auto block = of_heap ? heap->find(address) : std::nullopt;
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::optional<CUresult> r = CUDA_ERROR_INVALID_VALUE;
    if (block) r = attribute_of(*heap, *block, data[i], attributes[i], address);
    if (absent) r = pointer_attribute(*absent, address, attributes[i], data[i]);
    if (r == CUDA_SUCCESS || (r.has_value() && no_pointer_attribute(attributes[i], data[i])))
      continue;
    if (CUresult driver = real_call(1, &attributes[i], &data[i], address); driver != CUDA_SUCCESS)
      return driver;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const auto real_call = real<PFN_cuPointerSetAttribute_v6000>(kRow_set);
  Runtime& runtime = Runtime::get();
  if (runtime.forked() || !runtime.memory().brokered(address, 1))
    return real_call(value, attribute, address);
  const Pass pass(*the_gate);  // what is not mapped has no attributes to set
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  const CUresult r = real_call(value, attribute, address);
  if (r == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    const bool on = *static_cast<const unsigned*>(value) != 0;
    runtime.memory().set_sync_memops(address, on);
    if (Heap* heap = runtime.heap(); heap != nullptr) heap->set_sync_memops(address, on);
  }
  return r;
}

// ---- peers and contexts ----

CUresult enable_peer(CUcontext peer, unsigned flags) {
  const CUresult r = real<PFN_cuCtxEnablePeerAccess_v4000>(kRow_enable_peer)(peer, flags);
  Runtime& runtime = Runtime::get();
  if (r != CUDA_SUCCESS || runtime.options().scope == Scope::kNccl) return r;
  runtime.connected();  // brokered memory may follow, and has to know
  Heap* heap = runtime.heap();
  const CUresult granted = heap != nullptr ? heap->peer_enabled(peer) : CUDA_SUCCESS;
  // Of the driver's own memory, too, there is all or nothing.
  if (granted != CUDA_SUCCESS)
    found<PFN_cuCtxDisablePeerAccess_v4000>(kRow_disable_peer, "cuCtxDisablePeerAccess")(peer);
  return granted;
}

CUresult disable_peer(CUcontext peer) {
  const CUresult r = real<PFN_cuCtxDisablePeerAccess_v4000>(kRow_disable_peer)(peer);
  Heap* heap = Runtime::get().heap();
  return r == CUDA_SUCCESS && heap != nullptr ? heap->peer_disabled(peer) : r;
}

/// Calls the driver, which destroys the context; what it owned of ours goes too.
template <class Destroy>
CUresult end_context(CUcontext context, const Destroy& destroy) {
  Runtime& runtime = Runtime::get();
  Heap* heap = runtime.heap();
  std::optional<Pass> pass;
  if (heap != nullptr) pass.emplace(*the_gate);
  if (pass && pass->result() != CUDA_SUCCESS) return pass->result();
  const CUresult r = destroy();
  if (r != CUDA_SUCCESS || context == nullptr || runtime.forked()) return r;
  if (heap != nullptr) heap->context_gone(context);
  runtime.captures().context_gone(context);
  runtime.unbrokered().context_gone(context);
  runtime.report().changed();
  return r;
}

template <int kRow>
CUresult destroy_context(CUcontext context) {
  return end_context(context, [&] { return real<PFN_cuCtxDestroy_v4000>(kRow)(context); });
}

template <int kRow>
CUresult reset_device(CUdevice device) {
  Runtime& runtime = Runtime::get();
  Devices* devices = runtime.devices();
  const CUcontext context = devices != nullptr ? devices->primary(device) : nullptr;
  const CUresult r =
      end_context(context, [&] { return real<PFN_cuDevicePrimaryCtxReset_v11000>(kRow)(device); });
  if (r == CUDA_SUCCESS && context != nullptr) runtime.device_reset(device);
  return r;
}

const Call kCalls[] = {
#define AMEM_CALL(row, api, version, type, symbol, wrapper) \
  {#api,                                                    \
   version,                                                 \
   false,                                                   \
   symbol,                                                  \
   reinterpret_cast<void*>(static_cast<type>(&wrapper)),    \
   &real_functions[kRow_##row]},
    AMEM_HEAP_CALLS(AMEM_CALL)
#undef AMEM_CALL
};

#define AMEM_DIRECT_ROW(row, api, version, type, symbol, ...) AMEM_DIRECT(symbol);
AMEM_HEAP_CALLS(AMEM_DIRECT_ROW)
#undef AMEM_DIRECT_ROW

}  // namespace

CallList heap_calls() { return {std::begin(kCalls), std::end(kCalls)}; }

}  // namespace amem::shim
