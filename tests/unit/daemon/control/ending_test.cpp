#include "daemon/control/ending.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class EndingTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop.open().ok()); }
  Ending ending(Duration limit) {
    return {loop, limit,
            [this] {
              ++looks;
              return under_way;
            },
            [this] {
              ++ends;
              loop.stop();
            }};
  }
  /// Ends the loop, so that a test that waits in vain fails.
  void give_up_after(Duration time) {
    loop.at(Clock::now() + time, [this] { loop.stop(); });
  }
  EventLoop loop;
  std::string under_way;
  int looks = 0;
  int ends = 0;
};

TEST_F(EndingTest, WithNothingUnderWayItEndsAtOnce) {
  Ending ending = this->ending(seconds(60));
  EXPECT_FALSE(ending.begun());
  ending.begin();
  EXPECT_EQ(ends, 1);
  EXPECT_TRUE(ending.begun());
}

TEST_F(EndingTest, ItWaitsForWhatIsUnderWay) {
  under_way = "group 'train' is pausing";
  Ending ending = this->ending(seconds(60));
  ending.begin();
  EXPECT_EQ(ends, 0);
  loop.at(Clock::now() + milliseconds(50), [&] {
    EXPECT_EQ(ends, 0);
    EXPECT_GT(looks, 1);
    under_way.clear();
  });
  give_up_after(seconds(20));
  loop.run();
  EXPECT_EQ(ends, 1);
}

TEST_F(EndingTest, ItWaitsNoLongerThanTheLimit) {
  under_way = "group 'train' is pausing";
  Ending ending = this->ending(milliseconds(50));
  const Time began = Clock::now();
  ending.begin();
  give_up_after(seconds(20));
  loop.run();
  EXPECT_EQ(ends, 1);
  EXPECT_GE(Clock::now() - began, milliseconds(50));
}

TEST_F(EndingTest, WhoTellsItTwiceWaitsForNothing) {
  under_way = "group 'train' is pausing";
  Ending ending = this->ending(seconds(60));
  ending.begin();
  EXPECT_EQ(ends, 0);
  ending.begin();
  EXPECT_EQ(ends, 1);
  ending.begin();
  loop.at(Clock::now() + milliseconds(50), [this] { loop.stop(); });
  loop.run();
  EXPECT_EQ(ends, 1) << "it looks no more";
}

TEST_F(EndingTest, OneThatGoesLeavesNoTimer) {
  under_way = "group 'train' is pausing";
  {
    Ending ending = this->ending(seconds(60));
    ending.begin();
  }
  const int before = looks;
  loop.at(Clock::now() + milliseconds(50), [this] { loop.stop(); });
  loop.run();
  EXPECT_EQ(looks, before);
}

}  // namespace
}  // namespace amem
