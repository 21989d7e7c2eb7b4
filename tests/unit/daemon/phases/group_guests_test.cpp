// A pause of memory that ranks of other groups have open.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

class GuestsTest : public GroupTest {
 protected:
  GuestsTest()
      : GroupTest({.opened = [this](const Selection& what) { return what.takes("weights"); }}) {}

  void to_guests(const Task& task = Operation::kPause) {
    ASSERT_TRUE(group.start(task, {}, now).ok());
    drain();
    ASSERT_EQ(group.phase(), Phase::kGuests);
  }
  void guests_left(const Status& status = {}) {
    group.tell(event::GuestsLeft{status}, now);
    drain();
  }
};

TEST_F(GuestsTest, TheGroupRunsWhileItWaits) {
  to_guests();
  ASSERT_NE(find<action::AwaitGuests>(), nullptr);
  EXPECT_FALSE(find<action::AwaitGuests>()->late);
  EXPECT_EQ(find<action::Quiesce>(), nullptr) << "its gates stay open";
  EXPECT_EQ(group.state(), GroupState::kPausing);
  EXPECT_TRUE(group.may_allocate(1));
  EXPECT_FALSE(group.join(3, "rank 2 (pid 33)")) << "who joins now runs, too";
  now += milliseconds(7);
  guests_left();
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
  ASSERT_NE(find<action::Quiesce>(), nullptr);
  EXPECT_EQ(find<action::Quiesce>()->ranks, (std::vector<RankId>{1, 2, 3}));
  EXPECT_TRUE(group.join(4, "rank 3 (pid 44)"));
}

TEST_F(GuestsTest, APauseOfOtherTagsDoesNotWait) {
  ASSERT_TRUE(group.start({Operation::kPause, {{"kv_cache"}}}, {}, now).ok());
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
}

TEST_F(GuestsTest, TheWaitIsTimedAsAPhase) {
  to_guests();
  now += milliseconds(7);
  guests_left();
  quiet(1);
  quiet(2);
  drain();
  group.save_sent(kOk, {}, now);
  both(RankPhase::kRelease);
  group.dropped("", now);
  drain();
  expect_finished(Code::kOk, GroupState::kPaused);
  const Outcome& outcome = find<action::Finished>()->outcome;
  EXPECT_EQ(outcome.times.front().phase, Phase::kGuests);
  EXPECT_EQ(to_us(outcome.times.front().time), 7000U);
}

TEST_F(GuestsTest, AtTheDeadlineItIsAskedWhatThatMeans) {
  to_guests();
  EXPECT_EQ(group.wakeup(), now + Deadlines().guests);
  now += Deadlines().guests;
  group.tick(now);
  drain();
  ASSERT_NE(find<action::AwaitGuests>(), nullptr);
  EXPECT_TRUE(find<action::AwaitGuests>()->late);
  EXPECT_EQ(group.wakeup(), kNever) << "once";
  guests_left();
  EXPECT_EQ(group.phase(), Phase::kQuiesce) << "goes on with them";
}

TEST_F(GuestsTest, ARefusalLeavesTheGroupRunning) {
  to_guests({Operation::kPause, {}, {}, GuestPolicy::kRefuse});
  guests_left({Code::kFailedPrecondition, "rank 0 of group 'rollout' has some open"});
  expect_finished(Code::kFailedPrecondition, GroupState::kRunning,
                  "pause of group 'train', which fails while guests have memory open: guests: rank "
                  "0 of group 'rollout' has some open; the group is running");
  EXPECT_EQ(find<action::Ask>(), nullptr) << "no gate was shut";
  EXPECT_TRUE(group.can_start(Operation::kPause).ok());
}

TEST_F(GuestsTest, ARankThatEndsOrLosesItsSessionCallsItOff) {
  to_guests();
  group.leave(2, false, now);
  drain();
  expect_finished(Code::kAborted, GroupState::kRunning, "rank 1 (pid 22) ended during guests");
  to_guests();
  group.lose(1, now);
  drain();
  expect_finished(Code::kAborted, GroupState::kRunning, "lost its session during guests");
}

TEST_F(GuestsTest, WhatIsToldTooLateIsIgnored) {
  to_guests();
  guests_left();
  guests_left({Code::kFailedPrecondition, "too late"});
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
}

TEST_F(GuestsTest, RanksThatAskFromInsideMustMeanTheSame) {
  const Task refuse(Operation::kPause, {}, {}, GuestPolicy::kRefuse);
  group.request(1, 7, refuse, seconds(1), now);
  group.request(2, 8, Operation::kPause, seconds(2), now);
  EXPECT_EQ(group.phase(), Phase::kNone);
  group.request(2, 9, refuse, seconds(1), now);
  drain();
  EXPECT_EQ(group.phase(), Phase::kGuests);
}

}  // namespace
}  // namespace amem
