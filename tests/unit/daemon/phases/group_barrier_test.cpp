// An operation that has others to wait for: a pause is held before release, a resume before open.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

class BarrierTest : public GroupTest {
 protected:
  void to_create_with_barrier() {
    to_paused();
    ASSERT_TRUE(group.start(Operation::kResume, {}, now, Barrier::kWithinNode).ok());
    group.admitted(kOk, now);
    drain();
    ASSERT_EQ(group.phase(), Phase::kCreate);
  }
  void to_turn() {
    to_create_with_barrier();
    group.created(kOk, now);
    both(RankPhase::kMap);
    both(RankPhase::kLoad);
    drain();
    EXPECT_NE(find<action::Ready>(), nullptr);
    ASSERT_EQ(group.phase(), Phase::kAwaitPeers);
  }
  void to_save_with_barrier() {
    ASSERT_TRUE(group.start(Operation::kPause, {}, now, Barrier::kWithinNode).ok());
    quiet(1);
    quiet(2);
    group.save_sent(kOk, {1}, now);
    drain();
    EXPECT_EQ(find<action::Ready>(), nullptr);
    ASSERT_EQ(group.phase(), Phase::kSave);
  }
  void to_agree() {
    to_save_with_barrier();
    done(1, RankPhase::kSave);
    drain();
    EXPECT_NE(find<action::Ready>(), nullptr);
    ASSERT_EQ(group.phase(), Phase::kAwaitSaved);
  }
  const Status why{Code::kAborted, "the pause failed"};
};

TEST_F(BarrierTest, ItDoesNotOpenBeforeTheOtherHasLeft) {
  to_turn();
  EXPECT_EQ(find<action::Ask>(), nullptr);
  EXPECT_EQ(group.state(), GroupState::kResuming);
  EXPECT_FALSE(group.may_allocate(1));
  EXPECT_EQ(phase_name(group.phase()), "turn");
  now += milliseconds(7);
  group.go_on(now);
  expect<action::Ask>("Open");
  both(RankPhase::kOpen);
  drain();
  ASSERT_NE(find<action::Arrived>(), nullptr);
  EXPECT_TRUE(find<action::Arrived>()->loaded);
  expect_finished(Code::kOk, GroupState::kRunning);
  const std::vector<PhaseTime> times = find<action::Finished>()->outcome.times;
  ASSERT_EQ(times.size(), 5U);
  EXPECT_EQ(times[3].phase, Phase::kAwaitPeers);
  EXPECT_EQ(to_us(times[3].time), 7000U);
}

TEST_F(BarrierTest, WhenTheOtherLeavesFirstThereIsNoWait) {
  to_create_with_barrier();
  group.space(now);
  drain();
  ASSERT_NE(find<action::Vacated>(), nullptr) << "what waits for memory can be created";
  EXPECT_EQ(find<action::Vacated>()->epoch, group.epoch());
  group.go_on(now);
  group.created(kOk, now);
  both(RankPhase::kMap);
  both(RankPhase::kLoad);
  drain();
  EXPECT_EQ(group.phase(), Phase::kOpen);
}

TEST_F(BarrierTest, GoingOnIsNothingToOthers) {
  to_create();
  group.go_on(now);
  group.give_up(why, now);
  drain();
  EXPECT_TRUE(actions.empty());
  EXPECT_EQ(group.phase(), Phase::kCreate);
  EXPECT_EQ(group.state(), GroupState::kResuming);
}

TEST_F(BarrierTest, GivenUpWhileCreating) {
  to_create_with_barrier();
  group.give_up(why, now);
  expect_rollback_to_paused(Code::kAborted, "create: the pause failed");
}

TEST_F(BarrierTest, CreatesDeadlineSaysThatItMayBeTheOthers) {
  to_create_with_barrier();
  group.tick(now + std::chrono::hours(1));
  expect_rollback_to_paused(Code::kDeadlineExceeded,
                            "other groups of the swap or set still have the memory, or");
}

TEST_F(BarrierTest, GivenUpWhileLoading) {
  to_create_with_barrier();
  group.created(kOk, now);
  both(RankPhase::kMap);
  group.give_up(why, now);
  expect_rollback_to_paused(Code::kAborted, "map+load: the pause failed");
}

