// Callers that wait long at the gate: what is said of them, and that nothing ends them.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "shim/gate/wait_log.h"
#include "tests/unit/fixtures/gate_fixture.h"

namespace amem::shim {
namespace {

int lines_with(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

class LongWaitTest : public GateTest {
 protected:
  void policy(std::chrono::milliseconds timeout, std::chrono::milliseconds reminder) {
    Gate::Policy policy{true, timeout, &device_of_test};
    policy.group = "train";
    policy.reminder = reminder;
    gate_.prepare(policy);
  }
};

TEST_F(LongWaitTest, OneLineATimeSaysThatTheProcessWaitsAndForWhom) {
  policy(0ms, 100ms);
  wait_log().paused_by("pid 12 of uid 1000");
  testing::internal::CaptureStderr();
  gate_.close();
  gate_.hold();
  std::vector<std::thread> callers;
  for (int i = 0; i < 5; ++i)
    callers.emplace_back([&] {
      const Pass pass(gate_);
      EXPECT_EQ(pass.result(), CUDA_SUCCESS) << "there is no limit";
    });
  std::this_thread::sleep_for(450ms);
  gate_.open();
  for (auto& t : callers) t.join();
  const std::string said = testing::internal::GetCapturedStderr();
  const int lines = lines_with(said, "warning: calls of this process wait since 2");
  EXPECT_GE(lines, 2) << said;
  EXPECT_LE(lines, 5) << "one for all callers: " << said;
  EXPECT_EQ(lines_with(said,
                       "for the resume of group train, paused by pid 12 of uid 1000: amemctl "
                       "resume train"),
            lines)
      << said;
}

// Each time the gate is open for a moment, in which the caller may not come to run.
TEST_F(LongWaitTest, PatienceBeginsAnewWithEachPause) {
  policy(300ms, 1min);
  gate_.close();
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) {
      const Pass pass(gate_);
      EXPECT_EQ(pass.result(), CUDA_SUCCESS);
    }
  });
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(50ms);
    gate_.open();
    gate_.close();
  }
  stop = true;
  gate_.open();
  caller.join();
}

TEST_F(LongWaitTest, AThreadThatHasPausedItsGroupAndWaitsForItIsNamedOnce) {
  policy(50ms, 1min);
  gate_.close();
  gate_.hold();
  testing::internal::CaptureStderr();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_TIMEOUT);
  EXPECT_EQ(lines_with(testing::internal::GetCapturedStderr(), "itself"), 0);
  wait_log().paused_by("the group itself");
  wait_log().paused_here(true);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(gate_.enter([] {
      return Gate::Work{false, nullptr, "cuLaunchKernel"};
    }),
              CUDA_ERROR_TIMEOUT);
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines_with(said,
                       "cuLaunchKernel waits for the resume of group train, and the thread "
                       "that makes it has paused that group itself"),
            1)
      << said;
  wait_log().paused_here(true);
  testing::internal::CaptureStderr();
  WaitLog::resumed_here();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_TIMEOUT);
  EXPECT_EQ(lines_with(testing::internal::GetCapturedStderr(), "itself"), 0);
  wait_log().paused_here(true);
  wait_log().paused_by("pid 12 of uid 1000");
  testing::internal::CaptureStderr();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_TIMEOUT);
  EXPECT_EQ(lines_with(testing::internal::GetCapturedStderr(), "itself"), 0)
      << "that pause was another's";
  gate_.open();
}

}  // namespace
}  // namespace amem::shim
