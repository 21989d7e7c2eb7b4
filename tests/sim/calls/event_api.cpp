// Events, and streams waiting for them.
#include <chrono>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"
#include "tests/sim/work/capture.h"
#include "tests/sim/work/event.h"
#include "tests/sim/work/stream.h"

namespace sim {
namespace {

std::unordered_map<CUevent, std::shared_ptr<Event>>& Events() {
  static auto* const events = new std::unordered_map<CUevent, std::shared_ptr<Event>>();
  return *events;
}

CUresult Create(CUevent* out, unsigned flags) {
  const Lock lock = LockDriver();
  Context* context = nullptr;
  const CUresult result = CurrentContext(&context);
  if (result != CUDA_SUCCESS) return result;
  constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = AddEvent(*context, flags);
  return CUDA_SUCCESS;
}

CUresult Record(CUevent handle, StreamRef ref, unsigned flags) {
  const Lock lock = LockDriver();
  const std::shared_ptr<Event> event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // An external record would be a node of the graph; capture here makes none.
  if (flags != CU_EVENT_RECORD_DEFAULT) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<Stream> stream;
  CUresult result = FindStream(ref, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->capture_tail = stream->capture_tail;
    return CUDA_SUCCESS;
  }
  result = CheckImplicitCapture(*stream);
  if (result != CUDA_SUCCESS) return result;
  event->capture.reset();
  event->capture_tail.clear();
  event->marker = Enqueue(stream, nullptr);
  return CUDA_SUCCESS;
}

/// Behind all work of a context. It does to captures what a wait for the context does.
CUresult RecordContext(CUcontext handle, CUevent event_handle) {
  const Lock lock = LockDriver();
  const std::shared_ptr<Event> event = FindEvent(event_handle);
  Context* const context = FindContext(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (context == nullptr || event->context != context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->sticky != CUDA_SUCCESS) return context->sticky;
  const CUresult result = CheckContextSynchronize(*context);
  if (result != CUDA_SUCCESS) return result;
  event->capture.reset();
  event->capture_tail.clear();
  event->marker.reset();
  std::vector<std::shared_ptr<Marker>> pending;
  for (const auto& stream : context->streams)
    if (!stream->idle()) pending.push_back(stream->last());
  if (pending.empty()) return CUDA_SUCCESS;
  const std::shared_ptr<Stream> behind = CreateStream(*context, CU_STREAM_NON_BLOCKING, 0);
  event->marker = Enqueue(behind, nullptr, std::move(pending));
  DestroyStream(behind);
  return CUDA_SUCCESS;
}

CUresult StreamWait(StreamRef ref, CUevent handle, unsigned flags) {
  const Lock lock = LockDriver();
  const std::shared_ptr<Event> event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<Stream> stream;
  CUresult result = FindStream(ref, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (event->capture != nullptr) {
    if (event->capture->invalidated) return CUDA_ERROR_INVALID_VALUE;
    return JoinCapture(stream, event->capture, event->capture_tail);
  }
  if (stream->capture != nullptr) {
    if (event->marker == nullptr) return CUDA_SUCCESS;
    InvalidateCapture(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  result = CheckImplicitCapture(*stream);
  if (result != CUDA_SUCCESS) return result;
  if (event->marker != nullptr && !event->marker->done) Enqueue(stream, nullptr, {event->marker});
  return CUDA_SUCCESS;
}

// Query and synchronisation are refused alike while captures forbid it.
CUresult CheckIdleUse(const Event& event) {
  if (!event.context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (event.capture != nullptr) {
    if (event.capture->invalidated) return CUDA_ERROR_INVALID_VALUE;  // also when it has ended
    InvalidateCapture(*event.capture);
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return CheckUnsafeCall();
}

CUresult Query(CUevent handle) {
  const Lock lock = LockDriver();
  const std::shared_ptr<Event> event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = CheckIdleUse(*event);
  if (result != CUDA_SUCCESS) return result;
  if (event->marker == nullptr) return CUDA_SUCCESS;
  return event->marker->done ? event->marker->result : CUDA_ERROR_NOT_READY;
}

CUresult Synchronize(CUevent handle) {
  Lock lock = LockDriver();
  const std::shared_ptr<Event> event = FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = CheckIdleUse(*event);
  return result != CUDA_SUCCESS ? result : Wait(lock, event->marker);
}

CUresult ElapsedTime(float* out, CUevent start, CUevent end) {
  const Lock lock = LockDriver();
  const std::shared_ptr<Event> first = FindEvent(start);
  const std::shared_ptr<Event> second = FindEvent(end);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& event : {first, second}) {
    if (event == nullptr || event->marker == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if ((event->flags & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!first->marker->done || !second->marker->done) return CUDA_ERROR_NOT_READY;
  using Milliseconds = std::chrono::duration<float, std::milli>;
  *out = Milliseconds(second->marker->when - first->marker->when).count();
  return CUDA_SUCCESS;
}

CUresult Destroy(CUevent handle) {
  const Lock lock = LockDriver();
  return EraseEvent(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUevent AddEvent(const Context& context, unsigned flags) {
  static uintptr_t last_handle = 0x7e000000;
  const auto handle = reinterpret_cast<CUevent>(last_handle += 16);
  auto event = std::make_shared<Event>();
  event->flags = flags;
  event->context = &context;
  Events().emplace(handle, std::move(event));
  return handle;
}

std::shared_ptr<Event> FindEvent(CUevent handle) {
  const auto it = Events().find(handle);
  return it == Events().end() ? nullptr : it->second;
}

bool EraseEvent(CUevent handle) { return Events().erase(handle) != 0; }

}  // namespace sim

SIM_CALL(cuEventCreate, (CUevent * event, unsigned flags), Create(event, flags))
SIM_CALL(cuEventCreate_v2, (CUevent * event, unsigned flags, unsigned), Create(event, flags))
SIM_CALL(cuEventDestroy, (CUevent event), Destroy(event))
SIM_CALL(cuEventDestroy_v2, (CUevent event), Destroy(event))
SIM_CALL(cuEventQuery, (CUevent event), Query(event))
SIM_CALL(cuEventSynchronize, (CUevent event), Synchronize(event))
SIM_CALL(cuEventElapsedTime, (float* ms, CUevent start, CUevent end), ElapsedTime(ms, start, end))
SIM_CALL(cuEventElapsedTime_v2, (float* ms, CUevent start, CUevent end),
         ElapsedTime(ms, start, end))
SIM_CALL(cuCtxRecordEvent, (CUcontext context, CUevent event), RecordContext(context, event))
SIM_CALL_PTSZ(cuEventRecord, (CUevent event, CUstream stream), Record(event, {stream, kDefault}, 0))
SIM_CALL_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
              Record(event, {stream, kDefault}, flags))
SIM_CALL_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),
              StreamWait({stream, kDefault}, event, flags))
