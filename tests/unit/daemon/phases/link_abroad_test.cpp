// A link whose transaction other nodes have a part of, too: it asks, and waits to be told.
#include <gtest/gtest.h>

#include "daemon/phases/link.h"

namespace amem {
namespace {

using Step = Link::Step;
using Steps = Link::Steps;
const Status kFine;
const Status kLost(Code::kUnavailable, "node 'b' is lost");

Steps of(Step::What what, std::size_t member) { return {{what, member}}; }

TEST(LinkAbroadTest, APauseOfOneGroupAsksBeforeItReleases) {
  Link link({"train"}, {}, Operation::kPause, true, true);
  EXPECT_EQ(link.start(), of(Step::kBegin, 0));
  EXPECT_EQ(link.hold(0), Held::kAbroad);
  EXPECT_EQ(link.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(link.may_go_on(Stage::kOut), of(Step::kGoOn, 0));
  EXPECT_EQ(link.may_go_on(Stage::kOut), Steps()) << "once";
  EXPECT_EQ(link.give_up(kLost), Steps()) << "it is too late for that";
  EXPECT_EQ(link.ended(0, kFine), of(Step::kFinish, 0));
  EXPECT_TRUE(link.result().ok());
}

TEST(LinkAbroadTest, WhatIsToldBeforeItHasAskedCountsThen) {
  Link link({}, {"train"}, Operation::kResume, true, true);
  EXPECT_EQ(link.start(), of(Step::kBegin, 0));
  EXPECT_EQ(link.may_go_on(Stage::kIn), Steps());
  EXPECT_EQ(link.ready(0), of(Step::kGoOn, 0));
}

TEST(LinkAbroadTest, ASetAsksOnceAllHaveSaved) {
  Link link({"a", "b"}, {}, Operation::kPause, true, true);
  (void)link.start();
  EXPECT_EQ(link.ready(1), Steps());
  EXPECT_EQ(link.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(link.may_go_on(Stage::kOut), (Steps{{Step::kGoOn, 0}, {Step::kGoOn, 1}}));
}

TEST(LinkAbroadTest, GivenUpBeforeItMayGoOn) {
  Link link({"train"}, {}, Operation::kPause, true, true);
  (void)link.start();
  EXPECT_EQ(link.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(link.give_up(kLost), of(Step::kGiveUp, 0));
  EXPECT_NE(link.why_given_up().text().find("node 'b' is lost"), std::string::npos);
  EXPECT_EQ(link.may_go_on(Stage::kOut), Steps()) << "that comes too late";
  EXPECT_EQ(link.ended(0, link.why_given_up()), of(Step::kFinish, 0));
  EXPECT_FALSE(link.result().ok());
}

TEST(LinkAbroadTest, OneThatIsNotReadyAnyMoreWithdrawsWhatItHasAsked) {
  Link link({}, {"train"}, Operation::kResume, true, true);
  (void)link.start();
  EXPECT_EQ(link.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(link.unready(0), of(Step::kWithdraw, 0));
  EXPECT_EQ(link.may_go_on(Stage::kIn), Steps()) << "that comes too late";
  EXPECT_EQ(link.ended(0, kLost), of(Step::kFinish, 0));
}

TEST(LinkAbroadTest, OneThatIsNotReadyAnyMoreBeforeTheOthersAreHasNothingToWithdraw) {
  Link link({}, {"a", "b"}, Operation::kResume, true, true);
  (void)link.start();
  EXPECT_EQ(link.ready(0), Steps());
  EXPECT_EQ(link.unready(0), Steps());
  EXPECT_EQ(link.ready(1), Steps());
}

TEST(LinkAbroadTest, ASwapAsksTwice) {
  Link link({"train"}, {"rollout"}, Operation::kPause, true, true);
  (void)link.start();
  EXPECT_EQ(link.leaves(0), of(Step::kBegin, 1));
  EXPECT_EQ(link.hold(1), Held::kAbroad);
  EXPECT_EQ(link.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(link.ready(1), Steps()) << "train has not left";
  EXPECT_EQ(link.may_go_on(Stage::kOut), of(Step::kGoOn, 0));
  EXPECT_EQ(link.ended(0, kFine), (Steps{{Step::kVacated, 1}, {Step::kAsk, 1}}));
  EXPECT_EQ(link.may_go_on(Stage::kIn), of(Step::kGoOn, 1));
  EXPECT_EQ(link.ended(1, kFine), of(Step::kFinish, 1));
  EXPECT_TRUE(link.result().ok());
}

TEST(LinkAbroadTest, ASwapThatIsGivenUpWhenTrainHasBeenToldToLeave) {
  Link link({"train"}, {"rollout"}, Operation::kPause, true, true);
  (void)link.start();
  (void)link.leaves(0);
  (void)link.ready(0);
  (void)link.may_go_on(Stage::kOut);
  EXPECT_EQ(link.give_up(kLost), of(Step::kGiveUp, 1)) << "only what comes in";
  EXPECT_EQ(link.ended(1, link.why_given_up()), Steps());
  EXPECT_EQ(link.ended(0, kFine), of(Step::kFinish, 0));
  EXPECT_NE(link.result().text().find("'train' is paused"), std::string::npos);
}

TEST(LinkAbroadTest, ASwapInTurnThatIsGivenUpBeforeItsSecondHalf) {
  Link link({"train"}, {"rollout"}, Operation::kPause, false, true);
  (void)link.start();
  EXPECT_EQ(link.ready(0), of(Step::kAsk, 0));
  EXPECT_EQ(link.may_go_on(Stage::kOut), of(Step::kGoOn, 0));
  EXPECT_EQ(link.give_up(kLost), Steps());
  EXPECT_EQ(link.ended(0, kFine), of(Step::kFinish, 0)) << "rollout never begins";
  EXPECT_EQ(link.result().code(), Code::kUnavailable);
  EXPECT_NE(link.result().text().find("'rollout' still paused"), std::string::npos);
}

}  // namespace
}  // namespace amem
