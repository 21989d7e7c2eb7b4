#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "shim/memory/paused_memory.h"

namespace amem::shim {
namespace {

/// An allocation that the program holds; no broker.
class ShimPausedMemory : public testing::Test {
 protected:
  ~ShimPausedMemory() override {
    while (!brokered.table.allocations().empty())
      brokered.table.forget(brokered.table.allocations().begin()->first);
    PausedMemory::update(brokered);
  }

  BrokeredAllocation& hold(std::uint64_t id, Where where) {
    BrokeredAllocation a;
    a.id = id;
    BrokeredAllocation& held = brokered.table.add(a);
    brokered.table.move(held, where);
    return held;
  }
  void free(BrokeredAllocation& a) {
    const std::lock_guard lock(brokered.mutex);
    a.refs = 0;
    brokered.drop_unneeded(a);
  }

  Driver driver;
  Session session;
  BrokeredMemory brokered{driver, session};
};

TEST_F(ShimPausedMemory, EndsWhenTheLastThatIsPausedIsFreed) {
  hold(1, Where::kHere);
  BrokeredAllocation& first = hold(2, Where::kAway);
  BrokeredAllocation& second = hold(3, Where::kArriving);
  PausedMemory::update(brokered);
  EXPECT_TRUE(PausedMemory::any());
  free(first);
  EXPECT_TRUE(PausedMemory::any());
  free(second);
  EXPECT_FALSE(PausedMemory::any()) << "copies need no lock any more";
}

TEST_F(ShimPausedMemory, WhatIsPausedLaterIsFoundWhenTheFirstIsFreed) {
  BrokeredAllocation& first = hold(1, Where::kAway);
  BrokeredAllocation& second = hold(2, Where::kHere);
  PausedMemory::update(brokered);
  brokered.table.move(second, Where::kUnmapped);
  free(first);
  EXPECT_TRUE(PausedMemory::any());
  free(second);
  EXPECT_FALSE(PausedMemory::any());
}

TEST_F(ShimPausedMemory, ManyAreGivenUpInATimeThatGrowsWithTheirNumber) {
  // Of this thread, and the best of some: other processes take time, and the caches.
  const auto cpu_time = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const auto time_of = [&](std::uint64_t count) {
    double best = std::numeric_limits<double>::max();
    for (int run = 0; run < 5; ++run) {
      for (std::uint64_t id = 1; id <= count; ++id) hold(id, Where::kAway);
      PausedMemory::update(brokered);
      const double began = cpu_time();
      for (std::uint64_t id = 1; id <= count; ++id) free(*brokered.table.find(id));
      best = std::min(best, cpu_time() - began);
      EXPECT_FALSE(PausedMemory::any());
    }
    return best;
  };
  const double few = time_of(2000);
  EXPECT_LT(time_of(20000), 40 * few) << "ten times as many; with the square it would be a hundred";
}

}  // namespace
}  // namespace amem::shim
