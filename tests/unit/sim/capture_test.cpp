// The simulated driver: capture and graphs.
#include <thread>
#include <vector>

#include "tests/unit/fixtures/sim_streams.h"

namespace {

using namespace sim_test;

TEST_F(SimStreams, CapturedWorkRunsOnlyWhenTheGraphIsLaunched) {
  const CUstream stream = NewStream();
  const CUstream side = NewStream();
  const CUevent fork_event = NewEvent();
  const CUevent join_event = NewEvent();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAppend(stream, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(fork_event, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(side, fork_event, 0), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAppend(side, 2), CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(cuStreamIsCapturing(side, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_EQ(cuEventRecord(join_event, side), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(stream, join_event, 0), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAppend(stream, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(log_ + 4096, 9, 1, stream), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_TRUE(Log().empty());
  size_t nodes = 0;
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 4U);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Log(), (std::vector<int>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamIsCapturing(side, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  cuStreamDestroy(stream);
  cuStreamDestroy(side);
}

// Runs `body` in a thread with this mode.
template <typename Body>
void InThread(CUstreamCaptureMode mode, const Body& body) {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CUstreamCaptureMode old = mode;
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&old), CUDA_SUCCESS);
    EXPECT_EQ(old, CU_STREAM_CAPTURE_MODE_GLOBAL);
    body();
  }).join();
}

TEST_F(SimStreams, SynchronisingTheContextInvalidatesEveryCaptureInIt) {
  const CUstream stream = NewStream();
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    ASSERT_EQ(cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
    InThread(CU_STREAM_CAPTURE_MODE_RELAXED,
             [] { EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); });
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(LaunchAppend(stream, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(LaunchAppend(stream, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  cuStreamDestroy(stream);
}

TEST_F(SimStreams, UnsafeCallsInvalidateByTheModesOfCaptureAndThread) {
  const CUstream stream = NewStream();
  const CUstream other = NewStream();
  // Whether a call of this kind, in a thread of this mode, breaks a capture of that mode in another
  // thread.
  const auto breaks = [&](CUstreamCaptureMode capture, CUstreamCaptureMode thread, auto call) {
    EXPECT_EQ(cuStreamBeginCapture(stream, capture), CUDA_SUCCESS);
    CUresult result = CUDA_ERROR_UNKNOWN;
    InThread(thread, [&] { result = call(); });
    CUgraph graph = nullptr;
    const CUresult ended = cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) cuGraphDestroy(graph);
    EXPECT_EQ(ended == CUDA_SUCCESS, result == CUDA_SUCCESS);
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  };
  const auto synchronize = [&] { return cuStreamSynchronize(other); };
  const auto query = [&] { return cuStreamQuery(other); };
  const auto allocate = [] {
    CUdeviceptr ptr = 0;
    return cuMemAlloc(&ptr, 1);
  };
  const auto copy = [&] {
    int value = 0;
    return cuMemcpyDtoH(&value, log_, sizeof value);
  };
  constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
  constexpr auto kLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_TRUE(breaks(kGlobal, kGlobal, synchronize));
  EXPECT_TRUE(breaks(kGlobal, kGlobal, query));
  EXPECT_TRUE(breaks(kGlobal, kGlobal, allocate));
  EXPECT_FALSE(breaks(kGlobal, kGlobal, copy));
  EXPECT_FALSE(breaks(kGlobal, kRelaxed, synchronize));
  EXPECT_FALSE(breaks(kGlobal, kRelaxed, allocate));
  EXPECT_FALSE(breaks(kLocal, kGlobal, synchronize));
  EXPECT_FALSE(breaks(kRelaxed, kGlobal, synchronize));
  cuStreamDestroy(stream);
  cuStreamDestroy(other);
}

TEST_F(SimStreams, ThreadLocalCaptureConcernsItsThreadOnly) {
  const CUstream stream = NewStream();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  InThread(CU_STREAM_CAPTURE_MODE_GLOBAL, [&] {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  });
  CUdeviceptr ptr = 0;
  EXPECT_EQ(cuMemAlloc(&ptr, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  cuStreamDestroy(stream);
}

TEST_F(SimStreams, CaptureMistakesAreErrors) {
  const CUstream stream = NewStream(CU_STREAM_DEFAULT);
  const CUstream side = NewStream();
  const CUevent event = NewEvent();
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  // A stream that joined and does not lead back.
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(side, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAppend(side, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_INVALID_VALUE);
  // The end of a stream that only joined.
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(side, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamEndCapture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // The legacy stream would wait for the stream being captured.
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE) << "a question does no harm";
  EXPECT_EQ(LaunchAppend(nullptr, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  cuEventDestroy(event);
  cuStreamDestroy(stream);
  cuStreamDestroy(side);
}

}  // namespace
