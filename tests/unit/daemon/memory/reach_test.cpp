#include "daemon/memory/reach.h"

#include <gtest/gtest.h>

#include <set>

#include "common/protocol.h"

namespace amem {
namespace {

constexpr std::uint64_t kSize = 100;
constexpr std::uint64_t kAll = 4 * kSize;  // what two_nodes() has
using Segments = std::vector<std::uint32_t>;

/// Segments 0 and 1 on node 0, 2 and 3 on node 1.
Reach two_nodes() {
  Reach reach;
  for (int node : {0, 0, 1, 1}) reach.add_segment(kSize, node);
  return reach;
}

TEST(Reach, GrowsWithWhatThereIsToSave) {
  Reach reach = two_nodes();
  EXPECT_EQ(reach.extend(1, kAll), Segments());
  reach.add_need(1, 0, 1);
  EXPECT_EQ(reach.extend(1, kAll), Segments{0});
  reach.add_need(1, 0, kSize - 1);
  EXPECT_EQ(reach.extend(1, kAll), Segments()) << "one segment holds it all";
  reach.add_need(1, 0, 1);
  EXPECT_EQ(reach.extend(1, kAll), Segments{1});
  EXPECT_EQ(reach.extend(1, kAll), Segments());
}

TEST(Reach, WhatIsFreedMakesSpaceForWhatComes) {
  Reach reach = two_nodes();
  for (int i = 0; i < 10; ++i) {
    reach.add_need(1, 1, kSize);
    EXPECT_EQ(reach.extend(1, kAll), i == 0 ? Segments{2} : Segments());
    reach.release(1, 1, kSize);
  }
  reach.release(1, 1, kSize);
  reach.add_need(1, 1, kSize);
  EXPECT_EQ(reach.extend(1, kAll), Segments()) << "never less than nothing";
}

TEST(Reach, RanksGetSegmentsOfTheirOwnOnTheirNodeFirst) {
  Reach reach = two_nodes();
  for (const RankId rank : {1U, 2U, 3U}) reach.add_need(rank, 1, kSize);
  EXPECT_EQ(reach.extend(1, kAll), Segments{2});
  EXPECT_EQ(reach.extend(2, kAll), Segments{3});
  EXPECT_EQ(reach.extend(3, kAll), Segments{2}) << "shared, but of the right node";
  reach.add_need(3, 1, 2 * kSize);
  EXPECT_EQ(reach.extend(3, kAll), (Segments{3, 0}));
}

TEST(Reach, WhatALeavingRankHadIsFree) {
  Reach reach = two_nodes();
  reach.add_need(1, 0, kSize);
  EXPECT_EQ(reach.extend(1, kAll), Segments{0});
  reach.forget(1);
  reach.forget(7);
  reach.add_need(2, 0, kSize);
  EXPECT_EQ(reach.extend(2, kAll), Segments{0});
}

TEST(Reach, APoolThatGrowsServesWhoWaitedForIt) {
  Reach reach;
  reach.add_need(1, 0, 3 * kSize);
  EXPECT_EQ(reach.extend(1, kAll), Segments());
  reach.add_segment(kSize, 0);
  EXPECT_EQ(reach.extend(1, kAll), Segments{0});
  EXPECT_EQ(reach.extend(1, kAll), Segments()) << "there is no more";
  reach.add_segment(kSize, 1);
  reach.add_segment(kSize, 0);
  reach.add_segment(kSize, 0);
  EXPECT_EQ(reach.extend(1, kAll), (Segments{2, 3}));
}

TEST(Reach, RanksOfAGroupShareAPoolThatIsSmallerThanWhatTheyHave) {
  Reach reach = two_nodes();  // of four segments
  for (const RankId rank : {1U, 2U, 3U, 4U}) reach.join(rank, 7);
  reach.join(5, 8);
  std::set<std::uint32_t> reached;
  for (int i = 0; i < 8; ++i) {
    for (const RankId rank : {1U, 2U, 3U, 4U}) reach.add_need(rank, rank < 3 ? 0 : 1, kSize);
    for (const RankId rank : {1U, 2U, 3U, 4U}) {
      const Segments added = reach.extend(rank, kAll);
      EXPECT_EQ(added.size(), i == 0 ? 1U : 0U) << "rank " << rank << ", " << i;
      reached.insert(added.begin(), added.end());
    }
  }
  EXPECT_EQ(reached.size(), 4U);
  reach.add_need(5, 0, 2 * kSize);
  EXPECT_EQ(reach.extend(5, kAll).size(), 2U) << "another group has space for all that it has";
  for (const RankId rank : {2U, 3U, 4U}) reach.forget(rank);
  EXPECT_EQ(reach.extend(1, kAll).size(), 3U) << "nobody is left to share with";
}

TEST(Reach, ARankOnTwoNodesGetsSpaceOnBoth) {
  Reach reach = two_nodes();
  reach.add_need(1, 0, 1);
  reach.add_need(1, 1, kSize + 1);
  EXPECT_EQ(reach.extend(1, kAll), (Segments{0, 2, 3}));
}

TEST(Reach, ASegmentOutsideItsPlaceIsToldOnce) {
  Reach reach = two_nodes();
  reach.add_need(1, 0, 1);
  EXPECT_EQ(reach.extend(1, kAll), Segments{0});
  EXPECT_FALSE(reach.add(1, 0));
  EXPECT_TRUE(reach.add(1, 3));
  EXPECT_FALSE(reach.add(1, 3));
  EXPECT_TRUE(reach.add(2, 3)) << "of a rank without a place";
  EXPECT_FALSE(reach.add(1, kZeroSegment));
}

TEST(Reach, ARankInDoubtIsToldAgain) {
  Reach reach = two_nodes();
  reach.add_need(1, 0, kSize + 1);
  EXPECT_EQ(reach.extend(1, kAll), (Segments{0, 1}));
  reach.doubt(1);
  EXPECT_EQ(reach.extend(1, kAll), Segments()) << "it needs no more than before";
  EXPECT_EQ(reach.order(1, 0), (Segments{0, 1, 2, 3}));
  EXPECT_TRUE(reach.add(1, 1));
  EXPECT_FALSE(reach.add(1, 1));
  EXPECT_TRUE(reach.add(1, 0));
  reach.doubt(1);
  reach.doubt(7);
  reach.forget(1);
  reach.add_need(2, 0, 1);
  EXPECT_EQ(reach.extend(2, kAll), Segments{0}) << "nobody is counted there any more";
}

TEST(Reach, BytesGoWhereTheRankReachesThenToItsNode) {
  Reach reach = two_nodes();
  EXPECT_EQ(reach.order(1, 1), (Segments{2, 3, 0, 1}));
  EXPECT_EQ(reach.order(1, -1), (Segments{0, 1, 2, 3}));
  reach.add(1, 1);
  reach.add(1, 3);
  EXPECT_EQ(reach.order(1, 1), (Segments{3, 1, 2, 0}));
}

TEST(Reach, WhatIsWithdrawnIsGivenToNobodyAndMayBeSentAgain) {
  Reach reach = two_nodes();
  reach.add_need(1, 0, 2 * kSize);
  EXPECT_EQ(reach.extend(1, kAll), (Segments{0, 1}));
  reach.withdraw(1);
  reach.add_need(2, 0, 2 * kSize);
  EXPECT_EQ(reach.extend(2, kAll), (Segments{0, 2})) << "not 1, though it is near and nobody's";
  reach.restore(1, kSize, 0);
  EXPECT_TRUE(reach.reaches(1, 1));
  EXPECT_TRUE(reach.add(1, 1)) << "it may lack what it was asked for";
  EXPECT_FALSE(reach.add(1, 1));
}

TEST(Reach, WhoLosesASegmentGetsAnother) {
  Reach reach = two_nodes();
  reach.add_need(1, 0, 2 * kSize);
  EXPECT_EQ(reach.extend(1, kAll), (Segments{0, 1}));
  reach.withdraw(1);
  reach.left(1, kSize);
  EXPECT_FALSE(reach.reaches(1, 1));
  EXPECT_EQ(reach.extend(1, kAll), Segments{2});
  reach.restore(1, kSize, 0);
  reach.add_need(1, 0, kSize);
  EXPECT_EQ(reach.extend(1, kAll), Segments{1}) << "a new one of that number";
}

}  // namespace
}  // namespace amem
