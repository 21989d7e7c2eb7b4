// Streams: work queues, each with a worker thread of its own once it has work.
//
// Work runs in stream order and completes asynchronously. The legacy default stream waits for the
// blocking streams of its context and they for it. The per-thread default stream is one blocking
// stream per thread and context; it goes with the context. All functions REQUIRE the driver mutex.
#pragma once

#include <cuda.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/sim/entry/api.h"
#include "tests/sim/work/context.h"
#include "tests/sim/work/graph.h"

namespace sim {

struct Capture;

/// The completion of one piece of work.
struct Marker {
  bool done = false;
  CUresult result = CUDA_SUCCESS;
  std::chrono::steady_clock::time_point when;
  std::condition_variable changed;
};

/// Waits until the marker is done (null counts as done) and returns its result. Lets go of the lock
/// meanwhile.
CUresult Wait(Lock& lock, std::shared_ptr<Marker> marker);

class Stream {
 public:
  Stream(Context& context, unsigned flags, int priority);

  CUstream handle() const { return handle_; }
  Context& context() const { return context_; }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  uint64_t id() const { return id_; }
  bool blocking() const { return (flags_ & CU_STREAM_NON_BLOCKING) == 0; }
  bool legacy() const { return context_.legacy.get() == this; }

  /// The marker of the work that was submitted last; null if there was none.
  const std::shared_ptr<Marker>& last() const { return last_; }
  bool idle() const { return last_ == nullptr || last_->done; }

  // The capture this stream takes part in, and the nodes its next node depends on.
  std::shared_ptr<Capture> capture;
  std::vector<CUgraphNode> capture_tail;

 private:
  friend std::shared_ptr<Marker> Enqueue(const std::shared_ptr<Stream>&, std::function<CUresult()>,
                                         std::vector<std::shared_ptr<Marker>>);
  friend void DestroyStream(const std::shared_ptr<Stream>&);

  struct Item {
    std::function<CUresult()> run;
    std::vector<std::shared_ptr<Marker>> waits;
    std::shared_ptr<Marker> marker;
  };

  static void StartWorker(const std::shared_ptr<Stream>& stream);
  static void Worker(const std::shared_ptr<Stream>& stream);

  Context& context_;
  const unsigned flags_;
  const int priority_;
  const uint64_t id_;
  const CUstream handle_;
  std::deque<Item> queue_;
  std::condition_variable changed_;
  std::shared_ptr<Marker> last_;
  bool worker_runs_ = false;
  bool closing_ = false;
};

/// Makes a stream of the context with a handle of its own.
std::shared_ptr<Stream> CreateStream(Context& context, unsigned flags, int priority);

/// Resolves NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD and handles. Fails without a usable
/// current context.
CUresult FindStream(StreamRef ref, std::shared_ptr<Stream>* out);

/// The handle goes at once; work that was submitted still runs.
void DestroyStream(const std::shared_ptr<Stream>& stream);

/// Adds work to the stream's queue, after what stream order and the default streams demand and
/// after `waits`.
std::shared_ptr<Marker> Enqueue(const std::shared_ptr<Stream>& stream,
                                std::function<CUresult()> run,
                                std::vector<std::shared_ptr<Marker>> waits = {});

/// What launches, copies and sets use: queues the work, or records it if the stream is being
/// captured. `out` may be null; it is set to null if the work was recorded.
CUresult Submit(const std::shared_ptr<Stream>& stream, Work work, std::shared_ptr<Marker>* out);

/// The error that use of this stream meets because of captures elsewhere: the legacy stream must
/// not be used while a blocking stream of its context is being captured.
CUresult CheckImplicitCapture(const Stream& stream);
/// The same for a mere question, which does the captures no harm.
bool ConflictsWithCapture(const Stream& stream);

}  // namespace sim
