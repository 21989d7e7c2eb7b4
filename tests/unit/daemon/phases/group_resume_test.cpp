// Every arrow of a resume in the table of phases.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

TEST_F(GroupTest, NotAdmittedStaysPaused) {
  to_admit();
  group.admitted({Code::kResourceExhausted, "20 GiB needed, 10 GiB free"}, now);
  drain();
  EXPECT_EQ(find<action::Drop>(), nullptr);
  expect_finished(Code::kResourceExhausted, GroupState::kPaused, "20 GiB needed, 10 GiB free");
}

TEST_F(GroupTest, WhatWasCreatedAndSentIsTakenBackAgain) {
  to_create();
  const Epoch before = group.epoch();
  group.created({Code::kResourceExhausted, "out of memory"}, now);
  EXPECT_EQ(group.epoch(), Epoch(before.attempt + 1)) << "late answers are not for the rollback";
  expect_rollback_to_paused(Code::kResourceExhausted, "create: out of memory");
}

TEST_F(GroupTest, CreateHasADeadlineToo) {
  to_create();
  group.tick(now + seconds(60));
  group.created(kOk, now);  // too late
  expect_rollback_to_paused(Code::kDeadlineExceeded, "the broker still works");
}

TEST_F(GroupTest, DeathWhileTheBrokerCreatesGoesOn) {
  to_create();
  group.leave(2, false, now);
  EXPECT_EQ(group.phase(), Phase::kCreate);
  group.created(kOk, now);
  drain();
  EXPECT_EQ(find<action::Load>()->ranks, (std::vector<RankId>{1}));
}

TEST_F(GroupTest, DeathOfAKeeperThatHasBeenSentAPieceRollsBack) {
  to_create();
  group.leave(1, true, now);
  expect_rollback_to_paused(Code::kAborted, "rank 0 (pid 11) ended during create");
}

TEST_F(GroupTest, WhatAKeeperFreesUnloadedWhileTheBrokerCreatesRollsBack) {
  to_create();
  group.freed_unloaded(1, now);
  expect_rollback_to_paused(Code::kAborted, "rank 0 (pid 11) freed");
}

TEST_F(GroupTest, AFailedMapRollsBack) {
  to_load();
  const Epoch before = group.epoch();
  done(1, RankPhase::kMap, {Code::kInternal, "cuMemMap refused"});
  EXPECT_EQ(group.epoch(), Epoch(before.attempt + 1));
  expect_rollback_to_paused(Code::kAborted, "cuMemMap refused");
}

TEST_F(GroupTest, AFailedLoadRollsBack) {
  to_load();
  both(RankPhase::kMap);
  done(2, RankPhase::kLoad, {Code::kInternal, "copy failed"});
  expect_rollback_to_paused(Code::kAborted, "copy failed");
}

TEST_F(GroupTest, LoadDeadlineRollsBack) {
  to_load();
  both(RankPhase::kMap);
  done(1, RankPhase::kLoad);
  now += seconds(60);
  group.tick(now);
  expect_rollback_to_paused(Code::kDeadlineExceeded, "rank 1 (pid 22) did not answer");
}

TEST_F(GroupTest, TheOperatorsTimeoutOfAResumeIsForLoad) {
  to_paused();
  ASSERT_TRUE(group.start(Operation::kResume, seconds(2), now).ok());
  group.admitted(kOk, now);
  group.created(kOk, now);
  EXPECT_EQ(group.wakeup(), now + seconds(2));
}

TEST_F(GroupTest, DeathInLoadGoesOnWithoutTheRank) {
  to_load();
  group.leave(2, false, now);
  EXPECT_EQ(group.phase(), Phase::kLoad);
  done(1, RankPhase::kMap);
  done(1, RankPhase::kLoad);
  EXPECT_EQ(group.phase(), Phase::kOpen);
}

TEST_F(GroupTest, DeathOfAKeeperBeforeItsLoadRollsBack) {
  to_load();
  done(1, RankPhase::kMap);
  group.leave(1, true, now);
  expect_rollback_to_paused(Code::kAborted, "rank 0 (pid 11) ended during map+load");
}

