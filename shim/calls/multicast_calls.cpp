// Wrappers of the multicast calls: memory that is bound may be brokered, the objects never are. All
// of it only with AMEM_NVLS=1; without, NCCL is told that there is no multicast, in scopes beyond
// NCCL's everybody is.
#include "shim/base/log.h"
#include "shim/calls/driver_calls.h"
#include "shim/memory/free_pass.h"
#include "shim/process/unknown_calls.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

CUresult refuse_binding() {
  log_error(
      "amem binds brokered memory to multicast objects (NVLS) only with AMEM_NVLS=1. That has "
      "never run on hardware");
  return CUDA_ERROR_NOT_SUPPORTED;
}

/// What the driver has bound is remembered; what it refused holds no memory any longer. `own`: this
/// process has made all of it.
CUresult finish_bind(CUresult r, CUmemGenericAllocationHandle object,
                     const std::vector<Multicast::Binding>& bindings, bool own) {
  Runtime& runtime = Runtime::get();
  if (r != CUDA_SUCCESS && !own)
    log_error(runtime.memory().brokered.name(bindings.front().id) +
              " cannot be bound to a multicast object (CUDA error " + std::to_string(r) +
              "): the driver binds only memory that the process has made itself, and amemd has "
              "made this. Bind NCCL's own memory (ncclMemAlloc), or exclude this from amem "
              "(amem.unbrokered, or AMEM_SCOPE=nccl)");
  if (r == CUDA_SUCCESS) runtime.memory().multicast.track(object);
  for (const Multicast::Binding& b : bindings) {
    if (r == CUDA_SUCCESS)
      runtime.memory().multicast.bind(object, b);
    else
      runtime.memory().mappings.release({b.id});
    trace("multicast bind at=%zu n=%zu rc=%d", b.at, b.size, r);
  }
  return r;
}

}  // namespace

CUresult answer_cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const CUresult r = real<kRow_cuDeviceGetAttribute>()(value, attribute, device);
  if (r != CUDA_SUCCESS) return r;
  // As on a driver without the calls that are hidden (docs/decisions/unknown-driver-calls.md).
  if (attribute > cuda::kLastAttribute && !UnknownCalls::get().may_have_attribute(attribute))
    return CUDA_ERROR_INVALID_VALUE;
  if (cuda::of_logical_endpoints(attribute)) *value = 0;
  if (attribute == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED && *value != 0) {
    Runtime& runtime = Runtime::get();
    // Whoever may come to have brokered memory is not to find a use for it that would be refused.
    const bool concerned =
        runtime.options().scope != Scope::kNccl || runtime.brokers(__builtin_return_address(0));
    if (!runtime.options().nvls && concerned && runtime.connected()) *value = 0;
  }
  return r;
}

CUresult answer_cuMulticastCreate(CUmemGenericAllocationHandle* object,
                                  const CUmulticastObjectProp* prop) {
  const CUresult r = real<kRow_cuMulticastCreate>()(object, prop);
  if (r == CUDA_SUCCESS && !Runtime::get().forked())
    Runtime::get().memory().multicast.track(*object);
  return r;
}

/// Does not pass the gate: a peer that is inside a bind waits for this call.
CUresult answer_cuMulticastAddDevice(CUmemGenericAllocationHandle object, CUdevice device) {
  const CUresult r = real<kRow_cuMulticastAddDevice>()(object, device);
  if (r == CUDA_SUCCESS && !Runtime::get().forked())
    Runtime::get().memory().multicast.track(object);
  return r;
}

