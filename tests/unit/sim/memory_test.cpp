// The simulated driver: memory of cuMemAlloc and its kin, pools, managed memory, arrays, peers, and
// what can be asked of pointers.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/fixtures/sim_memory.h"

namespace {

using namespace sim_test;

cuuint64_t Attribute(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  EXPECT_EQ(cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
  return value;
}

template <typename T>
T Ask(CUdeviceptr address, CUpointer_attribute attribute) {
  T value{};
  EXPECT_EQ(cuPointerGetAttribute(&value, attribute, address), CUDA_SUCCESS);
  return value;
}

class SimMemory : public testing::Test {
 protected:
  void SetUp() override {
    for (int device : {1, 0}) {
      ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_[device], device), CUDA_SUCCESS);
      ASSERT_EQ(cuCtxSetCurrent(contexts_[device]), CUDA_SUCCESS);
    }
    before_ = Used();
  }
  void TearDown() override {
    EXPECT_EQ(Used(), before_);
    for (int device : {0, 1}) EXPECT_EQ(cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  }

  CUcontext contexts_[2] = {};
  size_t before_ = 0;
};

TEST_F(SimMemory, PitchedMemory) {
  CUdeviceptr p = 0;
  size_t pitch = 0;
  EXPECT_EQ(cuMemAllocPitch(&p, &pitch, 100, 8, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocPitch(&p, &pitch, 100, 0, 4), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemAllocPitch(&p, &pitch, 600, 8, 4), CUDA_SUCCESS);
  EXPECT_EQ(pitch, 1024U);
  EXPECT_EQ(Used() - before_, 8192U);
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
}

TEST_F(SimMemory, PoolsReserveAndKeepWhatTheThresholdAllows) {
  CUmemoryPool pool = nullptr;
  CUmemoryPool again = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetMemPool(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(pool, again);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);

  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAllocAsync(&p, 0, stream), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemAllocAsync(&p, 100, stream), CUDA_SUCCESS);
  EXPECT_EQ(Used() - before_, kUnit);
  EXPECT_EQ(Attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kUnit);
  EXPECT_EQ(Attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), kUnit);
  EXPECT_EQ(Ask<CUmemoryPool>(p, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), pool);
  EXPECT_EQ(Ask<unsigned>(p, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0U);
  ASSERT_EQ(cuMemsetD8Async(p, 1, 100, stream), CUDA_SUCCESS);

  cuuint64_t threshold = kUnit;
  ASSERT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kUnit);
  EXPECT_EQ(Attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(Used() - before_, kUnit);
  ASSERT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(Used(), before_);
  threshold = 0;
  ASSERT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(p, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(SimMemory, APoolOfTheProgramsOwnGoesWithItsLastAllocation) {
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&p, kMiB, pool, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(Used() - before_, kUnit);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, kMiB, pool, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
}

TEST_F(SimMemory, ManagedMemory) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAllocManaged(&p, kMiB, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemAllocManaged(&p, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(Used() - before_, kMiB);
  std::memset(reinterpret_cast<void*>(p), 1, kMiB);
  EXPECT_EQ(Ask<unsigned>(p, CU_POINTER_ATTRIBUTE_IS_MANAGED), 1U);
  EXPECT_EQ(Ask<void*>(p, CU_POINTER_ATTRIBUTE_HOST_POINTER), reinterpret_cast<void*>(p));
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
}

TEST_F(SimMemory, ArraysOccupyWhatTheirElementsNeed) {
  CUDA_ARRAY_DESCRIPTOR flat = {1024, 512, CU_AD_FORMAT_FLOAT, 4};
  CUarray array = nullptr;
  ASSERT_EQ(cuArrayCreate(&array, &flat), CUDA_SUCCESS);
  EXPECT_EQ(Used() - before_, 8 * kMiB);
  EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
  EXPECT_EQ(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
  flat.NumChannels = 3;
  EXPECT_EQ(cuArrayCreate(&array, &flat), CUDA_ERROR_INVALID_VALUE);
  const CUDA_ARRAY3D_DESCRIPTOR cube = {64, 64, 64, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  CUmipmappedArray mipmap = nullptr;
  ASSERT_EQ(cuMipmappedArrayCreate(&mipmap, &cube, 2), CUDA_SUCCESS);
  EXPECT_EQ(Used() - before_, size_t{64 * 64 * 64 + 32 * 32 * 32});
  EXPECT_EQ(cuMipmappedArrayDestroy(mipmap), CUDA_SUCCESS);
}

TEST_F(SimMemory, PeerAccessIsEnabledOnce) {
  EXPECT_EQ(cuCtxDisablePeerAccess(contexts_[1]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_EQ(cuCtxEnablePeerAccess(contexts_[0], 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuCtxEnablePeerAccess(contexts_[1], 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(contexts_[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(cuCtxDisablePeerAccess(contexts_[1]), CUDA_SUCCESS);
}

TEST_F(SimMemory, PointerAttributesOfAllocatedMemory) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAlloc(&p, 1000), CUDA_SUCCESS);
  EXPECT_EQ(Ask<unsigned>(p, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 1U);
  EXPECT_EQ(Ask<CUcontext>(p, CU_POINTER_ATTRIBUTE_CONTEXT), contexts_[0]);
  EXPECT_EQ(Ask<size_t>(p + 10, CU_POINTER_ATTRIBUTE_RANGE_SIZE), 1000U);
  unsigned on = 1;
  EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p), CUDA_SUCCESS);
  EXPECT_EQ(Ask<unsigned>(p, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), 1U);
  EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_CONTEXT, p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(p), CUDA_SUCCESS);
  EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimMemory, GraphsOwnNone) {
  cuuint64_t bytes = 1;
  EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes),
            CUDA_SUCCESS);
  EXPECT_EQ(bytes, 0U);
}

}  // namespace
