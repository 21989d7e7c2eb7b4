#include "daemon/memory/block_map.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using sparse::kBlock;
using sparse::kGroup;
using Masks = std::vector<std::uint32_t>;

TEST(BlockMapTest, CountsWhatIsNotZeroInAnyPart) {
  BlockMap map(3 * kGroup);
  ASSERT_TRUE(map.add(Masks{0b1011, 0}));
  EXPECT_FALSE(map.complete());
  ASSERT_TRUE(map.add(Masks{0x80000001}));
  EXPECT_TRUE(map.complete());
  EXPECT_EQ(map.content(0, 3 * kGroup).blocks, 5U);
  EXPECT_EQ(map.content(0, 3 * kGroup).stored, 4096 + 5 * kBlock);
  EXPECT_EQ(map.content(0, kBlock).blocks, 1U);
  EXPECT_EQ(map.content(2 * kBlock, kBlock).blocks, 0U);
  EXPECT_EQ(map.content(3 * kBlock, kGroup).blocks, 1U) << "over a border of groups";
  EXPECT_EQ(map.content(kGroup, 2 * kGroup).blocks, 2U);
}

TEST(BlockMapTest, AShortLastBlockTakesItsOwnLength) {
  BlockMap map(kGroup + kBlock + 48);
  ASSERT_TRUE(map.add(Masks{1, 0b10}));
  EXPECT_EQ(map.content(0, map.size()).stored, 4096 + kBlock + 48);
  EXPECT_EQ(map.content(kGroup + kBlock, 48).stored, 4096 + 48U);
  EXPECT_EQ(map.content(0, kGroup).stored, 4096 + kBlock);
}

TEST(BlockMapTest, BlocksBehindTheEndCountForNothing) {
  BlockMap map(3 * kBlock);
  ASSERT_TRUE(map.add(Masks{0xffffffff}));
  EXPECT_EQ(map.content(0, 3 * kBlock).blocks, 3U);
  EXPECT_FALSE(map.add(Masks{0})) << "there is no such group";
}

TEST(MeasurementTest, OnlyWhoWasAskedTellsAndInOrder) {
  Measurement measured;
  measured.ask(7, 1, 2 * kGroup);
  measured.ask(8, 1, kGroup);
  EXPECT_FALSE(measured.told(2, 7, 0, Masks{0})) << "another rank";
  EXPECT_FALSE(measured.told(1, 9, 0, Masks{0})) << "another allocation";
  EXPECT_FALSE(measured.told(1, 7, 1, Masks{0})) << "not the next group";
  EXPECT_FALSE(measured.told(1, 7, 0, Masks{0, 0, 0})) << "too many";
  EXPECT_EQ(measured.blocks(7), nullptr);
  ASSERT_TRUE(measured.told(1, 7, 0, Masks{1}));
  EXPECT_FALSE(measured.told(1, 7, 0, Masks{1})) << "told before";
  EXPECT_EQ(measured.blocks(7), nullptr) << "half of it";
  EXPECT_EQ(measured.not_seen(), 3 * kGroup);
  ASSERT_TRUE(measured.told(1, 7, 1, Masks{0}));
  ASSERT_NE(measured.blocks(7), nullptr);
  EXPECT_EQ(measured.blocks(7)->content(0, 2 * kGroup).blocks, 1U);
  EXPECT_EQ(measured.not_seen(), kGroup);
}

}  // namespace
}  // namespace amem
