// The simulated driver: fault injection.
#include <cuda.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/unit/fixtures/sim_child.h"

namespace {

using sim_test::RegisterRole;
using sim_test::RunRole;

CUresult Reserve() {
  CUdeviceptr base = 0;
  return cuMemAddressReserve(&base, size_t{2} << 20, 0, 0, 0);
}

// Calls cuMemAddressReserve five times and tells by letters what came of it.
std::string FiveCalls() {
  std::string seen;
  for (int i = 0; i < 5; ++i) {
    const CUresult result = Reserve();
    seen += result == CUDA_SUCCESS               ? 'o'
            : result == CUDA_ERROR_OUT_OF_MEMORY ? 'm'
            : result == CUDA_ERROR_UNKNOWN       ? 'u'
                                                 : '?';
  }
  return seen;
}

const RegisterRole kFiveCalls("five-calls", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  ROLE_CHECK(FiveCalls() == getenv("EXPECT"));
  return 0;
});

TEST(SimFaults, NthCallFails) {
  const std::pair<const char*, const char*> cases[] = {
      {"cuMemAddressReserve:3:2", "oomoo"},
      {"cuMemAddressReserve:4+:2", "ooomm"},
      {"cuMemAddressReserve:*", "uuuuu"},
      {"cuMemCreate:1:2; cuMemAddressReserve:2:2;cuMemAddressReserve:4", "omouo"},
      {"cuMemAddressReserve:1:delay=1", "ooooo"},
      {"cuMemAddressReserve:1:hold=1", "ooooo"},
      {"", "ooooo"},
  };
  for (const auto& [faults, expect] : cases) {
    EXPECT_EQ(RunRole("five-calls", {{"AMEM_SIM_FAULTS", faults}, {"EXPECT", expect}}), 0)
        << faults;
  }
}

TEST(SimFaults, KillsAtTheCall) {
  EXPECT_EQ(RunRole("five-calls", {{"AMEM_SIM_FAULTS", "cuMemAddressReserve:2:kill"}}), -SIGKILL);
}

TEST(SimFaults, ABadRuleEndsTheProcess) {
  for (const char* rule :
       {"cuMemCreate", "cuMemCreate:0", "cuMemCreate:x", "cuMemCreat:1", "cuMemCreate:1:slow",
        "cuMemCreate:1:delay=", "cuMemCreate:1:hold=", "cuMemCreate:1:0"}) {
    EXPECT_EQ(RunRole("five-calls", {{"AMEM_SIM_FAULTS", rule}, {"EXPECT", ""}}), -SIGABRT) << rule;
  }
}

// A name without version means every variant; an exact name only that one.
const RegisterRole kVariants("variants", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  CUuuid uuid;
  const auto first = reinterpret_cast<CUresult (*)(CUuuid*, CUdevice)>([] {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status;
    cuGetProcAddress("cuDeviceGetUuid", &found, 10000, 0, &status);
    return found;
  }());
  ROLE_CHECK(first(&uuid, 0) == CUDA_SUCCESS);
  ROLE_CHECK(cuDeviceGetUuid(&uuid, 0) == CUDA_ERROR_UNKNOWN);  // _v2, by its macro
  int count = 0;
  ROLE_CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_UNKNOWN);
  return 0;
});

TEST(SimFaults, NamesMatchExactlyOrWithoutVersion) {
  EXPECT_EQ(RunRole("variants", {{"AMEM_SIM_FAULTS", "cuDeviceGetUuid_v2:1;cuDeviceGetCount:1"}}),
            0);
  EXPECT_EQ(RunRole("variants", {{"AMEM_SIM_FAULTS", "cuDeviceGetUuid:2;cuDeviceGetCount:1"}}), 0);
}

const RegisterRole kFile("fault-file", [] {
  const std::string path = getenv("AMEM_SIM_FAULT_FILE");
  const auto write = [&](const std::string& rules) {
    std::ofstream(path + ".new") << rules << "\n";
    ROLE_CHECK(rename((path + ".new").c_str(), path.c_str()) == 0);
  };
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  ROLE_CHECK(FiveCalls() == "ooooo");
  write("cuMemAddressReserve:2:2");
  ROLE_CHECK(FiveCalls() == "omooo");
  write("cuMemAddressReserve:1:2\ncuMemAddressReserve:5");
  ROLE_CHECK(FiveCalls() == "mooou");
  ROLE_CHECK(unlink(path.c_str()) == 0);
  ROLE_CHECK(FiveCalls() == "ooooo");
  return 0;
});

TEST(SimFaults, AFileArmsARunningProcess) {
  const std::string path = std::string(getenv("AMEM_SIM_DIR")) + "/faults";
  EXPECT_EQ(RunRole("fault-file", {{"AMEM_SIM_FAULT_FILE", path}}), 0);
}

}  // namespace
