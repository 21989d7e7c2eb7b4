// The simulated driver: streams, events, kernels, copies, capture and graphs.
#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/sim/sim.h"
#include "tests/unit/fixtures/sim_child.h"
#include "tests/unit/fixtures/standstill.h"

namespace {

using sim_test::RegisterRole;
using sim_test::RunRole;
using Clock = std::chrono::steady_clock;

constexpr size_t kMiB = size_t{1} << 20;

// A kernel that waits until its gate opens: as long as it does, its stream is busy.
std::atomic<bool> g_gate{true};
void WaitForGate(void**) {
  while (!g_gate.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// Appends its parameter to a log in device memory: [0] is the length.
void Append(void** params) {
  int* const log = reinterpret_cast<int*>(*static_cast<CUdeviceptr*>(params[0]));
  log[++log[0]] = *static_cast<int*>(params[1]);
}

class SimStreams : public testing::Test {
 protected:
  void SetUp() override {
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&log_, kMiB), CUDA_SUCCESS);
    ASSERT_EQ(amemSimFunctionCreate(&wait_, WaitForGate, 0, nullptr), CUDA_SUCCESS);
    const size_t sizes[] = {sizeof(CUdeviceptr), sizeof(int)};
    ASSERT_EQ(amemSimFunctionCreate(&append_, Append, 2, sizes), CUDA_SUCCESS);
  }
  void TearDown() override {
    g_gate = true;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  }

  static CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    return stream;
  }
  static CUevent NewEvent() {
    CUevent event = nullptr;
    EXPECT_EQ(cuEventCreate(&event, CU_EVENT_DEFAULT), CUDA_SUCCESS);
    return event;
  }
  CUresult Block(CUstream stream) const {
    g_gate = false;
    return cuLaunchKernel(wait_, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  }
  CUresult LaunchAppend(CUstream stream, int value) {
    void* params[] = {&log_, &value};  // `value` is gone when the kernel runs
    return cuLaunchKernel(append_, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
  }
  std::vector<int> Log() const {
    int length = 0;
    EXPECT_EQ(cuMemcpyDtoH(&length, log_, sizeof length), CUDA_SUCCESS);
    std::vector<int> values(static_cast<size_t>(length));
    EXPECT_EQ(cuMemcpyDtoH(values.data(), log_ + sizeof(int), values.size() * sizeof(int)),
              CUDA_SUCCESS);
    return values;
  }

  CUdeviceptr log_ = 0;
  CUfunction wait_ = nullptr;
  CUfunction append_ = nullptr;
};

// ---- order and synchronisation

TEST_F(SimStreams, WorkRunsInOrderAndAsynchronously) {
  const CUstream stream = NewStream();
  ASSERT_EQ(Block(stream), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(LaunchAppend(stream, i), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_TRUE(Log().empty());
  g_gate = true;
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
  const std::vector<int> log = Log();
  ASSERT_EQ(log.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(log[static_cast<size_t>(i)], i);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(SimStreams, LegacyStreamOrdersBlockingStreamsOnly) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  const CUstream free = NewStream();
  ASSERT_EQ(Block(blocking), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAppend(nullptr, 1), CUDA_SUCCESS);   // after `blocking`
  ASSERT_EQ(LaunchAppend(blocking, 2), CUDA_SUCCESS);  // after the legacy stream
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(LaunchAppend(free, 0), CUDA_SUCCESS);  // after nobody
  EXPECT_EQ(cuStreamSynchronize(free), CUDA_SUCCESS);
  g_gate = true;
  EXPECT_EQ(cuStreamSynchronize(blocking), CUDA_SUCCESS);
  EXPECT_EQ(Log(), (std::vector<int>{0, 1, 2}));
  cuStreamDestroy(blocking);
  cuStreamDestroy(free);
}

TEST_F(SimStreams, EachThreadHasAPerThreadStream) {
  ASSERT_EQ(Block(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(LaunchAppend(CU_STREAM_PER_THREAD, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  g_gate = true;
  EXPECT_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
}

TEST_F(SimStreams, SynchronisingTheDeviceHoldsNobodyUp) {
  const CUstream stream = NewStream();
  const CUstream other = NewStream();
  ASSERT_EQ(Block(stream), CUDA_SUCCESS);
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  std::atomic<int> idle{0};
  const auto synchronise = [&](sim_test::Standstill& standstill) {
    cuCtxSetCurrent(context);
    standstill.Here();
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ++idle;
  };
  sim_test::Standstill before;
  std::thread waiter([&] { synchronise(before); });
  EXPECT_TRUE(before.Await());
  EXPECT_EQ(LaunchAppend(other, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(idle.load(), 0);
  // Work of a stream that was destroyed counts too.
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  sim_test::Standstill after;
  std::thread late([&] { synchronise(after); });
  EXPECT_TRUE(after.Await());
  EXPECT_EQ(idle.load(), 0);
  g_gate = true;
  waiter.join();
  late.join();
  cuStreamDestroy(other);
}

TEST_F(SimStreams, EventsOrderStreamsAndMeasure) {
  const CUstream first = NewStream();
  const CUstream second = NewStream();
  const CUevent begin = NewEvent();
  const CUevent end = NewEvent();
  EXPECT_EQ(cuEventQuery(begin), CUDA_SUCCESS) << "never recorded";
  const auto before = Clock::now();
  ASSERT_EQ(cuEventRecord(begin, first), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(begin), CUDA_SUCCESS);
  const auto begun = Clock::now();
  ASSERT_EQ(Block(first), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAppend(first, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(end, first), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(second, end, 0), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAppend(second, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(end), CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the time that is measured
  const auto opened = Clock::now();
  g_gate = true;
  EXPECT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
  const auto ended = Clock::now();
  EXPECT_EQ(cuStreamSynchronize(second), CUDA_SUCCESS);
  EXPECT_EQ(Log(), (std::vector<int>{1, 2}));
  float ms = 0;
  EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_SUCCESS);
  using Milliseconds = std::chrono::duration<float, std::milli>;
  EXPECT_GE(ms, Milliseconds(opened - begun).count() - 0.1F);
  EXPECT_LE(ms, Milliseconds(ended - before).count() + 0.1F);
  for (const CUevent event : {begin, end}) EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(end), CUDA_ERROR_INVALID_HANDLE);
  cuStreamDestroy(first);
  cuStreamDestroy(second);
}

TEST_F(SimStreams, HostFunctionsMayNotCallTheDriver) {
  const CUstream stream = NewStream();
  CUresult seen = CUDA_SUCCESS;
  const auto function = [](void* data) {
    CUdeviceptr ptr = 0;
    *static_cast<CUresult*>(data) = cuMemAlloc(&ptr, 1);
  };
  ASSERT_EQ(cuLaunchHostFunc(stream, function, &seen), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(seen, CUDA_ERROR_NOT_PERMITTED);
  cuStreamDestroy(stream);
}

TEST_F(SimStreams, StreamsWaitForAndWriteValues) {
  const CUstream waiter = NewStream();
  const CUstream writer = NewStream();
  const CUdeviceptr flag = log_ + 512 * 1024;
  ASSERT_EQ(cuMemsetD32(flag, 0, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitValue32(waiter, flag, 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  ASSERT_EQ(LaunchAppend(waiter, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWriteValue32(writer, flag, 4, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(writer), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(waiter), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cuStreamWriteValue32(writer, flag, 6, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(waiter), CUDA_SUCCESS);
  EXPECT_EQ(Log(), std::vector<int>{1});
  int host = 0;
  EXPECT_EQ(cuStreamWaitValue32(waiter, reinterpret_cast<CUdeviceptr>(&host), 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  cuStreamDestroy(waiter);
  cuStreamDestroy(writer);
}

// ---- copies

TEST_F(SimStreams, CopiesCheckTheirRanges) {
  char host[64] = "bytes";
  EXPECT_EQ(cuMemcpyHtoD(log_ + kMiB - 32, host, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(host), host, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8(log_, 0, kMiB + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32(log_ + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);

  // Reserved only; mapped without access; read-only; then writable.
  constexpr size_t kUnit = 2 * kMiB;
  CUdeviceptr base = 0;
  ASSERT_EQ(cuMemAddressReserve(&base, kUnit, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpy(base, log_, 64), CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(base, kUnit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(base, host, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(host, base, 64), CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READ};
  ASSERT_EQ(cuMemSetAccess(base, kUnit, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(base, host, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(host, base, 64), CUDA_SUCCESS);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemSetAccess(base, kUnit, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(base, "again", 6), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoD(log_, base, 6), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH(host, log_, 6), CUDA_SUCCESS);
  EXPECT_STREQ(host, "again");
  EXPECT_EQ(cuMemUnmap(base, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(base, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(SimStreams, PageableSourcesMayBeReusedAtOnce) {
  const CUstream stream = NewStream();
  ASSERT_EQ(Block(stream), CUDA_SUCCESS);
  int value = 1;
  ASSERT_EQ(cuMemcpyHtoDAsync(log_ + 4096, &value, sizeof value, stream), CUDA_SUCCESS);
  value = 2;
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(pinned, log_ + 4096, sizeof value, stream), CUDA_SUCCESS);
  g_gate = true;
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(*static_cast<int*>(pinned), 1);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(&value, sizeof value, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(&value, sizeof value, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(&value), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(&value), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  cuStreamDestroy(stream);
}

TEST_F(SimStreams, SetsAndPitchedCopies) {
  std::vector<unsigned short> shorts(8);
  ASSERT_EQ(cuMemsetD16(log_, 0x1234, 8), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH(shorts.data(), log_, 16), CUDA_SUCCESS);
  EXPECT_EQ(shorts, std::vector<unsigned short>(8, 0x1234));
  const char text[] = "ab..cd..";
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = text;
  copy.srcPitch = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = log_;
  copy.dstPitch = 2;
  copy.WidthInBytes = 2;
  copy.Height = 2;
  ASSERT_EQ(cuMemcpy2D(&copy), CUDA_SUCCESS);
  char out[5] = {};
  ASSERT_EQ(cuMemcpyDtoH(out, log_, 4), CUDA_SUCCESS);
  EXPECT_STREQ(out, "abcd");
  ASSERT_EQ(cuMemsetD8(log_, 0, 16), CUDA_SUCCESS);
}

// 1 GB/s: 16 MiB take 16.8 ms, out and in at the same time.
const RegisterRole kBandwidth("bandwidth", [] {
  constexpr size_t kBytes = 16 * kMiB;
  CUcontext context = nullptr;
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  ROLE_CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  ROLE_CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUdeviceptr device = 0;
  void* host = nullptr;
  CUstream out = nullptr;
  CUstream in = nullptr;
  ROLE_CHECK(cuMemAlloc(&device, 2 * kBytes) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemHostAlloc(&host, 2 * kBytes, 0) == CUDA_SUCCESS);
  ROLE_CHECK(cuStreamCreate(&out, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  ROLE_CHECK(cuStreamCreate(&in, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUevent marks[3];
  for (CUevent& mark : marks) ROLE_CHECK(cuEventCreate(&mark, 0) == CUDA_SUCCESS);
  ROLE_CHECK(cuEventRecord(marks[0], out) == CUDA_SUCCESS);
  ROLE_CHECK(cuEventSynchronize(marks[0]) == CUDA_SUCCESS);
  char* const bytes = static_cast<char*>(host);
  ROLE_CHECK(cuMemcpyDtoHAsync(bytes, device, kBytes, out) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemcpyHtoDAsync(device + kBytes, bytes + kBytes, kBytes, in) == CUDA_SUCCESS);
  ROLE_CHECK(cuEventRecord(marks[1], out) == CUDA_SUCCESS);
  ROLE_CHECK(cuEventRecord(marks[2], in) == CUDA_SUCCESS);
  ROLE_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  float ms[2] = {};
  for (int i = 0; i < 2; ++i) {
    ROLE_CHECK(cuEventElapsedTime(&ms[i], marks[0], marks[i + 1]) == CUDA_SUCCESS);
    ROLE_CHECK(ms[i] >= 16.7F);
  }
  // A second copy the same way has to wait for the first.
  ROLE_CHECK(cuEventRecord(marks[0], out) == CUDA_SUCCESS);
  ROLE_CHECK(cuEventSynchronize(marks[0]) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemcpyDtoHAsync(bytes, device, kBytes, out) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemcpyDtoHAsync(bytes + kBytes, device, kBytes, in) == CUDA_SUCCESS);
  ROLE_CHECK(cuEventRecord(marks[2], in) == CUDA_SUCCESS);
  ROLE_CHECK(cuEventRecord(marks[1], out) == CUDA_SUCCESS);
  ROLE_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    ROLE_CHECK(cuEventElapsedTime(&ms[i], marks[0], marks[i + 1]) == CUDA_SUCCESS);
  }
  ROLE_CHECK(std::max(ms[0], ms[1]) >= 33.4F);
  return 0;
});

TEST_F(SimStreams, CopiesTakeAsLongAsTheLinkAsks) {
  EXPECT_EQ(RunRole("bandwidth", {{"AMEM_SIM_BANDWIDTH", "1"}}), 0);
}

// ---- capture

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
