// The simulated driver: multicast objects.
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

namespace {

constexpr size_t kUnit = size_t{2} << 20;

CUmulticastObjectProp ObjectProp(unsigned devices = 2, size_t bytes = 2 * kUnit) {
  CUmulticastObjectProp prop = {};
  prop.numDevices = devices;
  prop.size = bytes;
  prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

CUresult Create(CUmemGenericAllocationHandle* object, const CUmulticastObjectProp& prop) {
  return cuMulticastCreate(object, &prop);
}

// One process with both devices: a team of its own.
class SimMulticast : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    ASSERT_EQ(Create(&object_, ObjectProp()), CUDA_SUCCESS);
    for (int device = 0; device < 2; ++device) {
      ASSERT_EQ(cuMulticastAddDevice(object_, device), CUDA_SUCCESS);
    }
  }
  void TearDown() override {
    if (object_ != 0) {
      EXPECT_EQ(cuMemRelease(object_), CUDA_SUCCESS);
    }
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease(0);
  }

  static CUmemGenericAllocationHandle Memory(int device, int types = 1) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, 2 * kUnit, &prop, 0), CUDA_SUCCESS);
    return handle;
  }

  static CUdeviceptr Map(CUmemGenericAllocationHandle handle) {
    CUdeviceptr base = 0;
    EXPECT_EQ(cuMemAddressReserve(&base, 2 * kUnit, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(base, 2 * kUnit, 0, handle, 0), CUDA_SUCCESS);
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {0}},
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(cuMemSetAccess(base, 2 * kUnit, &access, 1), CUDA_SUCCESS);
    return base;
  }

  static void Unmap(CUdeviceptr base) {
    EXPECT_EQ(cuMemUnmap(base, 2 * kUnit), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(base, 2 * kUnit), CUDA_SUCCESS);
  }

  size_t Free() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }

  CUresult Bind(CUmemGenericAllocationHandle memory, size_t at = 0, size_t from = 0,
                size_t bytes = 2 * kUnit) {
    return cuMulticastBindMem(object_, at, memory, from, bytes, 0);
  }

  CUcontext context_ = nullptr;
  CUmemGenericAllocationHandle object_ = 0;
};

