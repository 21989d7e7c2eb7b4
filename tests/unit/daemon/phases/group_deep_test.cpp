// A pause after which nothing of a group's processes is on the devices, and the resume after it.
#include <gmock/gmock.h>

#include <optional>

#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

using ::testing::ElementsAre;

class GroupDeepTest : public GroupTest {
 protected:
  static Task deep_pause() {
    Task task(Operation::kPause);
    task.deep = true;
    return task;
  }
  /// A pause that has begun goes on until its memory has been saved.
  void save() {
    quiet(1);
    quiet(2);
    group.save_sent(kOk, {1}, now);
    done(1, RankPhase::kSave);
  }
  /// Until its memory has left.
  void leave() {
    save();
    both(RankPhase::kRelease);
    group.dropped("", now);
    drain();
  }
  void to_detach() {
    ASSERT_TRUE(group.start(deep_pause(), {}, now).ok());
    leave();
    ASSERT_EQ(group.phase(), Phase::kDetach);
  }
  void to_checkpoint() {
    to_detach();
    both(RankPhase::kDetach);
    drain();
    ASSERT_EQ(group.phase(), Phase::kCheckpoint);
  }
  void to_deep() {
    to_checkpoint();
    group.checkpointed(kOk, now);
    drain();
    ASSERT_EQ(group.state(), GroupState::kPaused);
  }
  void to_restore() {
    to_deep();
    ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
    drain();
    ASSERT_EQ(group.phase(), Phase::kRestore);
  }
  /// As the next broker finds it.
  ToldGroup& restart() {
    Members members;
    members.add(1, "rank 0 (pid 11)");
    members.add(2, "rank 1 (pid 22)");
    next.emplace("train", Deadlines(), now, MemoryView(), restart_state_of(group),
                 std::move(members), seconds(60));
    return *next;
  }

  std::optional<ToldGroup> next;
};

TEST_F(GroupDeepTest, ProcessesAreCheckpointedOnceAllHasLeft) {
  to_detach();
  const auto* ask = find<action::Ask>();
  ASSERT_NE(ask, nullptr);
  EXPECT_EQ(ask->what, RankPhase::kDetach);
  EXPECT_THAT(ask->ranks, ElementsAre(1, 2));
  EXPECT_FALSE(group.deep());
  done(1, RankPhase::kDetach);
  drain();
  EXPECT_EQ(find<action::Checkpoint>(), nullptr) << "the other is not ready";
  done(2, RankPhase::kDetach);
  drain();
  const auto* checkpoint = find<action::Checkpoint>();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_THAT(checkpoint->ranks, ElementsAre(1, 2));
  EXPECT_TRUE(restart_state_of(group).deep) << "from the first call on, as far as a restart knows";
  group.checkpointed(kOk, now);
  drain();
  expect_finished(Code::kOk, GroupState::kPaused);
  EXPECT_TRUE(group.deep());
}

TEST_F(GroupDeepTest, ForOthersItIsPausedOnceAllHasLeft) {
  to_detach();
  EXPECT_NE(find<action::Left>(), nullptr);
}

TEST_F(GroupDeepTest, ForOthersItHasNotLeftIfSomethingMayHaveStayed) {
  ASSERT_TRUE(group.start(deep_pause(), {}, now).ok());
  save();
  done(1, RankPhase::kRelease);
  done(2, RankPhase::kRelease, {Code::kAborted, "it is stuck"});
  group.dropped("", now);
  drain();
  EXPECT_EQ(group.phase(), Phase::kDetach);
  EXPECT_EQ(find<action::Left>(), nullptr);
}

TEST_F(GroupDeepTest, TheRanksCanAskForIt) {
  group.request(1, 5, deep_pause(), {}, now);
  drain();
  EXPECT_EQ(group.state(), GroupState::kRunning) << "one has";
  group.request(2, 6, deep_pause(), {}, now);
  drain();
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
  leave();
  both(RankPhase::kDetach);
  drain();
  EXPECT_EQ(find<action::Answer>(), nullptr) << "not before it is deep";
  group.checkpointed(kOk, now);
  drain();
  EXPECT_NE(find<action::Answer>(), nullptr);
  EXPECT_TRUE(group.deep());
  drain();
  group.request(1, 7, deep_pause(), {}, now);
  drain();
  EXPECT_NE(find<action::Answer>(), nullptr) << "it is so already";
}

