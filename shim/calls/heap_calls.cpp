// Wrappers of cuMemAlloc and its kin, of what can be asked about their memory, and of what changes
// who owns or reaches it. Brokered blocks are answered by Heap, everything else by the driver.
#include "shim/base/log.h"
#include "shim/blocks/pointer_attributes.h"
#include "shim/calls/driver_calls.h"
#include "shim/calls/memory_margin.h"
#include "shim/memory/free_pass.h"
#include "shim/process/symbols.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

/// The same where the program may have asked for another row only.
template <CallRow row>
auto found() {
  if (real<row>() == nullptr)
    real_functions[row].store(driver_symbol(symbol_of(row)), std::memory_order_release);
  return real<row>();
}

/// Memory that the driver has just given out.
void count(CUdeviceptr address, std::size_t size) {
  Runtime& runtime = Runtime::get();
  LocalDevices* devices = runtime.devices();
  if (devices == nullptr) return;
  runtime.memory().unbrokered.add(UnbrokeredMemory::Kind::kDevice, address, size,
                                  devices->current(), devices->current_context());
  runtime.report().changed();
}

/// Nothing: this allocation is none of ours.
template <class Allocate>
std::optional<CUresult> allocate_brokered(const char* call, const void* caller, std::size_t size,
                                          const Allocate& allocate) {
  Runtime& runtime = Runtime::get();
  const std::optional<Label> label = runtime.label(caller);
  if (!label) return std::nullopt;
  if (!runtime.connected()) {
    if (!runtime.options().required) return std::nullopt;
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  if (label->tag != kNcclTag) {
    const Pass pass(*the_gate, call);  // of a paused group, others have the memory
    if (pass.result() != CUDA_SUCCESS) return pass.result();
    if (!within_memory_margin(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const std::optional<CUresult> r = allocate(*runtime.heap(), *label);
  if (r == CUDA_SUCCESS) runtime.device_used(runtime.devices()->current());
  // It has waited for a broker that has not returned.
  if (r != CUDA_SUCCESS && !runtime.options().required && !runtime.connected()) return std::nullopt;
  return r;
}

/// Tokens stand for physical addresses: who has them must find the memory there.
CUresult get_tokens(void* data, CUdeviceptr address) {
  const Pass pass(*the_gate);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  Runtime& runtime = Runtime::get();
  const auto pinned = runtime.slabs().pin(address, 1, amem_v1_PinReason_PIN_REASON_P2P_TOKENS);
  if (!pinned.ok()) return CUDA_ERROR_SYSTEM_NOT_READY;
  const CUresult r =
      found<kRow_cuPointerGetAttribute>()(data, CU_POINTER_ATTRIBUTE_P2P_TOKENS, address);
  if (r != CUDA_SUCCESS) runtime.memory().pins.unpin(pinned.value());
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

/// The driver frees memory of cuMemAlloc so, too, not only of pools.
template <CallRow row, bool kPerThread>
CUresult free_async(CUdeviceptr address, CUstream stream) {
  Runtime& runtime = Runtime::get();
  if (Heap* heap = runtime.heap(); heap != nullptr) {
    if (const auto r = heap->free_async(address, stream, kPerThread); r.has_value()) {
      trace("free async va=%llx rc=%d", address, *r);
      return *r;
    }
  }
  const CUresult r = real<row>()(address, stream);
  if (runtime.forked()) return r;
  if (r == CUDA_SUCCESS)
    runtime.memory().unbrokered.remove(UnbrokeredMemory::Kind::kDevice, address);
  runtime.report().changed();  // also what pools hold
  return r;
}

std::optional<unsigned long long> handle_types(CUdeviceptr address) {
  Runtime& runtime = Runtime::get();
  return runtime.forked() ? std::nullopt : runtime.memory().mappings.handle_types(address);
}

CUresult put_handle_types(void* data, unsigned long long types) {
  *static_cast<unsigned long long*>(data) = types;
  return CUDA_SUCCESS;
}

/// The driver has destroyed the context (`r`); what it owned of ours goes too. Inside the gate.
CUresult context_ended(CUresult r, CUcontext context) {
  Runtime& runtime = Runtime::get();
  if (r != CUDA_SUCCESS || context == nullptr || runtime.forked()) return r;
  if (Heap* heap = runtime.heap(); heap != nullptr) heap->context_gone(context);
  runtime.captures().context_gone(context);
  runtime.memory().unbrokered.context_gone(context);
  runtime.report().changed();
  return r;
}

/// One of the program's own. Not a primary one, which only a reset destroys.
template <CallRow row>
CUresult destroy_context(CUcontext context) {
  Runtime& runtime = Runtime::get();
  std::optional<FreePass> pass;
  if (runtime.heap() != nullptr) pass.emplace(*the_gate, runtime.memory().brokered);
  if (pass && pass->result() != CUDA_SUCCESS) return pass->result();
  return context_ended(real<row>()(context), context);
}

/// It waits for a resume: the shim's own streams are in that context, and a step of the resume must
/// not begin while it goes.
template <CallRow row>
CUresult reset_device(CUdevice device) {
  Runtime& runtime = Runtime::get();
  LocalDevices* devices = runtime.devices();
  const CUcontext context = devices != nullptr ? devices->primary(device) : nullptr;
  std::optional<Pass> pass;
  if (runtime.heap() != nullptr) pass.emplace(*the_gate);
  if (pass && pass->result() != CUDA_SUCCESS) return pass->result();
  const CUresult r = context_ended(real<row>()(device), context);
  if (r == CUDA_SUCCESS && context != nullptr) runtime.device_reset(device);
  return r;
}

}  // namespace

// ---- allocating and freeing ----

CUresult answer_cuMemAlloc_v2(CUdeviceptr* address, std::size_t size) {
  const auto ours = allocate_brokered(
      symbol_of(kRow_cuMemAlloc_v2), __builtin_return_address(0), size,
      [&](Heap& heap, const Label& label) { return heap.allocate(address, size, label); });
  if (ours) {
    trace("alloc va=%llx n=%zu rc=%d", *ours == CUDA_SUCCESS ? *address : 0, size, *ours);
    return *ours;
  }
  const CUresult r = Runtime::ask_driver([&] { return real<kRow_cuMemAlloc_v2>()(address, size); });
  if (r == CUDA_SUCCESS) count(*address, size);
  return r;
}

CUresult answer_cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                   std::size_t height, unsigned element_size) {
  const auto ours = allocate_brokered(
      symbol_of(kRow_cuMemAllocPitch_v2), __builtin_return_address(0), width * height,
      [&](Heap& heap, const Label& label) {
        return heap.allocate_pitch(address, pitch, width, height, element_size, label);
      });
  if (ours) return *ours;
  const CUresult r = Runtime::ask_driver(
      [&] { return real<kRow_cuMemAllocPitch_v2>()(address, pitch, width, height, element_size); });
  if (r == CUDA_SUCCESS) count(*address, *pitch * height);
  return r;
}

CUresult answer_cuMemFree_v2(CUdeviceptr address) {
  Runtime& runtime = Runtime::get();
  if (Heap* heap = runtime.heap(); heap != nullptr) {
    if (const auto r = heap->free(address); r.has_value()) {
      trace("free va=%llx rc=%d", address, *r);
      return *r;
    }
  }
  const CUresult r = real<kRow_cuMemFree_v2>()(address);
  if (r == CUDA_SUCCESS && !runtime.forked() &&
      (runtime.memory().unbrokered.remove(UnbrokeredMemory::Kind::kDevice, address) ||
       runtime.memory().unbrokered.remove(UnbrokeredMemory::Kind::kManaged, address)))
    runtime.report().changed();
  return r;
}

CUresult answer_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async<kRow_cuMemFreeAsync, false>(address, stream);
}

CUresult answer_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async<kRow_cuMemFreeAsync_ptsz, true>(address, stream);
}

// ---- what can be asked; answered while the group is paused, too ----

CUresult answer_cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  // What is free is what the process sizes its memory by: in its first turn, not before it.
  Runtime& runtime = Runtime::get();
  if (!runtime.options().stage.empty() && !runtime.forked()) runtime.connected();
  if (!the_gate->has_opened()) {
    const CUresult r = the_gate->enter([] {
      return Gate::Submission{false, nullptr, "cuMemGetInfo"};
    });
    if (r != CUDA_SUCCESS) return r;
    the_gate->leave_quietly();
  }
  return memory_info(real<kRow_cuMemGetInfo_v2>(), free, total);
}

