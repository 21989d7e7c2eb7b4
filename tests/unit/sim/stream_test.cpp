// The simulated driver: streams, events, kernels, copies.
#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/unit/fixtures/sim_child.h"
#include "tests/unit/fixtures/sim_streams.h"
#include "tests/unit/fixtures/standstill.h"

namespace {

using namespace sim_test;
using Clock = std::chrono::steady_clock;

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
const RegisterRole kRefused("pageable-refused", [] {
  CUcontext context = nullptr;
  CUdeviceptr there = 0;
  void* pinned = nullptr;
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  ROLE_CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemAlloc(&there, 4096) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemHostAlloc(&pinned, 4096, 0) == CUDA_SUCCESS);
  int value = 1;
  ROLE_CHECK(cuMemcpyHtoDAsync(there, &value, sizeof value, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  ROLE_CHECK(cuMemcpyDtoHAsync(&value, there, sizeof value, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  ROLE_CHECK(cuMemcpyHtoD(there, &value, sizeof value) == CUDA_SUCCESS);
  ROLE_CHECK(cuMemcpyDtoHAsync(pinned, there, sizeof value, nullptr) == CUDA_SUCCESS);
  return 0;
});

TEST_F(SimStreams, AsynchronousCopiesOfPageableMemoryCanBeRefused) {
  EXPECT_EQ(RunRole("pageable-refused", {{"AMEM_SIM_PAGEABLE", "refuse"}}), 0);
}

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

// ---- events of a whole context

TEST_F(SimStreams, AnEventOfAContextComesAfterAllWorkOfItsStreams) {
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  const CUevent event = NewEvent();
  EXPECT_EQ(cuCtxRecordEvent(context, event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS) << "it has no work";
  const CUstream stream = NewStream();
  ASSERT_EQ(Block(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxRecordEvent(context, event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(LaunchAppend(NewStream(), 1), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  g_gate = true;
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

TEST_F(SimStreams, AnEventOfAContextEndsItsCaptures) {
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  const CUevent event = NewEvent();
  const CUstream stream = NewStream();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxRecordEvent(context, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

}  // namespace