TEST_F(GroupDeepTest, WhoMakesItDeepHasNotPausedIt) {
  const Task some(Operation::kResume, {{"kv_cache"}});
  for (const RankId rank : {1U, 2U}) group.request(rank, rank, Operation::kPause, {}, now);
  leave();
  ASSERT_TRUE(group.start(deep_pause(), {}, now).ok());
  both(RankPhase::kDetach);
  group.checkpointed(kOk, now);
  ASSERT_TRUE(group.deep());
  for (const RankId rank : {1U, 2U}) group.request(rank, 10 + rank, some, {}, now);
  EXPECT_EQ(group.phase(), Phase::kRestore) << "its ranks have, and resume it";
}

TEST_F(GroupDeepTest, WhatHasBeenPausedForLongIsToBeMadeDeep) {
  Deadlines deadlines;
  deadlines.deepen = seconds(100);
  ToldGroup old("train", deadlines, now, MemoryView());
  old.join(1, "rank 0");
  EXPECT_EQ(old.wakeup(), kNever) << "it runs";
  const auto overdue = [&] {
    bool any = false;
    while (const auto action = old.next_action())
      any = any || std::holds_alternative<action::Overdue>(*action);
    return any;
  };
  ASSERT_TRUE(old.start(Operation::kPause, {}, now).ok());
  old.tell(event::CutStatus{1, old.epoch(), CutReport()}, now);
  old.save_sent(kOk, {}, now);
  old.tell(event::PhaseDone{1, old.epoch(), RankPhase::kRelease, kOk}, now);
  old.dropped("", now);
  ASSERT_EQ(old.state(), GroupState::kPaused);
  EXPECT_EQ(old.wakeup(), now + seconds(100));
  now += seconds(99);
  old.tick(now);
  EXPECT_FALSE(overdue());
  now += seconds(1);
  old.tick(now);
  EXPECT_TRUE(overdue());
  EXPECT_EQ(old.wakeup(), now + seconds(100)) << "if it is refused";
  ASSERT_TRUE(old.start(deep_pause(), {}, now).ok());
  now += seconds(1);
  old.tell(event::PhaseDone{1, old.epoch(), RankPhase::kDetach, {Code::kAborted, "no"}}, now);
  ASSERT_EQ(old.state(), GroupState::kPaused);
  EXPECT_EQ(old.wakeup(), now + seconds(100)) << "a try that fails is repeated, not at once";
  now += seconds(100);
  old.tick(now);
  EXPECT_TRUE(overdue());
  ASSERT_TRUE(old.start(deep_pause(), {}, now).ok());
  old.tell(event::PhaseDone{1, old.epoch(), RankPhase::kDetach, kOk}, now);
  old.checkpointed(kOk, now);
  ASSERT_TRUE(old.deep());
  EXPECT_EQ(old.wakeup(), kNever);
}

TEST_F(GroupDeepTest, WhatIsPausedAlreadyIsMadeDeep) {
  to_paused();
  EXPECT_FALSE(group.start(Operation::kPause, {}, now).ok());
  ASSERT_TRUE(group.start(deep_pause(), {}, now).ok());
  drain();
  EXPECT_EQ(group.phase(), Phase::kDetach);
  both(RankPhase::kDetach);
  group.checkpointed(kOk, now);
  drain();
  EXPECT_TRUE(group.deep());
  EXPECT_FALSE(group.start(deep_pause(), {}, now).ok()) << "it is already";
  EXPECT_FALSE(group.start(Operation::kPause, {}, now).ok()) << "it is paused, too";
}

TEST_F(GroupDeepTest, AFailureBeforeTheFirstCallLeavesItPaused) {
  to_detach();
  done(1, RankPhase::kDetach, {Code::kFailedPrecondition, "a NIC has memory"});
  drain();
  expect_finished(Code::kAborted, GroupState::kPaused, "a NIC has memory");
  EXPECT_FALSE(group.deep());
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  EXPECT_EQ(group.phase(), Phase::kAdmit);
}

