#include "daemon/memory/extents.h"

#include <gtest/gtest.h>

#include <random>

namespace amem {
namespace {

constexpr std::uint64_t kChunk = 1024;

std::uint64_t length(const Extents& extents) {
  std::uint64_t sum = 0;
  for (const Extent& e : extents) sum += e.length;
  return sum;
}

Extents take_one(ExtentAllocator& pool, std::uint64_t size,
                 const std::vector<SegmentOrder>& orders = {}) {
  auto taken = pool.take({{size}}, orders);
  EXPECT_TRUE(taken.ok()) << taken.status().text();
  return taken.ok() ? taken.value().front() : Extents();
}

TEST(Extents, SizesAreRoundedUpToChunks) {
  ExtentAllocator pool(kChunk);
  EXPECT_EQ(pool.add_segment(10 * kChunk), 0U);
  EXPECT_EQ(length(take_one(pool, 1)), kChunk);
  EXPECT_EQ(length(take_one(pool, kChunk)), kChunk);
  EXPECT_EQ(length(take_one(pool, kChunk + 1)), 2 * kChunk);
  EXPECT_EQ(pool.used(), 4 * kChunk);
  EXPECT_EQ(pool.available(), 6 * kChunk);
}

TEST(Extents, AnUnevenSegmentEndIsNotUsed) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(2 * kChunk + 100);
  EXPECT_EQ(pool.total(), 2 * kChunk);
  EXPECT_FALSE(pool.take({{3 * kChunk}}).ok());
}

TEST(Extents, ABatchIsAllOrNothing) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(4 * kChunk);
  auto taken = pool.take({{2 * kChunk}, {3 * kChunk}});
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.status().code(), Code::kResourceExhausted);
  EXPECT_NE(taken.status().text().find("5 KiB are needed"), std::string::npos);
  EXPECT_NE(taken.status().text().find("4 KiB of 4 KiB free"), std::string::npos);
  EXPECT_EQ(pool.used(), 0U);
  EXPECT_TRUE(pool.take({{2 * kChunk}, {2 * kChunk}}).ok());
}

TEST(Extents, NoPoolAtAll) {
  ExtentAllocator pool(kChunk);
  EXPECT_FALSE(pool.take({{1}}).ok());
  EXPECT_TRUE(pool.take({}).ok());
}

TEST(Extents, SpansSegmentsAndFragments) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(2 * kChunk);
  pool.add_segment(2 * kChunk);
  const Extents all = take_one(pool, 4 * kChunk);
  EXPECT_EQ(all, (Extents{{0, 0, 2 * kChunk}, {1, 0, 2 * kChunk}}));
  ASSERT_TRUE(pool.give_back({{0, kChunk, kChunk}, {1, 0, kChunk}}).ok());
  EXPECT_EQ(take_one(pool, 2 * kChunk), (Extents{{0, kChunk, kChunk}, {1, 0, kChunk}}));
}

TEST(Extents, OnePieceIsPreferredToSeveral) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(8 * kChunk);
  take_one(pool, 8 * kChunk);
  ASSERT_TRUE(pool.give_back({{0, 0, kChunk}, {0, 4 * kChunk, 3 * kChunk}}).ok());
  EXPECT_EQ(take_one(pool, 2 * kChunk), (Extents{{0, 4 * kChunk, 2 * kChunk}}));
}

TEST(Extents, FreeNeighboursCoalesce) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(3 * kChunk);
  const Extents a = take_one(pool, kChunk);
  const Extents b = take_one(pool, kChunk);
  const Extents c = take_one(pool, kChunk);
  ASSERT_TRUE(pool.give_back(a).ok());
  ASSERT_TRUE(pool.give_back(c).ok());
  ASSERT_TRUE(pool.give_back(b).ok());
  EXPECT_EQ(take_one(pool, 3 * kChunk), (Extents{{0, 0, 3 * kChunk}}));
}

TEST(Extents, DoubleFreeIsDetectedAndChangesNothing) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(4 * kChunk);
  const Extents a = take_one(pool, 2 * kChunk);
  const Extents b = take_one(pool, kChunk);
  ASSERT_TRUE(pool.give_back(a).ok());
  EXPECT_EQ(pool.give_back(a).code(), Code::kInternal);
  EXPECT_FALSE(pool.give_back({b.front(), a.front()}).ok());
  EXPECT_FALSE(pool.give_back({b.front(), b.front()}).ok());
  EXPECT_FALSE(pool.give_back({{0, 3 * kChunk, kChunk}}).ok()) << "never handed out";
  EXPECT_EQ(pool.used(), kChunk);
  EXPECT_TRUE(pool.give_back(b).ok());
  EXPECT_EQ(pool.used(), 0U);
}

TEST(Extents, NonsenseIsRefused) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(4 * kChunk);
  take_one(pool, 4 * kChunk);
  EXPECT_FALSE(pool.give_back({{7, 0, kChunk}}).ok());
  EXPECT_FALSE(pool.give_back({{0, 1, kChunk}}).ok());
  EXPECT_FALSE(pool.give_back({{0, 0, 0}}).ok());
  EXPECT_FALSE(pool.give_back({{0, 0, kChunk / 2}}).ok());
  EXPECT_FALSE(pool.give_back({{0, 3 * kChunk, 2 * kChunk}}).ok());
  EXPECT_FALSE(pool.give_back({{0, kChunk, ~std::uint64_t{0} / kChunk * kChunk}}).ok());
  EXPECT_EQ(pool.available(), 0U);
}

