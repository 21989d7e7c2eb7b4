#include <gtest/gtest.h>
#include <time.h>

#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "shim/blocks/small_blocks.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

constexpr Address kBase = 0x7f00'0000'0000;
constexpr std::uint64_t kChunk = SmallBlocks::kChunk;
const SmallBlocks::Pool kPool{0, {"heap", {}}};

TEST(ShimSmallBlocks, NothingFitsWithoutAChunk) {
  SmallBlocks blocks;
  EXPECT_FALSE(blocks.take(kPool, 1).has_value());
}

TEST(ShimSmallBlocks, SpaceThatIsNotReusableIsGoneUntilItsChunkIs) {
  SmallBlocks blocks;
  blocks.add(kPool, kBase, kChunk);
  const auto first = blocks.take(kPool, 4096);
  const auto second = blocks.take(kPool, 4096);
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(blocks.give(*first, false).has_value());
  EXPECT_EQ(blocks.take(kPool, 4096), *second + 4096) << "not where the first was";
  EXPECT_FALSE(blocks.give(*second).has_value());
  EXPECT_EQ(blocks.give(*second + 4096), kBase) << "empty all the same";
}

TEST(ShimSmallBlocks, FirstFitAlignedUntilTheChunkIsFull) {
  SmallBlocks blocks;
  blocks.add(kPool, kBase, kChunk);
  EXPECT_EQ(blocks.take(kPool, 1), kBase);
  EXPECT_EQ(blocks.take(kPool, 512), kBase + 512);
  EXPECT_EQ(blocks.take(kPool, 513), kBase + 1024);
  EXPECT_EQ(blocks.take(kPool, SmallBlocks::kLargest), kBase + 2048);
  EXPECT_FALSE(blocks.take(kPool, SmallBlocks::kLargest).has_value());
  EXPECT_TRUE(blocks.take(kPool, kChunk / 2 - 2048).has_value());
  EXPECT_FALSE(blocks.take(kPool, 1).has_value());
  // A gap in the beginning is used before a later chunk.
  blocks.add(kPool, kBase + kChunk, kChunk);
  EXPECT_FALSE(blocks.give(kBase + 1024).has_value());
  EXPECT_EQ(blocks.take(kPool, 1024), kBase + 1024);
  EXPECT_EQ(blocks.take(kPool, 1024), kBase + kChunk);
}

TEST(ShimSmallBlocks, TwoOfTheLargestShareAChunk) {
  SmallBlocks blocks;
  blocks.add(kPool, kBase, kChunk);
  EXPECT_TRUE(blocks.take(kPool, SmallBlocks::kLargest).has_value());
  EXPECT_TRUE(blocks.take(kPool, SmallBlocks::kLargest).has_value());
}

TEST(ShimSmallBlocks, GapsThatTouchBecomeOne) {
  for (const std::vector<int>& order :
       {std::vector<int>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    SmallBlocks blocks;
    blocks.add(kPool, kBase, kChunk);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(blocks.take(kPool, kChunk / 4).has_value());
    for (const int i : order)
      EXPECT_FALSE(blocks.give(kBase + static_cast<std::uint64_t>(i) * kChunk / 4).has_value());
    EXPECT_EQ(blocks.take(kPool, kChunk / 2), kBase);
    EXPECT_EQ(blocks.take(kPool, kChunk / 4), kBase + kChunk / 2);
  }
}

TEST(ShimSmallBlocks, AnEmptyChunkIsHandedBack) {
  SmallBlocks blocks;
  blocks.add(kPool, kBase, kChunk);
  ASSERT_TRUE(blocks.take(kPool, 100).has_value());
  ASSERT_TRUE(blocks.take(kPool, 100).has_value());
  EXPECT_FALSE(blocks.give(kBase).has_value());
  EXPECT_EQ(blocks.give(kBase + 512), kBase);
  EXPECT_FALSE(blocks.take(kPool, 1).has_value());
}

TEST(ShimSmallBlocks, AChunkThatIsNotUsableIsPassedOver) {
  SmallBlocks blocks;
  blocks.add(kPool, kBase, kChunk);
  blocks.add(kPool, kBase + kChunk, kChunk);
  const auto second = [](Address chunk) { return chunk != kBase; };
  EXPECT_EQ(blocks.take(kPool, 1, second), kBase + kChunk);
  EXPECT_EQ(blocks.take(kPool, 1), kBase);
  EXPECT_FALSE(blocks.take(kPool, 1, [](Address) { return false; }).has_value());
}

TEST(ShimSmallBlocks, DevicesTagsAndPoliciesDoNotMix) {
  SmallBlocks blocks;
  blocks.add(kPool, kBase, kChunk);
  EXPECT_FALSE(blocks.take({1, kPool.label}, 1).has_value());
  EXPECT_FALSE(blocks.take({0, {"weights", {}}}, 1).has_value());
  EXPECT_FALSE(
      blocks.take({0, {"heap", amem_v1_RegionPolicy_REGION_POLICY_DISCARD}}, 1).has_value());
  EXPECT_TRUE(blocks.take(kPool, 1).has_value());
}

TEST(ShimSmallBlocks, TheFirstChunkThatFitsInTheOrderInWhichTheyCame) {
  SmallBlocks blocks;
  // Each has one gap, of 1, 2, 3, 4, and then 1 KiB.
  const std::vector<std::uint64_t> gaps = {1, 2, 3, 4, 1};
  std::vector<Address> chunks;
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    chunks.push_back(kBase + (gaps.size() - i) * kChunk);  // the later ones at lower addresses
    blocks.add(kPool, chunks[i], kChunk);
    ASSERT_EQ(blocks.take(kPool, kChunk - gaps[i] * 1024), chunks[i]);
  }
  const auto gap = [&](std::size_t i) { return chunks[i] + kChunk - gaps[i] * 1024; };
  EXPECT_EQ(blocks.take(kPool, 3072, [&](Address chunk) { return chunk != chunks[2]; }), gap(3));
  EXPECT_EQ(blocks.take(kPool, 1536), gap(1));
  EXPECT_EQ(blocks.take(kPool, 1024), gap(0));
  EXPECT_EQ(blocks.take(kPool, 2048), gap(2));
  EXPECT_EQ(blocks.take(kPool, 1024), gap(2) + 2048);
  EXPECT_EQ(blocks.take(kPool, 1024), gap(3) + 3072);
  EXPECT_EQ(blocks.take(kPool, 1024), gap(4));
  EXPECT_FALSE(blocks.take(kPool, 1024).has_value());
  EXPECT_EQ(blocks.take(kPool, 512), gap(1) + 1536);
  // The place of one that has gone is the next one's.
  EXPECT_FALSE(blocks.give(gap(0)).has_value());
  EXPECT_EQ(blocks.give(chunks[0]), chunks[0]);
  EXPECT_FALSE(blocks.give(gap(4)).has_value());
  blocks.add(kPool, kBase, kChunk);
  EXPECT_EQ(blocks.take(kPool, 1024), kBase);
}

