#include "daemon/plans/plan.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace amem {
namespace {

constexpr GroupId kOwnGroup = 1;

class PlanTest : public ::testing::Test {
 protected:
  Allocation& make(std::vector<RankId> sharers, std::uint64_t size,
                   const std::string& tag = "nccl") {
    Allocation a;
    a.group = kOwnGroup;
    a.size = size;
    a.tag = tag;
    a.sharers = std::move(sharers);
    a.fd = std::make_shared<const Fd>(::memfd_create("plan_test", MFD_CLOEXEC));
    a.paused = true;  // as in a resume
    return table.add(std::move(a));
  }

  /// What the resume of everything loads, as if in one slice.
  Plan load() {
    std::vector<const Allocation*> slice;
    for (const Creation::Item& item : to_bring_back(table, kOwnGroup, {}))
      slice.push_back(table.find(item.id));
    return plan_load(slice);
  }
  static Loaders loaders(const Plan& load) {
    Loaders result;
    for (const auto& [rank, plan] : load)
      for (const Allocation* a : plan.maps) result[a->id] = rank;
    return result;
  }

  Allocations table;
};

TEST_F(PlanTest, ARefusalSaysWhichTagsTheGroupHas) {
  const Task task(Operation::kPause, Selection{{"weights"}});
  const Status nothing = check_tags(table, kOwnGroup, task);
  EXPECT_EQ(nothing.code(), Code::kNotFound);
  EXPECT_EQ(nothing.text(), "the group has no memory of tag 'weights'; it has no memory at all");
  make({1}, 100, "kv_cache");
  const Status others = check_tags(table, kOwnGroup, task);
  EXPECT_EQ(others.code(), Code::kNotFound);
  EXPECT_EQ(others.text(),
            "the group has no memory of tag 'weights'; it has memory of tag kv_cache");
}

TEST_F(PlanTest, TheHeapIsDroppedOnlyByForce) {
  make({1}, 3 << 20, "heap");
  make({1}, 1 << 20, "weights");
  for (Allocation* a : table.of_group(kOwnGroup)) a->paused = false;
  Task task(Operation::kPause, {}, {"heap", "weights"});
  const Status refused = check_tags(table, kOwnGroup, task);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.text(),
            "to discard tag 'heap' would lose 3 MiB: all memory that no region names, such as "
            "weights and optimizer state. A resume provides zeros for it. If the job can lose all "
            "of it, force it: --force in amemctl, force in programs");
  task.force = true;
  EXPECT_TRUE(check_tags(table, kOwnGroup, task).ok());
  EXPECT_TRUE(check_tags(table, kOwnGroup, Task(Operation::kPause, {}, {"weights"})).ok())
      << "the program has named it";
  make({1}, 1 << 20, "nccl");
  task.discard = {"nccl"};
  EXPECT_EQ(check_tags(table, kOwnGroup, task).code(), Code::kInvalidArgument) << "never";
}

TEST_F(PlanTest, WhatIsPinnedDiscardedOrPausedIsNotSaved) {
  const auto here = [&](const std::string& tag = "nccl") -> Allocation& {
    Allocation& a = make({1}, 100, tag);
    a.paused = false;
    return a;
  };
  const Allocation& kept = here();
  here("kv_cache");
  here().pinners = {{1}};
  here().fd.reset();
  Allocation other;
  other.group = kOwnGroup + 1;
  other.size = 100;
  other.sharers = {1};
  other.fd = std::make_shared<const Fd>(::memfd_create("plan_test", MFD_CLOEXEC));
  table.add(std::move(other));
  here().paused = true;
  const auto found =
      to_save(table, kOwnGroup, {}, [](const Allocation& a) { return a.tag != "kv_cache"; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front(), &kept);
}

TEST_F(PlanTest, KeepersSaveAndTheLastExtentIsCutToSize) {
  Allocation& a = make({2, 1}, 250);
  a.saved.extents = {{0, 0, 100}, {3, 500, 200}};
  make({1}, 50);  // nothing to save
  const Plan plan = plan_save(table, kOwnGroup, [](const Allocation&) { return Form::kSparse; });
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan.at(2).copies, (std::vector<CopyRange>{{a.id, 0, 100, 0, 0, Form::kSparse},
                                                       {a.id, 100, 150, 3, 500, Form::kSparse}}));
}

TEST_F(PlanTest, WhatHasAShortPlaceIsSavedSparsely) {
  Allocation& a = make({1}, 1000);
  a.saved.extents = {{0, 64, 128}, {2, 0, 256}};
  a.saved.pieces = {{800, 128, Form::kDense, 0}, {200, 200, Form::kDense, 0}};
  const Plan plan = plan_save(table, kOwnGroup, [](const Allocation&) { return Form::kAuto; });
  EXPECT_EQ(plan.at(1).copies, (std::vector<CopyRange>{{a.id, 0, 800, 0, 64, Form::kSparse, 128},
                                                       {a.id, 800, 200, 2, 0, Form::kAuto}}));
}

