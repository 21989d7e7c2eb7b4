// The gate in a process that ends, or whose interpreter does.
#include <atomic>
#include <thread>

#include "tests/unit/fixtures/gate_fixture.h"

namespace amem::shim {
namespace {

TEST_F(GateTest, AShutGateAnswersWhoeverWaitsAndComesWhenTheProcessEnds) {
  gate_.close();
  gate_.set(Gate::Mode::kMemoryLeft);
  std::thread caller([&] { EXPECT_EQ(gate_.enter(), CUDA_ERROR_DEINITIALIZED); });
  std::thread capturer([&] { EXPECT_EQ(gate_.enter_capture(), CUDA_ERROR_DEINITIALIZED); });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  gate_.end();
  caller.join();
  capturer.join();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_DEINITIALIZED);
  EXPECT_FALSE(gate_.snapshot().any_active);
  EXPECT_EQ(waiting(gate_.snapshot(), 0), 0U);
}

TEST_F(GateTest, WhileTheProcessEndsAnOpenGateStaysOpenAndAShutOneIsNotWaitedAt) {
  gate_.end();
  EXPECT_EQ(Pass(gate_).result(), CUDA_SUCCESS);
  gate_.close();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_DEINITIALIZED);
  gate_.open();
  EXPECT_EQ(Pass(gate_).result(), CUDA_SUCCESS);
  gate_.capture_began();
  gate_.close();
  EXPECT_EQ(Pass(gate_).result(), CUDA_SUCCESS) << "the capture must be able to end";
  gate_.capture_ended();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_DEINITIALIZED);
}

TEST_F(GateTest, TheEndChangesNoOtherError) {
  gate_.prepare({false, 10s, &device_of_test});
  gate_.end();
  gate_.close();
  gate_.set(Gate::Mode::kMemoryLeft);
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_NOT_READY);
  gate_.set(Gate::Mode::kFailed);
  EXPECT_NE(gate_.enter(), CUDA_ERROR_DEINITIALIZED);
}

std::atomic<bool> interpreter_is_ending{false};
thread_local bool is_interpreters = false;

class InterpreterGateTest : public GateTest {
 protected:
  void SetUp() override {
    interpreter_is_ending = false;
    Gate::Policy policy{true, 10s, &device_of_test};
    policy.interpreter_ends = [] { return interpreter_is_ending.load(); };
    policy.ends_with_interpreter = [] { return is_interpreters; };
    gate_.prepare(policy);
    gate_.close();
  }
};

TEST_F(InterpreterGateTest, ItsEndIsSeenWithoutAWord) {
  std::thread caller([&] { EXPECT_EQ(gate_.enter(), CUDA_ERROR_DEINITIALIZED); });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  interpreter_is_ending = true;
  caller.join();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_DEINITIALIZED);
}

TEST_F(InterpreterGateTest, ThreadsThatEndWithItWaitOn) {
  std::thread caller([&] {
    is_interpreters = true;
    EXPECT_EQ(gate_.enter(), CUDA_SUCCESS) << "it has waited until the gate opened";
    gate_.leave();
  });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  interpreter_is_ending = true;
  gate_.end();
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(waiting(gate_.snapshot(), 0), 1U);
  gate_.open();
  caller.join();
}

TEST_F(InterpreterGateTest, ThreadsOfOneThatRunsOnHearOfTheProcesssEnd) {
  std::thread caller([&] {
    is_interpreters = true;
    EXPECT_EQ(gate_.enter(), CUDA_ERROR_DEINITIALIZED);
  });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  gate_.end();
  caller.join();
}

}  // namespace
}  // namespace amem::shim
