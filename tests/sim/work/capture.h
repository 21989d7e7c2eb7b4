// Stream capture: what is under way, and what it forbids. All functions REQUIRE the driver mutex.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/sim/work/graph.h"
#include "tests/sim/work/stream.h"

namespace sim {

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id owner;
  CUstream origin = nullptr;
  const Context* context = nullptr;
  bool invalidated = false;
  std::shared_ptr<Graph> graph;
  std::vector<std::weak_ptr<Stream>> streams;  // the origin, and those that joined through events
};

CUresult BeginCapture(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode);
CUresult EndCapture(const std::shared_ptr<Stream>& stream, CUgraph* out);
void InvalidateCapture(Capture& capture);
/// The stream goes away: its capture, if any, can only fail now.
void AbandonCapture(Stream& stream);

/// Makes a stream take part in a capture, after the given nodes.
CUresult JoinCapture(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture,
                     const std::vector<CUgraphNode>& after);

CUresult AddCapturedNode(Stream& stream, Work work);

/// For calls that must not happen while certain captures are under way (synchronisation,
/// allocation, queries): returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates those
/// captures, by the thread's capture mode.
CUresult CheckUnsafeCall();

/// For synchronisation with, or a query of, one stream.
CUresult CheckUnsafeCall(const Stream& stream);

/// For synchronisation with a whole context. Conflicts with every capture in it, whatever the modes
/// of the capture and of the thread; measured on the real driver.
CUresult CheckContextSynchronize(const Context& context);

CUstreamCaptureMode ExchangeCaptureMode(CUstreamCaptureMode mode);

}  // namespace sim
