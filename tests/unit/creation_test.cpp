#include "daemon/creation.h"

#include <gtest/gtest.h>

#include <map>

namespace amem {
namespace {

using Items = std::vector<Creation::Item>;

TEST(CreationTest, NothingIsDoneAtOnce) {
  Creation creation;
  EXPECT_TRUE(creation.done());
  EXPECT_TRUE(creation.next().empty());
}

TEST(CreationTest, SlicesAreBoundedInNumberAndKeepTheirOrder) {
  Items items;
  for (AllocationId id = 1; id <= 2 * Creation::kSliceCount + 1; ++id) items.push_back({id, 7, 1});
  Creation creation(items);
  Items seen;
  for (const std::size_t size : {Creation::kSliceCount, Creation::kSliceCount, std::size_t{1}}) {
    EXPECT_FALSE(creation.done());
    const Items slice = creation.next();
    EXPECT_EQ(slice.size(), size);
    seen.insert(seen.end(), slice.begin(), slice.end());
  }
  EXPECT_TRUE(creation.done());
  EXPECT_TRUE(creation.next().empty());
  EXPECT_EQ(seen, items);
}

TEST(CreationTest, SlicesAreBoundedInBytes) {
  const std::uint64_t half = Creation::kSliceBytes / 2;
  Creation creation({{1, 7, half}, {2, 7, half}, {3, 7, 100 * half}, {4, 7, 1}});
  EXPECT_EQ(creation.next().size(), 2U);
  EXPECT_EQ(creation.next(), (Items{{3, 7, 100 * half}})) << "one is always let through";
  EXPECT_EQ(creation.next().size(), 1U);
  EXPECT_TRUE(creation.done());
}

TEST(CreationTest, KeepersTakeTurns) {
  Items items;
  for (AllocationId id = 1; id <= 200; ++id) items.push_back({id, id <= 150 ? 3U : 9U, 1});
  Creation creation(items);
  std::vector<RankId> turns;
  std::map<AllocationId, int> seen;
  while (!creation.done()) {
    const Items slice = creation.next();
    ASSERT_FALSE(slice.empty());
    turns.push_back(slice.front().keeper);
    for (const Creation::Item& item : slice) {
      EXPECT_EQ(item.keeper, turns.back()) << "a slice is one keeper's";
      ++seen[item.id];
    }
  }
  EXPECT_EQ(turns, (std::vector<RankId>{3, 9, 3, 3}));
  EXPECT_EQ(seen.size(), 200U);
  for (const auto& [id, times] : seen) EXPECT_EQ(times, 1) << id;
}

}  // namespace
}  // namespace amem
