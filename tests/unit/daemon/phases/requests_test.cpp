#include "daemon/phases/requests.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using std::chrono::seconds;

TEST(Requests, CompleteWhenEveryRankHasAsked) {
  Requests requests;
  EXPECT_FALSE(requests.complete(Operation::kPause, {}));
  ASSERT_TRUE(requests.add({1, 10, Operation::kPause, kNever}).ok());
  ASSERT_TRUE(requests.add({1, 11, Operation::kPause, kNever}).ok()) << "two threads of one rank";
  ASSERT_TRUE(requests.add({2, 12, Operation::kResume, kNever}).ok());
  EXPECT_FALSE(requests.complete(Operation::kPause, {1, 2}));
  EXPECT_EQ(requests.missing(Operation::kPause, {1, 2, 3}), (std::vector<RankId>{2, 3}));
  ASSERT_TRUE(requests.add({2, 13, Operation::kPause, kNever}).ok());
  EXPECT_TRUE(requests.complete(Operation::kPause, {1, 2}));
  EXPECT_EQ(requests.take(Operation::kPause).size(), 3U);
  EXPECT_FALSE(requests.complete(Operation::kPause, {1, 2}));
  EXPECT_TRUE(requests.complete(Operation::kResume, {2})) << "others stay";
}

TEST(Requests, ADeadRankIsForgotten) {
  Requests requests;
  ASSERT_TRUE(requests.add({1, 10, Operation::kPause, kNever}).ok());
  ASSERT_TRUE(requests.add({2, 11, Operation::kPause, kNever}).ok());
  requests.forget(1);
  const auto left = requests.take(Operation::kPause);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left.front().seq, 11U);
}

TEST(Requests, TheEarliestDeadlineCounts) {
  Requests requests;
  const Time t;
  EXPECT_EQ(requests.deadline(Operation::kPause), kNever);
  ASSERT_TRUE(requests.add({1, 1, Operation::kPause, t + seconds(5)}).ok());
  ASSERT_TRUE(requests.add({2, 2, Operation::kPause, t + seconds(3)}).ok());
  ASSERT_TRUE(requests.add({2, 3, Operation::kResume, t + seconds(1)}).ok());
  EXPECT_EQ(requests.deadline(Operation::kPause), t + seconds(3));
}

TEST(Requests, PeopleAreToldOfTheFirstOneThatHasWaitedForLong) {
  Requests requests;
  const Time t;
  EXPECT_EQ(requests.tell_at(), kNever);
  ASSERT_TRUE(requests.add({1, 1, Operation::kPause, kNever, {}, t + seconds(9)}).ok());
  ASSERT_TRUE(requests.add({2, 2, Operation::kResume, kNever, {}, t + seconds(7)}).ok());
  ASSERT_TRUE(requests.add({3, 3, Operation::kPause, kNever, {}, t + seconds(8)}).ok());
  EXPECT_EQ(requests.tell_at(), t + seconds(7));
}

TEST(Requests, ARankCannotFillTheBroker) {
  Requests requests;
  for (std::uint64_t i = 0; i < Requests::kMaxPerRank; ++i)
    ASSERT_TRUE(requests.add({1, i, Operation::kPause, kNever}).ok());
  EXPECT_EQ(requests.add({1, 999, Operation::kPause, kNever}).code(), Code::kResourceExhausted);
  EXPECT_TRUE(requests.add({2, 1, Operation::kPause, kNever}).ok());
}

Task dropping(std::size_t number) {
  return {Operation::kPause, {}, {"tag" + std::to_string(number)}};
}

TEST(Requests, FewDifferentOnesWait) {
  Requests requests;
  for (std::size_t i = 0; i < Requests::kMaxTasks; ++i)
    ASSERT_TRUE(requests.add({1, i, dropping(i), kNever}).ok());
  EXPECT_EQ(requests.add({1, 99, dropping(99), kNever}).code(), Code::kResourceExhausted);
  EXPECT_TRUE(requests.add({2, 1, dropping(7), kNever}).ok()) << "another rank's for the same";
  EXPECT_EQ(requests.tasks().size(), Requests::kMaxTasks);
  EXPECT_TRUE(requests.complete(dropping(7), {1, 2}));
  EXPECT_EQ(requests.take(dropping(7)).size(), 2U);
  EXPECT_TRUE(requests.add({1, 99, dropping(99), kNever}).ok()) << "there is space again";
  requests.forget(1);
  EXPECT_TRUE(requests.tasks().empty());
  for (std::size_t i = 0; i < Requests::kMaxPerRank; ++i)
    EXPECT_TRUE(requests.add({1, i, Operation::kPause, kNever}).ok()) << "none counts any more";
}

TEST(Requests, WhoIsForgottenHoldsUpNoDeadline) {
  Requests requests;
  const Time t;
  ASSERT_TRUE(requests.add({1, 1, Operation::kPause, t + seconds(3)}).ok());
  ASSERT_TRUE(requests.add({2, 2, Operation::kPause, t + seconds(5)}).ok());
  requests.forget(1);
  EXPECT_EQ(requests.deadline(Operation::kPause), t + seconds(5));
  EXPECT_EQ(requests.missing(Operation::kPause, {1, 2}), std::vector<RankId>{1});
}

}  // namespace
}  // namespace amem
