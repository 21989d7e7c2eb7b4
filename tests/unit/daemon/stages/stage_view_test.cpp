#include "daemon/stages/stage_view.h"

#include <gtest/gtest.h>

#include "daemon/base/event_loop.h"
#include "tests/unit/fixtures/some_device.h"

namespace amem {
namespace {

constexpr std::uint64_t kMiB = 1U << 20U;

class StageViewTest : public ::testing::Test {
 protected:
  StageViewTest() {
    stage.name = "night";
    for (std::size_t i = 1; i <= 2; ++i)
      stage.devices.push_back({some_device(i), static_cast<int>(i) - 1, 64 * kMiB, kMiB});
  }
  GroupEntry& group(GroupId id, GroupState state = GroupState::kRunning) {
    RestartState restart_state;
    restart_state.stable_state = state;
    Members members;
    if (state == GroupState::kRunning) members.add(id, "rank");
    GroupEntry& added =
        node.groups
            .try_emplace(id, id, "g" + std::to_string(id), account, Deadlines(), MemoryView(),
                         restart_state, std::move(members), Duration{})
            .first->second;
    added.stage = "night";
    added.paused_by_stage = state == GroupState::kPaused;
    return added;
  }
  Allocation& allocate(GroupId id, std::uint64_t mib, std::size_t device = 1,
                       const std::string& tag = "heap", bool resident = true) {
    Allocation a;
    a.group = id;
    a.size = mib * kMiB;
    a.device = some_device(device);
    a.tag = tag;
    a.sharers = {id};
    if (resident) a.fd = std::make_shared<const Fd>(::dup(0));
    a.paused = !resident;
    return node.allocations.add(std::move(a));
  }
  void uses(std::size_t device, std::uint64_t mib) {
    MemoryUse use;
    use.free = (64 - mib) * kMiB;
    use.used = mib * kMiB;
    seen[some_device(device)] = use;
  }
  GroupView see(GroupId id) {
    const StageView view = views.of(stage, {}, others, Clock::now());
    for (const GroupView& each : view.groups)
      if (each.id == id) return each;
    ADD_FAILURE() << "group " << id << " is not there";
    return {};
  }