TEST_F(BarrierTest, GivenUpWhenAllHasBeenLoaded) {
  to_turn();
  group.give_up(why, now);
  expect_rollback_to_paused(Code::kAborted, "turn: the pause failed");
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok()) << "and it can be resumed alone";
}

TEST_F(BarrierTest, GivenUpInItsOwnRollbackChangesNothing) {
  to_create_with_barrier();
  group.created({Code::kInternal, "own failure"}, now);
  group.give_up(why, now);
  expect_rollback_to_paused(Code::kInternal, "own failure");
  EXPECT_EQ(group.note().find("the pause failed"), std::string::npos) << group.note();
}

TEST_F(BarrierTest, TheWaitForTheOtherHasADeadline) {
  to_create_with_barrier();
  // Of its own creating, and of all that the others have still to do.
  Duration limit = seconds(60) + seconds(60) + seconds(30) + seconds(60);
  EXPECT_EQ(group.wakeup(), now + limit);
  group.created(kOk, now);
  both(RankPhase::kMap);
  both(RankPhase::kLoad);
  limit += seconds(60) + seconds(60);  // to create, and to load
  EXPECT_EQ(group.wakeup(), now + limit);
  group.tick(now + limit);
  expect_rollback_to_paused(Code::kDeadlineExceeded, "other groups have not left");
}

TEST_F(BarrierTest, OnItsWayBackItIsReadyNoMore) {
  to_turn();
  group.tick(group.wakeup());
  ASSERT_EQ(group.phase(), Phase::kRollback);
  expect<action::Unready>("Unready");
}

TEST_F(BarrierTest, GivenUpItNeedNotSaySo) {
  to_turn();
  group.give_up(why, now);
  ASSERT_EQ(group.phase(), Phase::kRollback);
  drain();
  EXPECT_EQ(find<action::Unready>(), nullptr);
}

TEST_F(BarrierTest, ARankThatDiesWhileAllWaitIsNotMissed) {
  to_turn();
  group.leave(2, true, now);
  EXPECT_EQ(group.phase(), Phase::kAwaitPeers) << "it had loaded";
  group.go_on(now);
  drain();
  EXPECT_EQ(find<action::Ask>()->ranks, (std::vector<RankId>{1}));
}

TEST_F(BarrierTest, WhenTheLastRankDiesItEnds) {
  to_turn();
  group.leave(1, false, now);
  group.leave(2, false, now);
  drain();
  ASSERT_NE(find<action::Finished>(), nullptr);
  group.go_on(now);
  drain();
  EXPECT_TRUE(actions.empty());
}

// ---- a pause ------------------------------------------------------------------------------------

TEST_F(BarrierTest, ItDoesNotReleaseBeforeTheOthersHaveSaved) {
  to_agree();
  EXPECT_EQ(find<action::Release>(), nullptr);
  EXPECT_EQ(group.state(), GroupState::kPausing);
  EXPECT_FALSE(group.may_allocate(1));
  EXPECT_EQ(phase_name(group.phase()), "agree");
  group.go_on(now);
  expect<action::Release>("Release");
  both(RankPhase::kRelease);
  group.dropped("", now);
  drain();
  expect_finished(Code::kOk, GroupState::kPaused);
}

TEST_F(BarrierTest, APauseIsCalledOffAtAnyTimeBefore) {
  ASSERT_TRUE(group.start(Operation::kPause, {}, now, Barrier::kWithinNode).ok());
  group.give_up(why, now);
  expect_called_off(Code::kAborted, "quiesce: the pause failed");
  to_save_with_barrier();
  group.give_up(why, now);
  expect_called_off(Code::kAborted, "save: the pause failed");
  to_agree();
  group.give_up(why, now);
  expect_called_off(Code::kAborted, "agree: the pause failed");
}

