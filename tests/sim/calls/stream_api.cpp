// Streams, host functions, and stream memory operations.
#include <chrono>
#include <thread>
#include <vector>

#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"
#include "tests/sim/memory/address_space.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/capture.h"
#include "tests/sim/work/context.h"
#include "tests/sim/work/stream.h"

namespace sim {
namespace {

CUresult Create(CUstream* out, unsigned flags, int priority) {
  const Lock lock = LockDriver();
  Context* context = nullptr;
  const CUresult result = CurrentContext(&context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = CreateStream(*context, flags, priority)->handle();
  return CUDA_SUCCESS;
}

CUresult Destroy(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const Lock lock = LockDriver();
  std::shared_ptr<Stream> stream;
  const CUresult result = FindStream({handle}, &stream);
  if (stream == nullptr) return result;
  DestroyStream(stream);
  return CUDA_SUCCESS;
}

// Runs `body` with the stream under the lock.
template <typename Body>
CUresult WithStream(StreamRef ref, const Body& body) {
  Lock lock = LockDriver();
  std::shared_ptr<Stream> stream;
  const CUresult result = FindStream(ref, &stream);
  return result != CUDA_SUCCESS ? result : body(lock, stream);
}

CUresult Synchronize(StreamRef ref) {
  return WithStream(ref, [](Lock& lock, const std::shared_ptr<Stream>& stream) {
    CUresult result = CheckUnsafeCall(*stream);
    if (result != CUDA_SUCCESS) return result;
    // Work on the legacy stream waits for the others, so waiting for an empty piece of it is
    // waiting for them.
    if (stream->legacy()) return Wait(lock, Enqueue(stream, nullptr));
    result = Wait(lock, stream->last());
    return result != CUDA_SUCCESS ? result : stream->context().sticky;
  });
}

CUresult Query(StreamRef ref) {
  return WithStream(ref, [](Lock&, const std::shared_ptr<Stream>& stream) {
    const CUresult result = CheckUnsafeCall(*stream);
    if (result != CUDA_SUCCESS) return result;
    bool idle = stream->idle();
    if (stream->legacy()) {
      for (const auto& other : stream->context().streams) {
        idle &= !other->blocking() || other->idle();
      }
    }
    return idle ? stream->context().sticky : CUDA_ERROR_NOT_READY;
  });
}

CUresult SubmitTo(StreamRef ref, CUgraphNodeType type, std::function<CUresult()> run) {
  return WithStream(ref, [&](Lock&, const std::shared_ptr<Stream>& stream) {
    return Submit(stream, {type, std::move(run)}, nullptr);
  });
}

CUresult HostFunction(StreamRef ref, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return SubmitTo(ref, CU_GRAPH_NODE_TYPE_HOST, [=] {
    const HostFunctionScope scope;
    function(data);
    return CUDA_SUCCESS;
  });
}

CUresult Callback(StreamRef ref, CUstreamCallback callback, void* data, unsigned flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return WithStream(ref, [&](Lock&, const std::shared_ptr<Stream>& stream) {
    if (stream->capture != nullptr) {
      InvalidateCapture(*stream->capture);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    const CUstream handle = ref.handle;
    return Submit(stream,
                  {CU_GRAPH_NODE_TYPE_HOST,
                   [=] {
                     const HostFunctionScope scope;
                     callback(handle, CUDA_SUCCESS, data);
                     return CUDA_SUCCESS;
                   }},
                  nullptr);
  });
}

template <typename T>
bool Satisfied(T value, T wanted, unsigned how) {
  using Signed = std::make_signed_t<T>;
  switch (how) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<Signed>(value - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return value == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (value & wanted) != 0;
    default:
      return static_cast<T>(~(value | wanted)) != 0;
  }
}

// Stream memory operations work on device and pinned memory only.
CUresult CheckValue(CUdeviceptr address, size_t bytes, bool write, int accessor) {
  const Checked checked = CheckAccess(address, bytes, write, accessor);
  if (checked.result != CUDA_SUCCESS) return checked.result;
  return checked.memory == Memory::kPageable ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

template <typename T>
CUresult WaitValue(StreamRef ref, CUdeviceptr address, T wanted, unsigned flags) {
  const unsigned how = flags & ~unsigned{CU_STREAM_WAIT_VALUE_FLUSH};
  if (address % sizeof(T) != 0 || how > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
  return WithStream(ref, [&](Lock&, const std::shared_ptr<Stream>& stream) {
    const int device = stream->context().physical;
    const CUresult bad = CheckValue(address, sizeof(T), false, device);
    if (bad != CUDA_SUCCESS) return bad;
    auto run = [=]() -> CUresult {
      for (;;) {
        if (CheckValue(address, sizeof(T), false, device) != CUDA_SUCCESS) {
          return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        const T value = __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
        if (Satisfied(value, wanted, how)) return CUDA_SUCCESS;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    };
    return Submit(stream, {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, std::move(run)}, nullptr);
  });
}

template <typename T>
CUresult WriteValue(StreamRef ref, CUdeviceptr address, T value, unsigned flags) {
  if (address % sizeof(T) != 0 || flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return WithStream(ref, [&](Lock&, const std::shared_ptr<Stream>& stream) {
    const int device = stream->context().physical;
    const CUresult bad = CheckValue(address, sizeof(T), true, device);
    if (bad != CUDA_SUCCESS) return bad;
    auto run = [=]() -> CUresult {
      if (CheckValue(address, sizeof(T), true, device) != CUDA_SUCCESS) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
      __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELEASE);
      return CUDA_SUCCESS;
    };
    return Submit(stream, {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, std::move(run)}, nullptr);
  });
}

// Stores a property of the stream if the caller gave a place for it.
template <typename T, typename Get>
CUresult Read(StreamRef ref, T* out, const Get& get) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithStream(ref, [&](Lock&, const std::shared_ptr<Stream>& stream) {
    *out = static_cast<T>(get(*stream));
    return CUDA_SUCCESS;
  });
}

}  // namespace
}  // namespace sim

SIM_CALL(cuStreamCreate, (CUstream * stream, unsigned flags), Create(stream, flags, 0))
SIM_CALL(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority),
         Create(stream, flags, priority))
SIM_CALL(cuStreamDestroy, (CUstream stream), Destroy(stream))
SIM_CALL(cuStreamDestroy_v2, (CUstream stream), Destroy(stream))
SIM_CALL_PTSZ(cuStreamSynchronize, (CUstream stream), Synchronize({stream, kDefault}))
SIM_CALL_PTSZ(cuStreamQuery, (CUstream stream), Query({stream, kDefault}))
SIM_CALL_PTSZ(cuStreamGetCtx, (CUstream stream, CUcontext* context),
              Read({stream, kDefault}, context, [](Stream& s) { return s.context().handle(); }))
SIM_CALL_PTSZ(cuStreamGetFlags, (CUstream stream, unsigned* flags),
              Read({stream, kDefault}, flags, [](Stream& s) { return s.flags(); }))
SIM_CALL_PTSZ(cuStreamGetPriority, (CUstream stream, int* priority),
              Read({stream, kDefault}, priority, [](Stream& s) { return s.priority(); }))
SIM_CALL_PTSZ(cuStreamGetId, (CUstream stream, unsigned long long* id),
              Read({stream, kDefault}, id, [](Stream& s) { return s.id(); }))
SIM_CALL_PTSZ(cuStreamGetDevice, (CUstream stream, CUdevice* device),
              Read({stream, kDefault}, device,
                   [](Stream& s) { return VisibleOrdinal(s.context().physical); }))
SIM_CALL_PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data),
              HostFunction({stream, kDefault}, function, data))
SIM_CALL_PTSZ(cuLaunchHostFunc_v2,
              (CUstream stream, CUhostFn function, void* data, unsigned sync_mode),
              sync_mode > 1 ? CUDA_ERROR_INVALID_VALUE
                            : HostFunction({stream, kDefault}, function, data))
SIM_CALL_PTSZ(cuStreamAddCallback,
              (CUstream stream, CUstreamCallback callback, void* data, unsigned flags),
              Callback({stream, kDefault}, callback, data, flags))
SIM_CALL_PTSZ(cuStreamWaitValue32_v2,
              (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
              WaitValue<cuuint32_t>({stream, kDefault}, address, value, flags))
SIM_CALL_PTSZ(cuStreamWaitValue64_v2,
              (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
              WaitValue<cuuint64_t>({stream, kDefault}, address, value, flags))
SIM_CALL_PTSZ(cuStreamWriteValue32_v2,
              (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
              WriteValue<cuuint32_t>({stream, kDefault}, address, value, flags))
SIM_CALL_PTSZ(cuStreamWriteValue64_v2,
              (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
              WriteValue<cuuint64_t>({stream, kDefault}, address, value, flags))
