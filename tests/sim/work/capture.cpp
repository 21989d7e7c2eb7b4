#include "tests/sim/work/capture.h"

#include <algorithm>
#include <set>
#include <utility>

namespace sim {
namespace {

std::set<std::shared_ptr<Capture>>& Active() {
  static auto* const active = new std::set<std::shared_ptr<Capture>>();
  return *active;
}

thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool Forbids(const Capture& capture) {
  if (t_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture.invalidated) return false;
  if (capture.owner == std::this_thread::get_id()) {
    return capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  }
  return t_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

// Every stream that joined must lead back into the origin, else its work would be lost.
bool AllJoined(const Capture& capture, const Stream& origin) {
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](const auto& weak) {
    const std::shared_ptr<Stream> stream = weak.lock();
    if (stream == nullptr) return true;
    return std::all_of(
        stream->capture_tail.begin(), stream->capture_tail.end(),
        [&](CUgraphNode node) { return capture.graph->Reaches(origin.capture_tail, node); });
  });
}

}  // namespace

CUresult BeginCapture(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode) {
  if (stream->legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  static uint64_t last_id = 0;
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_id;
  capture->mode = mode;
  capture->owner = std::this_thread::get_id();
  capture->origin = stream->handle();
  capture->context = &stream->context();
  capture->graph = NewGraph();
  Active().insert(capture);
  return JoinCapture(stream, capture, {});
}

CUresult JoinCapture(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture,
                     const std::vector<CUgraphNode>& after) {
  if (stream->capture == nullptr) {
    if (stream->legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->capture = capture;
    capture->streams.push_back(stream);
  } else if (stream->capture != capture) {
    InvalidateCapture(*stream->capture);
    InvalidateCapture(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  for (const CUgraphNode node : after) {
    std::vector<CUgraphNode>& tail = stream->capture_tail;
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
  return CUDA_SUCCESS;
}

CUresult EndCapture(const std::shared_ptr<Stream>& stream, CUgraph* out) {
  *out = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream->handle()) {
    InvalidateCapture(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  // A capture that failed may be ended by anyone.
  if (!capture->invalidated && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->owner != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->invalidated) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!AllJoined(*capture, *stream)) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  for (const auto& weak : capture->streams) {
    const std::shared_ptr<Stream> member = weak.lock();
    if (member == nullptr) continue;
    member->capture.reset();
    member->capture_tail.clear();
  }
  Active().erase(capture);
  capture->invalidated = true;  // events recorded in it must not lead anyone into it any more
  if (result != CUDA_SUCCESS) return result;
  PublishGraph(capture->graph);
  *out = capture->graph->handle;
  return CUDA_SUCCESS;
}

void InvalidateCapture(Capture& capture) { capture.invalidated = true; }

void AbandonCapture(Stream& stream) {
  if (stream.capture == nullptr) return;
  InvalidateCapture(*stream.capture);
  if (stream.capture->origin == stream.handle()) Active().erase(stream.capture);
  stream.capture.reset();
}

CUresult AddCapturedNode(Stream& stream, Work work) {
  Capture& capture = *stream.capture;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream.capture_tail = {capture.graph->Add(std::move(work), stream.capture_tail)};
  return CUDA_SUCCESS;
}

CUresult CheckUnsafeCall() {
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : Active()) {
    if (!Forbids(*capture)) continue;
    InvalidateCapture(*capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult CheckUnsafeCall(const Stream& stream) {
  if (stream.capture != nullptr) {
    InvalidateCapture(*stream.capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const CUresult result = CheckImplicitCapture(stream);
  return result != CUDA_SUCCESS ? result : CheckUnsafeCall();
}

CUresult CheckContextSynchronize(const Context& context) {
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : Active()) {
    if (capture->context != &context) continue;
    InvalidateCapture(*capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result != CUDA_SUCCESS ? result : CheckUnsafeCall();
}

CUstreamCaptureMode ExchangeCaptureMode(CUstreamCaptureMode mode) {
  return std::exchange(t_mode, mode);
}

}  // namespace sim
