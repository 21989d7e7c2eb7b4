// How far streams have come with the work in front of frees.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "shim/blocks/stream_lines.h"

namespace amem::shim {
namespace {

/// Streams and events of one context.
struct DriversLines {
  std::set<CUstream> busy;
  std::set<CUstream> blocking;  // streams that wait for the legacy one
  std::map<CUevent, CUstream> events;
  std::vector<std::pair<CUstream, CUevent>> waits;
  std::uintptr_t next = 1;
  unsigned records = 0;
};
DriversLines driver_has;

CUstream number(std::uintptr_t stream) { return reinterpret_cast<CUstream>(stream << 8U); }
CUcontext the_context() { return reinterpret_cast<CUcontext>(1); }

class ShimStreamLines : public testing::Test {
 protected:
  ShimStreamLines() {
    driver_has = {};
    driver.cuStreamGetCtx_ = [](CUstream, CUcontext* context) {
      *context = the_context();
      return CUDA_SUCCESS;
    };
    driver.cuCtxGetCurrent_ = [](CUcontext* context) {
      *context = the_context();
      return CUDA_SUCCESS;
    };
    driver.cuCtxGetDevice_ = [](CUdevice* device) {
      *device = 3;
      return CUDA_SUCCESS;
    };
    driver.cuStreamGetFlags_ = [](CUstream stream, unsigned* flags) {
      *flags = driver_has.blocking.contains(stream) ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
      return CUDA_SUCCESS;
    };
    driver.cuThreadExchangeStreamCaptureMode_ = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
    driver.cuCtxPushCurrent_ = [](CUcontext) { return CUDA_SUCCESS; };
    driver.cuCtxPopCurrent_ = [](CUcontext*) { return CUDA_SUCCESS; };
    driver.cuStreamQuery_ = [](CUstream stream) {
      return driver_has.busy.contains(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    };
    driver.cuEventCreate_ = [](CUevent* event, unsigned) {
      driver_has.events[*event = reinterpret_cast<CUevent>(driver_has.next++)] = nullptr;
      return CUDA_SUCCESS;
    };
    driver.cuEventRecord_ = [](CUevent event, CUstream stream) {
      ++driver_has.records;
      driver_has.events[event] = stream;
      return CUDA_SUCCESS;
    };
    driver.cuEventQuery_ = [](CUevent event) {
      return driver_has.busy.contains(driver_has.events.at(event)) ? CUDA_ERROR_NOT_READY
                                                                   : CUDA_SUCCESS;
    };
    driver.cuEventSynchronize_ = [](CUevent event) {
      driver_has.busy.erase(driver_has.events.at(event));
      return CUDA_SUCCESS;
    };
    driver.cuEventDestroy_ = [](CUevent event) {
      driver_has.events.erase(event);
      return CUDA_SUCCESS;
    };
    driver.cuStreamWaitEvent_ = [](CUstream stream, CUevent event, unsigned) {
      driver_has.waits.emplace_back(stream, event);
      return CUDA_SUCCESS;
    };
    driver.cuCtxSynchronize_ = [] {
      driver_has.busy.clear();
      return CUDA_SUCCESS;
    };
  }

  StreamLines::Line& line(CUstream stream, bool per_thread = false) {
    StreamLines::Line* found = nullptr;
    EXPECT_EQ(lines.find(stream, per_thread, found), CUDA_SUCCESS);
    return *found;
  }
  std::map<PoolPieces::Line, std::uint64_t> asked() {
    std::map<PoolPieces::Line, std::uint64_t> all;
    lines.ask([&](PoolPieces::Line its, std::uint64_t order) { all[its] = order; });
    return all;
  }

  Driver driver;
  StreamLines lines{driver};
};
using Came = std::map<PoolPieces::Line, std::uint64_t>;

TEST_F(ShimStreamLines, AStreamHasOneLineByWhateverName) {
  const PoolPieces::Line first = line(number(5)).number;
  EXPECT_EQ(line(number(5)).number, first);
  EXPECT_EQ(line(number(5)).device, 3);
  EXPECT_NE(line(number(6)).number, first);
  EXPECT_EQ(line(nullptr).number, line(CU_STREAM_LEGACY).number);
  EXPECT_EQ(line(nullptr, true).number, line(CU_STREAM_PER_THREAD).number);
  EXPECT_NE(line(nullptr, true).number, line(nullptr).number);
  PoolPieces::Line others = 0;
  std::thread([&] { others = line(CU_STREAM_PER_THREAD).number; }).join();
  EXPECT_NE(others, line(CU_STREAM_PER_THREAD).number);
}

TEST_F(ShimStreamLines, AFreeAsksTheDriverNothing) {
  StreamLines::Line& its = line(number(5));
  driver.cuEventRecord_ = nullptr;
  driver.cuStreamQuery_ = nullptr;
  EXPECT_EQ(lines.free_in(its).order, 1U);
  EXPECT_EQ(lines.free_in(its).order, 2U);
  EXPECT_TRUE(lines.any_behind());
}

TEST_F(ShimStreamLines, AStreamWithoutWorkHasComeToAll) {
  StreamLines::Line& its = line(number(5));
  lines.free_in(its);
  lines.free_in(its);
  EXPECT_EQ(asked(), (Came{{its.number, 2}}));
  EXPECT_EQ(asked(), Came());
  EXPECT_TRUE(driver_has.events.empty());
  EXPECT_FALSE(lines.any_behind());
}

TEST_F(ShimStreamLines, ABusyStreamGetsAnEventAndAnotherOnlyOnceItHasCome) {
  StreamLines::Line& its = line(number(5));
  driver_has.busy = {number(5)};
  lines.free_in(its);
  EXPECT_EQ(asked(), Came());
  lines.free_in(its);
  EXPECT_EQ(asked(), Came());
  EXPECT_EQ(driver_has.records, 1U) << "recorded anew it might never come";
  // It has come to the event, and has more to do.
  driver.cuEventQuery_ = [](CUevent) { return CUDA_SUCCESS; };
  EXPECT_EQ(asked(), (Came{{its.number, 1}}));
}

TEST_F(ShimStreamLines, AThreadsOwnStreamIsRecordedWithEachFree) {
  PoolPieces::Line others = 0;
  std::thread([&] {
    StreamLines::Line& its = line(CU_STREAM_PER_THREAD);
    others = its.number;
    lines.free_in(its);
  }).join();
  EXPECT_EQ(driver_has.records, 1U);
  driver.cuStreamQuery_ = nullptr;  // nobody else can name it
  EXPECT_EQ(asked(), (Came{{others, 1}}));
  EXPECT_TRUE(driver_has.events.empty()) << "the thread may have ended";
}

TEST_F(ShimStreamLines, AStreamThatGoesGetsItsEventBefore) {
  StreamLines::Line& its = line(number(5));
  const PoolPieces::Line first = its.number;
  driver_has.busy = {number(5)};
  lines.free_in(its);
  lines.stream_goes(number(5), false);
  EXPECT_EQ(driver_has.records, 1U);
  EXPECT_NE(line(number(5)).number, first) << "the next of this name is another";
  driver.cuStreamQuery_ = nullptr;
  EXPECT_EQ(asked(), Came());
  driver_has.busy = {};
  EXPECT_EQ(asked(), (Came{{first, 1}}));
  EXPECT_TRUE(driver_has.events.empty());
}

TEST_F(ShimStreamLines, OneThatGoesWhileItIsCapturedIsAskedThroughItsContext) {
  StreamLines::Line& its = line(number(5));
  const PoolPieces::Line first = its.number;
  lines.free_in(its);
  lines.stream_goes(number(5), true);
  EXPECT_EQ(driver_has.records, 0U);
  EXPECT_EQ(asked(), Came()) << "this driver has no event for a context";
  std::mutex mutex;
  std::unique_lock lock(mutex);
  Came came;
  lines.wait(lock, [&](PoolPieces::Line number, std::uint64_t order) { came[number] = order; });
  EXPECT_EQ(came, (Came{{first, 1}}));
}

TEST_F(ShimStreamLines, OfAStreamThatWaitsForTheLegacyOneOnlyAnEventSaysIt) {
  driver_has.blocking = {number(5)};
  for (const CUstream stream : {number(5), CU_STREAM_LEGACY}) {
    driver_has.records = 0;
    StreamLines::Line& its = line(stream);
    driver.cuEventQuery_ = [](CUevent) { return CUDA_ERROR_NOT_READY; };
    lines.free_in(its);
    EXPECT_EQ(asked(), Came()) << "it has nothing to do, but the event has to wait";
    EXPECT_EQ(driver_has.records, 1U);
    driver.cuEventQuery_ = [](CUevent) { return CUDA_SUCCESS; };
    EXPECT_EQ(asked(), (Came{{its.number, 1}}));
  }
}

TEST_F(ShimStreamLines, TheLegacyStreamIsABarrierWhereItHasMemoryAgain) {
  StreamLines::Line& other = line(number(5));
  lines.free_in(other);
  EXPECT_TRUE(lines.reuse_in(other));
  StreamLines::Line& legacy = line(CU_STREAM_LEGACY);
  EXPECT_TRUE(lines.reuse_in(legacy)) << "nothing is behind it";
  EXPECT_EQ(driver_has.records, 0U);
  const PoolPieces::Point point = lines.free_in(legacy);
  EXPECT_FALSE(lines.has_passed(point));
  EXPECT_TRUE(lines.reuse_in(legacy));
  ASSERT_EQ(driver_has.waits.size(), 1U);
  EXPECT_EQ(driver_has.waits[0], (std::pair{CU_STREAM_LEGACY, legacy.event}));
  asked();
  EXPECT_TRUE(lines.has_passed(point));
}

TEST_F(ShimStreamLines, AnotherStreamWaitsForAllFreesSoFar) {
  StreamLines::Line& its = line(number(5));
  lines.free_in(its);
  EXPECT_TRUE(lines.wait_behind(its, line(number(6))));
  lines.free_in(its);
  EXPECT_TRUE(lines.wait_behind(its, line(number(6))));
  EXPECT_EQ(driver_has.records, 2U);
  ASSERT_EQ(driver_has.waits.size(), 2U);
  EXPECT_EQ(driver_has.waits[1], (std::pair{number(6), its.event}));
}

TEST_F(ShimStreamLines, WaitingForAll) {
  driver_has.busy = {number(5), number(6)};
  StreamLines::Line& first = line(number(5));
  StreamLines::Line& second = line(number(6));
  lines.free_in(first);
  lines.free_in(second);
  std::mutex mutex;
  std::unique_lock lock(mutex);
  Came came;
  lines.wait(lock, [&](PoolPieces::Line number, std::uint64_t order) { came[number] = order; });
  EXPECT_TRUE(lock.owns_lock());
  EXPECT_EQ(came, (Came{{first.number, 1}, {second.number, 1}}));
  EXPECT_FALSE(lines.any_behind());
}

TEST_F(ShimStreamLines, AContextThatGoesDoesNothingMore) {
  driver_has.busy = {number(5)};
  StreamLines::Line& its = line(number(5));
  const PoolPieces::Line first = its.number;
  lines.free_in(its);
  Came came;
  lines.context_gone(the_context(),
                     [&](PoolPieces::Line number, std::uint64_t order) { came[number] = order; });
  EXPECT_EQ(came, (Came{{first, 1}}));
  EXPECT_EQ(lines.of(first), nullptr);
  EXPECT_NE(line(number(5)).number, first);
}

}  // namespace
}  // namespace amem::shim
