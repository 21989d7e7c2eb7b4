// What `amemctl bench` makes of its times.
#include "addons/tools/bench/measurements.h"

#include <gtest/gtest.h>

namespace amem::ctl {
namespace {

TEST(MeasurementsTest, TheMedian) {
  EXPECT_EQ(median({7}), 7U);
  EXPECT_EQ(median({9, 1, 5}), 5U);
  EXPECT_EQ(median({4, 1, 3, 2}), 3U) << "the higher one in the middle";
}

Measurements some() {
  return {.gpus = 2,
          .bytes = 1'000'000'000,
          .copy_out_us = {40'000, 20'000, 20'000},
          .copy_in_us = {10'000, 10'000, 10'000},
          .pause_us = {25'000, 25'000, 30'000},
          .resume_us = {0, 0, 0}};
}

TEST(MeasurementsTest, RatesOfAllGpusAndSharesOfAPlainCopy) {
  EXPECT_EQ(measurements_view(some()),
            "2 GPUs, 954 MiB each, 3 rounds; all bytes were restored\n                 MEDIAN  "
            "SLOWEST        RATE  OF A PLAIN COPY\nplain copy out  20.0 ms  40.0 ms  100.0 "
            "GB/s\npause           25.0 ms  30.0 ms   80.0 GB/s           80.0 %\nplain copy in   "
            "10.0 ms  10.0 ms  200.0 GB/s\nresume             0 us     0 us           -\n")
      << "a time that is too short to be told divides nothing";
}

TEST(MeasurementsTest, AllTimesForPrograms) {
  EXPECT_EQ(
      measurements_json(some()),
      "{\"gpus\":2,\"bytes\":1000000000,\"copy_out_us\":[40000,20000,20000],"
      "\"pause_us\":[25000,25000,30000],\"copy_in_us\":[10000,10000,10000],\"resume_us\":[0,0,0]}"
      "\n");
}

}  // namespace
}  // namespace amem::ctl
