// When a rank tries again to reach a broker.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "shim/session/retries.h"

namespace amem::shim {
namespace {

using namespace std::chrono_literals;

TEST(ShimRetries, TwiceAsLongEachTimeAndNotAllAtOnce) {
  const Retries::Clock::time_point begin;
  Retries retries(begin, 1h, 1);
  auto expected = Retries::kFirst;
  for (int i = 0; i < 12; ++i) {
    const auto wait = retries.next(begin) - begin;
    EXPECT_GE(wait, expected * 3 / 4) << i;
    EXPECT_LE(wait, expected * 5 / 4) << i;
    expected = std::min(2 * expected, Retries::kMost);
  }
  EXPECT_LE(expected * 5 / 4, 500ms) << "also after long: within a second of a broker's start";
  Retries other(begin, 1h, 2);
  EXPECT_NE(other.next(begin), Retries(begin, 1h, 3).next(begin));
}

TEST(ShimRetries, AsLongAsToldAndThenForEver) {
  Retries::Clock::time_point now;
  Retries retries(now, 1s, 1);
  int attempts = 0;
  for (; !retries.over(now); ++attempts) now = retries.next(now);
  EXPECT_EQ(now, Retries::Clock::time_point() + 1s) << "the last one when the time is up";
  EXPECT_GE(attempts, 6);
  EXPECT_LE(attempts, 9);
  retries.again(now);
  EXPECT_FALSE(retries.over(now));
  retries.go_on();
  now += 1h;
  EXPECT_FALSE(retries.over(now));
  EXPECT_GE(retries.next(now) - now, 750ms);
  EXPECT_LE(retries.next(now) - now, 1250ms);
}

}  // namespace
}  // namespace amem::shim
