#include <gtest/gtest.h>

#include "daemon/node/history.h"

namespace amem {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMiB = 1ULL << 20;

TEST(HistogramTest, ABoundBelongsToItsBucket) {
  Histogram h(Histogram::kMicroseconds);
  for (const std::uint64_t us : {10U, 1'000U, 1'001U, 10'000'000U, 11'000'000U}) h.add(us);
  EXPECT_EQ(h.count(), 5U);
  EXPECT_EQ(h.buckets()[0], 2U);
  EXPECT_EQ(h.buckets()[1], 1U);
  EXPECT_EQ(h.buckets()[h.bounds().size() - 1], 1U);
  EXPECT_EQ(h.buckets().back(), 1U) << "longer than every bound";
  EXPECT_EQ(h.sum(), 10U + 1'000 + 1'001 + 10'000'000 + 11'000'000);
}

RankTime copied(RankId rank, std::uint64_t bytes) {
  RankTime time;
  time.rank = rank;
  time.copied = bytes;
  return time;
}

Outcome a_pause() {
  PhaseTime save{Phase::kSave, milliseconds(20)};
  save.ranks = {copied(1, 3 * kMiB), copied(2, kMiB)};
  return {Operation::kPause, {}, milliseconds(30), {save, {Phase::kDrop, milliseconds(10)}}};
}

TEST(TotalsTest, OperationsAndPhasesByThemselves) {
  Totals totals;
  totals.add(a_pause());
  totals.add(a_pause());
  totals.add({Operation::kResume, {}, milliseconds(7), {{Phase::kDrop, milliseconds(7)}}});
  EXPECT_EQ(totals.times().at({"pause", Phase::kNone}).count(), 2U);
  EXPECT_EQ(totals.times().at({"pause", Phase::kNone}).sum(), 60'000U);
  EXPECT_EQ(totals.times().at({"pause", Phase::kDrop}).sum(), 20'000U);
  EXPECT_EQ(totals.times().at({"resume", Phase::kDrop}).sum(), 7'000U);
}

TEST(TotalsTest, BytesOfAllRanks) {
  Totals totals;
  totals.add(a_pause());
  const Histogram& bytes = totals.bytes().at("pause");
  EXPECT_EQ(bytes.sum(), 4 * kMiB);
  EXPECT_EQ(bytes.buckets()[1], 1U) << "up to 4 MiB";
}

TEST(TotalsTest, OfWhatFailedOnlyTheResultCounts) {
  Totals totals;
  totals.add({Operation::kPause, {Code::kAborted, "no"}, milliseconds(30), {}});
  totals.add_swap(Code::kResourceExhausted, milliseconds(5));
  EXPECT_TRUE(totals.times().empty());
  EXPECT_TRUE(totals.bytes().empty());
  EXPECT_EQ(totals.results().at({"pause", Code::kAborted}), 1U);
  EXPECT_EQ(totals.results().at({"swap", Code::kResourceExhausted}), 1U);
}

TEST(TotalsTest, ASwapIsAnOperationOfItsOwn) {
  Totals totals;
  totals.add_swap(Code::kOk, milliseconds(5));
  EXPECT_EQ(totals.results().at({"swap", Code::kOk}), 1U);
  EXPECT_EQ(totals.times().at({"swap", Phase::kNone}).sum(), 5'000U);
}

}  // namespace
}  // namespace amem
