// Callers that wait long at the gate: what is said of them, and that nothing ends them.
#include <pthread.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "shim/gate/wait_log.h"
#include "tests/unit/fixtures/gate_fixture.h"
#include "tests/unit/fixtures/texts_and_sizes.h"

namespace amem::shim {
namespace {

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
  gate_.set(Gate::Mode::kMemoryLeft);
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

TEST_F(LongWaitTest, OneLineAnIntervalSaysThatACallerBeginsToWait) {
  policy(0ms, 1min);
  const auto now = WaitLog::Clock::now();
  EXPECT_TRUE(wait_log().begins(now));
  EXPECT_FALSE(wait_log().begins(now + 59s));
  EXPECT_FALSE(wait_log().due(now - 10min, now + 59s)) << "the line of another one counts";
  EXPECT_TRUE(wait_log().begins(now + 60s));
}

TEST_F(LongWaitTest, WhatAStagePausedWaitsForItsTurn) {
  policy(0ms, 1min);
  wait_log().paused_by("stage 'night'");
  testing::internal::CaptureStderr();
  const auto now = WaitLog::Clock::now();
  wait_log().still_waits("calls wait", now - 61s, now);
  EXPECT_EQ(lines_with(testing::internal::GetCapturedStderr(),
                       "(61 s) for its turn in stage 'night': `amemctl turns` shows who runs"),
            1);
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
  gate_.set(Gate::Mode::kMemoryLeft);
  testing::internal::CaptureStderr();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_TIMEOUT);
  EXPECT_EQ(lines_with(testing::internal::GetCapturedStderr(), "itself"), 0);
  wait_log().paused_by("the group itself");
  wait_log().paused_here();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(gate_.enter([] {
      return Gate::Submission{false, nullptr, "cuLaunchKernel"};
    }),
              CUDA_ERROR_TIMEOUT);
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines_with(said,
                       "cuLaunchKernel waits for the resume of group train, but its own thread has "
                       "paused that group"),
            1)
      << said;
  wait_log().paused_here();
  testing::internal::CaptureStderr();
  WaitLog::resumed_here();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_TIMEOUT);
  EXPECT_EQ(lines_with(testing::internal::GetCapturedStderr(), "itself"), 0);
  wait_log().paused_here();
  wait_log().paused_by("pid 12 of uid 1000");
  testing::internal::CaptureStderr();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_TIMEOUT);
  EXPECT_EQ(lines_with(testing::internal::GetCapturedStderr(), "itself"), 0)
      << "that pause was another's";
  gate_.open();
}

TEST_F(LongWaitTest, AThreadThatIsCancelledAtTheGateEndsBehindIt) {
  gate_.close();
  static std::atomic<bool> passed;
  passed = false;
  pthread_t caller{};
  ASSERT_EQ(pthread_create(
                &caller, nullptr,
                [](void* gate) -> void* {
                  {
                    const Pass pass(*static_cast<Gate*>(gate));
                    passed = pass.result() == CUDA_SUCCESS;
                  }
                  pthread_testcancel();
                  return nullptr;
                },
                &gate_),
            0);
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  ASSERT_EQ(pthread_cancel(caller), 0);
  std::this_thread::sleep_for(100ms);
  EXPECT_FALSE(passed);
  gate_.open();
  void* result = nullptr;
  ASSERT_EQ(pthread_join(caller, &result), 0);
  EXPECT_TRUE(passed);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_FALSE(gate_.snapshot().any_active);
}

/// Whether a first pass of the gate leaves the values of all keys as they are when there is no key
/// left.
bool keeps_keys() {
  pthread_key_t key = 0;
  while (pthread_key_create(&key, nullptr) == 0) {
  }
  std::array<const void*, PTHREAD_KEYS_MAX> before{};
  for (pthread_key_t k = 0; k < before.size(); ++k) before[k] = pthread_getspecific(k);
  Gate gate;
  if (gate.enter() != CUDA_SUCCESS) return false;
  gate.leave();
  for (pthread_key_t k = 0; k < before.size(); ++k)
    if (before[k] != pthread_getspecific(k)) return false;
  return true;
}

// In a new process: the first pass takes the key.
TEST(GateKeysDeathTest, AProcessWithoutAKeyLeftKeepsWhatItsKeysHold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(keeps_keys() ? 0 : 1), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace amem::shim
