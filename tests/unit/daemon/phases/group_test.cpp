// Every arrow of a pause in the table of phases.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

// ---- the way through ----------------------------------------------------------------------------

TEST_F(GroupTest, PauseAndResume) {
  to_quiesce();
  const auto* quiesce = find<action::Quiesce>();
  ASSERT_NE(quiesce, nullptr);
  EXPECT_EQ(quiesce->ranks, (std::vector<RankId>{1, 2}));
  EXPECT_EQ(quiesce->epoch, 1U);
  EXPECT_EQ(group.state(), GroupState::kPausing);
  EXPECT_EQ(group.waiting_for(1), "quiesce");
  now += milliseconds(3);
  quiet(1);
  quiet(2);
  expect<action::Save>("Save");
  group.save_sent(kOk, {2}, now);
  EXPECT_EQ(group.waiting_for(1), "");
  EXPECT_EQ(group.waiting_for(2), "save");
  now += milliseconds(5);
  done(2, RankPhase::kSave, {}, 4096);
  expect<action::Release>("Release");
  both(RankPhase::kRelease);
  expect<action::Drop>("Drop");
  group.dropped("", now);
  drain();
  expect_finished(Code::kOk, GroupState::kPaused);
  const Outcome pause = find<action::Finished>()->outcome;
  EXPECT_EQ(to_us(pause.total), 8000U);
  ASSERT_EQ(pause.times.size(), 4U);
  EXPECT_EQ(pause.times[0].phase, Phase::kQuiesce);
  EXPECT_EQ(to_us(pause.times[0].time), 3000U);
  EXPECT_EQ(to_us(pause.times[1].time), 5000U);
  EXPECT_EQ(pause.times[3].phase, Phase::kDrop);
  ASSERT_TRUE(group.last(Operation::kPause).has_value());
  EXPECT_FALSE(group.last(Operation::kResume).has_value());
  EXPECT_EQ(group.wakeup(), kNever);

  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  EXPECT_EQ(group.epoch(), 2U);
  expect<action::Admit>("Admit");
  group.admitted(kOk, now);
  expect<action::Create>("Create");
  group.created(kOk, now);
  drain();
  ASSERT_NE(find<action::Load>(), nullptr);
  EXPECT_EQ(find<action::Load>()->ranks, (std::vector<RankId>{1, 2}));
  both(RankPhase::kMap);
  EXPECT_EQ(group.phase(), Phase::kLoad);
  done(1, RankPhase::kLoad);
  EXPECT_EQ(group.phase(), Phase::kLoad) << "no rank goes on before all have loaded";
  done(2, RankPhase::kLoad);
  expect<action::Ask>("Open");
  both(RankPhase::kOpen);
  drain();
  EXPECT_NE(find<action::Arrived>(), nullptr);
  expect_finished(Code::kOk, GroupState::kRunning);
  EXPECT_EQ(find<action::Finished>()->outcome.times.size(), 4U);
}

TEST_F(GroupTest, PhasesWithNothingToDoArePassedThrough) {
  to_quiesce();
  quiet(1);
  quiet(2);
  drain();
  group.save_sent(kOk, {}, now);
  EXPECT_EQ(group.phase(), Phase::kRelease);
}

TEST_F(GroupTest, ProgressIsReported) {
  to_quiesce();
  EXPECT_EQ(find<action::Progress>()->ranks_total, 2U);
  EXPECT_EQ(find<action::Progress>()->ranks_done, 0U);
  quiet(1);
  drain();
  ASSERT_NE(find<action::Progress>(), nullptr);
  EXPECT_EQ(find<action::Progress>()->ranks_done, 1U);
  quiet(2);
  drain();
  group.save_sent(kOk, {1, 2}, now);
  drain();
  now += milliseconds(2);
  done(1, RankPhase::kSave, {}, 100);
  drain();
  const auto* progress = find<action::Progress>();
  ASSERT_NE(progress, nullptr);
  EXPECT_EQ(progress->phase, Phase::kSave);
  EXPECT_EQ(progress->ranks_done, 1U);
  EXPECT_EQ(progress->ranks_total, 2U);
  EXPECT_EQ(progress->bytes, 100U);
  EXPECT_EQ(to_us(progress->elapsed), 2000U);
}

TEST_F(GroupTest, WrongStateIsRefused) {
  EXPECT_EQ(group.start(Operation::kResume, {}, now).code(), Code::kFailedPrecondition);
  to_quiesce();
  const Status second = group.start(Operation::kPause, {}, now);
  EXPECT_EQ(second.code(), Code::kFailedPrecondition);
  EXPECT_NE(second.text().find("pausing (quiesce)"), std::string::npos) << second.text();
  EXPECT_EQ(group.start(Operation::kResume, {}, now).code(), Code::kFailedPrecondition);
}

TEST_F(GroupTest, PausedGroupsAreNotPausedAgain) {
  to_paused();
  EXPECT_EQ(group.start(Operation::kPause, {}, now).code(), Code::kFailedPrecondition);
}