namespace {

/// `bind`: the driver's call, with a handle that it knows. Memory of a device is bound for that
/// device alone: what a pause unbinds the resume can bind again by either version of the call.
template <class Bind>
CUresult bind_memory(CUmemGenericAllocationHandle object, std::size_t at,
                     CUmemGenericAllocationHandle memory, std::size_t from, std::size_t size,
                     const Bind& bind) {
  const bool buffer = is_buffer(memory);
  if (!buffer && !AllocationTable::is_virtual(memory)) return bind(memory);
  if (Runtime::get().forked()) return CUDA_ERROR_NOT_INITIALIZED;
  Runtime& runtime = Runtime::get();
  if (!runtime.options().nvls) return refuse_binding();
  const Pass pass(*the_gate);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  if (buffer)
    if (CUresult r = runtime.slabs().own_handle(&memory, memory); r != CUDA_SUCCESS) return r;
  Mappings::Bound bound;
  if (CUresult r = runtime.memory().mappings.add_bindings(memory, bound); r != CUDA_SUCCESS)
    return r;
  // Waits until all devices of the object's team were added, so no lock is held.
  const CUresult r = bind(bound.real);
  return finish_bind(r, object, {{bound.id, bound.device, at, from, size}}, bound.own);
}

/// The same of mapped memory.
template <class Bind>
CUresult bind_address(CUmemGenericAllocationHandle object, std::size_t at, CUdeviceptr address,
                      std::size_t size, const Bind& bind) {
  Runtime& runtime = Runtime::get();
  if (runtime.forked() || !runtime.memory().mappings.brokered(address, size)) return bind();
  if (!runtime.options().nvls) return refuse_binding();
  const Pass pass(*the_gate);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  std::vector<Multicast::Binding> bindings;
  bool own = true;
  for (const Mappings::Bound& bound : runtime.memory().mappings.add_bindings(address, size)) {
    bindings.push_back(
        {bound.id, bound.device, at + (bound.address - address), bound.offset, bound.size});
    own = own && bound.own;
  }
  const CUresult r = bind();
  return finish_bind(r, object, bindings, own);
}

}  // namespace

CUresult answer_cuMulticastBindMem(CUmemGenericAllocationHandle object, std::size_t at,
                                   CUmemGenericAllocationHandle memory, std::size_t from,
                                   std::size_t size, unsigned long long flags) {
  return bind_memory(object, at, memory, from, size, [&](CUmemGenericAllocationHandle real_memory) {
    return real<kRow_cuMulticastBindMem>()(object, at, real_memory, from, size, flags);
  });
}

CUresult answer_cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device,
                                      std::size_t at, CUmemGenericAllocationHandle memory,
                                      std::size_t from, std::size_t size,
                                      unsigned long long flags) {
  return bind_memory(object, at, memory, from, size, [&](CUmemGenericAllocationHandle real_memory) {
    return real<kRow_cuMulticastBindMem_v2>()(object, device, at, real_memory, from, size, flags);
  });
}

CUresult answer_cuMulticastBindAddr(CUmemGenericAllocationHandle object, std::size_t at,
                                    CUdeviceptr address, std::size_t size,
                                    unsigned long long flags) {
  return bind_address(object, at, address, size, [&] {
    return real<kRow_cuMulticastBindAddr>()(object, at, address, size, flags);
  });
}

CUresult answer_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device,
                                       std::size_t at, CUdeviceptr address, std::size_t size,
                                       unsigned long long flags) {
  return bind_address(object, at, address, size, [&] {
    return real<kRow_cuMulticastBindAddr_v2>()(object, device, at, address, size, flags);
  });
}

CUresult answer_cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device,
                                  std::size_t at, std::size_t size) {
  const auto real_call = real<kRow_cuMulticastUnbind>();
  Runtime& runtime = Runtime::get();
  if (runtime.forked() || !runtime.memory().multicast.tracked(object))
    return real_call(object, device, at, size);
  Memory& memory = runtime.memory();
  const FreePass pass(*the_gate, memory.brokered);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  // A pause has unbound it in the driver already.
  const bool paused = memory.multicast.paused(object, device, at, size);
  const CUresult r = paused ? CUDA_SUCCESS : real_call(object, device, at, size);
  if (r == CUDA_SUCCESS) memory.mappings.release(memory.multicast.unbind(object, device, at, size));
  trace("multicast unbind at=%zu n=%zu rc=%d", at, size, r);
  return r;
}

}  // namespace amem::shim