TEST(Extents, WhatARecordHoldsIsTakenAgainWholeOrNotAtAll) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(4 * kChunk);
  for (const Extent& bad : {Extent{7, 0, kChunk}, Extent{0, 1, kChunk}, Extent{0, 0, 0},
                            Extent{0, 0, kChunk / 2}, Extent{0, 3 * kChunk, 2 * kChunk}}) {
    const Status status = pool.take_again({{0, kChunk, kChunk}, bad});
    EXPECT_EQ(status.code(), Code::kDataLoss) << status.text();
    EXPECT_NE(status.text().find("segment " + std::to_string(bad.segment)), std::string::npos)
        << status.text();
    EXPECT_EQ(pool.used(), 0U) << "the good extent is free again";
  }
  EXPECT_TRUE(pool.take_again({{0, kChunk, kChunk}}).ok());
  EXPECT_FALSE(pool.take_again({{0, 0, 2 * kChunk}}).ok()) << "a part of it is in use";
  EXPECT_EQ(pool.used(), kChunk);
}

TEST(Extents, SegmentsAreUsedInTheOrderAskedFor) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(2 * kChunk);
  pool.add_segment(2 * kChunk);
  const std::vector<SegmentOrder> backwards = {{1, 0}};
  EXPECT_EQ(take_one(pool, kChunk, backwards), (Extents{{1, 0, kChunk}}));
  EXPECT_EQ(take_one(pool, 3 * kChunk, backwards),
            (Extents{{1, kChunk, kChunk}, {0, 0, 2 * kChunk}}));
}

TEST(Extents, RequestsOfOneBatchHaveTheirOwnOrders) {
  ExtentAllocator pool(kChunk);
  for (int i = 0; i < 3; ++i) pool.add_segment(2 * kChunk);
  auto taken = pool.take({{kChunk, 0}, {kChunk, 1}, {2 * kChunk, 0}, {2 * kChunk, 1}},
                         {{0, 1, 2}, {2, 1, 0}});
  ASSERT_TRUE(taken.ok());
  const std::vector<Extents> expected = {{{0, 0, kChunk}},
                                         {{2, 0, kChunk}},
                                         {{0, kChunk, kChunk}, {1, 0, kChunk}},
                                         {{2, kChunk, kChunk}, {1, kChunk, kChunk}}};
  EXPECT_EQ(taken.value(), expected);
  EXPECT_EQ(pool.available(), 0U);
}

TEST(Extents, ARunIsFoundAndItsBeginningTaken) {
  ExtentAllocator pool(kChunk);
  pool.add_segment(8 * kChunk);
  pool.add_segment(2 * kChunk);
  take_one(pool, 8 * kChunk);
  const SegmentOrder order = {0, 1};
  EXPECT_EQ(pool.find_run(order, kChunk), (Extent{1, 0, 2 * kChunk})) << "the first is full";
  ASSERT_TRUE(pool.give_back({{0, 0, kChunk}, {0, 2 * kChunk, 3 * kChunk}}).ok());
  EXPECT_EQ(pool.find_run(order, 2 * kChunk), (Extent{0, 2 * kChunk, 3 * kChunk}));
  EXPECT_EQ(pool.find_run(order, 5 * kChunk), (Extent{0, 2 * kChunk, 3 * kChunk})) << "the longest";
  pool.take_run({0, 2 * kChunk, 2 * kChunk});
  EXPECT_EQ(pool.available(), 4 * kChunk);
  EXPECT_EQ(pool.find_run(order, 5 * kChunk), (Extent{0, 0, kChunk}));
  pool.take_run({0, 0, kChunk});
  pool.take_run({0, 4 * kChunk, kChunk});
  pool.take_run({1, 0, 2 * kChunk});
  EXPECT_EQ(pool.find_run(order, kChunk), std::nullopt);
  ASSERT_TRUE(pool.give_back({{0, 0, 8 * kChunk}, {1, 0, 2 * kChunk}}).ok());
}

TEST(Extents, RandomUseNeverHandsOutAChunkTwice) {
  ExtentAllocator pool(kChunk);
  std::mt19937 random(1);
  std::vector<std::vector<bool>> used;
  std::vector<Extents> live;
  for (int i = 0; i < 20000; ++i) {
    if (used.size() < 4 && i % 1000 == 0) {
      pool.add_segment(64 * kChunk);
      used.emplace_back(64, false);
    }
    if (random() % 2 == 0) {
      auto taken = pool.take({{1 + random() % (20 * kChunk)}});
      if (!taken.ok()) continue;
      for (const Extent& e : taken.value().front())
        for (std::uint64_t c = e.offset / kChunk; c < (e.offset + e.length) / kChunk; ++c) {
          ASSERT_FALSE(used[e.segment][c]);
          used[e.segment][c] = true;
        }
      live.push_back(taken.value().front());
    } else if (!live.empty()) {
      const std::size_t pick = random() % live.size();
      ASSERT_TRUE(pool.give_back(live[pick]).ok());
      for (const Extent& e : live[pick])
        for (std::uint64_t c = e.offset / kChunk; c < (e.offset + e.length) / kChunk; ++c)
          used[e.segment][c] = false;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(pick));
    }
  }
  for (const Extents& extents : live) ASSERT_TRUE(pool.give_back(extents).ok());
  EXPECT_EQ(pool.used(), 0U);
  EXPECT_EQ(take_one(pool, 4 * 64 * kChunk).size(), 4U) << "everything coalesced";
}

}  // namespace
}  // namespace amem
