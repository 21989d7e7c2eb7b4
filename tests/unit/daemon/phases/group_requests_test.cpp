// Ranks that come while something is under way, and pauses and resumes asked for from inside.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

// ---- ranks that come ----------------------------------------------------------------------------

TEST_F(GroupTest, NewcomersWaitAtTheirGatesAndTakeNoPart) {
  to_quiesce();
  EXPECT_TRUE(group.join(3, "rank 2 (pid 33)"));
  EXPECT_TRUE(group.may_allocate(1)) << "it may be inside a call";
  EXPECT_FALSE(group.may_allocate(3));
  quiet(1);
  quiet(2);
  EXPECT_EQ(group.phase(), Phase::kSave);
  EXPECT_FALSE(group.may_allocate(1));
  drain();
  group.save_sent(kOk, {}, now);
  drain();
  EXPECT_EQ(find<action::Release>()->ranks, (std::vector<RankId>{1, 2}));
}

TEST_F(GroupTest, NewcomersAreOpenedWithTheOthers) {
  to_load();
  EXPECT_TRUE(group.join(3, "rank 2 (pid 33)"));
  both(RankPhase::kMap);
  both(RankPhase::kLoad);
  drain();
  ASSERT_NE(find<action::Ask>(), nullptr);
  EXPECT_EQ(find<action::Ask>()->ranks, (std::vector<RankId>{1, 2, 3}));
  EXPECT_FALSE(group.join(4, "rank 3 (pid 44)")) << "nothing to wait for any more";
  EXPECT_TRUE(group.may_allocate(1)) << "its gate may be open already";
  both(RankPhase::kOpen);
  EXPECT_EQ(group.state(), GroupState::kResuming);
  done(3, RankPhase::kOpen);
  EXPECT_EQ(group.state(), GroupState::kRunning);
  EXPECT_TRUE(group.may_allocate(3));
}

TEST_F(GroupTest, ANewcomersDeathDisturbsNobody) {
  to_quiesce();
  group.join(3, "rank 2 (pid 33)");
  group.leave(3, false, now);
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
}

TEST_F(GroupTest, RanksThatJoinWhilePausedTakePartInTheResume) {
  to_paused();
  EXPECT_TRUE(group.join(3, "rank 2 (pid 33)"));
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  group.admitted(kOk, now);
  group.created(kOk, now);
  drain();
  EXPECT_EQ(find<action::Load>()->ranks, (std::vector<RankId>{1, 2, 3}));
}

TEST_F(GroupTest, OneThatJoinedWhilePausedIsNotMissedInThatPause) {
  to_paused();
  group.join(3, "rank 2 (pid 33)");
  group.leave(3, false, now);
  EXPECT_EQ(group.lost(), "");
  group.leave(2, false, now);
  EXPECT_EQ(group.lost(), "lost rank 1 (pid 22) while it was paused");
}

TEST_F(GroupTest, AResumeDoesNotReplaceALostRank) {
  to_paused();
  group.leave(2, false, now);
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  group.admitted(kOk, now);
  group.created(kOk, now);
  for (const RankPhase phase : {RankPhase::kMap, RankPhase::kLoad, RankPhase::kOpen})
    done(1, phase);
  ASSERT_EQ(group.state(), GroupState::kRunning);
  EXPECT_EQ(group.lost(), "lost rank 1 (pid 22) while it was paused");
  group.join(3, "rank 1 (pid 33)");
  EXPECT_EQ(group.lost(), "");
}

TEST_F(GroupTest, OneThatJoinedWhilePausedIsMissedInTheNextPause) {
  to_paused();
  group.join(3, "rank 2 (pid 33)");
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  group.admitted(kOk, now);
  group.created(kOk, now);
  for (const RankPhase phase : {RankPhase::kMap, RankPhase::kLoad, RankPhase::kOpen})
    for (const RankId rank : {1U, 2U, 3U}) done(rank, phase);
  ASSERT_EQ(group.state(), GroupState::kRunning);
  ASSERT_TRUE(group.start(Operation::kPause, {}, now).ok());
  for (const RankId rank : {1U, 2U, 3U}) quiet(rank);
  group.save_sent(kOk, {}, now);
  for (const RankId rank : {1U, 2U, 3U}) done(rank, RankPhase::kRelease);
  group.dropped("", now);
  ASSERT_EQ(group.state(), GroupState::kPaused);
  group.leave(3, false, now);
  EXPECT_EQ(group.lost(), "lost rank 2 (pid 33) while it was paused");
}

