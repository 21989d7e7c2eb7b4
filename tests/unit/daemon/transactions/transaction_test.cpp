#include "daemon/transactions/transaction.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using Effect = Transaction::Effect;
using Effects = Transaction::Effects;
const Status kFine;
const Status kPauseFailed(Code::kDeadlineExceeded, "pause of group 'train': late");
const Status kResumeFailed(Code::kAborted, "resume of group 'rollout': died");

bool has(const Status& status, const std::string& text) {
  return status.text().find(text) != std::string::npos;
}
Effects all(Effect::What what, std::initializer_list<std::size_t> members) {
  Effects effects;
  for (const std::size_t member : members) effects.push_back({what, member});
  return effects;
}
Effects begin(std::initializer_list<std::size_t> members) { return all(Effect::kBegin, members); }
Effects space(std::initializer_list<std::size_t> members) { return all(Effect::kVacated, members); }
Effects go_on(std::initializer_list<std::size_t> members) { return all(Effect::kGoOn, members); }
Effects give_up(std::initializer_list<std::size_t> members) {
  return all(Effect::kGiveUp, members);
}
Effects operator+(Effects left, const Effects& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}
const Effects kNone;

class TransactionTest : public ::testing::Test {
 protected:
  /// `last` is the member whose end was the last.
  static Effects finish(std::size_t last) { return {{Effect::kFinish, last}}; }

  Transaction duplex{{"train"}, {"rollout"}, Operation::kPause, true};
  Transaction in_turn{{"train"}, {"rollout"}, Operation::kPause, false};
  Transaction pauses{{"a", "b", "c"}, {}, Operation::kPause, true};
  Transaction resumes{{}, {"a", "b", "c"}, Operation::kResume, true};
  Transaction sets{{"a", "b"}, {"c", "d"}, Operation::kPause, true};
  Transaction sets_in_turn{{"a", "b"}, {"c", "d"}, Operation::kPause, false};
};

// ---- one group ----------------------------------------------------------------------------------

TEST_F(TransactionTest, AGroupAloneWaitsForNobody) {
  Transaction pause({"train"}, {}, Operation::kPause, true);
  EXPECT_EQ(pause.start(), begin({0}));
  EXPECT_FALSE(pause.has_barrier(0));
  EXPECT_EQ(pause.leaves(0), kNone);
  EXPECT_EQ(pause.ended(0, kPauseFailed), finish(0));
  EXPECT_EQ(pause.result().text(), kPauseFailed.text());
  EXPECT_EQ(pause.result().code(), kPauseFailed.code());

  Transaction resume({}, {"train"}, Operation::kResume, true);
  EXPECT_EQ(resume.start(), begin({0}));
  EXPECT_FALSE(resume.has_barrier(0));
  EXPECT_FALSE(resume.goes_out(0));
  EXPECT_EQ(resume.ended(0, kFine), finish(0));
  EXPECT_TRUE(resume.result().ok());
}

// ---- a swap of two ------------------------------------------------------------------------------

TEST_F(TransactionTest, InTurnTheSecondBeginsWhenTheFirstHasBeenPaused) {
  EXPECT_EQ(in_turn.start(), begin({0}));
  EXPECT_EQ(in_turn.leaves(0), kNone);
  EXPECT_EQ(in_turn.ended(0, kFine), begin({1}));
  EXPECT_FALSE(in_turn.has_barrier(1));
  EXPECT_EQ(in_turn.ended(1, kFine), finish(1));
  EXPECT_TRUE(in_turn.result().ok());
}

