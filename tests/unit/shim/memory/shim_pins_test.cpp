#include "shim/memory/pins.h"
#include "tests/unit/fixtures/gate_fixture.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

constexpr auto kNic = amem_v1_PinReason_PIN_REASON_NIC;
constexpr auto kGdrCopy = amem_v1_PinReason_PIN_REASON_GDRCOPY;

/// Two allocations, one behind the other; no broker.
class ShimPins : public GateTest {
 protected:
  ShimPins() {
    for (const std::uint64_t id : {1U, 2U}) {
      BrokeredAllocation a;
      a.id = id;
      a.size = kMiB;
      a.tag = "heap";
      brokered.table.add(a);
      brokered.table.add_mapping(id, id * kMiB);
    }
  }

  std::size_t pins_of(std::uint64_t id) { return brokered.table.find(id)->pins.size(); }

  Driver driver;
  Session session;
  BrokeredMemory brokered{driver, session};
  Pins pins{gate_, session, brokered};
};

TEST_F(ShimPins, ARangePinsAllThatItTouches) {
  const auto both = pins.pin(2 * kMiB - 1, 2, kNic);
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both.value().ids.size(), 2U);
  const auto second = pins.pin(2 * kMiB, 1, kGdrCopy);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(pins_of(1), 1U);
  EXPECT_EQ(pins_of(2), 2U);
  pins.unpin(both.value());
  EXPECT_EQ(pins_of(1), 0U);
  EXPECT_EQ(pins_of(2), 1U);
  pins.unpin(both.value());
  EXPECT_EQ(pins_of(2), 1U) << "each registration ends once";
}

TEST_F(ShimPins, NothingOfARangeThatIsPartlyPausedIsPinned) {
  brokered.table.move(*brokered.table.find(2), Where::kAway);
  const auto refused = pins.pin(kMiB, 2 * kMiB, kNic);
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.status().text().find("paused with its tag 'heap'"), std::string::npos);
  EXPECT_EQ(pins_of(1), 0U);
}

TEST_F(ShimPins, ARangeBeyondTheLastAddressIsCut) {
  ASSERT_TRUE(pins.pin(2 * kMiB, ~std::size_t{0}, kNic).ok());
  EXPECT_EQ(pins_of(1), 0U);
  EXPECT_EQ(pins_of(2), 1U);
}

TEST_F(ShimPins, WhatIsUnpinnedBehindAShutGateStaysPinned) {
  const auto pinned = pins.pin(kMiB, 1, kNic);
  ASSERT_TRUE(pinned.ok());
  gate_.close();
  pins.unpin(pinned.value());
  EXPECT_EQ(pins_of(1), 1U);
  gate_.open();
}

TEST_F(ShimPins, AnAllocationThatCameAgainIsNotUnpinnedByAnOldRegistration) {
  const auto before = pins.pin(kMiB, 1, kNic);
  ASSERT_TRUE(before.ok());
  brokered.table.find(1)->pins.clear();  // as of one that was freed and redeemed again
  const auto after = pins.pin(kMiB, 1, kNic);
  ASSERT_TRUE(after.ok());
  pins.unpin(before.value());
  EXPECT_EQ(pins_of(1), 1U);
}

}  // namespace
}  // namespace amem::shim
