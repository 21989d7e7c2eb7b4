#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tests/unit/fixtures/gate_fixture.h"

namespace amem::shim {
namespace {

TEST_F(GateTest, OpenGateLetsCallersThroughAndNests) {
  ASSERT_EQ(gate_.enter(), CUDA_SUCCESS);
  ASSERT_EQ(gate_.enter(), CUDA_SUCCESS);
  EXPECT_TRUE(gate_.snapshot().any_active);
  gate_.leave();
  EXPECT_TRUE(gate_.snapshot().any_active);
  gate_.leave();
  EXPECT_FALSE(gate_.snapshot().any_active);
}

TEST_F(GateTest, ShutGateHoldsCallersUntilItOpens) {
  gate_.close();
  std::atomic<bool> passed{false};
  std::thread caller([&] {
    const Pass pass(gate_);
    EXPECT_EQ(pass.result(), CUDA_SUCCESS);
    passed = true;
  });
  EXPECT_TRUE(eventually([&](const auto& s) { return waiting(s, 0) == 1; }));
  EXPECT_FALSE(passed);
  EXPECT_FALSE(gate_.snapshot().any_active);
  gate_.open();
  caller.join();
  EXPECT_TRUE(passed);
}

TEST_F(GateTest, ACallerInsideIsSeenAfterClosing) {
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  std::thread caller([&] {
    const Pass pass(gate_);
    inside = true;
    while (!leave) std::this_thread::yield();
  });
  while (!inside) std::this_thread::yield();
  gate_.close();
  EXPECT_TRUE(gate_.snapshot().any_active);
  leave = true;
  EXPECT_TRUE(eventually([](const auto& s) { return !s.any_active; }));
  caller.join();
  gate_.open();
}

TEST_F(GateTest, AStepLetsExactlyOneCallerOfThatDeviceThrough) {
  gate_.close();
  std::atomic<int> passed[2] = {0, 0};
  std::vector<std::thread> callers;
  for (int device : {0, 0, 1})
    callers.emplace_back([&, device] {
      my_device = device;
      const Pass pass(gate_);
      ++passed[device];
    });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 2 && waiting(s, 1) == 1; }));
  gate_.permit(0);
  ASSERT_TRUE(eventually([](const auto& s) { return s.permits_used == 1 && !s.any_active; }));
  EXPECT_EQ(passed[0], 1);
  EXPECT_EQ(passed[1], 0);
  gate_.permit(1);
  ASSERT_TRUE(eventually([](const auto& s) { return s.permits_used == 2 && !s.any_active; }));
  EXPECT_EQ(passed[1], 1);
  gate_.open();
  for (auto& t : callers) t.join();
  EXPECT_EQ(passed[0], 2);
}

std::atomic<bool> first_stream_idle{false};

class StreamsGateTest : public GateTest {
 protected:
  /// Shuts the gate; a caller with work for stream 1 comes to it, then one for stream 2.
  void wait_on_streams() {
    gate_.close();
    for (const std::uint32_t n : {1U, 2U}) {
      callers.emplace_back([this, n] {
        const Pass pass(gate_, gate_.enter([&] { return Gate::Submission{true, stream(n)}; }));
        ++passed[n];
      });
      ASSERT_TRUE(eventually([&](const auto& s) { return waiting(s, 0) == n; }));
    }
  }
  std::atomic<int> passed[3] = {0, 0, 0};
  std::vector<std::thread> callers;
};

TEST_F(StreamsGateTest, StepsGoFirstToThoseWhoseStreamIsIdle) {
  first_stream_idle = false;
  gate_.prepare({true, 10s, &device_of_test, [](int device, CUstream s) {
                   EXPECT_EQ(device, 0);
                   return s != stream(1) || first_stream_idle;
                 }});
  wait_on_streams();
  EXPECT_EQ(gate_.snapshot().waiting[0].ready, 1U);
  gate_.permit(0);
  ASSERT_TRUE(eventually([](const auto& s) { return s.permits_used == 1 && !s.any_active; }));
  EXPECT_EQ(passed[2], 1) << "the other came first, but its work could not begin";
  EXPECT_EQ(gate_.snapshot().waiting[0].ready, 0U);
  first_stream_idle = true;
  EXPECT_EQ(gate_.snapshot().waiting[0].ready, 1U);
  first_stream_idle = false;
  gate_.permit(0);
  ASSERT_TRUE(eventually([](const auto& s) { return s.permits_used == 2 && !s.any_active; }));
  EXPECT_EQ(passed[1], 1) << "with nobody better the one that has waited longest";
  for (auto& t : callers) t.join();
  gate_.open();
}

TEST_F(StreamsGateTest, AStepInTurnIsForTheOneThatHasWaitedLongest) {
  gate_.prepare({true, 10s, &device_of_test, [](int, CUstream s) { return s != stream(1); }});
  wait_on_streams();
  gate_.permit(0, true);
  ASSERT_TRUE(eventually([](const auto& s) { return s.permits_used == 1 && !s.any_active; }));
  EXPECT_EQ(passed[1], 1);
  EXPECT_EQ(passed[2], 0);
  gate_.open();
  for (auto& t : callers) t.join();
}

