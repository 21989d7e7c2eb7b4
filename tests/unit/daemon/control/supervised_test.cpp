#include "daemon/control/supervised.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/daemon/base/manager_socket.h"

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SupervisedTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop.open().ok()); }
  /// Runs the loop until `enough`, which fails after 20 s.
  void run_until(const std::function<bool()>& enough) {
    const Time late = Clock::now() + seconds(20);
    std::function<void()> look = [&] {
      for (std::string& each : socket.messages()) messages.push_back(std::move(each));
      if (enough() || Clock::now() > late) return loop.stop();
      loop.at(Clock::now() + milliseconds(5), look);
    };
    look();
    loop.run();
    EXPECT_LE(Clock::now(), late);
  }
  long count(const std::string& message) const {
    return std::count(messages.begin(), messages.end(), message);
  }
  EventLoop loop;
  ManagerSocket socket;
  Supervised::State state{"serves 0 groups", true};
  std::vector<std::string> messages;
};

TEST_F(SupervisedTest, IsReadyFirstAndThenAlive) {
  const ServiceManager manager(socket.name(), milliseconds(40));
  Supervised supervised(loop, manager, [this] { return state; });
  supervised.begin();
  run_until([&] { return count("WATCHDOG=1") >= 5; });
  ASSERT_GE(messages.size(), 3U);
  EXPECT_EQ(messages[0], "READY=1");
  EXPECT_EQ(messages[1], "WATCHDOG_USEC=40000");
  EXPECT_EQ(messages[2], "STATUS=serves 0 groups");
  EXPECT_EQ(count(messages[1]), 1);  // what has not changed is said once
  EXPECT_EQ(count(messages[2]), 1);
}

TEST_F(SupervisedTest, TheWatchdogIsOffWhileAnEndWouldLoseMemory) {
  const ServiceManager manager(socket.name(), milliseconds(40));
  Supervised supervised(loop, manager, [this] { return state; });
  state.outlives = false;
  supervised.begin();
  loop.at(Clock::now() + milliseconds(100), [this] { state = {"serves 1 group", true}; });
  run_until([&] { return count("STATUS=serves 1 group") > 0; });
  const auto off = std::find(messages.begin(), messages.end(), "WATCHDOG_USEC=0");
  const auto on = std::find(messages.begin(), messages.end(), "WATCHDOG_USEC=40000");
  EXPECT_LT(off, on);
  EXPECT_NE(on, messages.end());
}

TEST_F(SupervisedTest, NothingIsSaidAfterItsEnd) {
  const ServiceManager manager(socket.name(), milliseconds(40));
  int looks = 0;
  Supervised supervised(loop, manager, [&] {
    ++looks;
    return state;
  });
  supervised.begin();
  supervised.end();
  loop.at(Clock::now() + milliseconds(100), [this] { loop.stop(); });  // ten times its period
  loop.run();
  EXPECT_EQ(looks, 1);
}

TEST_F(SupervisedTest, WithoutAManagerItNeverLooks) {
  const ServiceManager manager("", std::nullopt);
  Supervised supervised(loop, manager, [&]() -> Supervised::State {
    ADD_FAILURE();
    return {};
  });
  supervised.begin();
}

}  // namespace
}  // namespace amem