// ---- quiesce ------------------------------------------------------------------------------------

TEST_F(GroupTest, BusyRanksGetTheOthersStepped) {
  to_quiesce();
  CutReport busy;
  busy.devices = {{DeviceUuid(), true, 0}};
  CutReport waiting;
  waiting.devices = {{DeviceUuid(), false, 1}};
  group.cut_status(1, 1, busy, now);
  group.cut_status(2, 1, waiting, now);
  drain();
  ASSERT_EQ(all<action::Permit>().size(), 1U);
  EXPECT_EQ(find<action::Permit>()->permit.rank, 2U);
  EXPECT_EQ(group.wakeup(), now + milliseconds(20)) << "a stall is looked for";
  group.cut_status(1, 1, {}, now);
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
  waiting.permits = 1;
  group.cut_status(2, 1, waiting, now);
  EXPECT_EQ(group.phase(), Phase::kSave);
}

TEST_F(GroupTest, AStallIsFoundByTick) {
  to_quiesce();
  CutReport busy;
  busy.devices = {{DeviceUuid(), true, 1}};
  group.cut_status(1, 1, busy, now);
  group.cut_status(2, 1, busy, now);
  drain();
  EXPECT_EQ(find<action::Permit>(), nullptr);
  now = group.wakeup();
  group.tick(now);
  drain();
  EXPECT_EQ(all<action::Permit>().size(), 2U);
}

TEST_F(GroupTest, ARankThatCannotBecomeQuietCallsThePauseOff) {
  to_quiesce();
  quiet(1);
  done(2, RankPhase::kQuiet, {Code::kFailedPrecondition, "libother.so reaches CUDA past amem"});
  expect<action::Ask>("Open");
  expect_finished(Code::kAborted, GroupState::kRunning,
                  "quiesce: rank 1 (pid 22) failed: libother.so reaches CUDA past amem");
}

TEST_F(GroupTest, QuiesceDeadlineReopensTheGatesAndNamesTheSlow) {
  to_quiesce();
  CutReport busy;
  busy.devices = {{DeviceUuid(), true, 0}};
  group.cut_status(1, 1, busy, now);
  quiet(2);
  drain();
  now += seconds(30);
  group.tick(now);
  expect_called_off(Code::kDeadlineExceeded, "rank 0 (pid 11) has work running on GPU-");
  EXPECT_EQ(group.note().find("pid 22"), std::string::npos) << "that one was quiet";
}

TEST_F(GroupTest, TheOperatorsTimeoutIsForQuiesce) {
  ASSERT_TRUE(group.start(Operation::kPause, milliseconds(100), now).ok());
  drain();
  EXPECT_EQ(group.wakeup(), now + milliseconds(100));
  group.tick(now + milliseconds(100));
  expect_called_off(Code::kDeadlineExceeded, "100ms");
}

TEST_F(GroupTest, DeathInQuiesceCallsThePauseOff) {
  to_quiesce();
  group.leave(2, false, now);
  expect_called_off(Code::kAborted, "rank 1 (pid 22) ended during quiesce");
}

TEST_F(GroupTest, ALostSessionCallsOffWhatCanBeAndIsNamedUntilTheProcessEnds) {
  to_quiesce();
  group.lose(2, now);
  drain();
  expect_finished(Code::kAborted, GroupState::kRunning, "rank 1 (pid 22) lost its session");
  to_quiesce();
  quiet(1);
  EXPECT_EQ(group.phase(), Phase::kQuiesce) << "it counts as long as it lives";
  now = group.wakeup();
  group.tick(now);
  drain();
  expect_finished(Code::kDeadlineExceeded, GroupState::kRunning,
                  "rank 1 (pid 22) whose session has ended (end that process) has not answered");
  to_quiesce();
  quiet(1);
  group.leave(2, false, now);
  drain();
  expect_finished(Code::kAborted, GroupState::kRunning);
  to_quiesce();
  quiet(1);
  EXPECT_EQ(group.phase(), Phase::kSave) << "it has gone";
}

TEST_F(GroupTest, ALostSessionInReleaseIsAwaitedAsItsProcessIs) {
  to_release();
  group.lose(2, now);
  done(1, RankPhase::kRelease);
  EXPECT_EQ(group.phase(), Phase::kRelease) << "it may still have what is to be dropped";
  group.leave(2, false, now);
  EXPECT_EQ(group.phase(), Phase::kDrop);
  group.dropped("", now);
  drain();
  EXPECT_TRUE(find<action::Finished>()->outcome.status.ok()) << "all has left";
}

TEST_F(GroupTest, OldStatusesAreIgnored) {
  to_quiesce();
  group.tick(now + seconds(30));
  drain();
  now += seconds(31);
  to_quiesce();
  group.cut_status(1, 1, {}, now);
  group.cut_status(2, 1, {}, now);
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
}

// ---- save ---------------------------------------------------------------------------------------