TEST_F(PlanTest, OnlyWhatIsPausedIsBroughtBack) {
  const Allocation& gone = make({1, 2}, 100);
  make({1}, 100).fd.reset();
  make({1}, 100).paused = false;
  make({1}, 100, "kv_cache");
  Allocation other;
  other.group = kOwnGroup + 1;
  other.sharers = {1};
  other.paused = true;
  table.add(std::move(other));
  EXPECT_EQ(to_bring_back(table, kOwnGroup, {}).size(), 3U);
  const auto nccl = to_bring_back(table, kOwnGroup, {{"nccl"}});
  ASSERT_EQ(nccl.size(), 2U) << "on its device or not";
  EXPECT_EQ(nccl[0], (Creation::Item{gone.id, 1, {}, 0, 0})) << "it never left";
  EXPECT_EQ(nccl[1].needed, 100U);
  const auto of_a_rank = to_bring_back(table, kOwnGroup, {{"nccl"}, false, {1, 2}});
  ASSERT_EQ(of_a_rank.size(), 2U);
  EXPECT_EQ(to_bring_back(table, kOwnGroup, {{"nccl"}, false, {3}}).size(), 0U) << "others' memory";
}

TEST_F(PlanTest, TagsComeBackInTheirOrderAndWhatHasNoneOfThemLast) {
  std::vector<AllocationId> ids;
  for (const char* tag : {"kv", "heap", "weights", "kv"}) {
    Allocation& a = make({1}, 100);
    a.tag = tag;
    ids.push_back(a.id);
  }
  const auto in_order = [&](const std::vector<std::string>& order) {
    std::vector<AllocationId> back;
    for (const Creation::Item& item : to_bring_back(table, kOwnGroup, {}, order))
      back.push_back(item.id);
    return back;
  };
  EXPECT_EQ(in_order({}), ids);
  EXPECT_EQ(in_order({"weights", "nothing", "kv"}),
            (std::vector<AllocationId>{ids[2], ids[0], ids[3], ids[1]}));
}

TEST_F(PlanTest, KeepersLoadWhatWasSavedAndClearTheRest) {
  Allocation& saved = make({1, 2}, 100);
  saved.saved.extents = {{0, 64, 128}};
  Allocation& discarded = make({1}, 300);
  const Plan plan = load();
  ASSERT_EQ(plan.size(), 1U) << "the peer has nothing to load";
  EXPECT_EQ(plan.at(1).maps, (std::vector<const Allocation*>{&saved, &discarded}));
  EXPECT_EQ(plan.at(1).copies, (std::vector<CopyRange>{{saved.id, 0, 100, 0, 64},
                                                       {discarded.id, 0, 300, kZeroSegment, 0}}));
}

TEST_F(PlanTest, LoadSaysHowEachPieceIsStored) {
  Allocation& a = make({1}, 1000);
  a.saved.extents = {{0, 0, 512}, {2, 0, 512}};
  Extents left;
  ASSERT_TRUE(a.store({0, 60, Form::kSparse, 7}, 64, left));
  EXPECT_EQ(left, (Extents{{0, 64, 448}}));
  const Plan plan = load();
  EXPECT_EQ(plan.at(1).copies,
            (std::vector<CopyRange>{{a.id, 0, 512, 0, 0, Form::kSparse, 60, 7},
                                    {a.id, 512, 488, 2, 0, Form::kDense, 0, 0}}));
}

TEST_F(PlanTest, PeersMapWhatTheirKeeperLoaded) {
  Allocation& shared = make({1, 2, 3}, 100);
  make({2}, 100);
  const Loaders who = loaders(load());
  const Plan plan = plan_peers(table, kOwnGroup, {}, who);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan.at(2).maps, (std::vector<const Allocation*>{&shared}));
  EXPECT_EQ(plan.at(3).maps, (std::vector<const Allocation*>{&shared}));
}

TEST_F(PlanTest, ASuccessorThatDidNotLoadIsStillAPeer) {
  Allocation& shared = make({1, 2, 3}, 100);
  const Loaders who = loaders(load());
  EXPECT_TRUE(loads_for_others(table, kOwnGroup, who, 1));
  EXPECT_FALSE(loads_for_others(table, kOwnGroup, who, 2));
  table.drop_rank(1);
  EXPECT_EQ(shared.keeper(), 2U);
  EXPECT_EQ(plan_peers(table, kOwnGroup, {}, who).size(), 2U);
}

TEST_F(PlanTest, MemoryThatStayedIsNotClearedWhenItsPinnerHasGone) {
  make({1}, 100).stayed = true;
  const Plan plan = load();
  EXPECT_EQ(plan.at(1).maps.size(), 1U);
  EXPECT_TRUE(plan.at(1).copies.empty());
}

TEST_F(PlanTest, OnlyItsPinnerStillHasPinnedMemoryMapped) {
  Allocation& by_keeper = make({1, 2}, 100);
  by_keeper.pinners = {{1}};
  Allocation& by_peer = make({1, 2}, 100);
  by_peer.pinners = {{2}};
  by_keeper.stayed = by_peer.stayed = true;
  const Plan keepers = load();
  EXPECT_EQ(keepers.at(1).maps, (std::vector<const Allocation*>{&by_peer}));
  EXPECT_TRUE(keepers.at(1).copies.empty()) << "its bytes never left";
  const Plan peers = plan_peers(table, kOwnGroup, {}, loaders(keepers));
  ASSERT_EQ(peers.size(), 1U);
  EXPECT_EQ(peers.at(2).maps, (std::vector<const Allocation*>{&by_keeper}));
}

}  // namespace
}  // namespace amem
