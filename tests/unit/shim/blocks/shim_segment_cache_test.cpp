#include <gtest/gtest.h>

#include "shim/blocks/segment_cache.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

using Addresses = std::vector<Address>;

SegmentCache::Time at(int ms) { return SegmentCache::Time(std::chrono::milliseconds(ms)); }
SegmentCache::Kind kind(std::uint64_t mib, int device = 0, const char* tag = "heap") {
  return {device, mib * kMiB, {tag}};
}
bool any(Address) { return true; }

TEST(SegmentCache, TheSameKindAndTheLastOneFirst) {
  SegmentCache cache;
  EXPECT_TRUE(cache.add(kind(2), 100, at(0)).empty());
  EXPECT_TRUE(cache.add(kind(2), 200, at(1)).empty());
  EXPECT_FALSE(cache.take(kind(4), any));
  EXPECT_FALSE(cache.take(kind(2, 1), any)) << "of another device";
  EXPECT_FALSE(cache.take(kind(2, 0, "kv"), any)) << "with another tag";
  EXPECT_FALSE(cache.take({0, 2 * kMiB, {"heap", amem_v1_RegionPolicy_REGION_POLICY_DISCARD}}, any))
      << "with another policy";
  EXPECT_EQ(cache.take(kind(2), any), 200);
  EXPECT_EQ(cache.take(kind(2), any), 100);
  EXPECT_FALSE(cache.take(kind(2), any)) << "given twice";
}

TEST(SegmentCache, WhatCannotBeUsedNowStays) {
  SegmentCache cache;
  cache.add(kind(2), 100, at(0));
  cache.add(kind(2), 200, at(1));
  EXPECT_EQ(cache.take(kind(2), [](Address a) { return a != 200; }), 100);
  EXPECT_FALSE(cache.take(kind(2), [](Address a) { return a != 200; }));
  EXPECT_EQ(cache.take_older(at(1), any), Addresses{200});
}

TEST(SegmentCache, ThereIsAnEndToHowMuch) {
  SegmentCache cache;
  EXPECT_TRUE(cache.add(kind(40), 100, at(0)).empty());
  EXPECT_TRUE(cache.add(kind(24), 200, at(1)).empty());
  EXPECT_EQ(cache.add(kind(20), 300, at(2)), Addresses{100}) << "the oldest makes space";
  EXPECT_EQ(cache.add(kind(65), 400, at(3)), Addresses{400})
      << "too large, and no reason to drop others";
  EXPECT_EQ(cache.add(kind(64), 500, at(4)), (Addresses{200, 300})) << "it needs all the space";
  EXPECT_EQ(cache.take(kind(64), any), 500);
  EXPECT_FALSE(cache.oldest());
  EXPECT_TRUE(cache.add(kind(64), 600, at(5)).empty()) << "what has gone does not count";
}

TEST(SegmentCache, TheOldOnesGo) {
  SegmentCache cache;
  EXPECT_FALSE(cache.oldest());
  cache.add(kind(2), 100, at(0));
  cache.add(kind(4), 200, at(10));
  cache.add(kind(2), 300, at(20));
  EXPECT_EQ(cache.oldest(), at(0));
  EXPECT_TRUE(cache.take_older(at(-1), any).empty());
  EXPECT_EQ(cache.take_older(at(10), any), (Addresses{100, 200}));
  EXPECT_EQ(cache.oldest(), at(20));
  EXPECT_TRUE(cache.take_older(at(20), [](Address) { return false; }).empty());
  EXPECT_EQ(cache.oldest(), at(20)) << "it was not usable";
}

}  // namespace
}  // namespace amem::shim