TEST_F(GroupTest, APoolTooSmallCallsThePauseOff) {
  to_quiesce();
  quiet(1);
  quiet(2);
  drain();
  group.save_sent({Code::kResourceExhausted, "8 GiB needed, 1 GiB free"}, {}, now);
  expect_called_off(Code::kResourceExhausted, "8 GiB needed, 1 GiB free");
}

TEST_F(GroupTest, AnAnswerOfAnotherAttemptCountsForNothing) {
  to_save();
  for (const std::uint64_t attempt : {group.epoch().attempt - 1, group.epoch().attempt + 1})
    group.phase_done(1, attempt, RankPhase::kSave, {}, 0, now);
  EXPECT_EQ(group.phase(), Phase::kSave);
  done(1, RankPhase::kSave);
  EXPECT_EQ(group.phase(), Phase::kRelease);
}

TEST_F(GroupTest, AnAnswerOfAnotherPhaseCountsForNothing) {
  to_save();
  for (const RankPhase other : {RankPhase::kQuiet, RankPhase::kRelease, RankPhase::kOpen})
    done(1, other);
  EXPECT_EQ(group.phase(), Phase::kSave);
  done(1, RankPhase::kSave);
  EXPECT_EQ(group.phase(), Phase::kRelease);
}

TEST_F(GroupTest, AFailedSaveCallsThePauseOff) {
  to_save();
  done(1, RankPhase::kSave, {Code::kInternal, "copy: CUDA_ERROR_UNKNOWN"});
  expect_called_off(Code::kAborted, "rank 0 (pid 11) failed: copy");
}

TEST_F(GroupTest, SaveDeadlineCallsThePauseOff) {
  to_save();
  now += seconds(60);
  group.tick(now);
  expect_called_off(Code::kDeadlineExceeded, "rank 0 (pid 11) did not answer");
}

TEST_F(GroupTest, DeathInSaveCallsThePauseOff) {
  to_save();
  group.leave(2, false, now);
  expect_called_off(Code::kAborted, "ended during save");
}

TEST_F(GroupTest, LateAnswersAfterACallOffAreIgnored) {
  to_save();
  group.tick(now + seconds(60));
  drain();
  done(1, RankPhase::kSave);
  both(RankPhase::kOpen);
  drain();
  EXPECT_TRUE(actions.empty());
  EXPECT_EQ(group.state(), GroupState::kRunning);
}

// ---- release and drop: past the point of no return ----------------------------------------------

TEST_F(GroupTest, DeathInReleaseDropsTheRank) {
  to_release();
  done(1, RankPhase::kRelease);
  group.leave(2, false, now);
  expect<action::Drop>("Drop");
  group.dropped("", now);
  drain();
  const auto* finished = find<action::Finished>();
  ASSERT_NE(finished, nullptr);
  EXPECT_TRUE(finished->outcome.status.ok());
  EXPECT_EQ(group.state(), GroupState::kPaused);
  EXPECT_NE(group.note().find("rank 1 (pid 22) ended"), std::string::npos);
}

TEST_F(GroupTest, ReleaseDeadlineEndsPausedWithAnError) {
  to_release();
  done(1, RankPhase::kRelease);
  now += seconds(30);
  group.tick(now);
  expect<action::Drop>("Drop");
  EXPECT_EQ(find<action::Ask>(), nullptr);
  group.dropped("", now);
  drain();
  expect_finished(Code::kDeadlineExceeded, GroupState::kPaused, "rank 1 (pid 22) did not answer");
  EXPECT_FALSE(group.last(Operation::kPause).has_value());
}

TEST_F(GroupTest, AFailedReleaseEndsPausedWithAnError) {
  to_release();
  done(1, RankPhase::kRelease, {Code::kInternal, "unmap refused"});
  EXPECT_EQ(group.phase(), Phase::kRelease) << "the others go on";
  done(2, RankPhase::kRelease);
  expect<action::Drop>("Drop");
  group.dropped("", now);
  drain();
  expect_finished(Code::kAborted, GroupState::kPaused, "unmap refused");
}

TEST_F(GroupTest, MemoryThatDidNotComeFreeIsNoted) {
  to_release();
  both(RankPhase::kRelease);
  drain();
  group.dropped("2 GiB still in use", now);
  drain();
  EXPECT_TRUE(find<action::Finished>()->outcome.status.ok());
  EXPECT_EQ(group.note(), "2 GiB still in use");
}

TEST_F(GroupTest, WhenTheLastRankDiesTheOperationEnds) {
  to_release();
  group.leave(1, false, now);
  drain();
  EXPECT_EQ(find<action::Finished>(), nullptr);
  group.leave(2, false, now);
  drain();
  ASSERT_NE(find<action::Finished>(), nullptr);
  const Status& status = find<action::Finished>()->outcome.status;
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_NE(status.text().find("the last rank, rank 1 (pid 22), has ended"), std::string::npos)
      << status.text();
  EXPECT_TRUE(group.members().empty());
  EXPECT_EQ(group.state(), GroupState::kRunning) << "no rank has seen any of it";
}

}  // namespace
}  // namespace amem
