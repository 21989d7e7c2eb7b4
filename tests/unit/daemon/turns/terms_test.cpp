#include "daemon/turns/terms.h"

#include "tests/unit/fixtures/turns_fixture.h"

namespace amem {
namespace {

Status with(const TurnTerms& terms, TurnPolicy policy = TurnPolicy::kDemand) {
  return Turns(some_rules(policy), some_stage(2)).add(terms, false, at(0));
}
bool says(const Status& status, const std::string& text) {
  return !status.ok() && status.text().find(text) != std::string::npos;
}

TEST(TurnTermsTest, WhatMakesSenseIsAccepted) {
  EXPECT_TRUE(check_stage({}, some_stage()).ok()) << "the defaults";
  for (const TurnPolicy policy : {TurnPolicy::kLease, TurnPolicy::kDemand, TurnPolicy::kSlice})
    EXPECT_TRUE(with(some_terms("a"), policy).ok()) << to_string(policy);
}

TEST(TurnTermsTest, AStageHasDevicesEachOnceWithSpace) {
  EXPECT_TRUE(says(check_stage({}, {}), "no GPU"));
  auto devices = some_stage(2);
  devices[1].device = devices[0].device;
  EXPECT_TRUE(says(check_stage({}, devices), "twice"));
  devices = some_stage();
  devices[0].margin = devices[0].capacity;
  EXPECT_TRUE(says(check_stage({}, devices), "set a smaller margin"));
}

TEST(TurnTermsTest, DurationsOfAStageAreInTheirRanges) {
  for (Duration TurnRules::*each :
       {&TurnRules::grace, &TurnRules::idle, &TurnRules::max_hold, &TurnRules::slice,
        &TurnRules::ageing, &TurnRules::first_retry, &TurnRules::last_retry,
        &TurnRules::start_limit, &TurnRules::start_limit_shared}) {
    TurnRules rules;
    rules.*each = s(-1);
    EXPECT_TRUE(says(check_stage(rules, some_stage()), "negative"));
    rules.*each = kLongestTurnTime + s(1);
    EXPECT_FALSE(check_stage(rules, some_stage()).ok());
  }
  TurnRules rules;
  rules.slice = {};
  EXPECT_TRUE(says(check_stage(rules, some_stage()), "slice is 0s"));
  rules = {};
  rules.last_retry = rules.first_retry - s(0.5);
  EXPECT_TRUE(says(check_stage(rules, some_stage()), "last_retry"));
}

TEST(TurnTermsTest, TermsAreInTheirRanges) {
  TurnTerms terms = some_terms("a");
  terms.weight = 0;
  EXPECT_TRUE(says(with(terms), "weight is 0: set it to a number from 1 to 100"));
  terms.weight = 101;
  EXPECT_FALSE(with(terms).ok());
  terms = some_terms("a");
  terms.priority = -101;
  EXPECT_TRUE(says(with(terms), "priority is -101"));
  terms.priority = 101;
  EXPECT_FALSE(with(terms).ok());
  terms = some_terms("a");
  terms.longest_wait = s(-1);
  EXPECT_TRUE(says(with(terms), "negative"));
}

TEST(TurnTermsTest, AGroupThatIsTooLargeOrUsesAnotherGpuIsRefused) {
  const Status large = with(some_terms("a", 79));
  EXPECT_EQ(large.code(), Code::kOutOfRange);
  EXPECT_TRUE(says(large, "group 'a' needs 79 GiB")) << large.text();
  EXPECT_TRUE(says(large, "has 78 GiB there"));
  EXPECT_TRUE(with(some_terms("a", 78)).ok());
  TurnTerms terms = some_terms("a");
  terms.needs[some_device(3)] = 1;
  EXPECT_TRUE(says(with(terms), "not in the stage"));
}

TEST(TurnTermsTest, ASliceIsNotShorterThanTheResidency) {
  TurnTerms terms = some_terms("a");
  terms.min_residency = s(15);
  EXPECT_TRUE(says(with(terms, TurnPolicy::kSlice), "set a slice of at least 15s"));
  terms.weight = 2;
  EXPECT_TRUE(with(terms, TurnPolicy::kSlice).ok());
}

TEST(TurnTermsTest, TheResidencyIsFourTimesTheCostUnlessItIsSet) {
  TurnTerms terms = some_terms("a");
  terms.cost_out = s(1);
  terms.cost_in = s(2);
  EXPECT_EQ(terms.residency(), s(12));
  terms.min_residency = s(3);
  EXPECT_EQ(terms.residency(), s(3));
}

TEST(TurnTermsTest, ATurnIsLimited) {
  TurnRules rules = some_rules(TurnPolicy::kDemand);
  TurnTerms terms = some_terms("a");
  terms.weight = 3;
  EXPECT_EQ(turn_limit(rules, terms), std::nullopt);
  rules.max_hold = s(60);
  EXPECT_EQ(turn_limit(rules, terms), s(60));
  terms.min_residency = s(90);
  EXPECT_EQ(turn_limit(rules, terms), s(90));
  rules.policy = TurnPolicy::kSlice;
  terms.min_residency = s(0);
  EXPECT_EQ(turn_limit(rules, terms), s(30));
}

TEST(TurnTermsTest, ALoadCountsEachDevice) {
  const auto stage = some_stage(2);
  TurnLoad load(stage);
  load.add({{some_device(1), 50 * kGiB}});
  EXPECT_TRUE(load.has_space_for({{some_device(1), 28 * kGiB}}));
  EXPECT_FALSE(load.has_space_for({{some_device(1), 28 * kGiB + 1}}));
  EXPECT_TRUE(load.has_space_for({{some_device(2), 78 * kGiB}}));
  load.add({{some_device(1), 50 * kGiB}});
  EXPECT_FALSE(load.within_limits());
  EXPECT_TRUE(load.has_space_for({{some_device(2), 1}})) << "that is another device";
  EXPECT_TRUE(load.has_space_for({}));
  load.remove({{some_device(1), 50 * kGiB}});
  EXPECT_TRUE(load.within_limits());
}

}  // namespace
}  // namespace amem
