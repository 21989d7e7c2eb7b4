#include "daemon/transactions/headroom.h"

#include <gtest/gtest.h>

#include "tests/unit/fixtures/some_device.h"

namespace amem {
namespace {

TEST(HeadroomTest, WithoutALimitEverythingFits) {
  Headroom headroom;
  EXPECT_FALSE(headroom.limited(some_device(1)));
  EXPECT_TRUE(headroom.take(some_device(1), ~0ULL));
  headroom.exhaust(some_device(1));
  EXPECT_TRUE(headroom.take(some_device(1), 1)) << "that is the driver's business";
}

TEST(HeadroomTest, ARestoreNeedsATenthMoreThanWasFreedAsFarAsThatCanBe) {
  constexpr std::uint64_t kTotal = 6400;  // 100 of it stay free
  EXPECT_EQ(Headroom::for_restore(1000, 5000, kTotal), 1100U);
  EXPECT_EQ(Headroom::for_restore(1000, 1150, kTotal), 1050U);
  EXPECT_EQ(Headroom::for_restore(1000, 1050, kTotal), 1000U);
  EXPECT_EQ(Headroom::for_restore(1000, 50, kTotal), 1000U);
}

TEST(HeadroomTest, ALimitIsTakenFromAndGivenBackTo) {
  Headroom headroom;
  headroom.limit(some_device(1), 100);
  EXPECT_TRUE(headroom.limited(some_device(1)));
  EXPECT_TRUE(headroom.take(some_device(1), 60));
  EXPECT_FALSE(headroom.take(some_device(1), 41));
  EXPECT_TRUE(headroom.take(some_device(2), 1000)) << "another device's is its own";
  EXPECT_TRUE(headroom.take(some_device(1), 40));
  EXPECT_FALSE(headroom.take(some_device(1), 1));
  EXPECT_TRUE(headroom.take(some_device(1), 0)) << "what never left needs nothing";
  headroom.give_back(some_device(1), 60);
  EXPECT_TRUE(headroom.take(some_device(1), 60));
}

TEST(HeadroomTest, WhatIsExhaustedHasWhatIsLetGoFromThenOn) {
  Headroom headroom;
  headroom.limit(some_device(1), 100);
  headroom.exhaust(some_device(1));
  EXPECT_FALSE(headroom.take(some_device(1), 1));
  headroom.give_back(some_device(1), 50);
  EXPECT_FALSE(headroom.take(some_device(1), 51));
  EXPECT_TRUE(headroom.take(some_device(1), 50));
  headroom.exhaust(some_device(1));
  headroom.lift();
  EXPECT_FALSE(headroom.limited(some_device(1)));
  EXPECT_TRUE(headroom.take(some_device(1), 1000));
}

TEST(HeadroomTest, TheReserveIsModest) {
  EXPECT_EQ(Headroom::reserve(0), 0U);
  EXPECT_EQ(Headroom::reserve(128ULL << 20), 2ULL << 20);
  EXPECT_EQ(Headroom::reserve(140ULL << 30), 256ULL << 20);
}

}  // namespace
}  // namespace amem
