// Memory that a rank makes itself: made anew for a resume, mapped instead of what the broker sends.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shim/gate/gate.h"
#include "shim/memory/memory.h"

namespace amem::shim {
namespace {

constexpr std::uint64_t kId = 7;
constexpr std::size_t kOwnSize = 0x200000;
constexpr CUmemGenericAllocationHandle kImported = 900;

/// The driver's handles: those that live, in the order in which they were made.
struct DriversHandles {
  std::vector<CUmemGenericAllocationHandle> live;
  CUmemGenericAllocationHandle next = 100;
  CUmemGenericAllocationHandle mapped = 0;
  CUmemGenericAllocationHandle bound = 0;
  CUresult create = CUDA_SUCCESS;
  CUresult exporting = CUDA_SUCCESS;
};
DriversHandles handles;

class ShimOwnMemory : public testing::Test {
 protected:
  ShimOwnMemory() {
    handles = {};
    driver.cuGetErrorName_ = [](CUresult, const char** text) {
      *text = "CUDA_ERROR";
      return CUDA_SUCCESS;
    };
    driver.cuMemCreate_ = [](CUmemGenericAllocationHandle* handle, std::size_t size,
                             const CUmemAllocationProp* prop, unsigned long long) {
      EXPECT_EQ(size, kOwnSize);
      EXPECT_EQ(prop->location.id, 3);
      EXPECT_EQ(prop->requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      if (handles.create == CUDA_SUCCESS) handles.live.push_back(*handle = handles.next++);
      return handles.create;
    };
    driver.cuMemRelease_ = [](CUmemGenericAllocationHandle handle) {
      EXPECT_EQ(std::erase(handles.live, handle), 1U);
      return CUDA_SUCCESS;
    };
    driver.cuMemExportToShareableHandle_ = [](void* fd, CUmemGenericAllocationHandle,
                                              CUmemAllocationHandleType, unsigned long long) {
      if (handles.exporting == CUDA_SUCCESS) *static_cast<int*>(fd) = ::memfd_create("memory", 0);
      return handles.exporting;
    };
    driver.cuMemImportFromShareableHandle_ = [](CUmemGenericAllocationHandle* handle, void*,
                                                CUmemAllocationHandleType) {
      handles.live.push_back(*handle = kImported);
      return CUDA_SUCCESS;
    };
    driver.cuMemMap_ = [](CUdeviceptr, std::size_t, std::size_t,
                          CUmemGenericAllocationHandle handle, unsigned long long) {
      handles.mapped = handle;
      return CUDA_SUCCESS;
    };
    driver.cuMemUnmap_ = [](CUdeviceptr, std::size_t) { return CUDA_SUCCESS; };
    driver.cuMulticastBindMem_ = [](CUmemGenericAllocationHandle, std::size_t,
                                    CUmemGenericAllocationHandle handle, std::size_t, std::size_t,
                                    unsigned long long) {
      handles.bound = handle;
      return handle == kImported ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    };
    driver.cuMulticastUnbind_ = [](CUmemGenericAllocationHandle, CUdevice, std::size_t,
                                   std::size_t) { return CUDA_SUCCESS; };
    BrokeredAllocation a;
    a.id = kId;
    a.size = kOwnSize;
    a.device = 3;
    a.own = true;
    memory.brokered.table.add(a);
    memory.brokered.table.add_mapping(kId, 0x10000000);
    memory.multicast.track(70);
    memory.multicast.bind(70, {kId, 3, 0, 0, kOwnSize});
    memory.brokered.table.find(kId)->bindings = 1;
  }
  void pause() {
    std::uint64_t bytes = 0;
    ASSERT_TRUE(memory.residency.leave(std::set<std::string>(), false, bytes).ok());
    ASSERT_EQ(bytes, kOwnSize);
  }
  BrokeredAllocation& held() { return *memory.brokered.table.find(kId); }
  const Fd unused;

  Driver driver;
  LocalDevices devices{driver};
  Gate gate;
  Session session;
  Memory memory{driver, devices, gate, session};
};

TEST_F(ShimOwnMemory, WhatItHasMadeIsMappedAndBoundAndNotWhatTheBrokerSends) {
  pause();
  const Result<Fd> made = memory.residency.make(kId);
  ASSERT_TRUE(made.ok());
  EXPECT_GE(made.value().get(), 0);
  ASSERT_TRUE(memory.residency.come_back(kId, made.value()).ok());
  EXPECT_EQ(handles.mapped, 100U);
  EXPECT_EQ(handles.bound, 100U);
  EXPECT_TRUE(held().own);
  EXPECT_EQ(handles.live, std::vector<CUmemGenericAllocationHandle>{held().real})
      << "nothing was imported";
}

TEST_F(ShimOwnMemory, AResumeThatFailsLeavesNothing) {
  pause();
  ASSERT_TRUE(memory.residency.make(kId).ok());
  ASSERT_TRUE(memory.residency.make(kId).ok()) << "it is told again";
  EXPECT_EQ(handles.live.size(), 1U);
  std::uint64_t bytes = 0;
  ASSERT_TRUE(memory.residency.undo(bytes).ok());
  EXPECT_TRUE(handles.live.empty());
  ASSERT_TRUE(memory.residency.make(kId).ok());
  memory.residency.drop_made();  // as when the broker has died
  EXPECT_TRUE(handles.live.empty());
}

TEST_F(ShimOwnMemory, WhatTheProgramHasFreedIsNotMade) {
  const Result<Fd> made = memory.residency.make(kId + 1);
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made.value());
  EXPECT_EQ(memory.residency.make(kId).status().code(), Code::kFailedPrecondition) << "it is here";
  EXPECT_TRUE(handles.live.empty());
}

TEST_F(ShimOwnMemory, WhatIsFreedBeforeItHasComeBackGoes) {
  pause();
  ASSERT_TRUE(memory.residency.make(kId).ok());
  memory.brokered.table.remove_mapping(0x10000000);
  held().refs = 0;
  memory.mappings.release({kId});
  EXPECT_TRUE(handles.live.empty());
  EXPECT_TRUE(memory.brokered.is_empty());
}

TEST_F(ShimOwnMemory, TheDriversRefusalsAreToldAndLeaveNothing) {
  pause();
  handles.create = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(memory.residency.make(kId).status().code(), Code::kResourceExhausted);
  handles.create = CUDA_SUCCESS;
  handles.exporting = CUDA_ERROR_OPERATING_SYSTEM;
  EXPECT_EQ(memory.residency.make(kId).status().code(), Code::kInternal);
  EXPECT_TRUE(handles.live.empty());
}

TEST_F(ShimOwnMemory, WhatItHasNotMadeCannotBeBound) {
  pause();
  const Status status = memory.residency.come_back(kId, unused);
  EXPECT_NE(status.text().find("has made itself"), std::string::npos) << status.text();
  EXPECT_TRUE(handles.live.empty());
}

}  // namespace
}  // namespace amem::shim
