// DeepCalls: what is noted, what waits and what is answered between begin() and end().
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
  template <class Call>
  static auto in_a_thread(const Call& call) {
    return std::async(std::launch::async, call);
  }
};

TEST_F(ShimDeepCalls, OtherwiseNothingIsNotedAnsweredOrHeld) {
  EXPECT_FALSE(DeepCalls::on());
  EXPECT_FALSE(note("a"));
  EXPECT_EQ(calls().ended(true), std::nullopt);
  EXPECT_EQ(DeepCalls::Held().result(), CUDA_SUCCESS);
  EXPECT_THAT(end(), ElementsAre());
}

TEST_F(ShimDeepCalls, WhatIsNotedIsMadeInItsOrder) {
  ASSERT_TRUE(calls().begin(0ms));
  EXPECT_TRUE(DeepCalls::on());
  EXPECT_TRUE(note("a", 1));
  EXPECT_TRUE(note("b", 2));
  EXPECT_TRUE(note("a", 3));
  EXPECT_THAT(end(), ElementsAre("a1", "b2", "a3"));
  EXPECT_FALSE(DeepCalls::on());
  EXPECT_THAT(end(), ElementsAre());
}

TEST_F(ShimDeepCalls, WhatIsFreedWhileOthersAreMadeComesAfterThem) {
  ASSERT_TRUE(calls().begin(0ms));
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
  ASSERT_TRUE(calls().begin(0ms));
  for (int i = 0; i < 1 << 20; ++i) ASSERT_TRUE(note("a"));
  EXPECT_FALSE(note("a"));
  EXPECT_EQ(end().size(), std::size_t{1} << 20);
}

TEST_F(ShimDeepCalls, WhetherWorkHasEndedIsSaidOnceItHas) {
  ASSERT_TRUE(calls().begin(0ms));
  auto answer = in_a_thread([] { return calls().ended(true); });
  EXPECT_EQ(answer.wait_for(kSoon), std::future_status::timeout);
  calls().drained();
  EXPECT_EQ(answer.get(), CUDA_SUCCESS);
  EXPECT_EQ(calls().ended(false), CUDA_SUCCESS);
  end();
  EXPECT_EQ(calls().ended(false), std::nullopt);
  ASSERT_TRUE(calls().begin(0ms));
  auto again = in_a_thread([] { return calls().ended(false); });
  EXPECT_EQ(again.wait_for(kSoon), std::future_status::timeout) << "nothing is known yet";
  end();
  EXPECT_EQ(again.get(), std::nullopt) << "the driver is asked";
}

TEST_F(ShimDeepCalls, WhatGivesWorkWaits) {
  ASSERT_TRUE(calls().begin(0ms));
  calls().drained();
  auto held = in_a_thread([] { return DeepCalls::Held().result(); });
  EXPECT_EQ(held.wait_for(kSoon), std::future_status::timeout);
  end();
  EXPECT_EQ(held.get(), CUDA_SUCCESS);
}

TEST_F(ShimDeepCalls, TheBeginningWaitsForWhatHasBegun) {
  auto held = std::make_unique<DeepCalls::Held>();
  ASSERT_EQ(held->result(), CUDA_SUCCESS);
  EXPECT_FALSE(calls().begin(kSoon));
  end();
  auto began = in_a_thread([] { return calls().begin(10s); });
  EXPECT_EQ(began.wait_for(kSoon), std::future_status::timeout);
  held.reset();
  EXPECT_TRUE(began.get());
}

TEST_F(ShimDeepCalls, NobodyWaitsWhenTheProcessEnds) {
  ASSERT_TRUE(calls().begin(0ms));
  auto held = in_a_thread([] { return DeepCalls::Held().result(); });
  auto answer = in_a_thread([] { return calls().ended(true); });
  EXPECT_EQ(held.wait_for(kSoon), std::future_status::timeout);
  calls().process_ends();
  EXPECT_EQ(held.get(), CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(answer.get(), CUDA_ERROR_DEINITIALIZED);
  EXPECT_TRUE(note("a")) << "and never made";
  EXPECT_THAT(end(), ElementsAre());
}

}  // namespace
}  // namespace amem::shim