TEST_F(GroupDeepTest, WhatACheckpointThatFailsHasNotBroughtBackIsRestoredByTheResume) {
  to_checkpoint();
  group.checkpointed({Code::kInternal, "rank 1 (pid 22): the driver refuses"}, now, false);
  drain();
  expect_finished(Code::kInternal, GroupState::kPaused, "rank 1 (pid 22)");
  EXPECT_EQ(find<action::Ask>(), nullptr) << "a process may be locked";
  EXPECT_TRUE(group.deep());
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  EXPECT_EQ(group.phase(), Phase::kRestore);
}

TEST_F(GroupDeepTest, ACheckpointThatFailsIsUndone) {
  to_checkpoint();
  group.checkpointed({Code::kInternal, "rank 1 (pid 22): the driver refuses"}, now);
  drain();
  expect_finished(Code::kInternal, GroupState::kPaused, "the driver refuses");
  EXPECT_FALSE(group.deep());
  const auto* ask = find<action::Ask>();
  ASSERT_NE(ask, nullptr) << "frees pass again";
  EXPECT_EQ(ask->what, RankPhase::kAllowFrees);
}

TEST_F(GroupDeepTest, ACheckpointWithoutAnAnswerIsSettledByTheResume) {
  to_checkpoint();
  now = group.wakeup();
  group.tick(now);
  drain();
  expect_finished(Code::kDeadlineExceeded, GroupState::kPaused);
  EXPECT_TRUE(group.deep());
  EXPECT_EQ(find<action::Ask>(), nullptr) << "nothing is asked of a process that may be locked";
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  EXPECT_EQ(group.phase(), Phase::kRestore);
}

TEST_F(GroupDeepTest, AResumeRestoresBeforeAnythingElse) {
  to_restore();
  const auto* restore = find<action::Restore>();
  ASSERT_NE(restore, nullptr);
  EXPECT_THAT(restore->ranks, ElementsAre(1, 2));
  EXPECT_EQ(find<action::Admit>(), nullptr);
  group.restored(kOk, now);
  drain();
  EXPECT_FALSE(group.deep());
  ASSERT_EQ(group.phase(), Phase::kReplayFrees);
  const auto* ask = find<action::Ask>();
  ASSERT_NE(ask, nullptr) << "the ranks free what the program has freed meanwhile";
  EXPECT_EQ(ask->what, RankPhase::kAllowFrees);
  EXPECT_THAT(ask->ranks, ElementsAre(1, 2));
  done(1, RankPhase::kAllowFrees);
  drain();
  EXPECT_EQ(find<action::Admit>(), nullptr);
  done(2, RankPhase::kAllowFrees);
  expect<action::Admit>("Admit");
}

TEST_F(GroupDeepTest, ALateAnswerOfACheckpointIsNoAnswerOfTheRestore) {
  to_restore();
  group.checkpointed({Code::kInternal, "the driver refuses"}, now);
  EXPECT_EQ(group.phase(), Phase::kRestore);
  EXPECT_TRUE(group.deep()) << "processes may be locked";
}

TEST_F(GroupDeepTest, ARankThatDoesNotReplayItsFreesLeavesItPaused) {
  to_restore();
  group.restored(kOk, now);
  done(1, RankPhase::kAllowFrees);
  now = group.wakeup();
  group.tick(now);
  drain();
  expect_finished(Code::kDeadlineExceeded, GroupState::kPaused);
  EXPECT_FALSE(group.deep());
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  EXPECT_EQ(group.phase(), Phase::kAdmit);
}

TEST_F(GroupDeepTest, ANextBrokerRollsBackTheReplayOfFrees) {
  to_restore();
  group.restored(kOk, now);
  restart();
  EXPECT_FALSE(next->deep());
  next->join(1, "");
  next->join(2, "");
  next->tick(now);
  EXPECT_EQ(next->phase(), Phase::kRollback);
}