std::atomic<bool> driver_blocks{false};
std::atomic<bool> driver_asked{false};

TEST_F(GateTest, ADriverThatBlocksKeepsNobodyButTheCallerItIsAskedAbout) {
  driver_blocks = false;
  driver_asked = false;
  gate_.prepare({true, 10s, &device_of_test, [](int, CUstream) {
                   while (driver_blocks) {
                     driver_asked = true;
                     std::this_thread::yield();
                   }
                   return true;
                 }});
  gate_.close();
  std::atomic<bool> passed{false};
  std::thread caller([&] {
    const Pass pass(gate_, gate_.enter([] { return Gate::Submission{true, stream(1)}; }));
    passed = true;
  });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  driver_blocks = true;
  std::thread monitor([&] { gate_.snapshot(); });
  while (!driver_asked) std::this_thread::yield();
  auto opened = std::async(std::launch::async, [&] { gate_.open(); });
  EXPECT_EQ(opened.wait_for(5s), std::future_status::ready);
  std::thread other([&] { const Pass pass(gate_); });
  other.join();
  EXPECT_FALSE(passed) << "its stream might end while the driver looks at it";
  driver_blocks = false;
  caller.join();
  monitor.join();
  EXPECT_TRUE(passed);
}

TEST_F(GateTest, NothingIsAskedOfTheDriverBesideACallerInside) {
  gate_.prepare({true, 10s, &device_of_test, [](int, CUstream) {
                   ADD_FAILURE() << "asked";
                   return true;
                 }});
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  std::thread caller([&] {
    const Pass pass(gate_);
    inside = true;
    while (!leave) std::this_thread::yield();
  });
  while (!inside) std::this_thread::yield();
  gate_.close();
  std::thread other([&] {
    const Pass pass(gate_, gate_.enter([] { return Gate::Submission{true, stream(1)}; }));
  });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  EXPECT_EQ(gate_.snapshot().waiting[0].ready, 0U);
  gate_.open();
  leave = true;
  caller.join();
  other.join();
}

thread_local bool my_stream_is_idle = false;

TEST_F(GateTest, AThreadsOwnStreamIsLookedAtInThatThread) {
  gate_.prepare({true, 10s, &device_of_test, [](int, CUstream s) {
                   EXPECT_EQ(s, CU_STREAM_PER_THREAD);
                   return my_stream_is_idle;
                 }});
  gate_.close();
  std::vector<std::thread> callers;
  for (const bool idle : {true, false})
    callers.emplace_back([&, idle] {
      my_stream_is_idle = idle;
      const Pass pass(gate_, gate_.enter([] {
        return Gate::Submission{true, CU_STREAM_PER_THREAD};
      }));
    });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 2; }));
  EXPECT_EQ(gate_.snapshot().waiting[0].ready, 1U);
  gate_.open();
  for (auto& t : callers) t.join();
}

// Their ends meet: neither may wait for the other.
TEST_F(GateTest, ACallerLeavesWhileItIsAskedAboutItsStream) {
  gate_.prepare({true, 10s, &device_of_test, [](int, CUstream) { return true; }});
  std::atomic<bool> stop{false};
  std::thread monitor([&] {
    while (!stop) gate_.snapshot();
  });
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i)
    callers.emplace_back([&] {
      while (!stop)
        const Pass pass(gate_, gate_.enter([] {
          return Gate::Submission{true, CU_STREAM_PER_THREAD};
        }));
    });
  for (int round = 0; round < 300; ++round) {
    gate_.close();
    gate_.permit(0);
    gate_.open();
  }
  stop = true;
  for (auto& t : callers) t.join();
  monitor.join();
}

TEST_F(GateTest, ACaptureBeginsAfterADrainThatWasAboutTo) {
  EXPECT_FALSE(gate_.drain_begins()) << "the gate is open";
  gate_.close();
  gate_.capture_began();
  EXPECT_FALSE(gate_.drain_begins()) << "a capture is open";
  gate_.capture_ended();
  ASSERT_TRUE(gate_.drain_begins());
  gate_.open();
  auto capture = std::async(std::launch::async, [&] {
    const Pass pass(gate_, gate_.enter_capture());
    EXPECT_EQ(pass.result(), CUDA_SUCCESS);
  });
  // Most likely it waits by now; if not, the outcome is the same.
  EXPECT_EQ(capture.wait_for(20ms), std::future_status::timeout);
  gate_.drain_ended();
  capture.get();
}

TEST_F(GateTest, ADrainThatLastsKeepsNoCapture) {
  gate_.close();
  ASSERT_TRUE(gate_.drain_begins());
  gate_.open();
  const Pass pass(gate_, gate_.enter_capture());
  EXPECT_EQ(pass.result(), CUDA_SUCCESS);
  gate_.drain_ended();
}