CUresult answer_cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
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
    if (const auto block = runtime.ipc().block(address); block.has_value()) {
      if (base != nullptr) *base = block->address;
      if (size != nullptr) *size = block->size;
      return CUDA_SUCCESS;
    }
    if (auto r = runtime.slabs().address_range(base, size, address); r.has_value()) return *r;
    if (auto r = runtime.memory().mappings.address_range(base, size, address); r.has_value())
      return *r;
  }
  return real<kRow_cuMemGetAddressRange_v2>()(base, size, address);
}

CUresult answer_cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                      CUdeviceptr address) {
  if (Heap* heap = Runtime::get().heap(); heap != nullptr && data != nullptr) {
    if (const auto block = heap->find(address); block.has_value()) {
      if (const auto r = attribute_of(*heap, *block, data, attribute, address); r.has_value())
        return *r;
    } else if (heap->owns(address)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (data != nullptr && attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
    if (const auto types = handle_types(address); types.has_value())
      return put_handle_types(data, *types);
  const CUresult r = real<kRow_cuPointerGetAttribute>()(data, attribute, address);
  // The driver knows nothing of memory that is paused. No wait at the gate: whoever asks may hold a
  // lock that the caller of a resume needs.
  if (r != CUDA_ERROR_INVALID_VALUE || data == nullptr || Runtime::get().forked()) return r;
  const auto absent = Runtime::get().memory().mappings.absent(address);
  return absent ? pointer_attribute(*absent, address, attribute, data).value_or(r) : r;
}

CUresult answer_cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                       CUdeviceptr address) {
  const auto real_call = real<kRow_cuPointerGetAttributes>();
  Runtime& runtime = Runtime::get();
  if (runtime.forked() || count == 0 || attributes == nullptr || data == nullptr)
    return real_call(count, attributes, data, address);
  Heap* heap = runtime.heap();
  const bool of_heap = heap != nullptr && heap->owns(address);
  const auto absent = of_heap ? std::nullopt : runtime.memory().mappings.absent(address);
  if (!of_heap && !absent) {
    const CUresult r = real_call(count, attributes, data, address);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < count; ++i)
      if (attributes[i] == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
        if (const auto types = handle_types(address); types.has_value())
          put_handle_types(data[i], *types);
    return r;
  }
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

CUresult answer_cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                      CUdeviceptr address) {
  const auto real_call = real<kRow_cuPointerSetAttribute>();
  Runtime& runtime = Runtime::get();
  if (runtime.forked() || !runtime.memory().mappings.brokered(address, 1))
    return real_call(value, attribute, address);
  const Pass pass(*the_gate);  // what is not mapped has no attributes to set
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  CUresult r = real_call(value, attribute, address);
  if (r != CUDA_SUCCESS || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return r;
  const bool on = *static_cast<const unsigned*>(value) != 0;
  runtime.memory().mappings.set_sync_memops(address, on);
  Heap* heap = runtime.heap();
  const auto block = heap != nullptr ? heap->find(address) : std::nullopt;
  if (!block) return r;
  heap->set_sync_memops(address, on);
  // To the driver each part of the block has one of its own.
  for (const CUdeviceptr part : runtime.memory().mappings.starts(block->address, block->size))
    if (part > block->address && r == CUDA_SUCCESS) {
      r = real_call(value, attribute, part);
      if (r == CUDA_SUCCESS) runtime.memory().mappings.set_sync_memops(part, on);
    }
  return r;
}

// ---- peers and contexts ----

CUresult answer_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const CUresult r = real<kRow_cuCtxEnablePeerAccess>()(peer, flags);
  // Brokered memory may follow, and has to know. That takes the driver, and no broker yet.
  if (r != CUDA_SUCCESS || Runtime::get().devices() == nullptr) return r;
  Heap* heap = Runtime::get().heap();
  const CUresult granted = heap != nullptr ? heap->peer_enabled(peer) : CUDA_SUCCESS;
  // There is all or nothing of the driver's own memory, too.
  if (granted != CUDA_SUCCESS) found<kRow_cuCtxDisablePeerAccess>()(peer);
  return granted;
}

CUresult answer_cuCtxDisablePeerAccess(CUcontext peer) {
  const CUresult r = real<kRow_cuCtxDisablePeerAccess>()(peer);
  Heap* heap = Runtime::get().heap();
  return r == CUDA_SUCCESS && heap != nullptr ? heap->peer_disabled(peer) : r;
}

CUresult answer_cuCtxDestroy(CUcontext context) {
  return destroy_context<kRow_cuCtxDestroy>(context);
}

CUresult answer_cuCtxDestroy_v2(CUcontext context) {
  return destroy_context<kRow_cuCtxDestroy_v2>(context);
}

CUresult answer_cuDevicePrimaryCtxReset(CUdevice device) {
  return reset_device<kRow_cuDevicePrimaryCtxReset>(device);
}

CUresult answer_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return reset_device<kRow_cuDevicePrimaryCtxReset_v2>(device);
}

}  // namespace amem::shim
