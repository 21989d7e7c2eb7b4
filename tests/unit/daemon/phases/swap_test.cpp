#include "daemon/phases/swap.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using Next = Swap::Next;
const Status kOk;
const Status kPauseFailed(Code::kDeadlineExceeded, "pause of group 'train': late");
const Status kResumeFailed(Code::kAborted, "resume of group 'rollout': died");

bool has(const Status& status, const std::string& text) {
  return status.text().find(text) != std::string::npos;
}

class SwapTest : public ::testing::Test {
 protected:
  Swap duplex{"train", "rollout", true};
  Swap in_turn{"train", "rollout", false};
};

TEST_F(SwapTest, InTurnTheSecondBeginsWhenTheFirstHasBeenPaused) {
  EXPECT_EQ(in_turn.out_leaves(), Next::kNothing);
  EXPECT_EQ(in_turn.out_ended(kOk), Next::kBegin);
  EXPECT_EQ(in_turn.in_ended(kOk), Next::kFinish);
  EXPECT_TRUE(in_turn.result().ok());
}

TEST_F(SwapTest, InTurnAFailedPauseIsTheEnd) {
  EXPECT_EQ(in_turn.out_ended(kPauseFailed), Next::kFinish);
  EXPECT_EQ(in_turn.result().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(in_turn.result().text(), kPauseFailed.text());
}

TEST_F(SwapTest, TheSecondComesInWhileTheFirstLeavesAndGoesOnWhenItHasLeft) {
  EXPECT_EQ(duplex.out_leaves(), Next::kBeginHeld);
  EXPECT_EQ(duplex.out_leaves(), Next::kNothing) << "once";
  EXPECT_EQ(duplex.out_ended(kOk), Next::kGoOn);
  EXPECT_EQ(duplex.in_ended(kOk), Next::kFinish);
  EXPECT_TRUE(duplex.result().ok());
}

TEST_F(SwapTest, AGroupThatIsGoneBeforeItWasSeenToLeaveIsFollowedInTurn) {
  EXPECT_EQ(duplex.out_ended(kOk), Next::kBegin);
  EXPECT_EQ(duplex.out_leaves(), Next::kNothing);
  EXPECT_EQ(duplex.in_ended(kOk), Next::kFinish);
}

TEST_F(SwapTest, AFailedPauseTakesTheSecondBack) {
  EXPECT_EQ(duplex.out_leaves(), Next::kBeginHeld);
  EXPECT_EQ(duplex.out_ended(kPauseFailed), Next::kGiveUp);
  EXPECT_TRUE(has(duplex.why_given_up(), "the pause of group 'train' failed"));
  EXPECT_EQ(duplex.in_ended(kResumeFailed), Next::kFinish);
  EXPECT_EQ(duplex.result().code(), Code::kDeadlineExceeded) << "of what came first";
  EXPECT_TRUE(has(duplex.result(), kPauseFailed.text()));
  EXPECT_TRUE(has(duplex.result(), kResumeFailed.text()));
}

TEST_F(SwapTest, AFailedPauseBeforeTheSecondHasBegunConcernsNobodyElse) {
  EXPECT_EQ(duplex.out_ended(kPauseFailed), Next::kFinish);
  EXPECT_EQ(duplex.result().text(), kPauseFailed.text());
}

TEST_F(SwapTest, AFailedResumeWaitsForThePause) {
  EXPECT_EQ(duplex.out_leaves(), Next::kBeginHeld);
  EXPECT_EQ(duplex.in_ended(kResumeFailed), Next::kNothing);
  EXPECT_EQ(duplex.out_ended(kOk), Next::kFinish);
  EXPECT_EQ(duplex.result().code(), Code::kAborted);
  EXPECT_TRUE(has(duplex.result(), "died; group 'train' is paused")) << duplex.result().text();
}

TEST_F(SwapTest, BothMayFail) {
  EXPECT_EQ(duplex.out_leaves(), Next::kBeginHeld);
  EXPECT_EQ(duplex.in_ended(kResumeFailed), Next::kNothing);
  EXPECT_EQ(duplex.out_ended(kPauseFailed), Next::kFinish);
  EXPECT_EQ(duplex.result().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(has(duplex.result(), "died"));
}

}  // namespace
}  // namespace amem
