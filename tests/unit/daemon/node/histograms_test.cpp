#include "daemon/node/histograms.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(HistogramTest, ABoundBelongsToItsBucket) {
  Histogram h;
  h.add(microseconds(10));
  h.add(milliseconds(1));
  h.add(microseconds(1001));
  h.add(seconds(10));
  h.add(seconds(11));
  EXPECT_EQ(h.count, 5U);
  EXPECT_EQ(h.buckets[0], 2U);
  EXPECT_EQ(h.buckets[1], 1U);
  EXPECT_EQ(h.buckets[Histogram::kBoundsMs.size() - 1], 1U);
  EXPECT_EQ(h.buckets.back(), 1U) << "longer than every bound";
  EXPECT_EQ(h.sum, microseconds(10) + milliseconds(1) + microseconds(1001) + seconds(21));
}

TEST(HistogramsTest, OperationsAndPhasesByThemselves) {
  Histograms histograms;
  const Outcome pause{Operation::kPause,
                      {},
                      milliseconds(30),
                      {{Phase::kSave, milliseconds(20)}, {Phase::kDrop, milliseconds(10)}}};
  histograms.add(pause);
  histograms.add(pause);
  histograms.add({Operation::kResume, {}, milliseconds(7), {{Phase::kDrop, milliseconds(7)}}});
  EXPECT_EQ(histograms.all().at({Operation::kPause, Phase::kNone}).count, 2U);
  EXPECT_EQ(histograms.all().at({Operation::kPause, Phase::kNone}).sum, milliseconds(60));
  EXPECT_EQ(histograms.all().at({Operation::kPause, Phase::kDrop}).sum, milliseconds(20));
  EXPECT_EQ(histograms.all().at({Operation::kResume, Phase::kDrop}).sum, milliseconds(7));
}

TEST(HistogramsTest, WhatFailedDoesNotCount) {
  Histograms histograms;
  histograms.add({Operation::kPause, {Code::kAborted, "no"}, milliseconds(30), {}});
  EXPECT_TRUE(histograms.all().empty());
}

}  // namespace
}  // namespace amem
