// Callers that only free, at a shut gate.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/fixtures/gate_fixture.h"

namespace amem::shim {
namespace {

class GateFreesTest : public GateTest {
 protected:
  void TearDown() override {
    gate_.open();
    if (caller_.joinable()) caller_.join();
  }

  void begins_to_free() {
    caller_ = std::thread([this] {
      result_ = gate_.enter_to_free();
      if (result_ == CUDA_SUCCESS) gate_.leave();
      passed_ = true;
    });
  }
  bool waits() {
    return eventually([](const auto& s) { return waiting(s, 0) == 1; });
  }
  bool passes() {
    const auto deadline = Gate::Clock::now() + 5s;
    while (!passed_ && Gate::Clock::now() < deadline) std::this_thread::sleep_for(1ms);
    return passed_;
  }

  std::thread caller_;
  std::atomic<bool> passed_{false};
  std::atomic<CUresult> result_{CUDA_ERROR_UNKNOWN};
};

TEST_F(GateFreesTest, AFreeWaitsAtAShutGateAsOthersDo) {
  gate_.close();
  begins_to_free();
  EXPECT_TRUE(waits());
  EXPECT_FALSE(passed_);
  gate_.open();
  EXPECT_TRUE(passes());
  EXPECT_EQ(result_, CUDA_SUCCESS);
}

TEST_F(GateFreesTest, AFreeThatWaitsPassesOnceFreesPass) {
  gate_.close();
  begins_to_free();
  ASSERT_TRUE(waits());
  gate_.set(Gate::Mode::kMemoryLeft);
  EXPECT_FALSE(passed_);
  gate_.set(Gate::Mode::kFreesPass);
  EXPECT_TRUE(passes());
  EXPECT_EQ(result_, CUDA_SUCCESS);
}

TEST_F(GateFreesTest, OthersGoOnWaitingWhileFreesPass) {
  gate_.close();
  gate_.set(Gate::Mode::kFreesPass);
  std::atomic<bool> worked{false};
  std::thread worker([&] {
    const Pass pass(gate_);
    worked = true;
  });
  EXPECT_TRUE(waits());
  ASSERT_EQ(gate_.enter_to_free(), CUDA_SUCCESS);
  EXPECT_TRUE(Gate::inside());
  EXPECT_TRUE(gate_.snapshot().any_active);
  gate_.leave();
  EXPECT_FALSE(Gate::inside());
  EXPECT_FALSE(worked);
  gate_.open();
  worker.join();
}

TEST_F(GateFreesTest, AFreeThatComesAfterAStepHasBegunWaits) {
  gate_.close();
  gate_.set(Gate::Mode::kFreesPass);
  gate_.set(Gate::Mode::kMemoryLeft);
  begins_to_free();
  EXPECT_TRUE(waits());
  EXPECT_FALSE(passed_);
}

TEST_F(GateFreesTest, ANewPauseStopsFreesAgain) {
  gate_.close();
  gate_.set(Gate::Mode::kFreesPass);
  gate_.open();
  gate_.close();
  begins_to_free();
  EXPECT_TRUE(waits());
  EXPECT_FALSE(passed_);
}

TEST_F(GateFreesTest, AFreePassesWhereOthersGetAnError) {
  Gate strict;
  strict.prepare({false, 10s, &device_of_test});
  strict.close();
  strict.set(Gate::Mode::kMemoryLeft);
  std::thread caller([&] {
    EXPECT_EQ(strict.enter_to_free(), CUDA_SUCCESS) << "it waits for a step, and gets no error";
    strict.leave();
  });
  const auto deadline = Gate::Clock::now() + 5s;
  while (waiting(strict.snapshot(), 0) == 0 && Gate::Clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  strict.set(Gate::Mode::kFreesPass);
  caller.join();
  EXPECT_EQ(strict.enter(), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(strict.enter_to_free(), CUDA_SUCCESS);
  strict.leave();
  strict.set(Gate::Mode::kFailed);
  ASSERT_EQ(strict.enter_to_free(), CUDA_SUCCESS) << "what cannot come back can still be freed";
  strict.leave();
}

}  // namespace
}  // namespace amem::shim