TEST_F(BarrierTest, ACutOverSeveralNodesIsTakenElsewhere) {
  ASSERT_TRUE(group.start(Operation::kPause, {}, now, Barrier::kAcrossNodes).ok());
  drain();
  ASSERT_EQ(group.phase(), Phase::kQuiesce);
  const CutReport busy{0, 0, {{DeviceUuid(), true, 0}}};
  const CutReport waiting{0, 0, {{DeviceUuid(), false, 1}}};
  group.cut_status(1, group.epoch(), busy, now);
  group.cut_status(2, group.epoch(), waiting, now);
  group.cut_status(2, Epoch(77), busy, now);
  drain();
  const std::vector<action::Reported> reported = all<action::Reported>();
  ASSERT_EQ(reported.size(), 2U) << "the third is of another operation";
  EXPECT_EQ(reported[0].rank, 1U);
  EXPECT_TRUE(reported[0].what->devices[0].busy);
  EXPECT_EQ(reported[1].rank, 2U);
  EXPECT_EQ(reported[1].what->devices[0].waiting, 1U);
  EXPECT_EQ(find<action::Permit>(), nullptr) << "rank 2 is let through by who takes the cut";
  EXPECT_EQ(group.wakeup(), now + Deadlines().quiesce);
  group.tell(event::PermitOf{{2, DeviceUuid(), true}}, now);
  group.tell(event::PermitOf{{3, DeviceUuid(), true}}, now);
  drain();
  const std::vector<action::Permit> permits = all<action::Permit>();
  ASSERT_EQ(permits.size(), 1U) << "there is no rank 3";
  EXPECT_EQ(permits[0].epoch, group.epoch());
  EXPECT_EQ(permits[0].permit, (Cut::Permit{2, DeviceUuid(), true}));
  quiet(1);
  group.cut_status(2, group.epoch(), {1, 0, {}}, now);
  EXPECT_EQ(group.phase(), Phase::kQuiesce) << "ranks of other nodes may not be quiet";
  group.tell(event::CutTaken{}, now);
  EXPECT_EQ(group.phase(), Phase::kSave);
  group.tell(event::CutTaken{}, now);
  group.tell(event::PermitOf{{2, DeviceUuid(), true}}, now);
  EXPECT_EQ(group.phase(), Phase::kSave);
  drain();
  EXPECT_EQ(find<action::Permit>(), nullptr) << "there is no cut any more";
}

TEST_F(BarrierTest, WhoTakesTheCutOverSeveralNodesHearsOfARankThatHasGone) {
  ASSERT_TRUE(group.start(Operation::kPause, {}, now, Barrier::kAcrossNodes).ok());
  drain();
  group.leave(2, false, now);
  drain();
  ASSERT_NE(find<action::Reported>(), nullptr);
  EXPECT_EQ(find<action::Reported>()->rank, 2U);
  EXPECT_FALSE(find<action::Reported>()->what.has_value());
}

TEST_F(BarrierTest, OverSeveralNodesADeadlineSaysThatOtherNodesAreAwaited) {
  ASSERT_TRUE(group.start(Operation::kPause, {}, now, Barrier::kAcrossNodes).ok());
  quiet(1);
  quiet(2);
  group.tick(now + Deadlines().quiesce);
  expect_called_off(Code::kDeadlineExceeded, "ranks of other nodes are not quiet yet");
}

TEST_F(BarrierTest, ARankThatDiesBeforeTheOthersHaveSavedCallsItOff) {
  to_agree();
  group.leave(2, false, now);
  expect_called_off(Code::kAborted, "rank 1 (pid 22) ended during agree");
}

TEST_F(BarrierTest, TheWaitForTheOthersSavesHasADeadline) {
  ASSERT_TRUE(group.start(Operation::kPause, seconds(5), now, Barrier::kWithinNode).ok());
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {}, now);
  ASSERT_EQ(group.phase(), Phase::kAwaitSaved);
  // The broker's own; the others' guests, quiesce, measure and save.
  const Duration limit = seconds(60) + Deadlines().guests + seconds(5) + seconds(60) + seconds(60);
  EXPECT_EQ(group.wakeup(), now + limit);
  group.tick(now + limit);
  expect_called_off(Code::kDeadlineExceeded, "other groups have not saved yet");
}

TEST_F(BarrierTest, OnceItReleasesNothingTakesItBack) {
  to_agree();
  group.go_on(now);
  group.give_up(why, now);
  EXPECT_EQ(group.phase(), Phase::kRelease);
}

}  // namespace
}  // namespace amem
