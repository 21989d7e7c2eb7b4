// The simulated driver: virtual memory.
#include <signal.h>

#include "tests/unit/fixtures/sim_child.h"
#include "tests/unit/fixtures/sim_memory.h"

namespace {

using namespace sim_test;

TEST_F(SimDriver, MappingRefusesWhatTheRealOneRefuses) {
  const CUmemGenericAllocationHandle handle = Create(2 * kUnit);
  const CUdeviceptr base = Reserve(8 * kUnit);
  EXPECT_EQ(cuMemMap(base, kUnit, kUnit, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(base, kUnit, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(base, 4 * kUnit, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(base + 7 * kUnit, 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(base + 4096, 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  // Two mappings side by side in the middle of the reservation.
  ASSERT_EQ(cuMemMap(base + 2 * kUnit, 2 * kUnit, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(base + 4 * kUnit, 2 * kUnit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(base + 3 * kUnit, 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(base, 8 * kUnit), CUDA_ERROR_INVALID_VALUE);

  EXPECT_EQ(Grant(base + 2 * kUnit, kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Grant(base + 3 * kUnit, 2 * kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Grant(base + 2 * kUnit, 6 * kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(base + 2 * kUnit, kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(base, 3 * kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(base, 16 * kUnit), CUDA_ERROR_INVALID_VALUE);
  // One call over several whole mappings is fine.
  EXPECT_EQ(Grant(base + 2 * kUnit, 4 * kUnit), CUDA_SUCCESS);
  Bytes(base)[2 * kUnit] = 7;
  EXPECT_EQ(Bytes(base)[4 * kUnit], 7) << "one handle, two addresses";
  EXPECT_EQ(cuMemUnmap(base, 7 * kUnit), CUDA_SUCCESS) << "gaps do no harm";
  EXPECT_EQ(cuMemUnmap(base + 2 * kUnit, 4 * kUnit), CUDA_SUCCESS) << "nothing but a gap";
  EXPECT_EQ(cuMemAddressFree(base, 4 * kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(base, 8 * kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(SimDriver, RemapAtTheSameAddressKeepsTheBytesOfTheHandle) {
  const CUmemGenericAllocationHandle handle = Create();
  CUdeviceptr base = Reserve(kUnit);
  ASSERT_EQ(cuMemMap(base, kUnit, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(Grant(base, kUnit), CUDA_SUCCESS);
  Bytes(base)[5] = 5;
  ASSERT_EQ(cuMemUnmap(base, kUnit), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(base, kUnit, 0, handle, 0), CUDA_SUCCESS);
  unsigned long long flags = 99;
  const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  EXPECT_EQ(cuMemGetAccess(&flags, &location, base), CUDA_SUCCESS);
  EXPECT_EQ(flags, 0U) << "access is not remembered";
  ASSERT_EQ(Grant(base, kUnit, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(base)[5], 5);
  ASSERT_EQ(cuMemUnmap(base, kUnit), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressFree(base, kUnit), CUDA_SUCCESS);
  // The address can be asked for again.
  CUdeviceptr again = 0;
  ASSERT_EQ(cuMemAddressReserve(&again, kUnit, 0, base, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, base);
  EXPECT_EQ(cuMemAddressFree(again, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(SimDriver, RetainCountsAndRevivesAReleasedHandle) {
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr base = Reserve(kUnit);
  ASSERT_EQ(cuMemMap(base, kUnit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle retained = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&retained, Bytes(base) + kUnit / 2), CUDA_SUCCESS);
  EXPECT_EQ(retained, handle);
  ASSERT_EQ(cuMemRetainAllocationHandle(&retained, Bytes(base)), CUDA_SUCCESS);
  close(Export(retained));
  EXPECT_EQ(cuMemUnmap(base, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRetainAllocationHandle(&retained, Bytes(base)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(Used(), kUnit);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(Used(), 0U);
  EXPECT_EQ(cuMemAddressFree(base, kUnit), CUDA_SUCCESS);
}

const RegisterRole kTouch("touch", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr base = Reserve(kUnit);
  ROLE_CHECK(cuMemMap(base, kUnit, 0, handle, 0) == CUDA_SUCCESS);
  signal(SIGSEGV, [](int) { _exit(9); });
  *static_cast<volatile char*>(Bytes(base)) = 1;
  return 0;
});

TEST_F(SimDriver, MemoryWithoutAccessFaults) { EXPECT_EQ(RunRole("touch"), 9); }

const RegisterRole kFine("granularity", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  const CUmemAllocationProp prop = Prop();
  size_t granularity = 0;
  ROLE_CHECK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
             CUDA_SUCCESS);
  ROLE_CHECK(granularity == 65536);
  ROLE_CHECK(Create(3 * 65536) != 0);
  return 0;
});

TEST_F(SimDriver, GranularityCanBeSet) {
  EXPECT_EQ(RunRole("granularity", {{"AMEM_SIM_GRANULARITY", "64KiB"}}), 0);
  EXPECT_EQ(RunRole("granularity", {{"AMEM_SIM_GRANULARITY", "3"}}), -SIGABRT);
}

}  // namespace