  EventLoop loop;
  Accounts accounts{loop, Quotas{}};
  std::shared_ptr<Account> account = accounts.of(Owner{1000, ""});
  Record record;
  Node node{2 << 20, record, [](const PoolSegment&) {}, [](const PoolSegment&) {},
            [](std::uint64_t) {}};
  StageWaits waits{loop, [](GroupId) {}};
  Workers::Uses seen;
  StageRules stage;
  OthersUse others{{0, 0}, {0, 0}};
  StageViews views{node, seen, waits};
};

TEST_F(StageViewTest, AFootprintHasWhatLeavesAndWhatStays) {
  group(1);
  allocate(1, 16);
  Allocation& pinned = allocate(1, 8);
  ASSERT_TRUE(node.allocations.pin(pinned.id, {1, PinReason::kNic}).ok());
  GroupView view = see(1);
  EXPECT_EQ(view.presence, Presence::kIn);
  EXPECT_EQ(view.on[0], (Footprint{24 * kMiB, 8 * kMiB, 0, 0, true}));
  EXPECT_EQ(view.on[1], Footprint());
  ASSERT_TRUE(node.allocations.unpin(pinned.id, {1, PinReason::kNic}).ok());
  EXPECT_EQ(see(1).on[0].stays, 0U);
}

TEST_F(StageViewTest, OfAGroupThatIsOutTheRestCanLeave) {
  GroupEntry& out = group(1, GroupState::kPaused);
  allocate(1, 16, 1, "weights", false);
  allocate(1, 4, 1, "cache");
  EXPECT_EQ(see(1).presence, Presence::kOut);
  EXPECT_EQ(see(1).on[0], (Footprint{20 * kMiB, 0, 4 * kMiB, 0, true}));
  EXPECT_EQ(remainder_of(node, out), 4 * kMiB);
  out.paused_by_stage = false;
  EXPECT_EQ(see(1).presence, Presence::kPausedByOthers);
  EXPECT_EQ(see(1).on[0], (Footprint{20 * kMiB, 4 * kMiB, 0, 0, true}))
      << "its stage does not move what an operator has left there";
  out.restore_needs[some_device(2)] = kMiB;
  EXPECT_EQ(see(1).on[1].restore, kMiB);
}

TEST_F(StageViewTest, AGroupInAnOperationLeavesOrComes) {
  EXPECT_EQ(presence_of(group(1, GroupState::kPausing)), Presence::kLeaves);
  EXPECT_EQ(presence_of(group(2, GroupState::kResuming)), Presence::kComes);
}

TEST_F(StageViewTest, WhatGuestsHaveOpenStaysByTheNodesPolicy) {
  group(1);
  Allocation& a = allocate(1, 16);
  ASSERT_TRUE(node.allocations.open(a.id, a.token, {9, 2, false}).ok());
  EXPECT_EQ(see(1).on[0].stays, 16 * kMiB);
  node.guests = GuestPolicy::kRefuse;
  EXPECT_EQ(see(1).on[0].stays, 0U)
      << "a pause fails while they have it, so it leaves or nothing does";
}

TEST_F(StageViewTest, TagsThatLeaveFirstAreParts) {
  GroupEntry& its = group(1);
  its.wishes.leave_first = {"cache", "none"};
  allocate(1, 16, 1, "weights");
  allocate(1, 4, 1, "cache");
  allocate(1, 2, 2, "cache");
  const std::vector<GroupView::Part> expected = {{"cache", {4 * kMiB, 2 * kMiB}}};
  EXPECT_EQ(see(1).parts, expected);
}

TEST_F(StageViewTest, OnlyMemoryOfGroupsThatTakeTurnsIsNotOthers) {
  group(1);
  group(2);
  allocate(1, 16);
  allocate(2, 8);
  uses(1, 30);
  StageMemory memory;
  EXPECT_EQ(views.others_use(stage, memory).all, (DeviceBytes{6 * kMiB, 0}));
  memory.groups[2].refusal = "it is too large";
  EXPECT_EQ(views.others_use(stage, memory).all, (DeviceBytes{14 * kMiB, 0}));
}

TEST_F(StageViewTest, WhatOthersGetCountsAtOnceAndWhatTheyFreeWhenItIsSeen) {
  group(1);
  group(2).stage.clear();
  allocate(1, 16);
  allocate(2, 8);
  uses(1, 30);
  const StageMemory memory;
  const auto taken = [&] { return views.of(stage, memory, others, Clock::now()).taken; };
  others = views.others_use(stage, memory);
  EXPECT_EQ(taken(), (DeviceBytes{14 * kMiB, 0}));
  const AllocationId more = allocate(2, 3).id;
  EXPECT_EQ(taken(), (DeviceBytes{17 * kMiB, 0}));
  allocate(1, 1);
  EXPECT_EQ(taken(), (DeviceBytes{17 * kMiB, 0}));
  others = views.others_use(stage, memory);
  EXPECT_EQ(taken(), (DeviceBytes{13 * kMiB, 0})) << "of 30 MiB 17 are the stage's";
  ASSERT_TRUE(node.allocations.free(more, 2).ok());
  EXPECT_EQ(taken(), (DeviceBytes{13 * kMiB, 0}));
}

TEST_F(StageViewTest, AGroupOnAnotherDeviceTakesNoTurns) {
  group(1);
  allocate(1, 16, 3);
  EXPECT_NE(see(1).refusal.find("which is not in the stage: add it to the stage"),
            std::string::npos);
}

TEST_F(StageViewTest, AGroupUsesTheDevicesThatItsProcessesSee) {
  GroupEntry& starts = group(1, GroupState::kPaused);
  starts.first_turn = FirstTurn::kDue;
  EXPECT_TRUE(see(1).on[0].used && see(1).on[1].used) << "nobody knows yet";
  starts.starts_on = {some_device(2)};
  EXPECT_TRUE(!see(1).on[0].used && see(1).on[1].used);
  starts.machine.join(7, "rank");
  node.ranks[7].group = 1;
  node.ranks[7].devices = {some_device(1)};
  EXPECT_TRUE(see(1).on[0].used && !see(1).on[1].used) << "its rank says so";
}

TEST_F(StageViewTest, ARankThatDoesNotAnswerDoesNotWork) {
  group(1);
  Rank& rank = node.ranks[1];
  rank.group = 1;
  rank.work.worked = true;
  rank.work.heard = Clock::now();
  EXPECT_TRUE(see(1).working);
  rank.work.heard -= kNoAnswer;
  EXPECT_FALSE(see(1).working);
}

TEST_F(StageViewTest, WhereNobodySaysWhatIsFreeContextsCountAndPinnedMemoryOfTheHostDoesNot) {
  group(1);
  allocate(1, 16);
  node.ranks[1].group = 1;
  node.ranks[1].unbrokered = {{some_device(1), "context", 3 * kMiB, 1},
                              {some_device(2), "context", 2 * kMiB, 1},
                              {some_device(1), "pinned", 32 * kMiB, 1, true}};
  EXPECT_EQ(views.others_use(stage, {}).all, (DeviceBytes{3 * kMiB, 2 * kMiB}));
}

}  // namespace
}  // namespace amem