TEST_F(TransactionTest, InTurnAFailedPauseIsTheEnd) {
  in_turn.start();
  EXPECT_EQ(in_turn.ended(0, kPauseFailed), finish(0));
  EXPECT_EQ(in_turn.result().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(in_turn.result().text(), kPauseFailed.text() + "; group 'rollout' is still paused");
}

TEST_F(TransactionTest, TheSecondComesInWhileTheFirstLeavesAndGoesOnWhenItHasLeft) {
  EXPECT_EQ(duplex.start(), begin({0}));
  EXPECT_FALSE(duplex.has_barrier(0));
  EXPECT_EQ(duplex.leaves(0), begin({1}));
  EXPECT_TRUE(duplex.has_barrier(1));
  EXPECT_EQ(duplex.leaves(0), kNone) << "once";
  EXPECT_EQ(duplex.ended(0, kFine), space({1}) + go_on({1}));
  EXPECT_TRUE(duplex.last(1));
  EXPECT_EQ(duplex.ended(1, kFine), finish(1));
  EXPECT_TRUE(duplex.result().ok());
}

TEST_F(TransactionTest, WhatHasLoadedWaitsForWhatLeaves) {
  duplex.start();
  duplex.leaves(0);
  EXPECT_EQ(duplex.ready(1), kNone);
  EXPECT_FALSE(duplex.last(1));
  EXPECT_EQ(duplex.ended(0, kFine), space({1}) + go_on({1}));
}

TEST_F(TransactionTest, ADeepPauseLetsTheSecondGoOnWhenItHasLeft) {
  duplex.start();
  duplex.leaves(0);
  EXPECT_EQ(duplex.left(0), space({1}) + go_on({1}));
  EXPECT_EQ(duplex.left(0), kNone) << "once";
  EXPECT_TRUE(duplex.last(1)) << "the swap is done for those that wait for it";
  EXPECT_EQ(duplex.ended(1, kFine), kNone);
  EXPECT_EQ(duplex.ended(0, kFine), finish(0));
  EXPECT_TRUE(duplex.result().ok());
}

TEST_F(TransactionTest, ADeepPauseThatFailsLateChangesNothingForTheSecond) {
  duplex.start();
  duplex.leaves(0);
  duplex.left(0);
  EXPECT_EQ(duplex.ended(0, kPauseFailed), kNone);
  EXPECT_EQ(duplex.ended(1, kFine), finish(1));
  EXPECT_EQ(duplex.result().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(duplex.result().text(), kPauseFailed.text() + "; group 'rollout' is running");
}

TEST_F(TransactionTest, InTurnTheSecondFollowsADeepPauseThatFailsLate) {
  in_turn.start();
  in_turn.leaves(0);
  EXPECT_EQ(in_turn.left(0), kNone);
  EXPECT_EQ(in_turn.ended(0, kPauseFailed), begin({1}));
  EXPECT_EQ(in_turn.ended(1, kFine), finish(1));
  EXPECT_EQ(in_turn.result().text(), kPauseFailed.text() + "; group 'rollout' is running");
}

TEST_F(TransactionTest, InASetNobodyWaitsForWhatIsOnlyMadeDeep) {
  pauses.start();
  pauses.left(1);
  EXPECT_EQ(pauses.ready(0), kNone);
  EXPECT_EQ(pauses.ready(2), go_on({0, 2}));
  pauses.left(0);
  pauses.left(2);
  EXPECT_EQ(pauses.ended(1, kPauseFailed), kNone) << "the others become deep";
  pauses.ended(0, kFine);
  EXPECT_EQ(pauses.ended(2, kFine), finish(2));
  EXPECT_FALSE(pauses.result().ok());

  Transaction late({"a", "b"}, {}, Operation::kPause, true);
  late.start();
  EXPECT_EQ(late.ready(0), kNone);
  EXPECT_EQ(late.left(1), go_on({0})) << "it was the last";
}

TEST_F(TransactionTest, AGroupThatIsGoneBeforeItWasSeenToLeaveIsFollowedInTurn) {
  duplex.start();
  EXPECT_EQ(duplex.ended(0, kFine), begin({1}));
  EXPECT_EQ(duplex.leaves(0), kNone);
  EXPECT_EQ(duplex.ended(1, kFine), finish(1));
}

TEST_F(TransactionTest, AFailedPauseTakesTheSecondBack) {
  duplex.start();
  duplex.leaves(0);
  EXPECT_EQ(duplex.ended(0, kPauseFailed), give_up({1}));
  EXPECT_TRUE(has(duplex.why_given_up(), "the pause of group 'train' failed"));
  EXPECT_EQ(duplex.ended(1, kResumeFailed), finish(1));
  EXPECT_EQ(duplex.result().code(), Code::kDeadlineExceeded) << "of what came first";
  EXPECT_TRUE(has(duplex.result(), kPauseFailed.text()));
  EXPECT_TRUE(has(duplex.result(), kResumeFailed.text()));
}

TEST_F(TransactionTest, AFailedPauseBeforeTheSecondHasBegunConcernsNobodyElse) {
  duplex.start();
  EXPECT_EQ(duplex.ended(0, kPauseFailed), finish(0));
  EXPECT_TRUE(has(duplex.result(), "group 'rollout' is still paused"));
}

TEST_F(TransactionTest, AFailedResumeWaitsForThePause) {
  duplex.start();
  duplex.leaves(0);
  EXPECT_EQ(duplex.ended(1, kResumeFailed), kNone);
  EXPECT_EQ(duplex.ended(0, kFine), finish(0));
  EXPECT_EQ(duplex.result().code(), Code::kAborted);
  EXPECT_TRUE(has(duplex.result(), "died; group 'train' is paused")) << duplex.result().text();
}

TEST_F(TransactionTest, BothMayFail) {
  duplex.start();
  duplex.leaves(0);
  EXPECT_EQ(duplex.ended(1, kResumeFailed), kNone);
  EXPECT_EQ(duplex.ended(0, kPauseFailed), finish(0));
  EXPECT_EQ(duplex.result().code(), Code::kDeadlineExceeded) << "of what goes out first";
  EXPECT_TRUE(has(duplex.result(), "died"));
}

// ---- sets ---------------------------------------------------------------------------------------

TEST_F(TransactionTest, NoneReleasesBeforeEveryOneHasSaved) {
  EXPECT_EQ(pauses.start(), begin({0, 1, 2}));
  for (const std::size_t member : {0U, 1U, 2U}) EXPECT_TRUE(pauses.has_barrier(member));
  EXPECT_EQ(pauses.leaves(0), kNone);
  EXPECT_EQ(pauses.ready(0), kNone);
  EXPECT_EQ(pauses.leaves(1), kNone);
  EXPECT_EQ(pauses.ready(1), kNone);
  EXPECT_EQ(pauses.leaves(2), kNone);
  EXPECT_EQ(pauses.ready(2), go_on({0, 1, 2}));
  EXPECT_EQ(pauses.ended(1, kFine), kNone);
  EXPECT_EQ(pauses.ended(0, kFine), kNone);
  EXPECT_EQ(pauses.ended(2, kFine), finish(2));
  EXPECT_TRUE(pauses.result().ok());
}

TEST_F(TransactionTest, OnePauseThatFailsCallsAllOff) {
  pauses.start();
  pauses.ready(0);
  pauses.leaves(1);
  EXPECT_EQ(pauses.ended(1, kPauseFailed), give_up({0, 2}));
  EXPECT_TRUE(has(pauses.why_given_up(), "the pause of group 'b' failed"));
  EXPECT_EQ(pauses.ready(2), kNone) << "too late";
  EXPECT_EQ(pauses.ended(2, {Code::kAborted, "c called off"}), kNone) << "told once";
  EXPECT_EQ(pauses.ended(0, {Code::kAborted, "a called off"}), finish(0));
  EXPECT_EQ(pauses.result().code(), Code::kDeadlineExceeded) << "of the one that failed first";
  EXPECT_EQ(pauses.result().text(), kPauseFailed.text() + "; c called off; a called off");
}

TEST_F(TransactionTest, AfterThePointOfNoReturnTheRestIsPausedToo) {
  pauses.start();
  for (const std::size_t member : {0U, 1U, 2U}) pauses.ready(member);
  EXPECT_EQ(pauses.ended(1, kPauseFailed), kNone);
  EXPECT_EQ(pauses.ended(0, kFine), kNone);
  EXPECT_EQ(pauses.ended(2, kFine), finish(2));
  EXPECT_EQ(pauses.result().text(),
            kPauseFailed.text() + "; group 'a' is paused; group 'c' is paused");
}

TEST_F(TransactionTest, OfAPauseOfTagsTheResultDoesNotSayThatTheGroupIsPaused) {
  Transaction tags({"a", "b"}, {}, Task(Operation::kPause, Selection{{"kv"}}), true);
  tags.start();
  tags.ready(0);
  tags.ready(1);
  tags.ended(0, kPauseFailed);
  tags.ended(1, kFine);
  EXPECT_EQ(tags.result().text(),
            kPauseFailed.text() + "; the pause of tag kv of group 'b' succeeded");
}

TEST_F(TransactionTest, NoneOpensBeforeEveryOneHasLoaded) {
  EXPECT_EQ(resumes.start(), begin({0, 1, 2}));
  EXPECT_TRUE(resumes.has_barrier(0));
  EXPECT_EQ(resumes.ready(2), kNone);
  EXPECT_EQ(resumes.ready(0), kNone);
  EXPECT_EQ(resumes.ready(1), go_on({0, 1, 2}));
  for (const std::size_t member : {0U, 1U}) EXPECT_EQ(resumes.ended(member, kFine), kNone);
  EXPECT_EQ(resumes.ended(2, kFine), finish(2));
}

TEST_F(TransactionTest, OneResumeThatFailsRollsAllBack) {
  resumes.start();
  resumes.ready(2);
  EXPECT_EQ(resumes.ended(0, kResumeFailed), give_up({1, 2}));
  EXPECT_TRUE(has(resumes.why_given_up(), "the resume of group 'a' failed"));
  resumes.ended(1, kResumeFailed);
  EXPECT_EQ(resumes.ended(2, kResumeFailed), finish(2));
  EXPECT_EQ(resumes.result().code(), Code::kAborted);
}

TEST_F(TransactionTest, AFailureInOpenLeavesTheOthersRunning) {
  resumes.start();
  for (const std::size_t member : {0U, 1U, 2U}) resumes.ready(member);
  EXPECT_EQ(resumes.ended(0, kResumeFailed), kNone);
  resumes.ended(1, kFine);
  resumes.ended(2, kFine);
  EXPECT_EQ(resumes.result().text(),
            kResumeFailed.text() + "; group 'b' is running; group 'c' is running");
}

TEST_F(TransactionTest, SetsAreSwappedAtTheSameTime) {
  EXPECT_EQ(sets.start(), begin({0, 1}));
  EXPECT_EQ(sets.leaves(0), kNone);
  EXPECT_EQ(sets.ready(0), kNone);
  EXPECT_EQ(sets.leaves(1), begin({2, 3})) << "all have their cut";
  EXPECT_TRUE(sets.has_barrier(2));
  EXPECT_EQ(sets.ready(1), go_on({0, 1}));
  EXPECT_EQ(sets.ready(2), kNone);
  EXPECT_EQ(sets.ended(0, kFine), kNone);
  EXPECT_EQ(sets.ended(1, kFine), space({2, 3}));
  EXPECT_EQ(sets.ready(3), go_on({2, 3}));
  EXPECT_EQ(sets.ended(3, kFine), kNone);
  EXPECT_FALSE(sets.last(3));
  EXPECT_TRUE(sets.last(2));
  EXPECT_EQ(sets.ended(2, kFine), finish(2));
  EXPECT_TRUE(sets.result().ok());
}

TEST_F(TransactionTest, SetsThatHaveLoadedOpenWhenTheOthersHaveLeft) {
  sets.start();
  for (const std::size_t member : {0U, 1U}) sets.leaves(member), sets.ready(member);
  EXPECT_EQ(sets.ready(2), kNone);
  EXPECT_EQ(sets.ready(3), kNone);
  EXPECT_EQ(sets.ended(1, kFine), kNone);
  EXPECT_EQ(sets.ended(0, kFine), space({2, 3}) + go_on({2, 3}));
}

// Its rank takes its time to let go again, and meanwhile the last one that goes out has left.
TEST_F(TransactionTest, NoneOfASetComesInWhileOneThatWasReadyIsOnItsWayBack) {
  sets.start();
  for (const std::size_t member : {0U, 1U}) sets.leaves(member), sets.ready(member);
  EXPECT_EQ(sets.ready(2), kNone);
  EXPECT_EQ(sets.ready(3), kNone);
  EXPECT_EQ(sets.ended(1, kFine), kNone);
  sets.unready(2);
  EXPECT_EQ(sets.ended(0, kFine), space({2, 3}));
  EXPECT_EQ(sets.ended(2, kResumeFailed), give_up({3}));
  EXPECT_EQ(sets.ended(3, kResumeFailed), finish(3));
  EXPECT_FALSE(sets.result().ok());
}

TEST_F(TransactionTest, SetsInTurn) {
  EXPECT_EQ(sets_in_turn.start(), begin({0, 1}));
  for (const std::size_t member : {0U, 1U}) EXPECT_EQ(sets_in_turn.leaves(member), kNone);
  sets_in_turn.ready(0);
  EXPECT_EQ(sets_in_turn.ready(1), go_on({0, 1}));
  EXPECT_EQ(sets_in_turn.ended(0, kFine), kNone);
  EXPECT_EQ(sets_in_turn.ended(1, kFine), begin({2, 3}));
  EXPECT_TRUE(sets_in_turn.has_barrier(2)) << "they still wait for each other";
  EXPECT_EQ(sets_in_turn.ready(2), kNone);
  EXPECT_EQ(sets_in_turn.ready(3), go_on({2, 3}));
}

TEST_F(TransactionTest, APauseThatFailsEndsTheWholeSwapAsItBegan) {
  sets.start();
  sets.leaves(0);
  sets.leaves(1);
  EXPECT_EQ(sets.ended(1, kPauseFailed), give_up({0}) + give_up({2, 3}));
  EXPECT_EQ(sets.ended(0, kPauseFailed), kNone);
  EXPECT_EQ(sets.ended(2, kResumeFailed), kNone);
  EXPECT_EQ(sets.ended(3, kResumeFailed), finish(3));
  EXPECT_EQ(sets.result().code(), Code::kDeadlineExceeded);
}

TEST_F(TransactionTest, BeforeTheOthersHaveBegunTheyAreLeftAlone) {
  sets.start();
  sets.leaves(0);
  EXPECT_EQ(sets.ended(1, kPauseFailed), give_up({0}));
  EXPECT_EQ(sets.leaves(0), kNone);
  EXPECT_EQ(sets.ended(0, kPauseFailed), finish(0));
  EXPECT_TRUE(has(sets.result(), "group 'c' is still paused; group 'd' is still paused"));
}

TEST_F(TransactionTest, AResumeThatFailsLeavesAllPaused) {
  sets.start();
  sets.leaves(0);
  sets.leaves(1);
  EXPECT_EQ(sets.ended(2, kResumeFailed), give_up({3}));
  EXPECT_EQ(sets.ready(0), kNone);
  EXPECT_EQ(sets.ready(1), go_on({0, 1})) << "those that go out do so";
  EXPECT_EQ(sets.ended(3, {Code::kAborted, "d given up"}), kNone);
  EXPECT_EQ(sets.ended(0, kFine), kNone);
  EXPECT_EQ(sets.ended(1, kFine), finish(1));
  EXPECT_EQ(sets.result().text(),
            kResumeFailed.text() + "; d given up; group 'a' is paused; group 'b' is paused");
}

}  // namespace
}  // namespace amem