TEST(ShimSmallBlocks, WhereNoBlockIs) {
  SmallBlocks blocks;
  const auto unused = [&](std::uint64_t least) {
    std::vector<std::vector<std::uint64_t>> list;  // chunk, offset, size
    for (const auto& [chunk, gaps] : blocks.unused(least))
      for (const Gap& gap : gaps)
        list.push_back({(chunk - kBase) / kChunk, gap.offset / kKiB, gap.size / kKiB});
    return list;
  };
  using List = std::vector<std::vector<std::uint64_t>>;
  EXPECT_EQ(unused(1), List{});
  blocks.add(kPool, kBase, kChunk);
  blocks.add(kPool, kBase + kChunk, kChunk);
  EXPECT_EQ(unused(1), (List{{0, 0, 2048}, {1, 0, 2048}}));
  std::vector<Address> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(*blocks.take(kPool, 512 * kKiB));
  EXPECT_EQ(unused(1), (List{{1, 0, 2048}}));
  blocks.give(taken[1]);
  EXPECT_EQ(unused(1), (List{{0, 512, 512}, {1, 0, 2048}}));
  blocks.give(taken[2], false);
  EXPECT_EQ(unused(1), (List{{0, 512, 1024}, {1, 0, 2048}})) << "not used again, and nothing in it";
  ASSERT_EQ(blocks.take(kPool, 512), taken[1]);
  EXPECT_EQ(unused(1024 * kKiB), (List{{1, 0, 2048}})) << "the other gap is smaller";
  blocks.give(taken[3]);
  EXPECT_EQ(unused(1024 * kKiB), (List{{0, 512, 1535}, {1, 0, 2048}}));
}

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

TEST(ShimSmallBlocks, ManyChunksCostLittle) {
  constexpr int kBlocks = 20'000;
  constexpr std::uint64_t kSize = 700 << 10;  // two in a chunk, and a gap that is too small
  SmallBlocks blocks;
  std::vector<Address> live;
  Address next = kBase;
  const double began = cpu_ms();
  while (live.size() < kBlocks) {
    std::optional<Address> at = blocks.take(kPool, kSize);
    if (at) {
      live.push_back(*at);
    } else {
      blocks.add(kPool, next, kChunk);
      next += kChunk;
    }
  }
  const double taken = cpu_ms();
  int chunks = 0;
  for (const Address at : live) chunks += blocks.give(at).has_value() ? 1 : 0;
  const double given = cpu_ms();
  std::printf("%d blocks of %d KiB: taken in %.1f ms, given back in %.1f ms\n", kBlocks,
              static_cast<int>(kSize >> 10U), taken - began, given - taken);
  EXPECT_EQ(chunks, kBlocks / 2);
  // 50 ms on any machine that is not sanitized; seconds where each looks at every chunk.
  EXPECT_LT(given - began, 1000);
}

TEST(ShimSmallBlocks, AnyOrderOfTakingAndGivingLeavesNothing) {
  SmallBlocks blocks;
  std::mt19937 random(7);
  std::map<Address, std::uint64_t> live;
  std::size_t chunks = 0;
  Address next = kBase;
  const auto give = [&](std::map<Address, std::uint64_t>::iterator it) {
    if (blocks.give(it->first)) --chunks;
    live.erase(it);
  };
  for (int i = 0; i < 20000; ++i) {
    if (live.size() > 300 || (random() % 2 == 0 && !live.empty())) {
      give(std::next(live.begin(), static_cast<long>(random() % live.size())));
      continue;
    }
    const std::uint64_t size = 1 + random() % (random() % 8 == 0 ? SmallBlocks::kLargest : 4096);
    auto at = blocks.take(kPool, size);
    if (!at) {
      blocks.add(kPool, next, kChunk);
      next += 2 * kChunk;
      ++chunks;
      at = blocks.take(kPool, size);
    }
    ASSERT_TRUE(at.has_value());
    EXPECT_EQ(*at % SmallBlocks::kAlignment, 0U);
    const auto after = live.lower_bound(*at);
    const bool clear_of_next = after == live.end() || *at + size <= after->first;
    const bool clear_of_last =
        after == live.begin() || std::prev(after)->first + std::prev(after)->second <= *at;
    EXPECT_TRUE(clear_of_next && clear_of_last);
    live.emplace(*at, size);
  }
  while (!live.empty()) give(live.begin());
  EXPECT_EQ(chunks, 0U);
}

}  // namespace
}  // namespace amem::shim
