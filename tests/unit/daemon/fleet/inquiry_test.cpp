// What a node that has lost its leader makes of what the others answer.
#include "daemon/fleet/inquiry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace amem {
namespace {

class InquiryTest : public ::testing::Test {
 protected:
  using Verdict = Inquiry::Verdict;

  static v1::FleetStanding waits(bool led = false) {
    v1::FleetStanding standing;
    standing.set_known(true);
    standing.set_asked_out(true);
    standing.set_led(led);
    return standing;
  }
  static v1::FleetStanding gone_on() {
    v1::FleetStanding standing = waits();
    standing.set_went_on_out(true);
    standing.set_given_up(true);  // what comes in
    return standing;
  }
  static v1::FleetStanding given_up() {
    v1::FleetStanding standing = waits();
    standing.set_given_up(true);
    return standing;
  }
  static v1::FleetStanding has_not_asked() {
    v1::FleetStanding standing;
    standing.set_known(true);
    return standing;
  }
  static v1::FleetStanding never() {
    v1::FleetStanding standing;
    standing.set_never(true);
    return standing;
  }
  static v1::FleetStanding unknown() { return {}; }

  /// Node 1 of four, with 0 as the leader's own, asks about what goes out. All orders of the
  /// answers of 0, 2 and 3 lead to the same.
  static Verdict verdict(std::vector<std::optional<v1::FleetStanding>> answers,
                         std::optional<std::size_t> leader = 0) {
    std::optional<Verdict> all;
    std::vector<std::size_t> order = {0, 1, 2};
    do {
      Inquiry inquiry(4, 1, Side::kOut, leader);
      EXPECT_EQ(inquiry.next_round(), (std::vector<std::size_t>{0, 2, 3}));
      for (const std::size_t which : order) {
        const auto& answer = answers[which];
        inquiry.heard(which == 0 ? 0 : which + 1, answer ? &*answer : nullptr);
      }
      EXPECT_TRUE(inquiry.round_has_ended());
      EXPECT_EQ(all.value_or(inquiry.verdict()), inquiry.verdict());
      all = inquiry.verdict();
    } while (std::next_permutation(order.begin(), order.end()));
    return *all;
  }
  static constexpr std::nullopt_t kNoAnswer = std::nullopt;
};

TEST_F(InquiryTest, OneThatHasGoneOnCountsFirst) {
  for (const auto& other : {waits(), given_up(), has_not_asked(), never(), unknown()})
    EXPECT_EQ(verdict({kNoAnswer, other, gone_on()}), Verdict::kGoOn);
}

TEST_F(InquiryTest, OneThatHasGivenUpOrNeverAsksDecides) {
  for (const auto& sure : {given_up(), has_not_asked(), never()}) {
    EXPECT_EQ(verdict({kNoAnswer, kNoAnswer, sure}), Verdict::kGiveUp);
    EXPECT_EQ(verdict({kNoAnswer, waits(true), sure}), Verdict::kGiveUp);
  }
}

TEST_F(InquiryTest, WhoHasForgottenProvesNothing) {
  EXPECT_EQ(verdict({kNoAnswer, waits(), unknown()}), Verdict::kAskAgain);
  EXPECT_EQ(verdict({unknown(), waits(), waits()}), Verdict::kGiveUp) << "the leader's own";
}

TEST_F(InquiryTest, WhereAllWaitNobodyWasTold) {
  EXPECT_EQ(verdict({waits(), waits(), waits()}), Verdict::kGiveUp);
  EXPECT_EQ(verdict({kNoAnswer, waits(), waits()}), Verdict::kGiveUp) << "it is told last";
}

TEST_F(InquiryTest, TheOneThatDoesNotAnswerMayBeTheOneThatWasTold) {
  EXPECT_EQ(verdict({waits(), kNoAnswer, waits()}), Verdict::kAskAgain);
  EXPECT_EQ(verdict({kNoAnswer, kNoAnswer, waits()}), Verdict::kAskAgain);
  EXPECT_EQ(verdict({kNoAnswer, waits(), waits()}, std::nullopt), Verdict::kAskAgain)
      << "the leader is none of the nodes";
  v1::FleetStanding knows = waits();
  knows.mutable_leader()->set_number(0);
  EXPECT_EQ(verdict({kNoAnswer, knows, waits()}, std::nullopt), Verdict::kGiveUp);
}

TEST_F(InquiryTest, ALeaderThatLivesDecides) {
  EXPECT_EQ(verdict({waits(), waits(true), waits()}), Verdict::kAskAgain);
  v1::FleetStanding leads = waits();
  leads.set_leads(true);
  EXPECT_EQ(verdict({leads, waits(), waits()}), Verdict::kAskAgain);
}

TEST_F(InquiryTest, OfOneNodeThereIsNobodyToAsk) {
  Inquiry inquiry(1, 0, Side::kIn, std::nullopt);
  EXPECT_TRUE(inquiry.next_round().empty());
  EXPECT_TRUE(inquiry.round_has_ended());
  EXPECT_EQ(inquiry.verdict(), Verdict::kGiveUp);
}

TEST_F(InquiryTest, OfManyNodesOnlyAFewAreAskedAtFirstAndTheseAskAll) {
  std::size_t questions = 0;
  for (std::size_t own = 0; own < 1024; ++own)
    questions += Inquiry(1024, own, Side::kOut, 0).next_round().size();
  EXPECT_LT(questions, 1024U * 64U);
  Inquiry inquiry(1024, 1000, Side::kOut, 0);
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t node : inquiry.next_round()) {
      const v1::FleetStanding standing = node == 7 ? never() : waits();
      inquiry.heard(node, &standing);
    }
    EXPECT_EQ(inquiry.verdict(), Verdict::kAskAgain) << "of what it has not asked it knows nothing";
  }
  EXPECT_EQ(inquiry.next_round().size(), 1023U) << "they have not helped";
}

TEST_F(InquiryTest, WaitsLongerAfterEachRound) {
  Inquiry inquiry(4, 1, Side::kOut, 0);
  Duration before{};
  for (int round = 0; round < 4; ++round) {
    (void)inquiry.next_round();
    EXPECT_GT(inquiry.pause(), before);
    before = inquiry.pause();
  }
  for (int round = 0; round < 100; ++round) (void)inquiry.next_round();
  EXPECT_EQ(inquiry.pause(), before);
}

TEST_F(InquiryTest, WhoHasGivenUpIsNamedAndNotWhoNeverHadAPart) {
  for (const bool never_first : {false, true}) {
    Inquiry inquiry(4, 1, Side::kOut, 0);
    (void)inquiry.next_round();
    inquiry.heard(0, nullptr);
    const v1::FleetStanding first = never_first ? never() : given_up();
    const v1::FleetStanding second = never_first ? given_up() : never();
    inquiry.heard(2, &first);
    inquiry.heard(3, &second);
    EXPECT_EQ(inquiry.by(), never_first ? 3U : 2U);
  }
}

}  // namespace
}  // namespace amem