TEST_F(GroupDeepTest, ARestoreThatFailsIsTriedAgain) {
  to_restore();
  group.restored({Code::kResourceExhausted, "rank 0 (pid 11): no memory"}, now);
  drain();
  expect_finished(Code::kResourceExhausted, GroupState::kPaused, "no memory");
  EXPECT_TRUE(group.deep());
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  EXPECT_EQ(group.phase(), Phase::kRestore);
}

TEST_F(GroupDeepTest, ARankThatEndsIsNotWaitedFor) {
  to_detach();
  done(1, RankPhase::kDetach);
  group.leave(2, false, now);
  drain();
  const auto* checkpoint = find<action::Checkpoint>();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_THAT(checkpoint->ranks, ElementsAre(1));
}

TEST_F(GroupDeepTest, OneThatLosesItsSessionIsRestoredAndMayComeBack) {
  to_deep();
  group.expect(2);
  EXPECT_EQ(group.waiting_for(2), "comeback");
  EXPECT_EQ(group.start(deep_pause(), {}, now).code(), Code::kUnavailable);
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok()) << "a restore needs no session";
  drain();
  const auto* restore = find<action::Restore>();
  ASSERT_NE(restore, nullptr);
  EXPECT_THAT(restore->ranks, ElementsAre(1, 2));
  group.restored(kOk, now);
  done(1, RankPhase::kAllowFrees);
  drain();
  EXPECT_EQ(group.phase(), Phase::kReplayFrees);
  EXPECT_TRUE(group.join(2, "")) << "its gate stays shut";
  drain();
  const auto* ask = find<action::Ask>();
  ASSERT_NE(ask, nullptr);
  EXPECT_THAT(ask->ranks, ElementsAre(2));
  done(2, RankPhase::kAllowFrees);
  expect<action::Admit>("Admit");
}

TEST_F(GroupDeepTest, OneThatDoesNotComeBackIsNamedAndTheOthersGoOnOnceItHasEnded) {
  to_deep();
  group.expect(2);
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  group.restored(kOk, now);
  done(1, RankPhase::kAllowFrees);
  now = group.wakeup();
  group.tick(now);
  drain();
  expect_finished(Code::kDeadlineExceeded, GroupState::kPaused, "rank 1 (pid 22)");
  EXPECT_FALSE(group.deep());
  const Status refused = group.start(Operation::kResume, {}, now);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.text(), ::testing::HasSubstr("waits for rank 1 (pid 22)"));
  group.leave(2, false, now);
  EXPECT_TRUE(group.start(Operation::kResume, {}, now).ok());
}

TEST_F(GroupDeepTest, ANextBrokerGoesOnWithADetach) {
  to_detach();
  restart();
  EXPECT_FALSE(next->deep());
  next->join(1, "");
  next->join(2, "");
  next->tick(now);
  EXPECT_EQ(next->phase(), Phase::kRelease);
  for (const RankId rank : {1U, 2U})
    next->phase_done(rank, next->epoch(), RankPhase::kRelease, {}, 0, now);
  next->dropped("", now);
  EXPECT_EQ(next->phase(), Phase::kDetach) << "it knows that the pause was to be deep";
}

TEST_F(GroupDeepTest, ANextBrokerLeavesItsProcessesAsTheyAre) {
  for (const bool restoring : {false, true}) {
    restoring ? to_restore() : to_checkpoint();
    restart();
    EXPECT_EQ(next->state(), GroupState::kPaused);
    EXPECT_TRUE(next->deep());
    next->join(1, "");
    next->join(2, "");
    next->tick(now);
    EXPECT_EQ(next->phase(), Phase::kNone);
    ASSERT_TRUE(next->start(Operation::kResume, {}, now).ok());
    EXPECT_EQ(next->phase(), Phase::kRestore);
    if (restoring) break;
    group.checkpointed({Code::kInternal, ""}, now);
    drain();
    ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
    group.admitted(kOk, now);
    group.created(kOk, now);
    both(RankPhase::kMap);
    both(RankPhase::kLoad);
    both(RankPhase::kOpen);
    drain();
    ASSERT_EQ(group.state(), GroupState::kRunning);
  }
}

}  // namespace
}  // namespace amem
