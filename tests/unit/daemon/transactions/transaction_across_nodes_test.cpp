// A transaction that other nodes have a part of, too: it asks, and waits to be told.
#include <gtest/gtest.h>

#include "daemon/transactions/transaction.h"

namespace amem {
namespace {

using Effect = Transaction::Effect;
using Effects = Transaction::Effects;
const Status kLost(Code::kUnavailable, "node 'b' is lost");

Effects of(Effect::What what, std::size_t member) { return {{what, member}}; }

TEST(TransactionAcrossNodesTest, APauseOfOneGroupAsksBeforeItReleases) {
  Transaction transaction({"train"}, {}, Operation::kPause, true, true);
  EXPECT_EQ(transaction.start(), of(Effect::kBegin, 0));
  EXPECT_EQ(transaction.barrier(0), Barrier::kAcrossNodes);
  EXPECT_EQ(transaction.ready(0), of(Effect::kAsk, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kOut), of(Effect::kGoOn, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kOut), Effects()) << "once";
  EXPECT_EQ(transaction.give_up(kLost), Effects()) << "it is too late for that";
  EXPECT_EQ(transaction.ended(0, Status()), of(Effect::kFinish, 0));
  EXPECT_TRUE(transaction.result().ok());
}

TEST(TransactionAcrossNodesTest, WhatIsToldBeforeItHasAskedCountsThen) {
  Transaction transaction({}, {"train"}, Operation::kResume, true, true);
  EXPECT_EQ(transaction.start(), of(Effect::kBegin, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kIn), Effects());
  EXPECT_EQ(transaction.ready(0), of(Effect::kGoOn, 0));
}

TEST(TransactionAcrossNodesTest, ASetAsksOnceAllHaveSaved) {
  Transaction transaction({"a", "b"}, {}, Operation::kPause, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(1), Effects());
  EXPECT_EQ(transaction.ready(0), of(Effect::kAsk, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kOut), (Effects{{Effect::kGoOn, 0}, {Effect::kGoOn, 1}}));
}

TEST(TransactionAcrossNodesTest, GivenUpBeforeItMayGoOn) {
  Transaction transaction({"train"}, {}, Operation::kPause, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(0), of(Effect::kAsk, 0));
  EXPECT_EQ(transaction.give_up(kLost), of(Effect::kGiveUp, 0));
  EXPECT_NE(transaction.why_given_up().text().find("node 'b' is lost"), std::string::npos);
  EXPECT_EQ(transaction.may_go_on(Side::kOut), Effects()) << "that comes too late";
  EXPECT_EQ(transaction.ended(0, transaction.why_given_up()), of(Effect::kFinish, 0));
  EXPECT_FALSE(transaction.result().ok());
}

TEST(TransactionAcrossNodesTest, OneThatIsNotReadyAnyMoreWithdrawsWhatItHasAsked) {
  Transaction transaction({}, {"train"}, Operation::kResume, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(0), of(Effect::kAsk, 0));
  EXPECT_EQ(transaction.unready(0), of(Effect::kWithdraw, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kIn), Effects()) << "that comes too late";
  EXPECT_EQ(transaction.ended(0, kLost), of(Effect::kFinish, 0));
}

TEST(TransactionAcrossNodesTest, OneThatIsNotReadyAnyMoreBeforeTheOthersAreHasNothingToWithdraw) {
  Transaction transaction({}, {"a", "b"}, Operation::kResume, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(0), Effects());
  EXPECT_EQ(transaction.unready(0), Effects());
  EXPECT_EQ(transaction.ready(1), Effects());
}

TEST(TransactionAcrossNodesTest, ASwapAsksTwice) {
  Transaction transaction({"train"}, {"rollout"}, Operation::kPause, true, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.leaves(0), of(Effect::kBegin, 1));
  EXPECT_EQ(transaction.barrier(1), Barrier::kAcrossNodes);
  EXPECT_EQ(transaction.ready(0), of(Effect::kAsk, 0));
  EXPECT_EQ(transaction.ready(1), Effects()) << "train has not left";
  EXPECT_EQ(transaction.may_go_on(Side::kOut), of(Effect::kGoOn, 0));
  EXPECT_EQ(transaction.ended(0, Status()), (Effects{{Effect::kVacated, 1}, {Effect::kAsk, 1}}));
  EXPECT_EQ(transaction.may_go_on(Side::kIn), of(Effect::kGoOn, 1));
  EXPECT_EQ(transaction.ended(1, Status()), of(Effect::kFinish, 1));
  EXPECT_TRUE(transaction.result().ok());
}

TEST(TransactionAcrossNodesTest, ASwapThatIsGivenUpWhenTrainHasBeenToldToLeave) {
  Transaction transaction({"train"}, {"rollout"}, Operation::kPause, true, true);
  (void)transaction.start();
  (void)transaction.leaves(0);
  (void)transaction.ready(0);
  (void)transaction.may_go_on(Side::kOut);
  EXPECT_EQ(transaction.give_up(kLost), of(Effect::kGiveUp, 1)) << "only what comes in";
  EXPECT_EQ(transaction.ended(1, transaction.why_given_up()), Effects());
  EXPECT_EQ(transaction.ended(0, Status()), of(Effect::kFinish, 0));
  EXPECT_NE(transaction.result().text().find("'train' is paused"), std::string::npos);
}

TEST(TransactionAcrossNodesTest, ASwapInTurnThatIsGivenUpBeforeItsSecondHalf) {
  Transaction transaction({"train"}, {"rollout"}, Operation::kPause, false, true);
  (void)transaction.start();
  EXPECT_EQ(transaction.ready(0), of(Effect::kAsk, 0));
  EXPECT_EQ(transaction.may_go_on(Side::kOut), of(Effect::kGoOn, 0));
  EXPECT_EQ(transaction.give_up(kLost), Effects());
  EXPECT_EQ(transaction.ended(0, Status()), of(Effect::kFinish, 0)) << "rollout never begins";
  EXPECT_EQ(transaction.result().code(), Code::kUnavailable);
  EXPECT_NE(transaction.result().text().find("'rollout' still paused"), std::string::npos);
}

}  // namespace
}  // namespace amem
