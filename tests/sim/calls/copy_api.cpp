// Copies and sets, synchronous and on streams.
#include <memory>
#include <vector>

#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"
#include "tests/sim/memory/copy.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/capture.h"
#include "tests/sim/work/context.h"
#include "tests/sim/work/stream.h"

namespace sim {
namespace {

enum class Mode { kSync, kAsync };

// Up to this size the real driver stages pageable memory inside the command itself and returns at
// once.
constexpr size_t kStaged = 64 << 10;

uintptr_t Address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

Transfer Plain(uintptr_t to, uintptr_t from, size_t bytes) {
  Transfer transfer;
  transfer.to = to;
  transfer.from = from;
  transfer.width = bytes;
  return transfer;
}

// Work that reads a copy of pageable memory taken now, so that the caller may reuse it at once.
std::function<CUresult()> Staged(Transfer transfer, int device) {
  const auto* const begin = reinterpret_cast<const unsigned char*>(transfer.from);
  auto bytes = std::make_shared<std::vector<unsigned char>>(begin, begin + transfer.width);
  transfer.from = Address(bytes->data());
  return [transfer, device, bytes] { return RunTransfer(transfer, device); };
}

// A synchronous copy or set may go ahead beside captures, unless it would have to wait for one.
CUresult CheckSynchronous(const Stream& stream) {
  return stream.capture != nullptr ? CheckUnsafeCall(stream) : CheckImplicitCapture(stream);
}

CUresult Copy(Mode mode, StreamRef ref, const Transfer& transfer, Side to, Side from) {
  Lock lock = LockDriver();
  std::shared_ptr<Stream> stream;
  CUresult result = FindStream(ref, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (mode == Mode::kSync) {
    result = CheckSynchronous(*stream);
    if (result != CUDA_SUCCESS) return result;
  }
  if (transfer.empty()) return CUDA_SUCCESS;
  const int device = stream->context().physical;
  Checked to_is;
  Checked from_is;
  result = CheckTransfer(transfer, to, from, device, &to_is, &from_is);
  if (result != CUDA_SUCCESS) return result;

  if (mode == Mode::kAsync && !Node().pageable &&
      (to_is.memory == Memory::kPageable || from_is.memory == Memory::kPageable))
    return CUDA_ERROR_NOT_SUPPORTED;
  // Pageable memory is not the device's to read or write later: the real driver returns when it is
  // done with it.
  bool wait = mode == Mode::kSync;
  std::function<CUresult()> run = [transfer, device] { return RunTransfer(transfer, device); };
  const bool capturing = stream->capture != nullptr;
  if (!wait && !capturing && to_is.memory == Memory::kPageable) wait = true;
  if (!wait && !capturing && from_is.memory == Memory::kPageable) {
    if (transfer.rows == 1 && transfer.width <= kStaged) {
      run = Staged(transfer, device);
    } else {
      wait = true;
    }
  }
  std::shared_ptr<Marker> marker;
  result = Submit(stream, {CU_GRAPH_NODE_TYPE_MEMCPY, std::move(run), {Describe(transfer), {}, {}}},
                  &marker);
  return result != CUDA_SUCCESS || !wait ? result : Wait(lock, marker);
}

CUresult Set(Mode mode, StreamRef ref, CUdeviceptr to, uint32_t value, unsigned width,
             size_t count) {
  Lock lock = LockDriver();
  std::shared_ptr<Stream> stream;
  CUresult result = FindStream(ref, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (mode == Mode::kSync) {
    result = CheckSynchronous(*stream);
    if (result != CUDA_SUCCESS) return result;
  }
  if (count == 0) return CUDA_SUCCESS;
  const int device = stream->context().physical;
  const Fill fill{to, value, width, count};
  result = CheckFill(fill, device);
  if (result != CUDA_SUCCESS) return result;
  std::shared_ptr<Marker> marker;
  result = Submit(stream,
                  {CU_GRAPH_NODE_TYPE_MEMSET,
                   [fill, device] { return RunFill(fill, device); },
                   {{}, Describe(fill), {}}},
                  &marker);
  return result != CUDA_SUCCESS || mode == Mode::kAsync ? result : Wait(lock, marker);
}

CUresult Copy2D(Mode mode, StreamRef ref, const CUDA_MEMCPY2D* copy) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D layer{};
  layer.srcXInBytes = copy->srcXInBytes;
  layer.srcY = copy->srcY;
  layer.srcMemoryType = copy->srcMemoryType;
  layer.srcHost = copy->srcHost;
  layer.srcDevice = copy->srcDevice;
  layer.srcPitch = copy->srcPitch;
  layer.dstXInBytes = copy->dstXInBytes;
  layer.dstY = copy->dstY;
  layer.dstMemoryType = copy->dstMemoryType;
  layer.dstHost = copy->dstHost;
  layer.dstDevice = copy->dstDevice;
  layer.dstPitch = copy->dstPitch;
  layer.WidthInBytes = copy->WidthInBytes;
  layer.Height = copy->Height;
  layer.Depth = 1;
  Transfer transfer;
  Side to = Side::kAny;
  Side from = Side::kAny;
  const CUresult result = ReadCopy(layer, &transfer, &to, &from);
  if (result != CUDA_SUCCESS) return result;
  return Copy(mode, ref, transfer, to, from);
}

/// Of addresses alone: there are no logical endpoints.
CUresult CopyBatch(StreamRef ref, const amem::cuda::FabricCopy* copies, size_t count,
                   unsigned long long flags) {
  if (copies == nullptr || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (copies[i].source.type != amem::cuda::kFabricPointer ||
        copies[i].destination.type != amem::cuda::kFabricPointer) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    const CUresult result =
        Copy(Mode::kAsync, ref,
             Plain(copies[i].destination.address, copies[i].source.address, copies[i].size),
             Side::kAny, Side::kAny);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_CALL_PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t n),
              Copy(Mode::kSync, {nullptr, kDefault}, Plain(to, from, n), Side::kAny, Side::kAny))
SIM_CALL_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t n),
              Copy(Mode::kSync, {nullptr, kDefault}, Plain(to, Address(from), n), Side::kDevice,
                   Side::kAny))
SIM_CALL_PTDS(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t n),
              Copy(Mode::kSync, {nullptr, kDefault}, Plain(Address(to), from, n), Side::kAny,
                   Side::kDevice))
