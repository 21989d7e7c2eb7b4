// What the gate knows of work: who has passed it, who waits at it, and when the devices may be
// asked.
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tests/unit/fixtures/gate_fixture.h"

namespace amem::shim {
namespace {

/// On a thread of its own, which ends.
void elsewhere(const std::function<void()>& work) { std::thread(work).join(); }

class GateWorkTest : public GateTest {
 protected:
  void SetUp() override {
    GateTest::SetUp();
    gate_.take_worked();  // of threads of other tests
  }
};

TEST_F(GateWorkTest, ACallerThatHasPassedCountsOnce) {
  EXPECT_FALSE(gate_.take_worked());
  { const Pass pass(gate_); }
  EXPECT_TRUE(gate_.take_worked());
  EXPECT_FALSE(gate_.take_worked());
  elsewhere([&] { const Pass pass(gate_); });
  EXPECT_TRUE(gate_.take_worked()) << "also of a thread that has ended";
  EXPECT_FALSE(gate_.take_worked());
}

TEST_F(GateWorkTest, ACallerInsideCountsAsLongAsItIsThere) {
  {
    const Pass pass(gate_);
    EXPECT_TRUE(gate_.take_worked());
    EXPECT_TRUE(gate_.take_worked());
  }
  EXPECT_TRUE(gate_.take_worked());
  EXPECT_FALSE(gate_.take_worked());
}

TEST_F(GateWorkTest, FreesAndQuestionsAreNoWork) {
  const auto ask_and_free = [&] {
    { const PassToAsk pass(gate_, gate_.enter_to_ask()); }
    ASSERT_EQ(gate_.enter_to_free(), CUDA_SUCCESS);
    EXPECT_TRUE(gate_.snapshot().any_active);
    gate_.leave_quietly();
    ASSERT_TRUE(gate_.try_enter());
    gate_.leave_quietly();
  };
  ask_and_free();
  EXPECT_FALSE(gate_.take_worked());
  EXPECT_FALSE(gate_.snapshot().any_active);
  { const Pass pass(gate_); }
  ask_and_free();
  EXPECT_TRUE(gate_.take_worked()) << "what came before them still counts";
  EXPECT_FALSE(gate_.take_worked());
}

TEST_F(GateWorkTest, ACallInsideAnotherCountsAsTheOuterOne) {
  {
    const Pass pass(gate_);
    ASSERT_TRUE(gate_.try_enter());
    gate_.leave_quietly();
  }
  EXPECT_TRUE(gate_.take_worked());
  ASSERT_TRUE(gate_.try_enter());
  { const Pass pass(gate_); }
  gate_.leave_quietly();
  EXPECT_FALSE(gate_.take_worked());
}

TEST_F(GateWorkTest, WhoHasWaitedAndPassesCounts) {
  gate_.close();
  std::thread caller([&] { const Pass pass(gate_); });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 1; }));
  EXPECT_FALSE(gate_.take_worked());
  gate_.open();
  caller.join();
  EXPECT_TRUE(gate_.take_worked());
}

TEST_F(GateWorkTest, ManyThreadsAreCountedBesideTheirCalls) {
  std::atomic<bool> ends{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      while (!ends) const Pass pass(gate_);
    });
  EXPECT_TRUE(eventually([&](const auto&) { return gate_.take_worked(); }));
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(1ms);
    gate_.take_worked();
  }
  EXPECT_TRUE(eventually([&](const auto&) { return gate_.take_worked(); }));
  ends = true;
  for (std::thread& caller : callers) caller.join();
  gate_.take_worked();
  EXPECT_FALSE(gate_.take_worked());
  EXPECT_FALSE(gate_.snapshot().any_active);
}

// ---- demand ----

