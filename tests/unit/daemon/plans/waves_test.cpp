#include "daemon/plans/waves.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using Ids = std::vector<AllocationId>;
const auto kAll = [](AllocationId) { return true; };

TEST(WavesTest, EachKeeperGoesItsOwnWayInOrder) {
  Waves waves({{1, 7, 60}, {2, 8, 100}, {3, 7, 40}, {4, 7, 1}, {5, 8, 10}}, 100);
  EXPECT_EQ(waves.next(kAll), (Ids{1, 3, 2}));
  EXPECT_FALSE(waves.done());
  EXPECT_EQ(waves.next(kAll), (Ids{4, 5}));
  EXPECT_TRUE(waves.done());
  EXPECT_TRUE(waves.next(kAll).empty());
}

TEST(WavesTest, WhatIsLargerThanAWaveIsOneByItself) {
  Waves waves({{1, 7, 500}, {2, 7, 1}, {3, 7, 500}}, 100);
  EXPECT_EQ(waves.next(kAll), Ids{1});
  EXPECT_EQ(waves.next(kAll), Ids{2});
  EXPECT_EQ(waves.next(kAll), Ids{3});
  EXPECT_TRUE(waves.done());
}

TEST(WavesTest, WhatCannotLeaveTakesNoSpace) {
  Waves waves({{1, 7, 50}, {2, 7, 50}, {3, 7, 50}, {4, 7, 50}, {5, 9, 50}}, 100);
  EXPECT_EQ(waves.next([](AllocationId id) { return id != 1 && id != 5; }), (Ids{2, 3}));
  EXPECT_EQ(waves.next(kAll), Ids{4}) << "it is not asked again";
  EXPECT_TRUE(waves.done());
}

TEST(WavesTest, WhatIsDroppedLeavesInTheFirst) {
  Waves waves({{1, 7, 90}, {2, 7, 0}, {3, 7, 20}, {4, 8, 30}, {5, 7, 0}, {6, 9, 0}}, 100);
  EXPECT_EQ(waves.next(kAll), (Ids{2, 5, 1, 4, 6}));
  EXPECT_EQ(waves.next(kAll), Ids{3});
  EXPECT_TRUE(waves.done());
}

TEST(WavesTest, NothingIsDoneAtOnce) { EXPECT_TRUE(Waves({}, 100).done()); }

}  // namespace
}  // namespace amem
