// What a rank that comes back says that it holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "shim/memory/brokered_memory.h"

namespace amem::shim {
namespace {

class ShimBrokeredMemory : public testing::Test {
 protected:
  BrokeredAllocation& hold(std::uint64_t id) {
    BrokeredAllocation a;
    a.id = id;
    return brokered.table.add(a);
  }
  std::vector<amem_v1_Inventory_Item> list(const std::vector<std::uint64_t>& given = {}) {
    auto items = brokered.list([&] { return given; });
    std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    return items;
  }

  Driver driver;
  Session session;
  BrokeredMemory brokered{driver, session};
};

TEST_F(ShimBrokeredMemory, EveryAllocationWithItsPinsAndWhereItIs) {
  brokered.table.move(hold(1), Where::kAway);
  hold(2).pins = {{amem_v1_PinReason_PIN_REASON_NIC, 1},
                  {amem_v1_PinReason_PIN_REASON_NIC, 2},
                  {amem_v1_PinReason_PIN_REASON_P2P_TOKENS, 3}};
  hold(3).guest = true;
  brokered.table.move(hold(4), Where::kArriving);  // the next broker takes it away again
  const auto items = list();
  ASSERT_EQ(items.size(), 4U);
  EXPECT_TRUE(items[0].paused);
  EXPECT_EQ(items[0].pins, 0U);
  EXPECT_FALSE(items[1].paused);
  EXPECT_EQ(items[1].pins,
            1U << amem_v1_PinReason_PIN_REASON_NIC | 1U << amem_v1_PinReason_PIN_REASON_P2P_TOKENS);
  EXPECT_EQ(items[2].id, 3U);
  EXPECT_FALSE(items[3].paused);
}

TEST_F(ShimBrokeredMemory, WhatWasGivenAndIsNotEnteredYetOnce) {
  hold(1);
  const auto items = list({1, 2});
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0].id, 1U);
  EXPECT_EQ(items[1].id, 2U);
}

// A Free is in the list or is kept for after it.
TEST_F(ShimBrokeredMemory, NothingChangesBetweenTheListAndWhatIsKept) {
  hold(1);
  const auto items = brokered.list([&]() -> std::vector<std::uint64_t> {
    EXPECT_FALSE(std::async(std::launch::async, [&] {
                   const bool free = brokered.mutex.try_lock();
                   if (free) brokered.mutex.unlock();
                   return free;
                 }).get());
    return {};
  });
  EXPECT_EQ(items.size(), 1U);
}

TEST_F(ShimBrokeredMemory, WhatIsOnItsWayBackCountsAsPaused) {
  hold(1).size = 5;
  hold(2).size = 7;
  EXPECT_EQ(brokered.bytes_paused(), 0U);
  brokered.table.move(*brokered.table.find(1), Where::kAway);
  brokered.table.move(*brokered.table.find(2), Where::kArriving);
  EXPECT_EQ(brokered.bytes_paused(), 12U);
}

}  // namespace
}  // namespace amem::shim
