#include <gtest/gtest.h>

#include <vector>

#include "shim/copies/sparse_count.h"

namespace amem::shim {
namespace {

using namespace sparse;

TEST(Sparse, LayoutOfAPiece) {
  EXPECT_EQ(blocks(kBlock), 1U);
  EXPECT_EQ(blocks(kBlock + 1), 2U);
  EXPECT_EQ(groups(kGroup), 1U);
  EXPECT_EQ(groups(kGroup + 16), 2U);
  EXPECT_EQ(index_bytes(16), 4096U);
  EXPECT_EQ(index_bytes(512 * kGroup), 4096U);
  EXPECT_EQ(index_bytes(513 * kGroup), 8192U);
}

TEST(Sparse, OnlyWhatIsAlignedGoesToTheKernels) {
  EXPECT_TRUE(fits_kernels(0x1000, 0x20, 32));
  EXPECT_FALSE(fits_kernels(0x1008, 0x20, 32));
  EXPECT_FALSE(fits_kernels(0x1000, 0x28, 32));
  EXPECT_FALSE(fits_kernels(0x1000, 0x20, 40));
  EXPECT_FALSE(fits_kernels(0x1000, 0x20, 0));
}

TEST(Sparse, SlotsFollowEachOtherOverGroups) {
  std::vector<Entry> entries = {{0b1011, 99}, {0, 99}, {0x80000001, 99}};
  const Content content = count(entries, 3 * kGroup);
  EXPECT_EQ(entries[0].first, 0U);
  EXPECT_EQ(entries[1].first, 3U);
  EXPECT_EQ(entries[2].first, 3U);
  EXPECT_EQ(content.blocks, 5U);
  EXPECT_EQ(content.stored, 4096 + 5 * kBlock);
}

TEST(Sparse, WhatIsLeftOutCountsAsZero) {
  const auto after = [](std::uint64_t offset, std::uint64_t length, std::vector<Gap> gaps) {
    std::vector<Entry> entries(groups(length), {~0U, 0});
    leave_out(entries, offset, length, gaps);
    std::vector<std::uint32_t> masks;
    for (const Entry& entry : entries) masks.push_back(entry.mask);
    return masks;
  };
  using Masks = std::vector<std::uint32_t>;
  EXPECT_EQ(after(0, kGroup, {}), Masks{~0U});
  EXPECT_EQ(after(0, kGroup, {{kBlock, 2 * kBlock}}), Masks{~0b110U});
  EXPECT_EQ(after(0, kGroup, {{1, kBlock}}), Masks{~0U}) << "no block lies in it";
  EXPECT_EQ(after(0, kGroup, {{kBlock - 16, kBlock + 32}}), Masks{~0b10U});
  EXPECT_EQ(after(0, kGroup, {{0, kBlock}, {3 * kBlock, kBlock}}), Masks{~0b1001U});
  // A piece in the middle of the allocation, and one that the gap goes beyond.
  EXPECT_EQ(after(kGroup, kGroup, {{kGroup + kBlock, kBlock}}), Masks{~0b10U});
  EXPECT_EQ(after(kGroup, 2 * kGroup, {{0, 4 * kGroup}}), (Masks{0, 0}));
  EXPECT_EQ(after(kGroup, kGroup, {{0, kGroup}, {2 * kGroup, kGroup}}), Masks{~0U});
  // The last block is short.
  EXPECT_EQ(after(0, kBlock + 32, {{kBlock, 32}}), Masks{~0b10U});
  EXPECT_EQ(after(0, kBlock + 32, {{kBlock, 16}}), Masks{~0U});
}

TEST(Sparse, GroupsThatLieInGapsNeedNoLook) {
  using Runs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  const auto beside = [](std::uint64_t offset, std::uint64_t length, const std::vector<Gap>& gaps) {
    Runs runs;
    for (const GroupRun& run : groups_beside(offset, length, gaps))
      runs.emplace_back(run.first, run.count);
    return runs;
  };
  EXPECT_EQ(beside(0, 5 * kGroup, {}), (Runs{{0, 5}}));
  EXPECT_EQ(beside(0, 5 * kGroup, {{kGroup, kGroup}, {3 * kGroup, kGroup}}),
            (Runs{{0, 1}, {2, 1}, {4, 1}}));
  EXPECT_EQ(beside(0, 5 * kGroup, {{kGroup + 1, kGroup}}), (Runs{{0, 5}})) << "blocks are left";
  EXPECT_EQ(beside(0, 5 * kGroup, {{kGroup, kBlock}, {kGroup + kBlock, 2 * kGroup - kBlock}}),
            (Runs{{0, 1}, {3, 2}}));
  EXPECT_EQ(beside(0, 2 * kGroup, {{0, 2 * kGroup}}), Runs{});
  // A piece in the middle of its allocation, whose last group is short.
  EXPECT_EQ(beside(4 * kGroup, kGroup + 3 * kBlock, {{5 * kGroup, kGroup}}), (Runs{{0, 1}}));
  EXPECT_EQ(beside(4 * kGroup, kGroup + 3 * kBlock, {{4 * kGroup, kGroup}}), (Runs{{1, 1}}));
}

TEST(Sparse, AShortLastBlockTakesItsOwnLength) {
  const std::uint64_t length = kGroup + 2 * kBlock + 48;
  std::vector<Entry> entries = {{1, 0}, {0b101, 0}};
  EXPECT_EQ(count(entries, length).stored, 4096 + 2 * kBlock + 48);
  entries = {{1, 0}, {0b011, 0}};
  EXPECT_EQ(count(entries, length).stored, 4096 + 3 * kBlock) << "the last one is zero";
}

TEST(Sparse, BlocksBehindTheEndCountForNothing) {
  std::vector<Entry> entries = {{0xffffffff, 0}};
  const Content content = count(entries, 3 * kBlock);
  EXPECT_EQ(content.blocks, 3U);
  EXPECT_EQ(entries[0].mask, 0b111U);
}

TEST(Sparse, SixtyPercentIsTheBorderUnlessItIsWanted) {
  const std::uint64_t length = 100 * kBlock;
  const auto with = [](std::uint64_t blocks) { return Content{blocks, 4096 + blocks * kBlock}; };
  EXPECT_TRUE(save_sparse(with(0), length, false));
  EXPECT_TRUE(save_sparse(with(60), length, false));
  EXPECT_FALSE(save_sparse(with(61), length, false));
  EXPECT_TRUE(save_sparse(with(61), length, true));
  EXPECT_TRUE(save_sparse(with(99), length, true));
  EXPECT_FALSE(save_sparse(with(100), length, true)) << "it would be longer than the piece";
  EXPECT_FALSE(save_sparse(Content{0, 4096}, 4096, true)) << "nothing is won";
}

TEST(Sparse, ChecksumsDependOnPlaceAndAreNeverNone) {
  const std::uint64_t none[] = {0};
  EXPECT_EQ(checksum(none), 1U);
  const std::uint64_t two[] = {5, 8};
  EXPECT_EQ(checksum(two), 13U);
  EXPECT_NE(mix(7, 0), mix(7, 1));
  EXPECT_NE(mix(7, 0) + mix(8, 1), mix(8, 0) + mix(7, 1));
  EXPECT_NE(mix(0, 3), 0U);
}

}  // namespace
}  // namespace amem::shim
