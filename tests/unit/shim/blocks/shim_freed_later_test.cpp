// When blocks go that the program has freed: behind streams, or once no capture is open.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "shim/blocks/freed_later.h"
#include "shim/gate/gate.h"
#include "shim/memory/memory.h"

namespace amem::shim {
namespace {

using Ids = std::vector<std::uint64_t>;

/// Streams and events of one context, as numbers.
struct DriversStreams {
  std::set<CUstream> busy;
  std::map<CUevent, CUstream> events;  // that live
  std::uintptr_t next = 1;
  unsigned queries = 0;
  bool context = true;
  CUresult record = CUDA_SUCCESS;
};
DriversStreams streams;

CUstream stream_of(std::uintptr_t number) { return reinterpret_cast<CUstream>(number); }

class ShimFreedLater : public testing::Test {
 protected:
  ShimFreedLater() {
    streams = {};
    driver.cuStreamGetCtx_ = [](CUstream, CUcontext* context) {
      *context = reinterpret_cast<CUcontext>(1);
      return CUDA_SUCCESS;
    };
    driver.cuThreadExchangeStreamCaptureMode_ = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
    driver.cuCtxPushCurrent_ = [](CUcontext) {
      return streams.context ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    };
    driver.cuCtxPopCurrent_ = [](CUcontext*) { return CUDA_SUCCESS; };
    driver.cuStreamQuery_ = [](CUstream stream) {
      return streams.busy.contains(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    };
    driver.cuEventCreate_ = [](CUevent* event, unsigned) {
      streams.events[*event = reinterpret_cast<CUevent>(streams.next++)] = nullptr;
      return CUDA_SUCCESS;
    };
    driver.cuEventRecord_ = [](CUevent event, CUstream stream) {
      streams.events[event] = stream;
      return streams.record;
    };
    driver.cuEventQuery_ = [](CUevent event) {
      ++streams.queries;
      return streams.busy.contains(streams.events.at(event)) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    };
    driver.cuEventSynchronize_ = [](CUevent event) {
      streams.busy.erase(streams.events.at(event));
      return CUDA_SUCCESS;
    };
    driver.cuEventDestroy_ = [](CUevent event) {
      streams.events.erase(event);
      return CUDA_SUCCESS;
    };
  }

  FreedLater::Freed freed(std::uint64_t id) {
    FreedLater::Freed f;
    f.block.id = id;
    f.block.address = id << 20U;
    f.block.context = reinterpret_cast<CUcontext>(1);
    return f;
  }
  void free_behind(std::uint64_t id, std::uintptr_t stream) {
    FreedLater::Freed f = freed(id);
    ASSERT_EQ(later.put_behind(stream_of(stream), f), CUDA_SUCCESS);
    later.add(f);
  }
  static Ids ids(const std::vector<HeapBlock>& blocks) {
    Ids all;
    for (const HeapBlock& block : blocks) all.push_back(block.id);
    std::sort(all.begin(), all.end());
    return all;
  }
  Ids passed(bool wait) {
    std::unique_lock lock(mutex);
    return ids(later.collect_passed(lock, wait));
  }

  Driver driver;
  LocalDevices devices{driver};
  Gate gate;
  Session session;
  Memory memory{driver, devices, gate, session};
  std::mutex mutex;
  FreedLater later{driver, memory.mappings};
};

TEST_F(ShimFreedLater, BehindAStreamWithoutWorkNothingWaits) {
  FreedLater::Freed f = freed(1);
  ASSERT_EQ(later.put_behind(stream_of(5), f), CUDA_SUCCESS);
  EXPECT_EQ(f.event, nullptr);
  EXPECT_TRUE(streams.events.empty());
}

TEST_F(ShimFreedLater, EachStreamsBlocksGoWhenItHasComeSoFar) {
  streams.busy = {stream_of(5), stream_of(6)};
  free_behind(1, 5);
  free_behind(2, 6);
  free_behind(3, 5);
  later.add(freed(4));
  EXPECT_TRUE(later.any_behind_streams());
  EXPECT_EQ(passed(false), Ids());
  EXPECT_EQ(streams.queries, 2U) << "once for each stream";
  streams.busy = {stream_of(6)};
  EXPECT_EQ(passed(false), (Ids{1, 3}));
  EXPECT_EQ(passed(true), Ids{2}) << "it waits";
  EXPECT_FALSE(later.any_behind_streams());
  EXPECT_EQ(ids(later.collect_captured()), Ids{4});
  EXPECT_TRUE(later.empty());
  EXPECT_TRUE(streams.events.empty()) << "no event is left";
}

TEST_F(ShimFreedLater, WhatIsOnItsWayBackGoesWhenItIsThere) {
  BrokeredAllocation a;
  a.id = 1;
  a.size = 1U << 20U;
  BrokeredAllocation& held = memory.brokered.table.add(a);
  memory.brokered.table.add_mapping(1, 1U << 20U);
  memory.brokered.table.move(held, Where::kArriving);
  free_behind(1, 5);
  EXPECT_TRUE(later.any_behind_streams()) << "though the stream has no work";
  EXPECT_EQ(passed(false), Ids());
  memory.brokered.table.move(held, Where::kHere);
  EXPECT_EQ(passed(false), Ids{1});
}

TEST_F(ShimFreedLater, AContextThatHasEndedDoesNothingMore) {
  streams.busy = {stream_of(5)};
  free_behind(1, 5);
  free_behind(2, 5);
  streams.context = false;
  EXPECT_EQ(passed(false), (Ids{1, 2}));
  streams.context = true;
  free_behind(3, 5);
  EXPECT_EQ(ids(later.collect_of(reinterpret_cast<CUcontext>(1))), Ids{3});
}

TEST_F(ShimFreedLater, WhereNoEventCanBeRecordedNoneIsLeft) {
  streams.busy = {stream_of(5)};
  streams.record = CUDA_ERROR_INVALID_HANDLE;
  FreedLater::Freed f = freed(1);
  EXPECT_EQ(later.put_behind(stream_of(5), f), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_TRUE(streams.events.empty());
}

}  // namespace
}  // namespace amem::shim