// ---- from inside --------------------------------------------------------------------------------

TEST_F(GroupTest, RequestsStartWhenAllHaveAsked) {
  group.request(1, 101, Operation::kPause, {}, now);
  EXPECT_EQ(group.state(), GroupState::kRunning);
  group.request(2, 202, Operation::kPause, {}, now);
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
  group.request(1, 102, Operation::kPause, {}, now);  // another thread, late
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {}, now);
  both(RankPhase::kRelease);
  drain();
  EXPECT_TRUE(all<action::Answer>().empty()) << "not before it has ended";
  group.dropped("", now);
  drain();
  ASSERT_EQ(all<action::Answer>().size(), 3U);
  for (const auto& answer : all<action::Answer>()) EXPECT_TRUE(answer.status.ok());
}

TEST_F(GroupTest, RequestsForTheStateAtHandSucceedAtOnce) {
  group.request(1, 5, Operation::kResume, {}, now);
  drain();
  ASSERT_EQ(all<action::Answer>().size(), 1U);
  EXPECT_EQ(find<action::Answer>()->seq, 5U);
  EXPECT_TRUE(find<action::Answer>()->status.ok());
  to_paused();
  group.request(1, 6, Operation::kPause, {}, now);
  drain();
  ASSERT_EQ(all<action::Answer>().size(), 1U);
}

TEST_F(GroupTest, RequestsThatNotAllMakeTimeOutNamingTheMissing) {
  group.request(1, 5, Operation::kPause, seconds(2), now);
  EXPECT_EQ(group.wakeup(), now + seconds(2));
  group.tick(now + seconds(1));
  drain();
  EXPECT_TRUE(actions.empty());
  group.tick(now + seconds(2));
  drain();
  ASSERT_EQ(all<action::Answer>().size(), 1U);
  EXPECT_EQ(find<action::Answer>()->status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(find<action::Answer>()->status.text().find("missing: rank 1 (pid 22)"),
            std::string::npos);
  EXPECT_EQ(group.wakeup(), kNever);
  group.request(2, 6, Operation::kPause, seconds(2), now + seconds(3));
  EXPECT_EQ(group.state(), GroupState::kRunning) << "rank 1's request has gone";
}

TEST_F(GroupTest, ADeadRankIsNotWaitedForByRequests) {
  group.request(1, 5, Operation::kPause, {}, now);
  group.leave(2, false, now);
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
}

TEST_F(GroupTest, AFailureIsToldToAllThatAsked) {
  group.request(1, 5, Operation::kPause, {}, now);
  group.request(2, 6, Operation::kPause, {}, now);
  quiet(1);
  quiet(2);
  drain();
  group.save_sent({Code::kResourceExhausted, "pool"}, {}, now);
  drain();
  ASSERT_EQ(all<action::Answer>().size(), 2U);
  for (const auto& answer : all<action::Answer>())
    EXPECT_EQ(answer.status.code(), Code::kResourceExhausted);
  EXPECT_EQ(group.state(), GroupState::kRunning) << "and it is not tried again by itself";
}

TEST_F(GroupTest, AnOperatorsPauseAnswersRequestsToo) {
  to_quiesce();
  group.request(1, 5, Operation::kPause, milliseconds(1), now);
  now += milliseconds(50);
  group.tick(now);
  drain();
  EXPECT_EQ(find<action::Answer>(), nullptr) << "what it asked for is under way";
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {}, now);
  both(RankPhase::kRelease);
  group.dropped("", now);
  drain();
  ASSERT_EQ(all<action::Answer>().size(), 1U);
  EXPECT_TRUE(find<action::Answer>()->status.ok());
}

