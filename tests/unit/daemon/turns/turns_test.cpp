#include "tests/unit/fixtures/turns_by_events.h"
#include "tests/unit/fixtures/turns_fixture.h"

namespace amem {
namespace {

class LeaseTest : public TurnsFixture {
 protected:
  LeaseTest() {
    TurnRules rules = some_rules(TurnPolicy::kLease);
    rules.max_hold = s(60);
    make(rules);
    for (const char* name : {"a", "b", "c"}) add(some_terms(name));
  }
};

TEST_F(LeaseTest, AGroupThatAsksGetsItsTurnAndKeepsItUntilItYields) {
  expect_nothing(0);
  turns_->wants("a", at(1));
  expect(1, {}, {"a"});
  EXPECT_EQ(last_why_, "group 'a' has waited for 0 s");
  turns_->wants("b", at(2));
  EXPECT_TRUE(turns_->waits("b"));
  expect_nothing(50);
  turns_->wants_nothing("a", at(50));
  expect(50, {"a"}, {"b"});
  EXPECT_EQ(last_why_, "group 'b' has waited for 48 s, group 'a' has no turn");
  EXPECT_TRUE(turns_->runs("b"));
  EXPECT_FALSE(turns_->runs("a"));
}

TEST_F(LeaseTest, WhoHasYieldedStaysWhileNobodyWaits) {
  turns_->wants("a", at(0));
  expect(0, {}, {"a"});
  turns_->wants_nothing("a", at(1));
  expect_nothing(500);
  turns_->wants("a", at(500));
  turns_->wants("b", at(501));
  EXPECT_EQ(turns_->wakeup(), at(560)) << "that is a new turn";
  expect_nothing(559);
  expect(560, {"a"}, {"b"});
}

TEST_F(LeaseTest, MaxHoldCountsOnlyIfSomebodyWaits) {
  turns_->wants("a", at(0));
  expect(0, {}, {"a"});
  EXPECT_EQ(turns_->wakeup(), kNever);
  expect_nothing(100);
  turns_->wants("b", at(100));
  expect(100, {"a"}, {"b"});
  EXPECT_EQ(last_why_, "group 'b' has waited for 0 s, group 'a' has had its turn for 100 s");
  EXPECT_EQ(turns_->wakeup(), at(160)) << "a has not yielded, so it waits again";
  expect(160, {"b"}, {"a"});
}

TEST_F(LeaseTest, AskingAgainWhileOthersWaitIsNoNewTurn) {
  turns_->wants("a", at(0));
  expect(0, {}, {"a"});
  turns_->wants("b", at(1));
  turns_->wants_nothing("a", at(2));
  turns_->wants("a", at(3));
  expect_nothing(59);
  expect(60, {"a"}, {"b"});
}

TEST_F(LeaseTest, FirstComeFirstServed) {
  turns_->wants("a", at(0));
  expect(0, {}, {"a"});
  turns_->wants("c", at(1));
  turns_->wants("b", at(2));
  turns_->wants("c", at(3));
  turns_->wants_nothing("a", at(4));
  expect(4, {"a"}, {"c"});
  turns_->wants_nothing("c", at(5));
  expect(5, {"c"}, {"b"});
}

TEST_F(LeaseTest, WhoTakesItsAskingBackIsSkipped) {
  turns_->wants("a", at(0));
  expect(0, {}, {"a"});
  turns_->wants("b", at(1));
  turns_->wants_nothing("b", at(2));
  expect_nothing(100);
  EXPECT_FALSE(turns_->waits("b"));
}

TEST_F(LeaseTest, ATurnThatJoinedRunningMayEndAtOnce) {
  turns_->wants("a", at(1));
  TurnTerms terms = some_terms("d");
  ASSERT_TRUE(turns_->add(terms, true, at(1)).ok());
  turns_->wants("d", at(1));
  expect(1, {"d"}, {"a"});
}

class DemandTest : public TurnsFixture {
 protected:
  DemandTest() { make(some_rules(TurnPolicy::kDemand)); }
  void add_three() {
    for (const char* name : {"a", "b", "c"}) add(some_terms(name));
  }
  /// It comes in and has done some work.
  void bring_in(const std::string& group, double time) {
    turns_->wants(group, at(time - 1));
    const auto next = turns_->decide(at(time));
    ASSERT_TRUE(next);
    turns_->switch_done(next->number, at(time));
    turns_->worked(group, at(time));
  }
};

TEST_F(DemandTest, ACallThatHasWaitedForGraceAsks) {
  add_three();
  turns_->wants("a", at(0));
  EXPECT_EQ(turns_->wakeup(), at(1));
  expect_nothing(0.9);
  expect(1, {}, {"a"});
}

TEST_F(DemandTest, WhoIsIdleLeavesAndWhoHasWorkStays) {
  add_three();
  bring_in("a", 1);
  turns_->wants("b", at(2));
  expect_nothing(5);
  turns_->worked("a", at(5));
  expect_nothing(9.9);
  EXPECT_EQ(turns_->wakeup(), at(10));
  expect(10, {"a"}, {"b"});
  EXPECT_EQ(last_why_, "group 'b' has waited for 8 s, group 'a' has been idle for 5 s");
}

TEST_F(DemandTest, ACallThatWaitsAtTheGateOfOneThatRunsIsWork) {
  add_three();
  bring_in("a", 1);
  turns_->wants("a", at(2));
  turns_->wants("b", at(2));
  expect_nothing(100);
  turns_->wants_nothing("a", at(100));
  expect(105, {"a"}, {"b"});
}

TEST_F(DemandTest, TheOneThatHasBeenIdleLongestLeaves) {
  for (const char* name : {"a", "b", "c"}) add(some_terms(name, 30));
  bring_in("a", 1);
  bring_in("b", 2);
  turns_->worked("a", at(4));
  turns_->wants("c", at(10));
  expect(20, {"b"}, {"c"});
}

TEST_F(DemandTest, NoMoreLeaveThanHaveTo) {
  make(some_rules(TurnPolicy::kDemand), 2);
  TurnTerms a = some_terms("a", 60);
  TurnTerms b = some_terms("b");
  b.needs = {{some_device(2), 60 * kGiB}};
  TurnTerms c = b;
  c.group = "c";
  for (const TurnTerms& each : {a, b, c}) add(each);
  bring_in("a", 1);
  bring_in("b", 2);
  turns_->wants("c", at(20));
  expect(30, {"b"}, {"c"});
}

TEST_F(DemandTest, ThoseThatFitRunTogetherAndComeInTogether) {
  for (const char* name : {"a", "b", "c"}) add(some_terms(name, 30));
  for (const char* name : {"a", "b", "c"}) turns_->wants(name, at(0));
  expect(1, {}, {"a", "b"});
  EXPECT_EQ(last_why_, "groups 'a', 'b' have waited for up to 1 s");
}

TEST_F(DemandTest, SeveralLeaveForOneThatIsLarge) {
  add(some_terms("a", 30));
  add(some_terms("b", 30));
  add(some_terms("c", 70));
  turns_->wants("a", at(0));
  turns_->wants("b", at(0));
  expect(1, {}, {"a", "b"});
  turns_->worked("a", at(1));
  turns_->worked("b", at(3));
  turns_->wants("c", at(4));
  expect_nothing(7) /* b has worked */;
  expect(8, {"a", "b"}, {"c"});
}

TEST_F(DemandTest, ASmallOneDoesNotMakeALargeOneBeforeItWait) {
  add(some_terms("a", 30));
  add(some_terms("large", 70));
  add(some_terms("small", 30));
  add(some_terms("tiny", 8));
  bring_in("a", 1);
  turns_->wants("a", at(1));  // works on
  turns_->wants("large", at(2));
  turns_->wants("small", at(3));
  turns_->wants("tiny", at(3));
  expect(10, {}, {"tiny"});
  turns_->wants_nothing("a", at(11));
  turns_->wants("tiny", at(11));  // works on
  expect(16, {"a"}, {"large"});
}

TEST_F(DemandTest, MaxHoldEndsATurnWithWork) {
  TurnRules rules = some_rules(TurnPolicy::kDemand);
  rules.max_hold = s(30);
  make(rules);
  add_three();
  bring_in("a", 1);
  turns_->wants("a", at(1));
  turns_->wants("b", at(2));
  expect_nothing(30);
  EXPECT_EQ(turns_->wakeup(), at(31));
  expect(31, {"a"}, {"b"});
  EXPECT_TRUE(turns_->waits("a"));
}

TEST_F(DemandTest, ItsMinimumResidencyKeepsAGroup) {
  TurnTerms terms = some_terms("a");
  terms.cost_in = s(3);
  terms.cost_out = s(2);
  add(terms);
  add(some_terms("b"));
  bring_in("a", 1);
  turns_->wants("b", at(1));
  expect_nothing(20.9);
  EXPECT_EQ(turns_->wakeup(), at(21));
  expect(21, {"a"}, {"b"});
}

TEST_F(DemandTest, MeasuredCostsChangeTheResidency) {
  add_three();
  EXPECT_TRUE(turns_->set_costs("a", s(3), s(2), at(0)).ok());
  bring_in("a", 1);
  turns_->wants("b", at(1));
  expect_nothing(20.9);
  EXPECT_TRUE(turns_->set_costs("a", s(1), s(1), at(20.9)).ok());
  expect(20.9, {"a"}, {"b"});
}

TEST_F(DemandTest, PriorityComesFirstAndGrowsWithWaiting) {
  add_three();
  TurnTerms high = some_terms("high");
  high.priority = 1;  // worth 30 s
  add(high);
  bring_in("a", 1);
  turns_->wants("b", at(2));
  turns_->wants("high", at(3));
  expect(7, {"a"}, {"high"});
  turns_->worked("high", at(7));
  turns_->wants("c", at(8));
  turns_->wants_nothing("high", at(40));
  expect(45, {"high"}, {"b"});
  turns_->worked("b", at(45));
  turns_->wants("high", at(45));  // 37 s after c
  expect(51, {"b"}, {"c"});
}

TEST_F(DemandTest, ThoseWithALongestWaitComeFirstButNotAlways) {
  TurnRules rules = some_rules(TurnPolicy::kDemand);
  rules.max_hold = s(10);
  make(rules);
  TurnTerms other = some_terms("other");
  other.priority = 100;
  add(other);
  for (const char* name : {"x", "y"}) {
    TurnTerms terms = some_terms(name);
    terms.longest_wait = s(100);
    add(terms);
  }
  add(some_terms("another"));
  // All have work all the time.
  for (const char* name : {"x", "y", "other", "another"}) turns_->wants(name, at(0));
  std::string order;
  Time now = at(1);
  while (now < at(90)) {
    if (const auto next = turns_->decide(now)) {
      ASSERT_EQ(next->in.size(), 1U);
      order += next->in[0] + " ";
      turns_->switch_done(next->number, now);
    }
    now = turns_->wakeup();
  }
  EXPECT_EQ(order, "x y other x other y other x other ") << "and another after 3000 s";
}

TEST_F(DemandTest, AnOperatorsPauseWins) {
  add_three();
  bring_in("a", 1);
  turns_->wants("a", at(1));
  turns_->wants("b", at(2));
  turns_->paused_by_operator("a", at(3));
  EXPECT_FALSE(turns_->runs("a"));
  expect(3, {}, {"b"});
  turns_->worked("b", at(3));
  turns_->wants("a", at(4));
  EXPECT_FALSE(turns_->waits("a"));
  expect_nothing(100);
  turns_->released("a", false, at(100));
  EXPECT_TRUE(turns_->waits("a"));
  EXPECT_EQ(turns_->wakeup(), at(101));
  expect(101, {"b"}, {"a"});
}

TEST_F(DemandTest, WhatAnOperatorHasResumedRuns) {
  add_three();
  bring_in("a", 1);
  turns_->paused_by_operator("a", at(2));
  turns_->released("a", true, at(3));
  EXPECT_TRUE(turns_->runs("a"));
  turns_->wants("b", at(4));
  expect_nothing(7.9);
  expect(8, {"a"}, {"b"});
}

TEST_F(DemandTest, AnOperatorsPauseDuringASwitchHolds) {
  add_three();
  turns_->wants("a", at(0));
  const auto next = turns_->decide(at(1));
  ASSERT_TRUE(next);
  turns_->paused_by_operator("a", at(2));
  turns_->switch_done(next->number, at(3));
  EXPECT_FALSE(turns_->runs("a"));
  turns_->wants("b", at(3));
  expect(4, {}, {"b"});
}

TEST_F(DemandTest, AGroupThatEndsLeavesItsSpace) {
  add_three();
  bring_in("a", 1);
  turns_->wants("a", at(1));
  turns_->wants("b", at(2));
  turns_->remove("a", at(3));
  EXPECT_FALSE(turns_->has("a"));
  expect(3, {}, {"b"});
  turns_->wants("c", at(3));
  turns_->remove("c", at(4));
  expect_nothing(100);
  EXPECT_EQ(turns_->wakeup(), kNever);
}

TEST_F(DemandTest, AGroupThatEndsInASwitchIsNotMissed) {
  add_three();
  bring_in("a", 1);
  turns_->wants("b", at(2));
  const auto next = turns_->decide(at(10));
  ASSERT_TRUE(next);
  turns_->remove("a", at(10));
  turns_->remove("b", at(10));
  EXPECT_TRUE(turns_->switching()) << "the caller says when it has ended";
  turns_->switch_done(next->number, at(11));
  EXPECT_FALSE(turns_->switching());
  EXPECT_FALSE(turns_->has("b"));
}

TEST_F(DemandTest, EventsOfUnknownGroupsHaveNoEffect) {
  add_three();
  turns_->wants("x", at(0));
  turns_->wants_nothing("x", at(0));
  turns_->worked("x", at(0));
  turns_->remove("x", at(0));
  turns_->paused_by_operator("x", at(0));
  turns_->released("x", true, at(0));
  EXPECT_TRUE(turns_->set_needs("x", {}, at(0)).ok());
  EXPECT_TRUE(turns_->set_costs("x", {}, {}, at(0)).ok());
  expect_nothing(100);
  EXPECT_FALSE(turns_->has("x"));
}

TEST_F(DemandTest, AddRefusesWithoutEffect) {
  add_three();
  EXPECT_EQ(turns_->add(some_terms("a"), false, at(0)).code(), Code::kAlreadyExists);
  EXPECT_EQ(turns_->add(some_terms("d", 79), false, at(0)).code(), Code::kOutOfRange);
  TurnTerms terms = some_terms("d");
  terms.longest_wait = s(100);
  EXPECT_EQ(turns_->can_admit(terms).code(), Code::kFailedPrecondition);
  EXPECT_EQ(turns_->add(terms, false, at(0)).code(), Code::kFailedPrecondition);
  EXPECT_FALSE(turns_->has("d"));
}

TEST_F(DemandTest, AGroupThatWouldBreakAnothersLongestWaitIsRefused) {
  TurnRules rules = some_rules(TurnPolicy::kDemand);
  rules.max_hold = s(10);
  make(rules);
  add(some_terms("b"));
  TurnTerms a = some_terms("a");
  a.longest_wait = s(15);
  add(a);
  const Status status = turns_->can_admit(some_terms("c"));
  EXPECT_NE(status.text().find("group 'a' has a longest wait of 15s"), std::string::npos)
      << status.text();
  EXPECT_TRUE(turns_->promised().ok());
  EXPECT_EQ(turns_->set_costs("b", s(2), s(2), at(1)).code(), Code::kFailedPrecondition);
  EXPECT_FALSE(turns_->promised().ok());
}

TEST_F(DemandTest, TheCostsOfEachGroupCountForALongestWait) {
  for (const char* const whose : {"a", "b", "c"}) {
    TurnRules rules = some_rules(TurnPolicy::kDemand);
    rules.max_hold = s(10);
    make(rules);
    add(some_terms("b"));
    TurnTerms a = some_terms("a");
    a.longest_wait = s(27);
    add(a);
    add(some_terms("c"));
    ASSERT_TRUE(turns_->promised().ok());
    EXPECT_EQ(turns_->set_costs(whose, s(9), s(9), at(1)).code(), Code::kFailedPrecondition)
        << whose;
  }
}

TEST_F(DemandTest, AnOwnerMayHaveAsManyPlacesAsAreFree) {
  for (std::size_t i = 0; i < kMaxGroupsOfStage / 2; ++i)
    EXPECT_TRUE(turns_->add(some_terms("g" + std::to_string(i)), false, at(0)).ok());
  EXPECT_EQ(turns_->can_admit(some_terms("a")).code(), Code::kResourceExhausted);
  TurnTerms other = some_terms("a");
  other.owner = 2;
  EXPECT_TRUE(turns_->can_admit(other).ok());
}

TEST_F(DemandTest, OfThoseThatNeedNotLeaveTogetherAsManyStayAsFit) {
  add(some_terms("x", 10), true);
  add(some_terms("y", 10), true);
  add(some_terms("z", 10), true);
  add(some_terms("large", 40), true);
  // 78 GiB are there, and 120 are needed. Without all three x fits, and so does y, but not both.
  const std::map<std::string, std::uint64_t> needs = {
      {"x", 20}, {"y", 20}, {"z", 30}, {"large", 50}};
  for (const auto& [group, gib] : needs)
    EXPECT_TRUE(turns_->set_needs(group, {{some_device(1), gib * kGiB}}, at(3)).ok());
  const auto next = turns_->decide(at(3));
  ASSERT_TRUE(next);
  EXPECT_EQ(next->out.size(), 2U);
}

TEST_F(DemandTest, NeedsThatHaveOutgrownTheDeviceMakeSomebodyLeave) {
  for (const char* name : {"a", "b"}) add(some_terms(name, 30));
  bring_in("a", 1);
  bring_in("b", 2);
  turns_->wants("a", at(2));  // both have work
  turns_->wants("b", at(2));
  EXPECT_TRUE(turns_->set_needs("a", {{some_device(1), 60 * kGiB}}, at(3)).ok());
  const auto first = turns_->decide(at(3));
  ASSERT_TRUE(first);
  turns_->switch_failed(first->number, {"a", "b"}, at(3));
  EXPECT_EQ(turns_->wakeup(), at(4)) << "and then it is tried again";
  expect(4, {"b"}, {});
  EXPECT_EQ(last_why_, "the groups that run have outgrown the GPUs");
  EXPECT_TRUE(turns_->waits("b"));
  EXPECT_FALSE(turns_->set_needs("a", {{some_device(1), 79 * kGiB}}, at(5)).ok());
  EXPECT_FALSE(turns_->set_needs("a", {{some_device(9), 1}}, at(5)).ok());
  EXPECT_TRUE(turns_->set_needs("a", {{some_device(1), 40 * kGiB}}, at(6)).ok());
  expect(7, {}, {"b"});
}

TEST_F(DemandTest, AClockThatJumpsAheadMakesOneSwitch) {
  constexpr double kDay = 86400;
  add_three();
  bring_in("a", 1);
  turns_->worked("a", at(2));
  turns_->wants("b", at(2));
  expect_nothing(3);
  expect(kDay, {"a"}, {"b"});
  turns_->worked("b", at(kDay));
  turns_->wants("a", at(kDay));
  expect_nothing(kDay + 2);  // b stays for as long as after any switch
  turns_->worked("b", at(kDay + 2));
  expect_nothing(kDay + 6.9);
  expect(kDay + 7, {"b"}, {"a"});
}

TEST_F(DemandTest, OneSwitchAtATime) {
  add_three();
  turns_->wants("a", at(0));
  const auto next = turns_->decide(at(1));
  ASSERT_TRUE(next);
  turns_->wants("b", at(1));
  expect_nothing(100);
  EXPECT_EQ(turns_->wakeup(), kNever);
  turns_->switch_done(next->number + 1, at(100));
  EXPECT_TRUE(turns_->switching()) << "that is another one";
  turns_->worked("a", at(100));  // its gate opens before it is done
  turns_->switch_done(next->number, at(101));
  EXPECT_FALSE(turns_->switching());
  turns_->switch_failed(next->number, {}, at(102));
  EXPECT_TRUE(turns_->runs("a")) << "late";
  expect(106, {"a"}, {"b"});
}

TEST_F(DemandTest, AFailedResumeIsTriedAgainLaterAndLater) {
  add_three();
  turns_->wants("a", at(0));
  double now = 1;
  for (const double wait : {1.0, 2.0, 4.0, 4.0}) {
    const auto next = turns_->decide(at(now));
    ASSERT_TRUE(next);
    turns_->switch_failed(next->number, {}, at(now));
    EXPECT_FALSE(turns_->runs("a"));
    EXPECT_TRUE(turns_->waits("a"));
    EXPECT_EQ(turns_->wakeup(), at(now + wait));
    expect_nothing(now + wait - 0.1);
    now += wait;
  }
  turns_->wants("b", at(now));
  expect(now, {}, {"a"});
  turns_->worked("a", at(now));
  expect(now + 5, {"a"}, {"b"});
}

TEST_F(DemandTest, AFailureAfterASwitchThatSucceededIsTheFirst) {
  add_three();
  bring_in("a", 1);
  turns_->wants("b", at(2));
  const auto next = turns_->decide(at(7));
  ASSERT_TRUE(next);
  turns_->switch_failed(next->number, {"a"}, at(7));
  expect_nothing(7.9);
  expect(8, {"a"}, {"b"});
}

TEST_F(DemandTest, WhatWasDecidedByOldFiguresIsNotWaitedFor) {
  for (const char* name : {"a", "b"}) add(some_terms(name, 30));
  bring_in("a", 1);
  turns_->wants("b", at(10));
  const auto next = turns_->decide(at(11));
  ASSERT_TRUE(next);
  EXPECT_TRUE(next->out.empty()) << "b fits beside a";
  turns_->switch_failed(next->number, {}, at(11));
  turns_->set_taken(some_device(1), 2 * kGiB, at(11));
  expect_nothing(11.5);
  turns_->set_taken(some_device(1), 40 * kGiB, at(11.5));
  expect(11.5, {"a"}, {"b"});
}

TEST_F(DemandTest, AfterAFailureOthersComeFirst) {
  add_three();
  turns_->wants("a", at(0));
  const auto next = turns_->decide(at(1));
  ASSERT_TRUE(next);
  turns_->wants("b", at(0));
  turns_->switch_failed(next->number, {}, at(2));
  expect(2.5, {}, {"b"});
}

TEST_F(DemandTest, AfterAFailedPauseAnotherGroupLeaves) {
  for (const char* name : {"a", "b", "c"}) add(some_terms(name, 30));
  bring_in("a", 1);
  bring_in("b", 2);
  turns_->wants("c", at(10));
  const auto next = turns_->decide(at(11));
  ASSERT_TRUE(next);
  EXPECT_EQ(next->out, Names{"a"});
  turns_->switch_failed(next->number, {"a"}, at(12));
  EXPECT_TRUE(turns_->runs("a"));
  EXPECT_TRUE(turns_->waits("c"));
  expect(13, {"b"}, {"c"});
}

TEST_F(DemandTest, AfterAFailedResumeWhatHasLeftReturnsAtItsTurn) {
  add_three();
  bring_in("a", 1);
  turns_->wants("b", at(2));
  const auto next = turns_->decide(at(10));
  ASSERT_TRUE(next);
  turns_->wants("a", at(10));
  turns_->switch_failed(next->number, {}, at(11));
  EXPECT_FALSE(turns_->runs("a"));
  expect(11, {}, {"a"});
}

class SliceTest : public TurnsFixture {
 protected:
  SliceTest() {
    make(some_rules(TurnPolicy::kSlice));
    TurnTerms a = some_terms("a");
    a.weight = 2;
    add(a);
    TurnTerms b = some_terms("b");
    b.priority = 100;
    add(b);
    add(some_terms("c"));
  }
};

TEST_F(SliceTest, EachHasItsSliceByItsWeight) {
  for (const char* name : {"a", "b", "c"}) turns_->wants(name, at(0));
  expect(0, {}, {"a"});
  for (int round = 0; round < 5; ++round) {
    const double now = 40.0 * round;
    turns_->wants("a", at(now));
    expect_nothing(now + 19.9);
    EXPECT_EQ(turns_->wakeup(), at(now + 20));
    expect(now + 20, {"a"}, {"b"});
    turns_->wants("b", at(now + 20));
    expect(now + 30, {"b"}, {"c"});
    turns_->wants("c", at(now + 30));
    expect(now + 40, {"c"}, {"a"});
  }
}

TEST_F(SliceTest, WhoWantsNothingIsSkippedAndDoesNotKeepItsSlice) {
  turns_->wants("a", at(0));
  turns_->wants("c", at(0));
  expect(0, {}, {"a"});
  turns_->worked("a", at(1));
  expect_nothing(5.9);
  expect(6, {"a"}, {"c"});
  turns_->wants("c", at(6));
  expect_nothing(100) /* nobody else wants anything */;
  turns_->wants("b", at(100));
  expect(100, {"c"}, {"b"});
}

}  // namespace
}  // namespace amem