TEST_F(SimMulticast, CreateRefusesWhatMakesNoSense) {
  CUmemGenericAllocationHandle object = 0;
  EXPECT_EQ(Create(&object, ObjectProp(0)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Create(&object, ObjectProp(3)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Create(&object, ObjectProp(2, kUnit + 1)), CUDA_ERROR_INVALID_VALUE);
  CUmulticastObjectProp prop = ObjectProp();
  prop.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(Create(&object, prop), CUDA_ERROR_NOT_PERMITTED);
  prop = ObjectProp();
  size_t minimum = 0;
  size_t recommended = 0;
  EXPECT_EQ(cuMulticastGetGranularity(&minimum, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(cuMulticastGetGranularity(&recommended, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED),
            CUDA_SUCCESS);
  EXPECT_EQ(minimum, kUnit);
  EXPECT_EQ(recommended, 2 * kUnit);
  EXPECT_EQ(cuMulticastAddDevice(object_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastAddDevice(object_, 7), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(SimMulticast, BindRefusesWhatDoesNotFit) {
  const auto memory = Memory(0);
  EXPECT_EQ(Bind(memory, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Bind(memory, kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Bind(memory, 0, kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Bind(memory, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Bind(object_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Bind(memory, kUnit, 0, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(Bind(memory), CUDA_ERROR_INVALID_VALUE) << "half of it is taken";
  EXPECT_EQ(cuMulticastUnbind(object_, 0, 0, kUnit), CUDA_ERROR_INVALID_VALUE) << "nothing there";
  EXPECT_EQ(cuMulticastUnbind(object_, 1, kUnit, kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastUnbind(object_, 0, 0, 2 * kUnit), CUDA_SUCCESS);
  const auto private_memory = Memory(0, CU_MEM_HANDLE_TYPE_NONE);
  EXPECT_EQ(Bind(private_memory), CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp prop = {};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&prop, object_), CUDA_ERROR_INVALID_VALUE);
  cuMemRelease(private_memory);
  cuMemRelease(memory);
}

TEST_F(SimMulticast, ImportedMemoryIsRefusedByItsHandleAndByItsAddress) {
  const auto memory = Memory(0);
  int fd = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(
      cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      CUDA_SUCCESS);
  close(fd);
  EXPECT_EQ(Bind(imported), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr of_imported = Map(imported);
  EXPECT_EQ(cuMulticastBindAddr(object_, 0, of_imported, 2 * kUnit, 0), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr of_memory = Map(memory);
  EXPECT_EQ(cuMulticastBindAddr(object_, 0, of_memory, 2 * kUnit, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMulticastUnbind(object_, 0, 0, 2 * kUnit), CUDA_SUCCESS);
  EXPECT_EQ(Bind(memory), CUDA_SUCCESS) << "the process has made it itself";
  EXPECT_EQ(cuMulticastUnbind(object_, 0, 0, 2 * kUnit), CUDA_SUCCESS);
  for (const CUdeviceptr base : {of_imported, of_memory}) Unmap(base);
  for (const auto handle : {imported, memory}) cuMemRelease(handle);
}

TEST_F(SimMulticast, AWriteReachesAllBoundMemory) {
  const std::array<CUmemGenericAllocationHandle, 2> memory = {Memory(0), Memory(1)};
  const std::array<CUdeviceptr, 2> unicast = {Map(memory[0]), Map(memory[1])};
  const CUdeviceptr multicast = Map(object_);
  EXPECT_EQ(cuMulticastBindAddr(object_, 0, unicast[0], 2 * kUnit, 0), CUDA_SUCCESS);
  EXPECT_EQ(Bind(memory[1]), CUDA_SUCCESS);
  const unsigned word = 0xabcd1234;
  EXPECT_EQ(cuMemcpyHtoD(multicast + kUnit + 8, &word, sizeof word), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD16(multicast, 0x5678, 2), CUDA_SUCCESS);
  for (const CUdeviceptr base : unicast) {
    unsigned got = 0;
    EXPECT_EQ(cuMemcpyDtoH(&got, base + kUnit + 8, sizeof got), CUDA_SUCCESS);
    EXPECT_EQ(got, word);
    EXPECT_EQ(cuMemcpyDtoH(&got, base, sizeof got), CUDA_SUCCESS);
    EXPECT_EQ(got, 0x56785678U);
  }
  unsigned got = 0;
  EXPECT_EQ(cuMemcpyDtoH(&got, multicast, sizeof got), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMulticastUnbind(object_, 0, 0, 2 * kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMulticastUnbind(object_, 1, 0, 2 * kUnit), CUDA_SUCCESS);
  for (const CUdeviceptr base : {unicast[0], unicast[1], multicast}) Unmap(base);
  for (const auto handle : memory) cuMemRelease(handle);
}

TEST_F(SimMulticast, BoundMemoryStaysUntilItIsUnboundOrTheObjectGoes) {
  const size_t free = Free();
  auto memory = Memory(0);
  EXPECT_EQ(Bind(memory), CUDA_SUCCESS);
  cuMemRelease(memory);
  EXPECT_EQ(Free(), free - 2 * kUnit);
  EXPECT_EQ(cuMulticastUnbind(object_, 0, 0, 2 * kUnit), CUDA_SUCCESS);
  EXPECT_EQ(Free(), free);

  memory = Memory(0);
  EXPECT_EQ(Bind(memory), CUDA_SUCCESS);
  cuMemRelease(memory);
  const CUdeviceptr multicast = Map(object_);
  EXPECT_EQ(cuMemRelease(object_), CUDA_SUCCESS);
  object_ = 0;
  EXPECT_EQ(Free(), free - 2 * kUnit);
  Unmap(multicast);
  EXPECT_EQ(Free(), free);
}

}  // namespace
