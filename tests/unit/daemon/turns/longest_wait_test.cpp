#include "daemon/turns/longest_wait.h"

#include "tests/unit/fixtures/turns_fixture.h"

namespace amem {
namespace {

/// No two of them fit beside each other. A switch takes 1 s out and 2 s in.
std::vector<TurnTerms> three(Duration longest_wait_of_a) {
  std::vector<TurnTerms> terms;
  for (const char* name : {"a", "b", "c"}) {
    terms.push_back(some_terms(name));
    terms.back().cost_out = s(1);
    terms.back().cost_in = s(2);
  }
  terms[0].longest_wait = longest_wait_of_a;
  return terms;
}

TurnRules lease(Duration max_hold) {
  TurnRules rules = some_rules(TurnPolicy::kLease);
  rules.max_hold = max_hold;
  return rules;
}

TEST(LongestWaitTest, CountsTurnsAndSwitches) {
  const WorstWait worst = worst_wait(lease(s(60)), some_stage(), three(s(1)), 0);
  // One is under way; b has its turn, then c, then comes a.
  EXPECT_EQ(worst.in_switches, s(4 * 3));
  EXPECT_EQ(worst.in_turns, s(2 * 60));
  EXPECT_EQ(worst.total, s(132));
}

TEST(LongestWaitTest, DemandHasItsGrace) {
  TurnRules rules = lease(s(60));
  rules.policy = TurnPolicy::kDemand;
  EXPECT_EQ(worst_wait(rules, some_stage(), three(s(1)), 0).total, s(133));
}

TEST(LongestWaitTest, OfGroupsWithoutOneTwoCount) {
  auto terms = three(s(1));
  for (const char* name : {"d", "e", "f"}) {
    terms.push_back(some_terms(name));
    terms.back().min_residency = s(0);
  }
  EXPECT_EQ(worst_wait(lease(s(60)), some_stage(), terms, 0).in_turns, s(2 * 60));
  terms[3].longest_wait = s(1);
  EXPECT_EQ(worst_wait(lease(s(60)), some_stage(), terms, 0).in_turns, s(3 * 60));
  TurnRules rules = some_rules(TurnPolicy::kSlice);
  rules.slice = s(20);
  EXPECT_EQ(worst_wait(rules, some_stage(), terms, 0).in_turns, s(5 * 20)) << "all do";
}

TEST(LongestWaitTest, WhoFitsBesideAllWaitsForNobodysTurn) {
  auto terms = three(s(60));
  for (TurnTerms& each : terms) each.needs[some_device(1)] = 20 * kGiB;
  const WorstWait worst = worst_wait(lease({}), some_stage(), terms, 0);
  EXPECT_EQ(worst.in_turns, Duration{});
  ASSERT_TRUE(worst.total);
  EXPECT_GE(*worst.total, 2 * s(9)) << "all three may switch at once";
  EXPECT_TRUE(check_longest_waits(lease({}), some_stage(), terms).ok());
}

TEST(LongestWaitTest, OneThatWouldFitTwiceFitsBesideNoOther) {
  auto terms = three(s(1));
  terms[1].needs[some_device(1)] = 30 * kGiB;
  EXPECT_EQ(worst_wait(lease(s(60)), some_stage(), terms, 0).in_switches, s(4 * 3));
}

TEST(LongestWaitTest, IsPromisedIfItIsLongEnough) {
  EXPECT_TRUE(check_longest_waits(lease(s(60)), some_stage(), three(s(132))).ok());
  const Status status = check_longest_waits(lease(s(60)), some_stage(), three(s(131)));
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.text(),
            "group 'a' has a longest wait of 131s, and may have to wait for 132s (120s of turns of "
            "other groups, 12s of switches): shorten max_hold for group 'b', or "
            "set longest_wait of group 'a' to at least 132s");
  EXPECT_TRUE(check_longest_waits(lease(s(60)), some_stage(), three({})).ok()) << "none is asked";
}

TEST(LongestWaitTest, IsNotPromisedIfAnotherGroupMayStayForEver) {
  const Status status = check_longest_waits(lease({}), some_stage(), three(s(600)));
  EXPECT_EQ(status.text(),
            "group 'a' has a longest wait of 600s, and group 'b' may keep its turn without limit: "
            "set max_hold, or remove longest_wait of group 'a'");
}

TEST(LongestWaitTest, TheResidencyOfAnotherGroupCounts) {
  auto terms = three(s(132));
  terms[1].min_residency = s(100);
  const Status status = check_longest_waits(lease(s(60)), some_stage(), terms);
  EXPECT_NE(status.text().find("may have to wait for 172s"), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("shorten max_hold for group 'b'"), std::string::npos)
      << "its turns are the longest: " << status.text();
}

TEST(LongestWaitTest, OfAnothersOwnerTurnsCountWithoutTheirWeight) {
  auto terms = three(s(1));
  TurnRules rules = some_rules(TurnPolicy::kSlice);
  rules.slice = s(20);
  terms[1].weight = 3;
  EXPECT_EQ(worst_wait(rules, some_stage(), terms, 0).in_turns, s(4 * 20)) << "of one owner";
  terms[0].by_operator = true;
  terms[1].owner = 2;
  EXPECT_EQ(worst_wait(rules, some_stage(), terms, 0).in_turns, s(2 * 20));
}

TEST(CostsTest, TheLastOnesCount) {
  Costs costs;
  costs.add(s(100), true);
  for (int i = 1; i < 8; ++i) costs.add(s(1), true);
  EXPECT_EQ(costs.worst(), s(100)) << "it is one of the last ones still";
  costs.add(s(1), true);
  EXPECT_EQ(costs.worst(), s(1));
}

}  // namespace
}  // namespace amem
