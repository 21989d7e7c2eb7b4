#include "daemon/base/log_limit.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <memory>
#include <sstream>

namespace amem {
namespace {

class LogLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(loop.open().ok());
    auto logger = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(written));
    logger->set_pattern("%v");
    spdlog::set_default_logger(std::move(logger));
  }
  void TearDown() override { spdlog::set_default_logger(before); }

  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  std::ostringstream written;
  EventLoop loop;
};

TEST_F(LogLimitTest, SaysSoManyLinesAndThenHowManyMoreThereWere) {
  const Duration minute = std::chrono::milliseconds(20);
  LogLimit limit(loop, "lines like these", 2, minute);
  for (int i = 0; i < 10; ++i) limit.warn("line {}", i);
  loop.at(Clock::now() + 2 * minute, [&] { loop.stop(); });
  loop.run();
  limit.warn("a new minute");
  EXPECT_EQ(
      written.str(),
      "line 0\nline 1\n8 more lines like these were suppressed in the last minute\na new minute\n");
}

TEST_F(LogLimitTest, LeavesNothingUntoldAtItsEnd) {
  {
    LogLimit limit(loop, "lines", 1);
    for (int i = 0; i < 3; ++i) limit.warn("line {}", i);
  }
  EXPECT_EQ(written.str(), "line 0\n2 more lines were suppressed in the last minute\n");
}

}  // namespace
}  // namespace amem
