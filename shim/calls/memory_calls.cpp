// Wrappers of the virtual memory calls. Virtual handles and brokered
// addresses are answered by Handles and Mappings, everything else by the driver. What NCCL asks
// before and after it makes a buffer (granularity and addresses) is answered by Slabs.
#include <optional>

#include "common/numbers.h"
#include "common/ticket.h"
#include "shim/base/log.h"
#include "shim/calls/driver_calls.h"
#include "shim/calls/memory_margin.h"
#include "shim/memory/free_pass.h"
#include "shim/process/modules.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

/// A child of fork has no driver and no session: virtual handles mean nothing there, and addresses
/// are the driver's business.
bool in_forked_child() { return Runtime::get().forked(); }

/// A handle of brokered memory.
bool ours(CUmemGenericAllocationHandle handle) {
  return AllocationTable::is_virtual(handle) || is_buffer(handle);
}

Handles::TraceView trace_view(CUmemGenericAllocationHandle handle) {
  Runtime& runtime = Runtime::get();
  return is_buffer(handle) ? runtime.slabs().trace_view(handle)
                           : runtime.memory().handles.trace_view(handle);
}

/// Returns whether this is cuMemAlloc's memory. It is not a mapping of the program's, and the
/// driver says so.
bool of_heap(CUdeviceptr address) {
  Heap* heap = Runtime::get().heap();
  return heap != nullptr && heap->owns(address);
}

/// As the driver sees it. Of a device that there is not, it has something else to say.
bool valid_size(std::size_t size, int device) {
  Runtime& runtime = Runtime::get();
  if (device < 0 || device >= runtime.devices()->count()) return true;
  return size != 0 && size % runtime.memory().handles.granularity(device) == 0;
}

