// Memory that leaves in parts, and what the driver refuses meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <set>
#include <vector>

#include "shim/gate/gate.h"
#include "shim/memory/memory.h"
#include "shim/memory/paused_memory.h"

namespace amem::shim {
namespace {

constexpr std::size_t kAllocationSize = 0x200000;

struct DriversSide {
  std::set<CUdeviceptr> stuck;  // what is mapped there is not unmapped
  unsigned unmaps = 0;
};
DriversSide side;

CUdeviceptr address_of(std::uint64_t id) {
  return (id + 1) * 2 * kAllocationSize;
}  // no neighbours

class ShimResidency : public testing::Test {
 protected:
  ShimResidency() {
    side = {};
    driver.cuGetErrorName_ = [](CUresult, const char** text) {
      *text = "CUDA_ERROR";
      return CUDA_SUCCESS;
    };
    driver.cuMemMap_ = [](CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                          unsigned long long) { return CUDA_SUCCESS; };
    driver.cuMemUnmap_ = [](CUdeviceptr address, std::size_t) {
      ++side.unmaps;
      return side.stuck.contains(address) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    };
    driver.cuMemRelease_ = [](CUmemGenericAllocationHandle) { return CUDA_SUCCESS; };
    driver.cuMemImportFromShareableHandle_ = [](CUmemGenericAllocationHandle* handle, void*,
                                                CUmemAllocationHandleType) {
      *handle = 900;
      return CUDA_SUCCESS;
    };
  }
  ~ShimResidency() override {
    while (!table.allocations().empty()) table.forget(table.allocations().begin()->first);
    PausedMemory::update(memory.brokered);
  }

  void hold(std::uint64_t id) {
    BrokeredAllocation a;
    a.id = id;
    a.size = kAllocationSize;
    a.real = 100 + id;
    table.add(a);
    table.add_mapping(id, address_of(id));
  }
  Where where(std::uint64_t id) { return table.find(id)->where(); }
  Status leave(const std::set<std::uint64_t>& ids) { return residency.leave(ids, left); }

  Driver driver;
  LocalDevices devices{driver};
  Gate gate;
  Session session;
  Memory memory{driver, devices, gate, session};
  Residency& residency = memory.residency;
  AllocationTable& table = memory.brokered.table;
  std::uint64_t left = 0;  // bytes of the last leave()
  const Fd none;
};

TEST_F(ShimResidency, EachWaveTakesItsOwn) {
  for (std::uint64_t id = 0; id < 4; ++id) hold(id);
  table.find(1)->pins.insert({amem_v1_PinReason_PIN_REASON_NIC, 1});
  ASSERT_TRUE(leave({0, 1, 9}).ok()) << "9 was freed meanwhile";
  EXPECT_EQ(left, kAllocationSize) << "1 is pinned";
  EXPECT_EQ(where(0), Where::kAway);
  EXPECT_EQ(where(1), Where::kHere);
  EXPECT_EQ(where(2), Where::kHere);
  EXPECT_TRUE(PausedMemory::any());
  residency.unmap_ahead(std::vector<std::uint64_t>{2, 3});
  EXPECT_EQ(where(2), Where::kUnmapped);
  ASSERT_TRUE(leave({0, 2}).ok());
  EXPECT_EQ(left, kAllocationSize) << "0 had left";
  ASSERT_TRUE(residency.map_again().ok());
  EXPECT_EQ(where(2), Where::kAway);
  EXPECT_EQ(where(3), Where::kHere);
  ASSERT_TRUE(residency.come_back(0, none).ok());
  EXPECT_EQ(where(0), Where::kArriving);
  ASSERT_TRUE(residency.undo(left).ok());
  EXPECT_EQ(where(0), Where::kAway);
  for (const std::uint64_t id : {0U, 2U}) ASSERT_TRUE(residency.come_back(id, none).ok());
  residency.arrived();
  for (std::uint64_t id = 0; id < 4; ++id) EXPECT_EQ(where(id), Where::kHere);
  EXPECT_FALSE(PausedMemory::any());
}

TEST_F(ShimResidency, WhatTheDriverRefusesIsTriedAgainInLaterWaves) {
  for (std::uint64_t id = 0; id < 3; ++id) hold(id);
  side.stuck = {address_of(0)};
  EXPECT_FALSE(leave({0}).ok());
  EXPECT_EQ(left, 0U) << "this process has it still";
  EXPECT_FALSE(leave({1}).ok()) << "of an earlier wave";
  EXPECT_EQ(left, kAllocationSize);
  EXPECT_FALSE(residency.drop_leftovers().ok());
  side.stuck.clear();
  ASSERT_TRUE(leave({2}).ok());
  side.unmaps = 0;
  ASSERT_TRUE(residency.drop_leftovers().ok());
  EXPECT_EQ(side.unmaps, 0U) << "nothing is left";
}

TEST_F(ShimResidency, WhatTheProgramHasFreedIsNoLeftover) {
  hold(0);
  side.stuck = {address_of(0)};
  EXPECT_FALSE(leave({0}).ok());
  side.stuck.clear();
  ASSERT_EQ(memory.mappings.unmap(address_of(0), kAllocationSize), CUDA_SUCCESS);
  ASSERT_EQ(memory.handles.release(AllocationTable::handle_of(0)), CUDA_SUCCESS);
  EXPECT_TRUE(memory.brokered.is_empty());
  EXPECT_TRUE(residency.drop_leftovers().ok());
}

TEST_F(ShimResidency, ManyLeaveInATimeThatGrowsWithTheirNumber) {
  // Of this thread, and the best of some: other processes take time, and the caches.
  const auto cpu_time = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  constexpr std::uint64_t kWave = 100;
  const auto time_of = [&](std::uint64_t count) {
    double best = std::numeric_limits<double>::max();
    for (int run = 0; run < 3; ++run) {
      for (std::uint64_t id = 0; id < count; ++id) hold(id);
      std::vector<std::set<std::uint64_t>> waves(count / kWave);
      for (std::uint64_t id = 0; id < count; ++id) waves[id / kWave].insert(id);
      const double began = cpu_time();
      for (const std::set<std::uint64_t>& wave : waves) {
        EXPECT_TRUE(leave(wave).ok());
        EXPECT_EQ(left, kWave * kAllocationSize);
        EXPECT_TRUE(residency.map_again().ok());
      }
      best = std::min(best, cpu_time() - began);
      while (!table.allocations().empty()) {
        const std::uint64_t id = table.allocations().begin()->first;
        table.remove_mapping(address_of(id));
        table.forget(id);
      }
    }
    return best;
  };
  const double few = time_of(2000);
  EXPECT_LT(time_of(20000), 40 * few) << "ten times as many; with the square it would be a hundred";
}

}  // namespace
}  // namespace amem::shim