TEST_F(GroupTest, DeathOfAKeeperAfterItsLoadDoesNoHarm) {
  to_load();
  done(1, RankPhase::kMap);
  done(1, RankPhase::kLoad);
  group.leave(1, true, now);
  EXPECT_EQ(group.phase(), Phase::kLoad);
  done(2, RankPhase::kMap);
  done(2, RankPhase::kLoad);
  EXPECT_EQ(group.phase(), Phase::kOpen);
}

TEST_F(GroupTest, AfterARollbackAnotherResumeWorks) {
  to_load();
  done(1, RankPhase::kMap, {Code::kInternal, "x"});
  expect_rollback_to_paused(Code::kAborted, "x");
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  EXPECT_EQ(group.phase(), Phase::kAdmit);
}

TEST_F(GroupTest, TroubleInTheRollbackIsTold) {
  to_load();
  done(1, RankPhase::kMap, {Code::kInternal, "first thing"});
  done(1, RankPhase::kRelease);
  drain();
  group.tick(now + seconds(30));
  expect<action::Drop>("Drop");
  group.dropped("", now);
  drain();
  expect_finished(Code::kAborted, GroupState::kPaused, "first thing");
  EXPECT_NE(group.note().find("then rollback: not done within 30s: rank 1 (pid 22)"),
            std::string::npos)
      << group.note();
}

TEST_F(GroupTest, DeathInTheRollbackGoesOn) {
  to_load();
  done(1, RankPhase::kMap, {Code::kInternal, "x"});
  done(1, RankPhase::kRelease);
  group.leave(2, false, now);
  EXPECT_EQ(group.phase(), Phase::kDrop);
}

TEST_F(GroupTest, OpenDeadlineEndsRunningWithAnError) {
  to_open();
  done(1, RankPhase::kOpen);
  group.tick(now + seconds(10));
  drain();
  EXPECT_NE(find<action::Arrived>(), nullptr) << "all had loaded";
  expect_finished(Code::kDeadlineExceeded, GroupState::kRunning, "rank 1 (pid 22) did not answer");
}

TEST_F(GroupTest, RanksThatHaveOpenedAreServedAtOnce) {
  to_load();
  both(RankPhase::kMap);
  done(1, RankPhase::kLoad);
  EXPECT_FALSE(group.may_allocate(1));
  done(2, RankPhase::kLoad);
  ASSERT_EQ(group.phase(), Phase::kOpen);
  EXPECT_TRUE(group.may_allocate(1));
}

TEST_F(GroupTest, DeathInOpenGoesOn) {
  to_open();
  done(1, RankPhase::kOpen);
  group.leave(2, false, now);
  drain();
  EXPECT_EQ(group.state(), GroupState::kRunning);
  EXPECT_TRUE(find<action::Finished>()->outcome.status.ok());
}

TEST_F(GroupTest, AnswersOutOfOrderAreIgnored) {
  to_load();
  done(1, RankPhase::kOpen);
  done(1, RankPhase::kSave);
  group.phase_done(1, group.epoch().attempt - 1, RankPhase::kLoad, {}, 0, now);
  group.phase_done(77, group.epoch(), RankPhase::kLoad, {}, 0, now);
  EXPECT_EQ(group.waiting_for(1), "map+load");
  done(1, RankPhase::kLoad);
  EXPECT_EQ(group.waiting_for(1), "map+load") << "Map comes first";
  done(1, RankPhase::kMap);
  done(1, RankPhase::kLoad);
  EXPECT_EQ(group.waiting_for(1), "");
  done(1, RankPhase::kLoad, {Code::kInternal, "twice"});
  EXPECT_EQ(group.phase(), Phase::kLoad) << "the second answer does not count";
}

TEST_F(GroupTest, NothingIsCopiedOnceAllIsLoaded) {
  to_open();
  group.tell(event::Copied{1, group.epoch(), 1, 2}, now + seconds(60));
  drain();
  EXPECT_EQ(find<action::Progress>(), nullptr);
}

}  // namespace
}  // namespace amem
