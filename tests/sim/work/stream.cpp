#include "tests/sim/work/stream.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tests/sim/work/capture.h"
#include "tests/sim/work/thread.h"

namespace sim {
namespace {

std::unordered_map<CUstream, std::shared_ptr<Stream>>& Handles() {
  static auto* const handles = new std::unordered_map<CUstream, std::shared_ptr<Stream>>();
  return *handles;
}

uint64_t NextId() {
  static uint64_t next = 0x10;  // above the special handles
  return ++next;
}

}  // namespace

CUresult Wait(Lock& lock, std::shared_ptr<Marker> marker) {
  if (marker == nullptr) return CUDA_SUCCESS;
  while (!marker->done) marker->changed.wait(lock);
  return marker->result;
}

// Handles are numbers that never come back, not addresses: a stale one is an error, and following
// one is a fault.
Stream::Stream(Context& context, unsigned flags, int priority)
    : context_(context),
      flags_(flags),
      priority_(priority),
      id_(NextId()),
      handle_(reinterpret_cast<CUstream>(id_ * 16)) {}

void Stream::StartWorker(const std::shared_ptr<Stream>& stream) {
  StartThread(Worker, stream);
  stream->worker_runs_ = true;
}

void Stream::Worker(const std::shared_ptr<Stream>& stream) {
  Lock lock = LockDriver();
  for (;;) {
    while (stream->queue_.empty() && !stream->closing_) stream->changed_.wait(lock);
    if (stream->queue_.empty()) break;
    Item item = std::move(stream->queue_.front());
    stream->queue_.pop_front();
    for (const auto& marker : item.waits) Wait(lock, marker);
    CUresult result = stream->context_.sticky;
    if (result == CUDA_SUCCESS && item.run) {
      lock.unlock();
      result = item.run();
      item.run = nullptr;  // what it captured goes without the lock, and before anyone is told
      lock.lock();
      if (result != CUDA_SUCCESS) stream->context_.sticky = result;
    }
    item.marker->result = result;
    item.marker->when = std::chrono::steady_clock::now();
    item.marker->done = true;
    item.marker->changed.notify_all();
  }
  stream->context_.streams.erase(stream);
}

std::shared_ptr<Stream> CreateStream(Context& context, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>(context, flags, priority);
  context.streams.insert(stream);
  Handles().emplace(stream->handle(), stream);
  return stream;
}

CUresult FindStream(StreamRef ref, std::shared_ptr<Stream>* out) {
  Context* context = nullptr;
  const CUresult result = CurrentContext(&context);
  if (result != CUDA_SUCCESS) return result;
  const bool per_thread =
      ref.handle == CU_STREAM_PER_THREAD ||
      (ref.handle == nullptr && ref.default_stream == DefaultStream::kPerThread);
  if (per_thread) {
    std::shared_ptr<Stream>& stream = context->per_thread[std::this_thread::get_id()];
    if (stream == nullptr) stream = CreateStream(*context, CU_STREAM_DEFAULT, 0);
    *out = stream;
    return CUDA_SUCCESS;
  }
  if (ref.handle == nullptr || ref.handle == CU_STREAM_LEGACY) {
    if (context->legacy == nullptr) {
      context->legacy = CreateStream(*context, CU_STREAM_DEFAULT, 0);
    }
    *out = context->legacy;
    return CUDA_SUCCESS;
  }
  const auto it = Handles().find(ref.handle);
  if (it == Handles().end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = it->second;
  return (*out)->context().sticky;
}

void DestroyStream(const std::shared_ptr<Stream>& stream) {
  AbandonCapture(*stream);
  Handles().erase(stream->handle());
  stream->closing_ = true;
  stream->changed_.notify_all();
  // A worker takes the stream out when its work is done: cuCtxSynchronize must find it until then.
  if (!stream->worker_runs_) stream->context_.streams.erase(stream);
}

std::shared_ptr<Marker> Enqueue(const std::shared_ptr<Stream>& stream,
                                std::function<CUresult()> run,
                                std::vector<std::shared_ptr<Marker>> waits) {
  const Context& context = stream->context_;
  if (stream->legacy()) {
    for (const auto& other : context.streams) {
      if (other->blocking() && other != stream && !other->idle()) waits.push_back(other->last_);
    }
  } else if (stream->blocking() && context.legacy != nullptr && !context.legacy->idle()) {
    waits.push_back(context.legacy->last_);
  }
  auto marker = std::make_shared<Marker>();
  if (!stream->worker_runs_) Stream::StartWorker(stream);
  stream->queue_.push_back({std::move(run), std::move(waits), marker});
  stream->last_ = marker;
  stream->changed_.notify_all();
  return marker;
}

CUresult Submit(const std::shared_ptr<Stream>& stream, Work work, std::shared_ptr<Marker>* out) {
  if (out != nullptr) out->reset();
  if (stream->capture != nullptr) {
    return AddCapturedNode(*stream, std::move(work));
  }
  const CUresult result = CheckImplicitCapture(*stream);
  if (result != CUDA_SUCCESS) return result;
  std::shared_ptr<Marker> marker = Enqueue(stream, std::move(work.run));
  if (out != nullptr) *out = std::move(marker);
  return CUDA_SUCCESS;
}

CUresult CheckImplicitCapture(const Stream& stream) {
  if (!ConflictsWithCapture(stream)) return CUDA_SUCCESS;
  for (const auto& other : stream.context().streams) {
    if (other->capture != nullptr && other->blocking()) InvalidateCapture(*other->capture);
  }
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

bool ConflictsWithCapture(const Stream& stream) {
  const auto& streams = stream.context().streams;
  return stream.legacy() && std::any_of(streams.begin(), streams.end(), [](const auto& other) {
           return other->capture != nullptr && other->blocking();
         });
}

}  // namespace sim
