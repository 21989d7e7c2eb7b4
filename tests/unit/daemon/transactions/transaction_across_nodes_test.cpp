// A transaction that other nodes have a part of, too: it asks, and waits to be told.
#include <gtest/gtest.h>

#include "daemon/transactions/transaction.h"

namespace amem {
namespace {

using Step = Transaction::Step;
using Steps = Transaction::Steps;
const Status kLost(Code::kUnavailable, "node 'b' is lost");

Steps of(Step::What what, std::size_t member) { return {{what, member}}; }

TEST(TransactionAcrossNodesTest, APauseOfOneGroupAsksBeforeItReleases) {
  Transaction transaction({"train"}, {}, Operation::kPause, true, true);
  EXPECT_EQ(transaction.start(), of(Step::kBegin, 0));
  EXPECT_EQ(transaction.hold(0), Held::kAcrossNodes);
  EXPECT_EQ(transaction.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kOut), of(Step::kGoOn, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kOut), Steps()) << "once";
  EXPECT_EQ(transaction.give_up(kLost), Steps()) << "it is too late for that";
  EXPECT_EQ(transaction.ended(0, Status()), of(Step::kFinish, 0));
  EXPECT_TRUE(transaction.result().ok());
}

TEST(TransactionAcrossNodesTest, WhatIsToldBeforeItHasAskedCountsThen) {
  Transaction transaction({}, {"train"}, Operation::kResume, true, true);
  EXPECT_EQ(transaction.start(), of(Step::kBegin, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kIn), Steps());
  EXPECT_EQ(transaction.ready(0), of(Step::kGoOn, 0));
}

TEST(TransactionAcrossNodesTest, ASetAsksOnceAllHaveSaved) {
  Transaction transaction({"a", "b"}, {}, Operation::kPause, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(1), Steps());
  EXPECT_EQ(transaction.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kOut), (Steps{{Step::kGoOn, 0}, {Step::kGoOn, 1}}));
}

TEST(TransactionAcrossNodesTest, GivenUpBeforeItMayGoOn) {
  Transaction transaction({"train"}, {}, Operation::kPause, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(transaction.give_up(kLost), of(Step::kGiveUp, 0));
  EXPECT_NE(transaction.why_given_up().text().find("node 'b' is lost"), std::string::npos);
  EXPECT_EQ(transaction.may_go_on(Side::kOut), Steps()) << "that comes too late";
  EXPECT_EQ(transaction.ended(0, transaction.why_given_up()), of(Step::kFinish, 0));
  EXPECT_FALSE(transaction.result().ok());
}

TEST(TransactionAcrossNodesTest, OneThatIsNotReadyAnyMoreWithdrawsWhatItHasAsked) {
  Transaction transaction({}, {"train"}, Operation::kResume, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(transaction.unready(0), of(Step::kWithdraw, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kIn), Steps()) << "that comes too late";
  EXPECT_EQ(transaction.ended(0, kLost), of(Step::kFinish, 0));
}

TEST(TransactionAcrossNodesTest, OneThatIsNotReadyAnyMoreBeforeTheOthersAreHasNothingToWithdraw) {
  Transaction transaction({}, {"a", "b"}, Operation::kResume, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(0), Steps());
  EXPECT_EQ(transaction.unready(0), Steps());
  EXPECT_EQ(transaction.ready(1), Steps());
}

TEST(TransactionAcrossNodesTest, ASwapAsksTwice) {
  Transaction transaction({"train"}, {"rollout"}, Operation::kPause, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.leaves(0), of(Step::kBegin, 1));
  EXPECT_EQ(transaction.hold(1), Held::kAcrossNodes);
  EXPECT_EQ(transaction.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(transaction.ready(1), Steps()) << "train has not left";
  EXPECT_EQ(transaction.may_go_on(Side::kOut), of(Step::kGoOn, 0));
  EXPECT_EQ(transaction.ended(0, Status()), (Steps{{Step::kVacated, 1}, {Step::kAsk, 1}}));
  EXPECT_EQ(transaction.may_go_on(Side::kIn), of(Step::kGoOn, 1));
  EXPECT_EQ(transaction.ended(1, Status()), of(Step::kFinish, 1));
  EXPECT_TRUE(transaction.result().ok());
}

TEST(TransactionAcrossNodesTest, ASwapThatIsGivenUpWhenTrainHasBeenToldToLeave) {
  Transaction transaction({"train"}, {"rollout"}, Operation::kPause, true, true);
  (void)transaction.start();
  (void)transaction.leaves(0);
  (void)transaction.ready(0);
  (void)transaction.may_go_on(Side::kOut);
  EXPECT_EQ(transaction.give_up(kLost), of(Step::kGiveUp, 1)) << "only what comes in";
  EXPECT_EQ(transaction.ended(1, transaction.why_given_up()), Steps());
  EXPECT_EQ(transaction.ended(0, Status()), of(Step::kFinish, 0));
  EXPECT_NE(transaction.result().text().find("'train' is paused"), std::string::npos);
}

TEST(TransactionAcrossNodesTest, ASwapInTurnThatIsGivenUpBeforeItsSecondHalf) {
  Transaction transaction({"train"}, {"rollout"}, Operation::kPause, false, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kOut), of(Step::kGoOn, 0));
  EXPECT_EQ(transaction.give_up(kLost), Steps());
  EXPECT_EQ(transaction.ended(0, Status()), of(Step::kFinish, 0)) << "rollout never begins";
  EXPECT_EQ(transaction.result().code(), Code::kUnavailable);
  EXPECT_NE(transaction.result().text().find("'rollout' still paused"), std::string::npos);
}

}  // namespace
}  // namespace amem
