#include "daemon/node/history.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

PastOperation past(uid_t uid, const std::string& group, std::size_t spans = 0) {
  PastOperation operation;
  operation.owner.uid = uid;
  operation.group = group;
  operation.outcome.spans.resize(spans);
  return operation;
}

std::size_t count(const History& history, uid_t uid) {
  std::size_t count = 0;
  for (const PastOperation& each : history.all()) count += each.owner.uid == uid ? 1 : 0;
  return count;
}

TEST(HistoryTest, TheOldestGoes) {
  History history;
  for (std::size_t i = 0; i < History::kMost + 3; ++i) history.add(past(1, std::to_string(i)));
  ASSERT_EQ(history.all().size(), History::kMost);
  EXPECT_EQ(history.all().front().group, "3");
  EXPECT_EQ(history.all().back().group, std::to_string(History::kMost + 2));
}

TEST(HistoryTest, NobodyPushesOutWhatIsOthers) {
  History history;
  for (int i = 0; i < 5; ++i) history.add(past(1, "quiet"));
  for (std::size_t i = 0; i < 3 * History::kMost; ++i) history.add(past(2, "busy"));
  EXPECT_EQ(count(history, 1), 5U);
  EXPECT_EQ(count(history, 2), History::kMost - 5);
}

TEST(HistoryTest, SpansAreLimitedInAll) {
  History history;
  for (int i = 0; i < 4; ++i) history.add(past(1, std::to_string(i), History::kMostSpans / 3));
  ASSERT_EQ(history.all().size(), 3U);
  EXPECT_EQ(history.all().front().group, "1");
}

TEST(HistoryTest, OneThatIsTooLargeIsKeptWithoutSpans) {
  History history;
  history.add(past(1, "before"));
  history.add(past(1, "large", History::kMostSpans + 1));
  ASSERT_EQ(history.all().size(), 2U);
  EXPECT_TRUE(history.all().back().outcome.spans.empty());
}

TEST(HistoryTest, WhatAllRanksHaveCopied) {
  Outcome outcome;
  RankTime rank;
  rank.copied = 100;
  outcome.times = {{Phase::kSave}, {Phase::kDrop}};
  outcome.times[0].ranks = {rank, rank};
  EXPECT_EQ(copied(outcome), 200U);
}

}  // namespace
}  // namespace amem
