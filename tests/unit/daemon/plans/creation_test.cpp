#include "daemon/plans/creation.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "daemon/transactions/headroom.h"
#include "tests/unit/fixtures/some_device.h"

namespace amem {
namespace {

using Items = std::vector<Creation::Item>;

Creation::Item item(AllocationId id, RankId keeper, std::uint64_t size) {
  return {id, keeper, some_device(0), size, size};
}

class CreationTest : public ::testing::Test {
 protected:
  static Creation::Takes from(Headroom& headroom) {
    return
        [&headroom](const Creation::Item& item) { return headroom.take(item.device, item.needed); };
  }
  Headroom headroom;  // no limit
  Creation::Takes takes = from(headroom);
};

TEST_F(CreationTest, NothingIsDoneAtOnce) {
  Creation creation;
  EXPECT_TRUE(creation.done());
  EXPECT_TRUE(creation.next(takes).empty());
}

TEST_F(CreationTest, SlicesAreBoundedInNumberAndKeepTheirOrder) {
  Items items;
  for (AllocationId id = 1; id <= 2 * Creation::kSliceCount + 1; ++id)
    items.push_back(item(id, 7, 1));
  Creation creation(items);
  Items seen;
  for (const std::size_t size : {Creation::kSliceCount, Creation::kSliceCount, std::size_t{1}}) {
    EXPECT_FALSE(creation.done());
    const Items slice = creation.next(takes);
    EXPECT_EQ(slice.size(), size);
    seen.insert(seen.end(), slice.begin(), slice.end());
  }
  EXPECT_TRUE(creation.done());
  EXPECT_TRUE(creation.next(takes).empty());
  EXPECT_EQ(seen, items);
}

TEST_F(CreationTest, SlicesAreBoundedInBytes) {
  const std::uint64_t half = Creation::kSliceCopied / 2;
  Creation creation({item(1, 7, half), item(2, 7, half), item(3, 7, 100 * half), item(4, 7, 1)});
  EXPECT_EQ(creation.next(takes).size(), 2U);
  EXPECT_EQ(creation.next(takes), (Items{item(3, 7, 100 * half)})) << "one always goes through";
  EXPECT_EQ(creation.next(takes).size(), 1U);
  EXPECT_TRUE(creation.done());
  Creation full({item(1, 7, Creation::kSliceCopied - 1), item(2, 7, 1), item(3, 7, 1)});
  EXPECT_EQ(full.next(takes).size(), 2U) << "a byte was left";
}

TEST_F(CreationTest, WhatIsClearedTakesTimeOfTheDriversOnly) {
  const std::uint64_t quarter = Creation::kSliceMade / 4;
  Items items;
  for (AllocationId id = 1; id <= 6; ++id) items.push_back({id, 7, some_device(0), 0, quarter});
  items.push_back({7, 7, some_device(0), 0, 0});
  Creation creation(items);
  EXPECT_EQ(creation.next(takes).size(), 4U);
  EXPECT_EQ(creation.next(takes).size(), 3U);
  EXPECT_TRUE(creation.done());
  items.clear();
  for (AllocationId id = 1; id <= 3; ++id) items.push_back({id, 7, some_device(0), 0, 3 * quarter});
  creation = Creation(items);
  EXPECT_EQ(creation.next(takes).size(), 2U) << "the second goes beyond it";
  EXPECT_EQ(creation.next(takes).size(), 1U);
}

TEST_F(CreationTest, KeepersTakeTurns) {
  Items items;
  for (AllocationId id = 1; id <= 200; ++id) items.push_back(item(id, id <= 150 ? 3U : 9U, 1));
  Creation creation(items);
  std::vector<RankId> turns;
  std::map<AllocationId, int> seen;
  while (!creation.done()) {
    const Items slice = creation.next(takes);
    ASSERT_FALSE(slice.empty());
    turns.push_back(slice.front().keeper);
    for (const Creation::Item& one : slice) {
      EXPECT_EQ(one.keeper, turns.back()) << "a slice is one keeper's";
      ++seen[one.id];
    }
  }
  EXPECT_EQ(turns, (std::vector<RankId>{3, 9, 3, 3}));
  EXPECT_EQ(seen.size(), 200U);
  for (const auto& [id, times] : seen) EXPECT_EQ(times, 1) << id;
}

TEST_F(CreationTest, WhatDoesNotFitIsPassedAndComesLater) {
  headroom.limit(some_device(0), 100);
  Creation creation({item(1, 7, 90), item(2, 7, 50), item(3, 7, 10), item(4, 8, 1)});
  EXPECT_EQ(creation.next(takes), (Items{item(1, 7, 90), item(3, 7, 10)}));
  EXPECT_TRUE(creation.next(takes).empty()) << "not even keeper 8's last byte";
  EXPECT_FALSE(creation.done());
  headroom.lift();
  EXPECT_EQ(creation.next(takes), (Items{item(4, 8, 1)}));
  EXPECT_EQ(creation.next(takes), (Items{item(2, 7, 50)}));
  EXPECT_TRUE(creation.done());
}

TEST_F(CreationTest, WhatTheDriverRefusedComesAgain) {
  headroom.limit(some_device(0), 100);
  Creation creation({item(1, 7, 60), item(2, 7, 30), item(3, 7, 30)});
  EXPECT_EQ(creation.next(takes).size(), 2U);
  headroom.exhaust(some_device(0));
  creation.put_back(item(2, 7, 30));
  EXPECT_TRUE(creation.next(takes).empty());
  headroom.lift();
  EXPECT_EQ(creation.next(takes), (Items{item(2, 7, 30), item(3, 7, 30)}));
  EXPECT_TRUE(creation.done());
}

// A device's memory as the driver sees it, and a group that leaves it at some moment: whatever the
// sizes and the headroom, no device is overfilled, nothing that fits waits, and all comes back.
TEST_F(CreationTest, NeverOverfillsAndNeverStalls) {
  std::mt19937 random(4);
  const auto up_to = [&](std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(0, most)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    const std::size_t devices = 1 + up_to(3);
    std::vector<std::uint64_t> free(devices);
    std::vector<std::uint64_t> leaves(devices);
    Headroom space;
    Items items;
    std::vector<std::uint64_t> need(devices);
    const std::size_t count = up_to(200);
    for (AllocationId id = 1; id <= count; ++id) {
      const std::size_t on = up_to(devices - 1);
      const std::uint64_t size = 1 + up_to(up_to(4) == 0 ? Creation::kSliceCopied : 100);
      const bool stayed = up_to(9) == 0;
      items.push_back(
          {id, static_cast<RankId>(1 + up_to(4)), some_device(on), size, stayed ? 0 : size});
      need[on] += items.back().needed;
    }
    for (std::size_t d = 0; d < devices; ++d) {
      // Admitted: what is free and what leaves is enough. Often nothing at all is free.
      free[d] = up_to(2) == 0 ? 0 : up_to(2 * need[d]);
      leaves[d] = need[d] > free[d] ? need[d] - free[d] : 0;
      if (leaves[d] > 0) space.limit(some_device(d), free[d]);
    }
    Creation creation(items);
    std::map<AllocationId, int> seen;
    std::uint64_t leave_after = up_to(50);  // slices
    bool left = false;
    while (!creation.done()) {
      const bool leave_now = !left && leave_after == 0;
      const Items slice = leave_now ? Items() : creation.next(from(space));
      if (slice.empty()) {
        ASSERT_FALSE(left) << "stalled with all the memory there is";
        for (const Creation::Item& one : items)
          ASSERT_TRUE(leave_now || seen.contains(one.id) || one.needed > free[one.device.bytes[0]])
              << "something fits and waits";
        left = true;
        for (std::size_t d = 0; d < devices; ++d) free[d] += leaves[d];
        space.lift();
        continue;
      }
      if (leave_after > 0) --leave_after;
      ASSERT_LE(slice.size(), Creation::kSliceCount);
      for (const Creation::Item& one : slice) {
        std::uint64_t& there = free[one.device.bytes[0]];
        ASSERT_LE(one.needed, there) << "the device is overfilled";
        there -= one.needed;
        ++seen[one.id];
        EXPECT_EQ(one.keeper, slice.front().keeper);
      }
    }
    ASSERT_EQ(seen.size(), items.size());
    for (const auto& [id, times] : seen) ASSERT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace amem
