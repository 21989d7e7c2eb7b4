// What a node knows of the transactions that it has had a part of, and of those that it never will.
#include "daemon/fleet/known_transactions.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

v1::FleetBegin begin(const std::string& transaction) {
  v1::FleetBegin begin;
  begin.set_transaction(transaction);
  begin.set_leader("n0");
  return begin;
}

TEST(KnownTransactionsTest, WhatItHasSaidThatItNeverDoesIsRefused) {
  KnownTransactions known({}, true);
  EXPECT_TRUE(known.refuses(begin("lost")).ok());
  EXPECT_TRUE(known.standing("lost", false).never());
  const Status refused = known.refuses(begin("lost"));
  EXPECT_EQ(refused.code(), Code::kAborted);
  EXPECT_EQ(refused.text(), "another node has lost the leader n0 and has given up");
  EXPECT_TRUE(known.refuses(begin("another")).ok());
}

TEST(KnownTransactionsTest, WhatItHasAPartOfIsRefusedAtItsSecondAddress) {
  KnownTransactions known({}, true);
  known.add("t", nullptr);
  known.add("u", nullptr);
  for (const char* transaction : {"t", "u"})
    EXPECT_EQ(known.refuses(begin(transaction)).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(known.refuses(begin("another")).ok());
}

TEST(KnownTransactionsTest, TheRecordsSharesAreTheStanding) {
  KnownTransactions known({{"t", Side::kOut, true, true, false},  // of two groups
                           {"t", Side::kIn, true, false, true},
                           {"other", Side::kIn, true, true, false}},
                          true);
  const v1::FleetStanding is = known.standing("t", false);
  EXPECT_TRUE(is.known() && is.asked_out() && is.went_on_out() && is.asked_in() && is.given_up());
  EXPECT_FALSE(is.went_on_in() || is.never() || is.leads());
  const v1::FleetStanding other = known.standing("other", false);
  EXPECT_TRUE(other.known() && other.asked_in() && other.went_on_in());
  EXPECT_FALSE(other.asked_out() || other.went_on_out() || other.given_up());
}

TEST(KnownTransactionsTest, ALeaderWithoutAPartIsNotAgainstIt) {
  KnownTransactions known({}, true);
  const v1::FleetStanding is = known.standing("t", true);
  EXPECT_TRUE(is.known() && is.leads() && is.asked_out() && is.asked_in());
  EXPECT_FALSE(is.never());
  EXPECT_TRUE(known.refuses(begin("t")).ok());
}

TEST(KnownTransactionsTest, WithoutARecordAndOnceShutItVouchesForNothing) {
  KnownTransactions without({}, false);
  EXPECT_FALSE(without.standing("t", false).never());
  EXPECT_TRUE(without.refuses(begin("t")).ok());
  KnownTransactions shut({{"t", Side::kOut, true, false, false}}, true);
  shut.shut();
  const v1::FleetStanding is = shut.standing("t", false);
  EXPECT_FALSE(is.known() || is.never());
}

TEST(KnownTransactionsTest, OfVeryManyThatItNeverTakesPartInItForgetsTheOldest) {
  constexpr int kMost = 4096;
  KnownTransactions known({}, true);
  for (int i = 0; i <= kMost; ++i)
    EXPECT_TRUE(known.standing("t" + std::to_string(i), false).never());
  EXPECT_TRUE(known.refuses(begin("t0")).ok());
  EXPECT_FALSE(known.refuses(begin("t1")).ok());
}

}  // namespace
}  // namespace amem