TEST_F(GroupTest, RequestsMadeInTransitionTakeEffectAfterIt) {
  to_quiesce();
  group.request(1, 5, Operation::kResume, {}, now);
  group.request(2, 6, Operation::kResume, {}, now);
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {}, now);
  both(RankPhase::kRelease);
  group.dropped("", now);
  EXPECT_EQ(group.phase(), Phase::kAdmit);
}

TEST_F(GroupTest, OfAResumeOfTagsThatOneRankAsksForTheOtherRankIsMissingFirst) {
  const Task some(Operation::kResume, Selection{{"weights"}});
  to_paused();
  group.request(1, 5, some, milliseconds(1), now);
  now += seconds(1000);
  group.tick(now);
  drain();
  ASSERT_EQ(all<action::Waits>().size(), 1U) << "one reason at a time";
  EXPECT_NE(find<action::Waits>()->text.find("missing: rank 1 (pid 22)"), std::string::npos)
      << find<action::Waits>()->text;
}

TEST_F(GroupTest, AResumeOfTagsWaitsUntilTheOperatorResumes) {
  const Task some(Operation::kResume, Selection{{"weights"}});
  to_paused();
  group.request(1, 5, some, milliseconds(1), now);
  group.request(2, 6, some, milliseconds(1), now);
  now += seconds(1000);
  group.tick(now);
  drain();
  ASSERT_EQ(actions.size(), 1U) << "it would run without the rest";
  ASSERT_NE(find<action::Waits>(), nullptr);
  EXPECT_NE(find<action::Waits>()->text.find("resumes"), std::string::npos);
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  group.admitted(kOk, now);
  group.created(kOk, now);
  both(RankPhase::kMap);
  both(RankPhase::kLoad);
  both(RankPhase::kOpen);
  drain();
  ASSERT_EQ(all<action::Answer>().size(), 2U);
  for (const auto& answer : all<action::Answer>()) EXPECT_TRUE(answer.status.ok());
}

TEST_F(GroupTest, WhatRanksHavePausedThemselvesTheyResumeInPart) {
  for (const RankId rank : {1U, 2U}) group.request(rank, rank, Operation::kPause, {}, now);
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {}, now);
  both(RankPhase::kRelease);
  group.dropped("", now);
  ASSERT_EQ(group.state(), GroupState::kPaused);
  const Task some(Operation::kResume, Selection{{"weights"}});
  for (const RankId rank : {1U, 2U}) group.request(rank, 9, some, {}, now);
  EXPECT_EQ(group.phase(), Phase::kAdmit);
}

TEST_F(GroupTest, ResumeRequestsAreAnsweredWhenThePauseIsCalledOff) {
  to_quiesce();
  group.request(1, 5, Operation::kResume, {}, now);
  group.leave(2, false, now);
  drain();
  ASSERT_EQ(all<action::Answer>().size(), 1U);
  EXPECT_TRUE(find<action::Answer>()->status.ok());
}

TEST_F(GroupTest, WakeupIsNeverInThePastForWhatCannotBeActedOn) {
  to_quiesce();
  group.request(1, 5, Operation::kPause, milliseconds(1), now);
  group.request(1, 6, Operation::kResume, milliseconds(1), now);
  now += milliseconds(5);
  group.tick(now);
  drain();
  EXPECT_EQ(all<action::Answer>().size(), 1U) << "the resume that rank 2 did not ask for";
  EXPECT_GT(group.wakeup(), now);
}

TEST_F(GroupTest, APauseThatWaitsForAnothersEndHasAQuiesceOfItsOwn) {
  to_quiesce();
  const Epoch first = group.epoch();
  group.request(1, 5, Operation::kPause, {}, now);
  group.request(2, 6, Operation::kPause, {}, now);
  now += Deadlines().quiesce + milliseconds(1);
  group.tick(now);
  drain();
  ASSERT_NE(find<action::Finished>(), nullptr) << "the operator's has failed";
  EXPECT_EQ(find<action::Finished>()->outcome.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(find<action::Save>(), nullptr) << "nobody has said that it is quiet";
  ASSERT_NE(find<action::Quiesce>(), nullptr);
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
  EXPECT_GT(group.epoch(), first);
  quiet(1);
  quiet(2);
  expect<action::Save>("Save");
}

}  // namespace
}  // namespace amem