SIM_CALL_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t n),
              Copy(Mode::kSync, {nullptr, kDefault}, Plain(to, from, n), Side::kDevice,
                   Side::kDevice))
SIM_CALL_PTDS(cuMemcpyPeer, (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n),
              Copy(Mode::kSync, {nullptr, kDefault}, Plain(to, from, n), Side::kDevice,
                   Side::kDevice))
SIM_CALL_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* copy),
              Copy2D(Mode::kSync, {nullptr, kDefault}, copy))

SIM_CALL_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream),
              Copy(Mode::kAsync, {stream, kDefault}, Plain(to, from, n), Side::kAny, Side::kAny))
SIM_CALL_PTSZ(cuMemcpyWithAttributesAsync,
              (CUdeviceptr to, CUdeviceptr from, size_t n, CUmemcpyAttributes* attributes,
               CUstream stream),
              attributes == nullptr ? CUDA_ERROR_INVALID_VALUE
                                    : Copy(Mode::kAsync, {stream, kDefault}, Plain(to, from, n),
                                           Side::kAny, Side::kAny))
SIM_CALL_PTSZ(cuFabricCpyBatchAsync,
              (size_t count, amem::cuda::FabricCopy* copies, unsigned long long flags,
               CUstream stream),
              CopyBatch({stream, kDefault}, copies, count, flags))
SIM_CALL(cuTeleportAsync, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream),
         Copy(Mode::kAsync, {stream, DefaultStream::kLegacy}, Plain(to, from, n), Side::kAny,
              Side::kAny))
SIM_CALL(cuMemTeleportAsync, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream),
         Copy(Mode::kAsync, {stream, DefaultStream::kLegacy}, Plain(to, from, n), Side::kAny,
              Side::kAny))
SIM_CALL_PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t n, CUstream stream),
              Copy(Mode::kAsync, {stream, kDefault}, Plain(to, Address(from), n), Side::kDevice,
                   Side::kAny))
SIM_CALL_PTSZ(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t n, CUstream stream),
              Copy(Mode::kAsync, {stream, kDefault}, Plain(Address(to), from, n), Side::kAny,
                   Side::kDevice))
SIM_CALL_PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream),
              Copy(Mode::kAsync, {stream, kDefault}, Plain(to, from, n), Side::kDevice,
                   Side::kDevice))
SIM_CALL_PTSZ(cuMemcpyPeerAsync,
              (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n, CUstream stream),
              Copy(Mode::kAsync, {stream, kDefault}, Plain(to, from, n), Side::kDevice,
                   Side::kDevice))
SIM_CALL_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* copy, CUstream stream),
              Copy2D(Mode::kAsync, {stream, kDefault}, copy))

SIM_CALL_PTDS(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t n),
              Set(Mode::kSync, {nullptr, kDefault}, to, value, 1, n))
SIM_CALL_PTDS(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t n),
              Set(Mode::kSync, {nullptr, kDefault}, to, value, 2, n))
SIM_CALL_PTDS(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t n),
              Set(Mode::kSync, {nullptr, kDefault}, to, value, 4, n))
SIM_CALL_PTSZ(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t n, CUstream stream),
              Set(Mode::kAsync, {stream, kDefault}, to, value, 1, n))
SIM_CALL_PTSZ(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t n, CUstream stream),
              Set(Mode::kAsync, {stream, kDefault}, to, value, 2, n))
SIM_CALL_PTSZ(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t n, CUstream stream),
              Set(Mode::kAsync, {stream, kDefault}, to, value, 4, n))