/// Nothing: this creation is none of ours.
std::optional<CUresult> create_brokered(CUmemGenericAllocationHandle* handle, std::size_t size,
                                        const CUmemAllocationProp* prop, unsigned long long flags,
                                        const void* caller) {
  Runtime& runtime = Runtime::get();
  if (handle == nullptr || prop == nullptr || flags != 0 ||
      prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      prop->allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE ||
      prop->allocFlags.usage != 0)
    return std::nullopt;
  const std::optional<Label> label = runtime.label(caller);
  if (!label) return std::nullopt;
  if (!runtime.connected()) {
    if (!runtime.options().required) return std::nullopt;
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  // Brokered memory has no fabric handle. The driver says the same where there is no fabric, and
  // NCCL then asks again.
  const int types = static_cast<int>(prop->requestedHandleTypes);
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  if ((types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return std::nullopt;
  const Pass pass(*the_gate, "cuMemCreate");
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  if (label->tag != kNcclTag && !within_memory_margin(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::optional<CUresult> packed;
  if (label->tag == kNcclTag) packed = runtime.slabs().create(handle, size, *prop, *label);
  if (!packed && !valid_size(size, prop->location.id)) return CUDA_ERROR_INVALID_VALUE;
  const auto create = [&] {
    Handles& handles = runtime.memory().handles;
    if (label->tag != kNcclTag) return handles.create(handle, size, *prop, *label);
    // What slabs had no space for has the size of a buffer.
    const std::uint64_t whole = round_up(size, handles.granularity(prop->location.id));
    return handles.create_bindable(handle, whole, *prop, *label);
  };
  CUresult r = packed ? *packed : create();
  if (Heap* heap = runtime.heap(); heap != nullptr) r = heap->ask_again(r, create);
  if (r == CUDA_SUCCESS) runtime.device_used(prop->location.id);
  // It has waited for a broker that has not returned.
  if (r != CUDA_SUCCESS && !runtime.options().required && !runtime.connected()) return std::nullopt;
  return r;
}

void count_unbrokered(CUmemGenericAllocationHandle handle, std::size_t size,
                      const CUmemLocation& where, const void* caller) {
  Runtime& runtime = Runtime::get();
  UnbrokeredMemory& unbrokered = runtime.memory().unbrokered;
  if (where.type == CU_MEM_LOCATION_TYPE_DEVICE)
    unbrokered.created(handle, size, where.id);
  else if (LocalDevices* devices = runtime.devices(); devices != nullptr)
    unbrokered.created_on_host(handle, size, devices->current(), runtime.brokers(caller));
  runtime.report().changed();
}

/// Not brokered; perhaps a multicast object, with which brokered memory may lose a binding.
CUresult release_object(CUmemGenericAllocationHandle handle) {
  const auto real_call = real<kRow_cuMemRelease>();
  Runtime& runtime = Runtime::get();
  if (in_forked_child()) return real_call(handle);
  if (!runtime.memory().multicast.tracked(handle)) {
    const CUresult r = real_call(handle);
    if (r == CUDA_SUCCESS) {
      runtime.memory().unbrokered.released(handle);
      runtime.report().changed();
    }
    return r;
  }
  const FreePass pass(*the_gate, runtime.memory().brokered);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  const CUresult r = real_call(handle);
  if (r == CUDA_SUCCESS) {
    runtime.memory().unbrokered.released(handle);
    runtime.memory().mappings.release(runtime.memory().multicast.release(handle));
  }
  return r;
}

}  // namespace

// ---- handles ----

CUresult answer_cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                            const CUmemAllocationProp* prop, unsigned long long flags) {
  const void* caller = __builtin_return_address(0);
  std::optional<CUresult> ours = create_brokered(handle, size, prop, flags, caller);
  const auto create = [&] { return real<kRow_cuMemCreate>()(handle, size, prop, flags); };
  const CUresult r = ours ? *ours : Runtime::ask_driver(create);
  if (!ours.has_value() && r == CUDA_SUCCESS && !in_forked_child())
    count_unbrokered(*handle, size, prop->location, caller);
  if (tracing() && prop != nullptr)
    trace("create %s n=%zu loc=%d:%d hty=%d rdma=%d rc=%d mine=%d", module_of(caller).c_str(), size,
          static_cast<int>(prop->location.type), prop->location.id,
          static_cast<int>(prop->requestedHandleTypes), prop->allocFlags.gpuDirectRDMACapable, r,
          r == CUDA_SUCCESS && ours.has_value());
  return r;
}

CUresult answer_cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (!ours(handle)) return release_object(handle);
  if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  Runtime& runtime = Runtime::get();
  const FreePass pass(*the_gate, runtime.memory().brokered);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  if (tracing()) {
    const Handles::TraceView v = trace_view(handle);
    trace("release vh=%x refs=%u maps=%zu", v.number, v.refs - 1, v.mappings);
  }
  return is_buffer(handle) ? runtime.slabs().release(handle)
                           : runtime.memory().handles.release(handle);
}

CUresult answer_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  if (handle != nullptr && !in_forked_child()) {
    if (of_heap(at)) return CUDA_ERROR_INVALID_VALUE;
    std::optional<CUresult> r = Runtime::get().slabs().retain(handle, at);
    if (!r) r = Runtime::get().memory().handles.retain(handle, at);
    if (r == CUDA_SUCCESS && tracing())
      trace("retain va=%p vh=%x by %s", address, trace_view(*handle).number,
            module_of(__builtin_return_address(0)).c_str());
    if (r) return *r;
  }
  const CUresult r = real<kRow_cuMemRetainAllocationHandle>()(handle, address);
  if (r == CUDA_SUCCESS && !in_forked_child()) {
    Runtime::get().memory().unbrokered.referenced(*handle);
    Runtime::get().memory().multicast.retain(*handle, at);
  }
  return r;
}

CUresult answer_cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags) {
  if (!ours(handle)) return real<kRow_cuMemExportToShareableHandle>()(out, handle, type, flags);
  if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  if (tracing()) trace("export vh=%x -> ticket", trace_view(handle).number);
  Runtime& runtime = Runtime::get();
  if (!is_buffer(handle))
    return runtime.memory().handles.export_ticket(static_cast<int*>(out), handle);
  const Pass pass(*the_gate, "cuMemExportToShareableHandle");
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  return runtime.slabs().export_ticket(static_cast<int*>(out), handle);
}

