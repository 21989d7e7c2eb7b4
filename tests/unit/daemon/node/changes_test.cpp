#include "daemon/node/changes.h"

#include <gtest/gtest.h>

#include <vector>

namespace amem {
namespace {

constexpr std::uint64_t kBytes = 1 << 20;

/// Which of so many pauses take hashes, when that share of the bytes never changes. A pause
/// compares where the one before has taken hashes.
std::vector<int> hashed(int pauses, std::uint64_t unchanged) {
  TagChanges changes;
  std::vector<int> which;
  bool before = false;
  for (int i = 0; i < pauses; ++i) {
    const bool hashes = changes.hashes();
    if (hashes) which.push_back(i);
    const bool compares = hashes && before;
    changes.paused(hashes, compares ? kBytes : 0, compares ? unchanged : 0);
    before = hashes;
  }
  return which;
}

TEST(TagChangesTest, WhatDoesNotChangeIsComparedEachTime) {
  EXPECT_EQ(hashed(6, kBytes), (std::vector{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(hashed(6, kBytes / 8), (std::vector{0, 1, 2, 3, 4, 5})) << "a little of it is enough";
}

TEST(TagChangesTest, WhatChangesIsLookedAtEveryEighthTime) {
  EXPECT_EQ(hashed(21, 0), (std::vector{0, 1, 2, 10, 11, 19, 20}));
  EXPECT_EQ(hashed(12, kBytes / 8 - 1), (std::vector{0, 1, 2, 10, 11}));
}

TEST(TagChangesTest, WhatChangesBeforeEachSecondPauseIsComparedEachTime) {
  TagChanges changes;
  changes.paused(true, 0, 0);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(changes.hashes()) << i;
    changes.paused(true, kBytes, i % 2 == 0 ? kBytes : 0);
  }
}

TEST(TagChangesTest, WhatStopsChangingIsNoticed) {
  TagChanges changes;
  changes.paused(true, 0, 0);
  for (int i = 0; i < 2; ++i) changes.paused(true, kBytes, 0);
  EXPECT_FALSE(changes.hashes());
  for (int i = 0; i < 7; ++i) changes.paused(false, 0, 0);
  EXPECT_TRUE(changes.hashes());
  changes.paused(true, 0, 0);
  changes.paused(true, kBytes, kBytes);
  EXPECT_TRUE(changes.hashes());
}

}  // namespace
}  // namespace amem
