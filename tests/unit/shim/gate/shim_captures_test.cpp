#include <gtest/gtest.h>

#include <thread>

#include "shim/gate/captures.h"
#include "tests/unit/fixtures/gate_fixture.h"

namespace amem::shim {
namespace {

CUcontext context(std::uintptr_t number) { return reinterpret_cast<CUcontext>(number * 16); }

class ShimCaptures : public ::testing::Test {
 protected:
  Gate gate;
  Captures captures{gate};
};

TEST_F(ShimCaptures, EndWithTheirStream) {
  captures.began(stream(1), false, context(1));
  captures.began(stream(2), false, context(1));
  EXPECT_EQ(gate.captures(), 2U);
  EXPECT_TRUE(captures.open(stream(1), false));
  captures.ended(stream(1), false);
  EXPECT_FALSE(captures.open(stream(1), false));
  EXPECT_EQ(gate.captures(), 1U);
  captures.ended(stream(1), false);
  captures.ended(stream(3), false);
  EXPECT_EQ(gate.captures(), 1U) << "what has not begun here does not end";
}

TEST_F(ShimCaptures, AThreadsOwnStreamIsNoOtherThreads) {
  captures.began(nullptr, true, context(1));
  EXPECT_TRUE(captures.open(CU_STREAM_PER_THREAD, false));
  EXPECT_FALSE(captures.open(nullptr, false)) << "the legacy stream";
  std::thread([&] {
    EXPECT_FALSE(captures.open(nullptr, true));
    captures.ended(CU_STREAM_PER_THREAD, false);
  }).join();
  EXPECT_EQ(gate.captures(), 1U);
  captures.ended(nullptr, true);
  EXPECT_EQ(gate.captures(), 0U);
}

TEST_F(ShimCaptures, KnowTheThreadThatHasBegunThem) {
  std::thread([&] {
    captures.began(stream(1), false, context(1));
    EXPECT_TRUE(captures.begun_here());
  }).join();
  captures.began(stream(2), false, context(1));
  EXPECT_TRUE(captures.begun_here());
  captures.ended(stream(2), false);
  EXPECT_FALSE(captures.begun_here()) << "the other's is no reason";
  EXPECT_EQ(gate.captures(), 1U);
}

TEST_F(ShimCaptures, EndWithTheirContext) {
  for (std::uintptr_t i = 1; i <= 3; ++i) captures.began(stream(i), false, context(i % 2));
  captures.context_gone(context(1));
  EXPECT_EQ(gate.captures(), 1U);
  EXPECT_TRUE(captures.open(stream(2), false));
}

}  // namespace
}  // namespace amem::shim