CUresult answer_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                               void* os_handle, CUmemAllocationHandleType type) {
  const auto fd = static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle));
  std::optional<Ticket> ticket;
  if (handle != nullptr && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    ticket = read_ticket(fd);
  Runtime& runtime = Runtime::get();
  if (!ticket) {
    const CUresult r = real<kRow_cuMemImportFromShareableHandle>()(handle, os_handle, type);
    if (r == CUDA_SUCCESS && !in_forked_child()) runtime.memory().unbrokered.imported(*handle);
    return r;
  }
  if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!runtime.connected()) {
    log_error(
        "a peer passed a ticket for brokered memory, but this process has no broker that can "
        "redeem it");
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  const Pass pass(*the_gate, "cuMemImportFromShareableHandle");
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  const CUresult r = runtime.slabs().import(handle, *ticket);
  if (tracing())
    trace("import ticket owner=rank%d id=%x n=%llu rc=%d by %s", ticket->owner_rank,
          ticket->owner_number, static_cast<unsigned long long>(ticket->size), r,
          module_of(__builtin_return_address(0)).c_str());
  return r;
}

CUresult answer_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                       CUmemGenericAllocationHandle handle) {
  if (!ours(handle)) return real<kRow_cuMemGetAllocationPropertiesFromHandle>()(prop, handle);
  if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  Runtime& runtime = Runtime::get();
  return is_buffer(handle) ? runtime.slabs().properties(prop, handle)
                           : runtime.memory().handles.properties(prop, handle);
}

// ---- addresses ----

CUresult answer_cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (!ours(handle)) {
    const CUresult r = real<kRow_cuMemMap>()(address, size, offset, handle, flags);
    if (r == CUDA_SUCCESS && !in_forked_child()) {
      Runtime::get().memory().unbrokered.mapped(handle, address);
      Runtime::get().memory().multicast.map(handle, address, size);
    }
    return r;
  }
  if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  const Pass pass(*the_gate, "cuMemMap");
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  Runtime& runtime = Runtime::get();
  const CUresult r = runtime.slabs().map(address, size, offset, handle, flags);
  if (tracing()) {
    const Handles::TraceView v = trace_view(handle);
    trace("map va=%llx n=%zu off=%zu vh=%x imported=%d rc=%d", address, size, offset, v.number,
          v.imported, r);
  }
  return r;
}

CUresult answer_cuMemUnmap(CUdeviceptr address, std::size_t size) {
  const auto real_call = real<kRow_cuMemUnmap>();
  Memory& memory = Runtime::get().memory();
  Multicast& multicast = Runtime::get().memory().multicast;
  if (!in_forked_child() && memory.mappings.brokered(address, size)) {
    if (of_heap(address)) return CUDA_ERROR_INVALID_VALUE;
    const FreePass pass(*the_gate, memory.brokered);
    if (pass.result() != CUDA_SUCCESS) return pass.result();
    std::optional<CUresult> r = Runtime::get().slabs().unmap(address, size);
    if (!r) r = memory.mappings.unmap(address, size);
    if (r) {
      trace("unmap va=%llx n=%zu rc=%d", address, size, *r);
      return *r;
    }
  }
  if (in_forked_child()) return real_call(address, size);
  if (!multicast.mapped(address, size)) {
    const CUresult r = real_call(address, size);
    if (r == CUDA_SUCCESS) {
      Runtime::get().memory().unbrokered.unmapped(address, size);
      Runtime::get().report().changed();
    }
    return r;
  }
  const FreePass pass(*the_gate, memory.brokered);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  const CUresult r = real_call(address, size);
  if (r == CUDA_SUCCESS) {
    memory.unbrokered.unmapped(address, size);
    memory.mappings.release(multicast.unmap(address, size));
  }
  return r;
}

