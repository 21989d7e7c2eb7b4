#include "daemon/memory/packing.h"

#include <gtest/gtest.h>

#include <list>
#include <random>
#include <vector>

namespace amem {
namespace {

using sparse::kBlock;
using sparse::kGroup;

class PackingTest : public ::testing::Test {
 protected:
  /// A map of so many groups with these masks, the last of which goes on to the end.
  const BlockMap* map(std::uint64_t groups, std::vector<std::uint32_t> masks) {
    masks.resize(groups, masks.back());
    BlockMap& made = maps.emplace_back(groups * kGroup);
    EXPECT_TRUE(made.add(masks));
    return &made;
  }
  Packing pack(const std::vector<PackRequest>& requests) {
    SegmentOrder order(segments);
    for (std::uint32_t i = 0; i < segments; ++i) order[i] = i;
    return amem::pack(pool, requests, {order});
  }
  void add(std::uint64_t size) {
    pool.add_segment(size);
    ++segments;
  }
  /// What must be true of all space that was taken.
  void check(const TakenSpace& taken, const PackRequest& request) {
    ASSERT_EQ(taken.pieces.size(), taken.extents.size());
    std::uint64_t offset = 0;
    for (std::size_t i = 0; i < taken.pieces.size(); ++i) {
      const std::uint64_t length = taken.pieces[i].length;
      const std::uint64_t space = taken.extents[i].length;
      EXPECT_EQ(space % pool.chunk(), 0U);
      EXPECT_TRUE(space >= length || request.blocks->content(offset, length).stored <= space);
      EXPECT_EQ(taken.pieces[i].form, Form::kDense) << "the rank tells that";
      offset += length;
    }
    EXPECT_EQ(offset, request.size);
  }

  std::uint32_t segments = 0;
  std::list<BlockMap> maps;
  ExtentAllocator pool{kBlock};
};

TEST_F(PackingTest, ZerosTakeAnIndex) {
  add(4 * kGroup);
  const PackRequest request{100 * kGroup, 0, Form::kAuto, map(100, {0})};
  EXPECT_EQ(packed_size(request, kBlock), kBlock);
  const Packing packing = pack({request});
  ASSERT_EQ(packing.missing, 0U);
  check(packing.spaces[0], request);
  EXPECT_EQ(packing.spaces[0].extents, (Extents{{0, 0, kBlock}}));
  EXPECT_EQ(pool.used(), kBlock);
}

TEST_F(PackingTest, TheFormDecidesWhatCounts) {
  add(64 * kGroup);
  const auto size = [&](Form form, const BlockMap* blocks) {
    return packed_size({8 * kGroup, 0, form, blocks}, kBlock);
  };
  const BlockMap* quarter = map(8, {0xff});
  const BlockMap* most = map(8, {0xffffff});
  EXPECT_EQ(size(Form::kAuto, quarter), 65 * kBlock);
  EXPECT_EQ(size(Form::kDense, quarter), 8 * kGroup);
  EXPECT_EQ(size(Form::kAuto, nullptr), 8 * kGroup) << "nobody has looked";
  EXPECT_EQ(size(Form::kAuto, most), 8 * kGroup) << "more than 60 % are not zero";
  EXPECT_EQ(size(Form::kSparse, most), (8 * 24 + 1) * kBlock);
  EXPECT_EQ(size(Form::kSparse, map(8, {0xffffffff})), 8 * kGroup) << "no shorter";
}

TEST_F(PackingTest, TheLastByteHasItsPlaceToo) {
  for (int i = 0; i < 2; ++i) add(kGroup);
  const PackRequest request{kGroup + 1, 0, Form::kAuto, nullptr};
  const Packing packing = pack({request});
  ASSERT_EQ(packing.missing, 0U);
  check(packing.spaces[0], request);
}

TEST_F(PackingTest, WhatFindsNoSingleRunLiesInPieces) {
  for (int i = 0; i < 6; ++i) add(kGroup);
  // Zeros, then data, then zeros with a block in each group.
  const PackRequest request{20 * kGroup, 0, Form::kAuto, map(20, {0, 0, 0, ~0U, ~0U, 1})};
  const Packing packing = pack({request});
  ASSERT_EQ(packing.missing, 0U);
  check(packing.spaces[0], request);
  EXPECT_GT(packing.spaces[0].extents.size(), 2U);
  EXPECT_LT(pool.used(), 5 * kGroup);
}

TEST_F(PackingTest, AllOrNothingAndItSaysWhatIsMissing) {
  add(3 * kGroup);
  const PackRequest data{2 * kGroup, 0, Form::kAuto, map(2, {~0U})};
  const PackRequest zeros{9 * kGroup, 0, Form::kAuto, map(9, {0})};
  const Packing packing = pack({data, data, zeros, data});
  EXPECT_EQ(packing.missing, 3 * kGroup + kBlock);
  EXPECT_TRUE(packing.spaces.empty());
  EXPECT_EQ(pool.used(), 0U);
  add(4 * kGroup);
  EXPECT_EQ(pack({data, data, zeros, data}).missing, 0U) << "as it said";
}

TEST_F(PackingTest, NothingIsThereToTake) {
  const PackRequest zeros{kGroup, 0, Form::kAuto, map(1, {0})};
  EXPECT_EQ(pack({zeros}).missing, kBlock);
}

TEST_F(PackingTest, AnyPoolAnyContent) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    pool = ExtentAllocator(kBlock << random() % 6);
    segments = 0;
    for (std::uint32_t i = 0; i < 1 + random() % 5; ++i) add((1 + random() % 6) * kGroup);
    // Full of holes.
    std::vector<ExtentAllocator::SpaceWanted> pieces(random() % 40, {pool.chunk(), 0});
    if (pieces.size() * pool.chunk() > pool.available()) pieces.clear();
    const std::vector<Extents> others = pool.take(pieces).value();
    for (std::size_t i = 0; i < others.size(); i += 2) ASSERT_TRUE(pool.give_back(others[i]).ok());
    std::vector<PackRequest> requests;
    for (std::uint32_t i = 0; i < 1 + random() % 4; ++i) {
      std::vector<std::uint32_t> masks(1 + random() % 12);
      for (std::uint32_t& mask : masks)
        mask = random() % 3 == 0 ? static_cast<std::uint32_t>(random()) : 0;
      requests.push_back({masks.size() * kGroup, 0, kForms[random() % kForms.size()].form,
                          map(masks.size(), masks)});
    }
    const std::uint64_t before = pool.used();
    const std::uint64_t free = pool.available();
    const Packing packing = pack(requests);
    if (packing.missing > 0) {
      EXPECT_EQ(pool.used(), before);
      continue;
    }
    std::uint64_t taken = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      check(packing.spaces[i], requests[i]);
      for (const Extent& extent : packing.spaces[i].extents) taken += extent.length;
    }
    EXPECT_EQ(pool.available(), free - taken);
    for (const TakenSpace& space : packing.spaces) ASSERT_TRUE(pool.give_back(space.extents).ok());
    EXPECT_EQ(pool.used(), before);
  }
}

}  // namespace
}  // namespace amem
