#include "daemon/plan.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace amem {
namespace {

constexpr GroupId kGroup = 1;

class PlanTest : public ::testing::Test {
 protected:
  Allocation& make(std::vector<RankId> holders, std::uint64_t size,
                   const std::string& tag = "nccl") {
    Allocation a;
    a.group = kGroup;
    a.size = size;
    a.tag = tag;
    a.holders = std::move(holders);
    a.fd = std::make_shared<const Fd>(::memfd_create("plan_test", MFD_CLOEXEC));
    a.away = true;  // as in a resume
    return table.add(std::move(a));
  }

  Allocations table;
};

TEST_F(PlanTest, WhatIsPinnedDiscardedOrAwayIsNotSaved) {
  const auto here = [&](const std::string& tag = "nccl") -> Allocation& {
    Allocation& a = make({1}, 100, tag);
    a.away = false;
    return a;
  };
  const Allocation& kept = here();
  here("kv_cache");
  here().pinners = {1};
  here().fd.reset();
  Allocation other;
  other.group = kGroup + 1;
  other.size = 100;
  other.holders = {1};
  other.fd = std::make_shared<const Fd>(::memfd_create("plan_test", MFD_CLOEXEC));
  table.add(std::move(other));
  here().away = true;
  const auto found =
      to_save(table, kGroup, {}, [](const Allocation& a) { return a.tag != "kv_cache"; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front(), &kept);
}

TEST_F(PlanTest, KeepersSaveAndTheLastExtentIsCutToSize) {
  Allocation& a = make({2, 1}, 250);
  a.saved = {{0, 0, 100}, {3, 500, 200}};
  make({1}, 50);  // nothing to save
  const Plan plan = plan_save(table, kGroup);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan.at(2).copies,
            (std::vector<CopyRange>{{a.id, 0, 100, 0, 0}, {a.id, 100, 150, 3, 500}}));
}

TEST_F(PlanTest, LoadHasAnEntryForEveryRank) {
  Allocation& saved = make({1, 2}, 100);
  saved.saved = {{0, 64, 128}};
  Allocation& discarded = make({1}, 300);
  const Plan plan = plan_load(table, kGroup, {}, {1, 2, 3});
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan.at(1).maps, (std::vector<const Allocation*>{&saved, &discarded}));
  EXPECT_EQ(plan.at(1).copies, (std::vector<CopyRange>{{saved.id, 0, 100, 0, 64},
                                                       {discarded.id, 0, 300, kZeroSegment, 0}}));
  EXPECT_TRUE(plan.at(2).maps.empty());
  EXPECT_TRUE(plan.at(3).copies.empty());
}

TEST_F(PlanTest, PeersMapWhatTheirKeeperLoaded) {
  Allocation& shared = make({1, 2, 3}, 100);
  make({2}, 100);
  const Loaders who = loaders(plan_load(table, kGroup, {}, {1, 2, 3}));
  const Plan plan = plan_peers(table, kGroup, {}, who);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan.at(2).maps, (std::vector<const Allocation*>{&shared}));
  EXPECT_EQ(plan.at(3).maps, (std::vector<const Allocation*>{&shared}));
}

TEST_F(PlanTest, ASuccessorThatDidNotLoadIsStillAPeer) {
  Allocation& shared = make({1, 2, 3}, 100);
  const Loaders who = loaders(plan_load(table, kGroup, {}, {1, 2, 3}));
  EXPECT_TRUE(loads_for_others(table, kGroup, who, 1));
  EXPECT_FALSE(loads_for_others(table, kGroup, who, 2));
  table.drop_rank(1);
  EXPECT_EQ(shared.keeper(), 2U);
  EXPECT_EQ(plan_peers(table, kGroup, {}, who).size(), 2U);
}

TEST_F(PlanTest, MemoryThatStayedIsNotClearedWhenItsPinnerHasGone) {
  make({1}, 100).stayed = true;
  const Plan load = plan_load(table, kGroup, {}, {1});
  EXPECT_EQ(load.at(1).maps.size(), 1U);
  EXPECT_TRUE(load.at(1).copies.empty());
}

TEST_F(PlanTest, OnlyItsPinnerStillHasPinnedMemoryMapped) {
  Allocation& by_keeper = make({1, 2}, 100);
  by_keeper.pinners = {1};
  Allocation& by_peer = make({1, 2}, 100);
  by_peer.pinners = {2};
  by_keeper.stayed = by_peer.stayed = true;
  const Plan load = plan_load(table, kGroup, {}, {1, 2});
  EXPECT_EQ(load.at(1).maps, (std::vector<const Allocation*>{&by_peer}));
  EXPECT_TRUE(load.at(1).copies.empty()) << "its bytes never left";
  const Plan peers = plan_peers(table, kGroup, {}, loaders(load));
  ASSERT_EQ(peers.size(), 1U);
  EXPECT_EQ(peers.at(2).maps, (std::vector<const Allocation*>{&by_keeper}));
}

}  // namespace
}  // namespace amem