TEST_F(GateWorkTest, WhoWaitsAtTheShutGateIsDemand) {
  const std::uint64_t before = gate_.demand().waits;
  std::uint64_t version = gate_.await_demand(0, Gate::Clock::now());
  gate_.close();
  EXPECT_FALSE(gate_.demand().waiting);
  std::thread first([&] { const Pass pass(gate_, "cuFirst"); });
  version = gate_.await_demand(version, Gate::Clock::now() + 5s);
  EXPECT_TRUE(gate_.demand().waiting);
  EXPECT_EQ(gate_.demand().waits, before + 1);
  std::thread second([&] { const Pass pass(gate_, gate_.enter_capture()); });
  version = gate_.await_demand(version, Gate::Clock::now() + 5s);
  EXPECT_EQ(gate_.demand().waits, before + 2);
  EXPECT_STREQ(gate_.demand().call, "cuFirst");
  gate_.open();
  first.join();
  second.join();
  EXPECT_NE(gate_.await_demand(version, Gate::Clock::now() + 5s), version);
  EXPECT_FALSE(gate_.demand().waiting);
  gate_.close();
  std::thread third([&] { const Pass pass(gate_, gate_.enter_capture()); });
  EXPECT_TRUE(eventually([&](const auto&) { return gate_.demand().waiting; }));
  EXPECT_STREQ(gate_.demand().call, "cuStreamBeginCapture");
  gate_.open();
  third.join();
}

TEST_F(GateWorkTest, FreesAndQuestionsThatWaitAreNoDemand) {
  const std::uint64_t before = gate_.demand().waits;
  gate_.close();
  std::thread asks([&] { const PassToAsk pass(gate_, gate_.enter_to_ask()); });
  std::thread frees([&] {
    if (gate_.enter_to_free() == CUDA_SUCCESS) gate_.leave_quietly();
  });
  ASSERT_TRUE(eventually([](const auto& s) { return waiting(s, 0) == 2; }));
  EXPECT_FALSE(gate_.demand().waiting);
  EXPECT_EQ(gate_.demand().waits, before);
  gate_.open();
  asks.join();
  frees.join();
}

TEST_F(GateWorkTest, WhoPassesTheShutGateBecauseOfACaptureIsNoDemand) {
  const std::uint64_t before = gate_.demand().waits;
  gate_.capture_began();
  gate_.close();
  elsewhere([&] { const Pass pass(gate_); });
  EXPECT_EQ(gate_.demand().waits, before);
  gate_.capture_ended();
  gate_.open();
}

TEST_F(GateWorkTest, AnErrorInPlaceOfAWaitIsDemandToo) {
  gate_.prepare({false, 10s, &device_of_test});
  gate_.close();
  gate_.set(Gate::Mode::kMemoryLeft);
  const std::uint64_t before = gate_.demand().waits;
  EXPECT_EQ(gate_.enter(), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(gate_.demand().waits, before + 1);
  EXPECT_FALSE(gate_.demand().waiting);
  gate_.open();
}

TEST_F(GateWorkTest, StirWakes) {
  const std::uint64_t version = gate_.await_demand(0, Gate::Clock::now());
  std::thread stirs([&] { gate_.stir(); });
  EXPECT_NE(gate_.await_demand(version, Gate::Clock::now() + 5s), version);
  stirs.join();
}

// ---- questions to the driver ----

TEST_F(GateWorkTest, NoQuestionBesideACaptureACallerOrAShutGate) {
  ASSERT_TRUE(gate_.question_begins());
  gate_.question_ended();
  gate_.capture_began();
  EXPECT_FALSE(gate_.question_begins());
  gate_.capture_ended();
  elsewhere([&] {
    const Pass pass(gate_);
    elsewhere([&] { EXPECT_FALSE(gate_.question_begins()); });
  });
  gate_.close();
  EXPECT_FALSE(gate_.question_begins());
  gate_.open();
  ASSERT_TRUE(gate_.question_begins());
  gate_.question_ended();
  EXPECT_TRUE(gate_.take_worked()) << "of the caller";
  EXPECT_FALSE(gate_.take_worked()) << "a question is no work";
}

TEST_F(GateWorkTest, ACaptureThatBeginsWaitsForTheQuestion) {
  ASSERT_TRUE(gate_.question_begins());
  std::atomic<bool> began{false};
  std::thread capture([&] {
    const Pass pass(gate_, gate_.enter_capture());
    began = true;
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(began);
  gate_.question_ended();
  capture.join();
}

TEST_F(GateWorkTest, APauseWaitsForTheQuestion) {
  ASSERT_TRUE(gate_.question_begins());
  gate_.close();
  EXPECT_TRUE(gate_.snapshot().any_active);
  EXPECT_FALSE(gate_.drain_begins());
  gate_.question_ended();
  EXPECT_FALSE(gate_.snapshot().any_active);
  ASSERT_TRUE(gate_.drain_begins());
  gate_.drain_ended();
  gate_.open();
}

}  // namespace
}  // namespace amem::shim