CUresult answer_cuMemSetAccess(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* desc,
                               std::size_t count) {
  Memory& memory = Runtime::get().memory();
  if (desc != nullptr && !in_forked_child() && memory.mappings.brokered(address, size)) {
    if (of_heap(address)) return CUDA_ERROR_INVALID_VALUE;
    const Pass pass(*the_gate, "cuMemSetAccess");
    if (pass.result() != CUDA_SUCCESS) return pass.result();
    std::optional<CUresult> r = Runtime::get().slabs().set_access(address, size, desc, count);
    if (!r) r = memory.mappings.set_access(address, size, desc, count);
    if (r) {
      trace("access va=%llx n=%zu dev=%d fl=%d c=%zu rc=%d", address, size, desc->location.id,
            static_cast<int>(desc->flags), count, *r);
      return *r;
    }
  }
  return real<kRow_cuMemSetAccess>()(address, size, desc, count);
}

/// The driver knows nothing of memory that is paused. No wait at the gate, as with every question.
/// cuMemAlloc's memory is not a mapping of the program's, so the driver answers.
CUresult answer_cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                               CUdeviceptr address) {
  const auto real_call = real<kRow_cuMemGetAccess>();
  Runtime& runtime = Runtime::get();
  if (flags == nullptr || location == nullptr || in_forked_child() || of_heap(address))
    return real_call(flags, location, address);
  const auto granted = runtime.memory().mappings.access(address, *location);
  if (!granted) return real_call(flags, location, address);
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
      (location->id < 0 || location->id >= runtime.devices()->count()))
    return CUDA_ERROR_INVALID_DEVICE;
  *flags = *granted;
  return CUDA_SUCCESS;
}

CUresult answer_cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, std::size_t size,
                                              CUmemRangeHandleType type, unsigned long long flags) {
  const auto real_call = real<kRow_cuMemGetHandleForAddressRange>();
  Memory& memory = Runtime::get().memory();
  if (in_forked_child() || !memory.mappings.brokered(address, size))
    return real_call(handle, address, size, type, flags);
  const Pass pass(*the_gate, "cuMemGetHandleForAddressRange");
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  const auto pinned =
      Runtime::get().slabs().pin(address, size, amem_v1_PinReason_PIN_REASON_DMA_BUF);
  if (!pinned.ok()) return CUDA_ERROR_SYSTEM_NOT_READY;
  const CUresult r = real_call(handle, address, size, type, flags);
  if (r != CUDA_SUCCESS) memory.pins.unpin(pinned.value());
  return r;
}

CUresult answer_cuMemGetAllocationGranularity(std::size_t* size, const CUmemAllocationProp* prop,
                                              CUmemAllocationGranularity_flags option) {
  const CUresult r = real<kRow_cuMemGetAllocationGranularity>()(size, prop, option);
  Runtime& runtime = Runtime::get();
  if (r != CUDA_SUCCESS || runtime.forked() || !runtime.brokers(__builtin_return_address(0)) ||
      !runtime.connected())
    return r;
  if (const auto ours = runtime.slabs().granularity(prop, option); ours) *size = *ours;
  return r;
}

CUresult answer_cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                    CUdeviceptr wish, unsigned long long flags) {
  Runtime& runtime = Runtime::get();
  if (!runtime.forked() && runtime.brokers(__builtin_return_address(0))) {
    if (const auto r = runtime.slabs().reserve(address, size, alignment, wish, flags); r) return *r;
  }
  return real<kRow_cuMemAddressReserve>()(address, size, alignment, wish, flags);
}

CUresult answer_cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  if (!Runtime::get().forked()) {
    Slabs& slabs = Runtime::get().slabs();
    std::optional<FreePass> pass;
    const bool of_slab = slabs.contains(address);
    // What is mapped is not freed. The driver does not know that paused memory is mapped.
    if (!of_slab && Runtime::get().memory().mappings.brokered(address, size))
      return CUDA_ERROR_INVALID_VALUE;
    if (of_slab) {
      pass.emplace(*the_gate, Runtime::get().memory().brokered);
      if (pass->result() != CUDA_SUCCESS) return pass->result();
    }
    if (const auto r = slabs.free_address(address, size); r) return *r;
  }
  return real<kRow_cuMemAddressFree>()(address, size);
}

}  // namespace amem::shim
