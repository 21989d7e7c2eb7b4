#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shim/memory/multicast.h"

namespace amem::shim {
namespace {

using Lines = std::vector<std::string>;
using Freed = Multicast::Freed;

constexpr CUmemGenericAllocationHandle kObject = 70;
constexpr CUmemGenericAllocationHandle kBorrowed = 71;
constexpr CUdeviceptr kAddress = 0x10000000;
constexpr std::size_t kObjectSize = 0x400000;

Lines calls_heard;
CUresult bind_result = CUDA_SUCCESS;
CUresult unbind_result = CUDA_SUCCESS;

template <class... Numbers>
void note(const char* call, Numbers... numbers) {
  std::string line = call;
  ((line += " " + std::to_string(numbers)), ...);
  calls_heard.push_back(line);
}

Lines take() { return std::exchange(calls_heard, {}); }

class ShimMulticast : public testing::Test {
 protected:
  ShimMulticast() {
    calls_heard.clear();
    bind_result = CUDA_SUCCESS;
    unbind_result = CUDA_SUCCESS;
    driver.cuMulticastBindMem_ = [](CUmemGenericAllocationHandle object, std::size_t at,
                                    CUmemGenericAllocationHandle memory, std::size_t from,
                                    std::size_t size, unsigned long long) {
      note("bind", object, at, memory, from, size);
      return bind_result;
    };
    driver.cuMulticastUnbind_ = [](CUmemGenericAllocationHandle object, CUdevice device,
                                   std::size_t at, std::size_t size) {
      note("unbind", object, device, at, size);
      return unbind_result;
    };
    driver.cuMemRetainAllocationHandle_ = [](CUmemGenericAllocationHandle* handle, void*) {
      *handle = kBorrowed;
      return CUDA_SUCCESS;
    };
    driver.cuMemRelease_ = [](CUmemGenericAllocationHandle handle) {
      note("release", handle);
      return CUDA_SUCCESS;
    };
    multicast.track(kObject);
  }

  Driver driver;
  Multicast multicast{driver};
};

TEST_F(ShimMulticast, WhatLeavesIsBoundAgainInTheSamePlace) {
  multicast.bind(kObject, {1, 3, 0, 8, 64});
  multicast.bind(kObject, {2, 3, 64, 0, 32});
  multicast.bind(kObject, {1, 3, 96, 0, 8});
  EXPECT_EQ(multicast.leave(1), CUDA_SUCCESS);
  EXPECT_EQ(take(), (Lines{"unbind 70 3 0 64", "unbind 70 3 96 8"}));
  EXPECT_EQ(multicast.leave(1), CUDA_SUCCESS) << "it is paused";
  EXPECT_EQ(take(), Lines());
  EXPECT_EQ(multicast.come_back(1, 55), CUDA_SUCCESS);
  EXPECT_EQ(take(), (Lines{"bind 70 0 55 8 64", "bind 70 96 55 0 8"}));
  EXPECT_EQ(multicast.come_back(1, 55), CUDA_SUCCESS) << "it is back";
  EXPECT_EQ(take(), Lines());
}

TEST_F(ShimMulticast, WhatCouldNotBeBoundAgainIsNotUnbound) {
  multicast.bind(kObject, {1, 0, 0, 0, 8});
  multicast.leave(1);
  take();
  bind_result = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(multicast.come_back(1, 55), CUDA_ERROR_OUT_OF_MEMORY);
  take();
  EXPECT_EQ(multicast.leave(1), CUDA_SUCCESS);
  EXPECT_EQ(take(), Lines());
}

TEST_F(ShimMulticast, WhatCouldNotBeUnboundIsTriedAgain) {
  multicast.bind(kObject, {1, 3, 0, 0, 8});
  unbind_result = CUDA_ERROR_UNKNOWN;
  EXPECT_EQ(multicast.leave(1), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(take(), Lines{"unbind 70 3 0 8"});
  unbind_result = CUDA_SUCCESS;
  EXPECT_EQ(multicast.leave(1), CUDA_SUCCESS);
  EXPECT_EQ(take(), Lines{"unbind 70 3 0 8"});
  EXPECT_EQ(multicast.come_back(1, 55), CUDA_SUCCESS);
  EXPECT_EQ(take(), Lines{"bind 70 0 55 0 8"});
}

TEST_F(ShimMulticast, AMappedObjectIsFoundWithoutItsHandle) {
  multicast.bind(kObject, {1, 0, 0, 0, 8});
  multicast.map(kObject, kAddress, kObjectSize);
  EXPECT_EQ(multicast.release(kObject), Freed());
  multicast.leave(1);
  EXPECT_EQ(take(), (Lines{"unbind 71 0 0 8", "release 71"}));
}

TEST_F(ShimMulticast, TheEndOfAnObjectEndsItsBindings) {
  multicast.bind(kObject, {1, 0, 0, 0, 8});
  multicast.bind(kObject, {1, 0, 8, 0, 8});
  multicast.map(kObject, kAddress, kObjectSize);
  multicast.retain(kObject, kAddress + 5);
  EXPECT_TRUE(multicast.mapped(kAddress + kObjectSize - 1, 10));
  EXPECT_FALSE(multicast.mapped(kAddress + kObjectSize, 10));
  EXPECT_EQ(multicast.release(kObject), Freed());
  EXPECT_EQ(multicast.unmap(kAddress, kObjectSize), Freed()) << "the retained handle is left";
  EXPECT_EQ(multicast.release(kObject), (Freed{1, 1}));
  EXPECT_FALSE(multicast.tracked(kObject));
}

TEST_F(ShimMulticast, ARetainedHandleMayHaveAnotherNumber) {
  multicast.map(kObject, kAddress, kObjectSize);
  multicast.release(kObject);
  multicast.retain(90, kAddress);
  EXPECT_FALSE(multicast.tracked(kObject));
  EXPECT_TRUE(multicast.tracked(90));
}

TEST_F(ShimMulticast, UnbindTakesTheDevicesBindingsInTheRange) {
  multicast.bind(kObject, {1, 0, 0, 0, 8});
  multicast.bind(kObject, {2, 1, 0, 0, 8});
  multicast.bind(kObject, {3, 0, 8, 0, 8});
  EXPECT_EQ(multicast.unbind(kObject, 0, 0, 8), Freed{1});
  EXPECT_EQ(multicast.unbind(kObject, 0, 0, 8), Freed());
  multicast.leave(1);
  EXPECT_EQ(take(), Lines());
}

TEST_F(ShimMulticast, OtherHandlesChangeNothing) {
  multicast.map(5, kAddress, kObjectSize);
  multicast.retain(5, kAddress);
  EXPECT_EQ(multicast.release(5), Freed());
  EXPECT_EQ(multicast.unmap(kAddress, kObjectSize), Freed());
  EXPECT_FALSE(multicast.tracked(5));
}

}  // namespace
}  // namespace amem::shim
