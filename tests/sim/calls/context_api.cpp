// Primary and other contexts, and the current one.
#include "tests/sim/entry/api.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/capture.h"
#include "tests/sim/work/context.h"
#include "tests/sim/work/device.h"

namespace sim {
namespace {

CUresult DeviceOf(CUdevice* device, CUcontext handle) {
  const Lock lock = LockDriver();
  const Context* const context = FindContext(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = VisibleOrdinal(context->physical);
  return CUDA_SUCCESS;
}

CUresult PrimaryRetain(CUcontext* out, CUdevice device) {
  int physical = 0;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  Lock lock = LockDriver();
  return RetainPrimary(lock, physical, out);
}

CUresult PrimaryRelease(CUdevice device) {
  int physical = 0;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  Lock lock = LockDriver();
  Context& context = PrimaryContext(physical);
  if (!context.alive) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context.references == 0) DestroyContext(lock, context);
  return CUDA_SUCCESS;
}

CUresult PrimaryReset(CUdevice device) {
  int physical = 0;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  Lock lock = LockDriver();
  Context& context = PrimaryContext(physical);
  if (context.alive) DestroyContext(lock, context);
  return CUDA_SUCCESS;
}

CUresult PrimarySetFlags(CUdevice device, unsigned flags) {
  int physical = 0;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  const Lock lock = LockDriver();
  PrimaryContext(physical).flags = flags;
  return CUDA_SUCCESS;
}

CUresult PrimaryState(CUdevice device, unsigned* flags, int* active) {
  int physical = 0;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  const Lock lock = LockDriver();
  const Context& context = PrimaryContext(physical);
  *flags = context.flags;
  *active = context.alive ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult Create(CUcontext* out, unsigned flags, CUdevice device) {
  int physical = 0;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  Lock lock = LockDriver();
  const CUresult result = CreateContext(lock, physical, flags, out);
  if (result == CUDA_SUCCESS) PushContext(*out);
  return result;
}

CUresult Destroy(CUcontext handle) {
  Lock lock = LockDriver();
  Context* const context = FindContext(handle);
  if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  CUcontext popped = nullptr;
  if (CurrentHandle() == handle) PopContext(&popped);
  DestroyContext(lock, *context);
  return CUDA_SUCCESS;
}

CUresult SetCurrent(CUcontext handle) {
  const Lock lock = LockDriver();
  if (handle != nullptr && FindContext(handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  SetCurrentHandle(handle);
  return CUDA_SUCCESS;
}

CUresult Push(CUcontext handle) {
  const Lock lock = LockDriver();
  if (FindContext(handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  PushContext(handle);
  return CUDA_SUCCESS;
}

CUresult Pop(CUcontext* out) {
  CUcontext popped = nullptr;
  if (!PopContext(&popped)) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = popped;
  return CUDA_SUCCESS;
}

CUresult Synchronize() {
  Lock lock = LockDriver();
  Context* context = nullptr;
  CUresult result = CurrentContext(&context);
  if (result == CUDA_SUCCESS) result = CheckContextSynchronize(*context);
  return result != CUDA_SUCCESS ? result : SynchronizeDevice(lock, context->physical);
}

CUresult SynchronizeHandle(CUcontext handle) {
  Lock lock = LockDriver();
  const Context* const context = FindContext(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const CUresult result = CheckContextSynchronize(*context);
  return result != CUDA_SUCCESS ? result : SynchronizeDevice(lock, context->physical);
}

// Runs `body` with the current context under the lock.
template <typename Body>
CUresult WithCurrent(const Body& body) {
  const Lock lock = LockDriver();
  Context* context = nullptr;
  const CUresult result = CurrentContext(&context);
  return result != CUDA_SUCCESS ? result : body(*context);
}

CUresult EnablePeer(CUcontext peer) {
  return WithCurrent([&](Context& context) {
    const Context* const other = FindContext(peer);
    if (other == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (other->physical == context.physical) return CUDA_ERROR_INVALID_DEVICE;
    return context.peers.insert(peer).second ? CUDA_SUCCESS
                                             : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

CUresult DisablePeer(CUcontext peer) {
  return WithCurrent([&](Context& context) {
    if (FindContext(peer) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return context.peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}

}  // namespace
}  // namespace sim

SIM_CALL(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device),
         PrimaryRetain(context, device))
SIM_CALL(cuDevicePrimaryCtxRelease, (CUdevice device), PrimaryRelease(device))
SIM_CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice device), PrimaryRelease(device))
SIM_CALL(cuDevicePrimaryCtxReset, (CUdevice device), PrimaryReset(device))
SIM_CALL(cuDevicePrimaryCtxReset_v2, (CUdevice device), PrimaryReset(device))
SIM_CALL(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags),
         PrimarySetFlags(device, flags))
SIM_CALL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags),
         PrimarySetFlags(device, flags))
SIM_CALL(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned* flags, int* active),
         PrimaryState(device, flags, active))

SIM_CALL(cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device),
         Create(context, flags, device))
SIM_CALL(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device),
         Create(context, flags, device))
SIM_CALL(cuCtxCreate_v3,
         (CUcontext * context, CUexecAffinityParam*, int, unsigned flags, CUdevice device),
         Create(context, flags, device))
SIM_CALL(cuCtxCreate_v4, (CUcontext * context, CUctxCreateParams*, unsigned flags, CUdevice device),
         Create(context, flags, device))
SIM_CALL(cuCtxDestroy, (CUcontext context), Destroy(context))
SIM_CALL(cuCtxDestroy_v2, (CUcontext context), Destroy(context))

SIM_CALL(cuCtxSetCurrent, (CUcontext context), SetCurrent(context))
SIM_CALL(cuCtxGetCurrent, (CUcontext * context),
         context == nullptr ? CUDA_ERROR_INVALID_VALUE : (*context = CurrentHandle(), CUDA_SUCCESS))
SIM_CALL(cuCtxPushCurrent, (CUcontext context), Push(context))
SIM_CALL(cuCtxPushCurrent_v2, (CUcontext context), Push(context))
SIM_CALL(cuCtxPopCurrent, (CUcontext * context), Pop(context))
SIM_CALL(cuCtxPopCurrent_v2, (CUcontext * context), Pop(context))

SIM_CALL(cuCtxGetDevice, (CUdevice * device), DeviceOf(device, CurrentHandle()))
SIM_CALL(cuCtxGetDevice_v2, (CUdevice * device, CUcontext context), DeviceOf(device, context))
SIM_CALL(cuCtxSynchronize, (void), Synchronize())
SIM_CALL(cuCtxSynchronize_v2, (CUcontext context), SynchronizeHandle(context))

SIM_CALL(cuCtxGetFlags, (unsigned* flags), WithCurrent([&](Context& context) {
           if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
           *flags = context.flags;
           return CUDA_SUCCESS;
         }))

SIM_CALL(cuCtxGetApiVersion, (CUcontext, unsigned* version), WithCurrent([&](Context&) {
           if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
           *version = 3020;
           return CUDA_SUCCESS;
         }))

SIM_CALL(cuCtxGetStreamPriorityRange, (int* least, int* greatest), WithCurrent([&](Context&) {
           if (least != nullptr) *least = 0;
           if (greatest != nullptr) *greatest = -5;
           return CUDA_SUCCESS;
         }))

SIM_CALL(cuCtxSetLimit, (CUlimit limit, size_t value), WithCurrent([&](Context& context) {
           if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
           context.limits[limit] = value;
           return CUDA_SUCCESS;
         }))

SIM_CALL(cuCtxGetLimit, (size_t * value, CUlimit limit), WithCurrent([&](Context& context) {
           if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
           if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
           const auto it = context.limits.find(limit);
           *value = it == context.limits.end() ? 1024 : it->second;
           return CUDA_SUCCESS;
         }))

SIM_CALL(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags),
         flags != 0 ? CUDA_ERROR_INVALID_VALUE : EnablePeer(peer))
SIM_CALL(cuCtxDisablePeerAccess, (CUcontext peer), DisablePeer(peer))
