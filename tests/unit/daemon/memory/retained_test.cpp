#include "daemon/memory/retained.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

RetainedCopy copy_of(std::uint64_t bytes, std::uint64_t attempt = 1) {
  return {{{0, 0, bytes}}, 7, attempt};
}

TEST(RetainedTest, TheOldestGoesFirst) {
  Retained retained;
  retained.add(3, copy_of(10));
  retained.add(1, copy_of(20));
  retained.add(2, copy_of(30));
  EXPECT_EQ(retained.bytes(), 60U);
  EXPECT_EQ(retained.bytes(1), 20U);
  EXPECT_EQ(retained.bytes(9), 0U);
  EXPECT_EQ(retained.take_oldest()->extents[0].length, 10U);
  EXPECT_EQ(retained.find(3), nullptr);
  retained.add(3, copy_of(5));
  EXPECT_EQ(retained.take_oldest()->extents[0].length, 20U);
  EXPECT_EQ(retained.take_oldest()->extents[0].length, 30U);
  EXPECT_EQ(retained.take_oldest()->extents[0].length, 5U);
  EXPECT_FALSE(retained.take_oldest().has_value());
  EXPECT_EQ(retained.bytes(), 0U);
}

TEST(RetainedTest, TheOldestOfSomeSegmentsGoes) {
  Retained retained;
  const auto in = [](std::uint32_t segment) {
    return RetainedCopy{{{segment, 0, 10}, {segment + 1, 0, 10}}, 7, 1};
  };
  retained.add(1, in(0));
  retained.add(2, in(4));
  retained.add(3, in(3));
  EXPECT_FALSE(retained.take_oldest([](std::uint32_t s) { return s == 9; }).has_value());
  EXPECT_EQ(retained.take_oldest([](std::uint32_t s) { return s == 4; })->extents[0].segment, 4U);
  EXPECT_EQ(retained.take_oldest([](std::uint32_t s) { return s == 4; })->extents[0].segment, 3U);
  EXPECT_NE(retained.find(1), nullptr);
}

TEST(RetainedTest, WhatIsTakenIsRetainedNoLonger) {
  Retained retained;
  retained.add(1, copy_of(10, 4));
  ASSERT_NE(retained.find(1), nullptr);
  EXPECT_EQ(retained.find(1)->attempt, 4U);
  EXPECT_EQ(retained.take(1)->saver, 7U);
  EXPECT_FALSE(retained.take(1).has_value());
  EXPECT_FALSE(retained.take_oldest().has_value());
  EXPECT_EQ(retained.bytes(), 0U);
}

}  // namespace
}  // namespace amem