TEST_F(GateTest, StepsGoToWhoCameFirst) {
  gate_.close();
  std::atomic<int> early{0};
  std::atomic<bool> ended{false};
  std::thread first([&] {
    const Pass pass(gate_);
    ++early;
  });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  // Comes again at once whenever it was let through, so it is nearly always ready to take a permit.
  std::thread eager([&] {
    while (!ended) const Pass pass(gate_);
  });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 2; }));
  gate_.permit(0);
  ASSERT_TRUE(eventually([](const auto& s) { return s.permits_used == 1 && !s.any_active; }));
  EXPECT_EQ(early, 1);
  ended = true;
  gate_.open();
  first.join();
  eager.join();
}

TEST_F(GateTest, AStepIsUsedUpByACallerThatIsLetThroughForAnotherReason) {
  gate_.close();
  std::thread caller([&] { const Pass pass(gate_); });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  gate_.capture_began();
  gate_.permit(0);
  caller.join();
  EXPECT_EQ(gate_.snapshot().permits_used, 1U);
  gate_.capture_ended();
  gate_.open();
}

TEST_F(GateTest, AStepThatFindsNobodyIsUsedUpAtOnce) {
  gate_.close();
  gate_.permit(3);
  EXPECT_EQ(gate_.snapshot().permits_used, 1U);
  gate_.open();
}

TEST_F(GateTest, NoStepLetsACaptureBegin) {
  gate_.close();
  std::atomic<bool> began{false};
  const std::uint64_t passes = gate_.snapshot().passes;
  const std::uint64_t version = gate_.wait_change(0, 0ms);
  std::thread caller([&] {
    const Pass pass(gate_, gate_.enter_capture());
    EXPECT_EQ(pass.result(), CUDA_SUCCESS);
    began = true;
  });
  EXPECT_NE(gate_.wait_change(version, 10s), version) << "it has not come to wait";
  gate_.permit(0);
  EXPECT_EQ(gate_.snapshot().permits_used, 1U);
  EXPECT_EQ(waiting(gate_.snapshot(), 0), 0U);
  EXPECT_EQ(gate_.snapshot().passes, passes);
  EXPECT_FALSE(began);
  gate_.open();
  caller.join();
  EXPECT_TRUE(began);
}

TEST_F(GateTest, PassesCountsWhoPassedTheShutGate) {
  gate_.close();
  const std::uint64_t before = gate_.snapshot().passes;
  std::thread caller([&] { const Pass pass(gate_); });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  gate_.permit(0);
  caller.join();
  EXPECT_EQ(gate_.snapshot().passes, before + 1);
  gate_.open();
}

TEST_F(GateTest, CallersPassWhileAStreamCaptureIsOpen) {
  gate_.capture_began();
  gate_.close();
  std::thread caller([&] {
    const Pass pass(gate_);
    EXPECT_EQ(pass.result(), CUDA_SUCCESS);
  });
  caller.join();
  gate_.capture_ended();
  EXPECT_EQ(gate_.snapshot().captures, 0U);
  std::thread late([&] { const Pass pass(gate_); });
  EXPECT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  gate_.open();
  late.join();
}

TEST_F(GateTest, ACallerThatWaitsTooLongGetsAnError) {
  gate_.prepare({true, 20ms, &device_of_test});
  gate_.close();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_TIMEOUT);
  gate_.open();
  ASSERT_EQ(gate_.enter(), CUDA_SUCCESS);  // the failed entry left no trace
  gate_.leave();
  EXPECT_FALSE(gate_.snapshot().any_active);
}

TEST_F(GateTest, ErrorPolicyAnswersOncePaused) {
  gate_.prepare({false, 10s, &device_of_test});
  gate_.close();
  std::thread caller([&] { EXPECT_EQ(gate_.enter(), CUDA_ERROR_NOT_READY); });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  gate_.set(Gate::Mode::kMemoryLeft);
  caller.join();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_NOT_READY);
  gate_.open();
}

TEST_F(GateTest, AFailedGateNeverOpensForAnybody) {
  gate_.close();
  std::thread caller([&] { EXPECT_EQ(gate_.enter(), CUDA_ERROR_SYSTEM_NOT_READY); });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  gate_.set(Gate::Mode::kFailed);
  caller.join();
}

// What the whole pause rests on: once the gate is shut and nobody is inside, nobody is inside.
TEST_F(GateTest, NoCallerIsEverInsideAShutAndQuietGate) {
  std::atomic<bool> stop{false};
  std::atomic<int> inside{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      while (!stop) {
        const Pass pass(gate_);
        ++inside;
        --inside;
      }
    });
  for (int round = 0; round < 300; ++round) {
    gate_.close();
    ASSERT_TRUE(eventually([](const auto& s) { return !s.any_active; }));
    for (int look = 0; look < 50; ++look) ASSERT_EQ(inside.load(), 0);
    gate_.open();
    std::this_thread::yield();
  }
  stop = true;
  for (auto& t : callers) t.join();
}

}  // namespace
}  // namespace amem::shim
