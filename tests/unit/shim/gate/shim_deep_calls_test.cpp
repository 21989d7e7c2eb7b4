// DeepCalls: what is noted, what waits and what is answered between delay_calls() and end().
#include <gmock/gmock.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shim/gate/deep_calls.h"

namespace amem::shim {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

constexpr auto kSoon = 50ms;

CUresult nothing(const DeepCalls::Words&) { return CUDA_SUCCESS; }

class ShimDeepCalls : public testing::Test {
 protected:
  void TearDown() override { DeepCalls::reset_after_fork(); }
  std::vector<std::string> end() {
    std::vector<std::string> made;
    calls().end([&](const DeepCalls::Call& call) {
      made.push_back(call.name + std::to_string(call.arguments[0]));
    });
    return made;
  }
  static DeepCalls& calls() { return DeepCalls::get(); }
  static bool note(const char* name, std::uint64_t argument = 0) {
    return calls().note({name, &nothing, {argument}});
  }
  static bool delay_calls(std::chrono::milliseconds patience = 0ms) {
    return calls().delay_calls(std::chrono::steady_clock::now() + patience);
  }
  static void go_away() {
    ASSERT_TRUE(delay_calls());
    calls().goes_away();
  }
  template <class Call>
  static auto in_a_thread(const Call& call) {
    return std::async(std::launch::async, call);
  }
};

TEST_F(ShimDeepCalls, OtherwiseNothingIsNotedAnsweredOrHeld) {
  EXPECT_FALSE(DeepCalls::on());
  EXPECT_FALSE(note("a"));
  EXPECT_EQ(calls().ended(true), std::nullopt);
  EXPECT_EQ(DeepCalls::Delayed().result(), CUDA_SUCCESS);
  EXPECT_THAT(end(), ElementsAre());
}

TEST_F(ShimDeepCalls, WhatIsNotedIsMadeInItsOrder) {
  go_away();
  EXPECT_TRUE(DeepCalls::on());
  EXPECT_TRUE(note("a", 1));
  EXPECT_TRUE(note("b", 2));
  EXPECT_TRUE(note("a", 3));
  EXPECT_THAT(end(), ElementsAre("a1", "b2", "a3"));
  EXPECT_FALSE(DeepCalls::on());
  EXPECT_THAT(end(), ElementsAre());
}

TEST_F(ShimDeepCalls, WhatIsFreedWhileOthersAreMadeComesAfterThem) {
  go_away();
  EXPECT_TRUE(note("a", 1));
  std::vector<std::uint64_t> made;
  calls().end([&](const DeepCalls::Call& call) {
    made.push_back(call.arguments[0]);
    if (made.size() < 3) {
      EXPECT_TRUE(note("a", made.size() + 1));
    }
  });
  EXPECT_THAT(made, ElementsAre(1, 2, 3));
  EXPECT_FALSE(note("a"));
}

TEST_F(ShimDeepCalls, ManyAreNotedButNotWithoutEnd) {
  go_away();
  for (int i = 0; i < 1 << 20; ++i) ASSERT_TRUE(note("a"));
  EXPECT_FALSE(note("a"));
  EXPECT_EQ(end().size(), std::size_t{1} << 20);
}

TEST_F(ShimDeepCalls, WhetherWorkHasEndedIsSaidOnceItHas) {
  ASSERT_TRUE(delay_calls());
  EXPECT_EQ(calls().ended(true), std::nullopt) << "the driver is asked: work may wait for this";
  EXPECT_FALSE(note("a")) << "likewise";
  calls().goes_away();
  EXPECT_EQ(calls().ended(true), CUDA_SUCCESS);
  EXPECT_EQ(calls().ended(false), CUDA_SUCCESS);
  end();
  EXPECT_EQ(calls().ended(false), std::nullopt);
}

TEST_F(ShimDeepCalls, WhatGivesWorkWaits) {
  go_away();
  auto delayed = in_a_thread([] { return DeepCalls::Delayed().result(); });
  EXPECT_EQ(delayed.wait_for(kSoon), std::future_status::timeout);
  end();
  EXPECT_EQ(delayed.get(), CUDA_SUCCESS);
}

TEST_F(ShimDeepCalls, TheBeginningWaitsForWhatHasBegun) {
  auto delayed = std::make_unique<DeepCalls::Delayed>();
  ASSERT_EQ(delayed->result(), CUDA_SUCCESS);
  EXPECT_FALSE(delay_calls(kSoon));
  end();
  auto began = in_a_thread([] { return delay_calls(10s); });
  EXPECT_EQ(began.wait_for(kSoon), std::future_status::timeout);
  delayed.reset();
  EXPECT_TRUE(began.get());
}

TEST_F(ShimDeepCalls, NobodyWaitsWhenTheProcessEnds) {
  go_away();
  auto delayed = in_a_thread([] { return DeepCalls::Delayed().result(); });
  EXPECT_EQ(delayed.wait_for(kSoon), std::future_status::timeout);
  calls().process_ends();
  EXPECT_EQ(delayed.get(), CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(calls().ended(true), CUDA_SUCCESS);
  EXPECT_TRUE(note("a")) << "and never made";
  EXPECT_THAT(end(), ElementsAre());
}

}  // namespace
}  // namespace amem::shim
