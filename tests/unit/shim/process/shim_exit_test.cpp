#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>

#include "shim/process/exit_handler.h"

namespace amem::shim {
namespace {

ExitHandler& handler() {
  static auto* const handler = new ExitHandler([] { std::fputs("ours ", stderr); });
  return *handler;
}

void exit_with_handlers(bool arm_again) {
  handler().arm();
  std::atexit([] { std::fputs("late ", stderr); });
  if (arm_again) handler().arm();
  std::exit(0);
}

TEST(ExitHandlerTest, RunsInFrontOfWhatCameBeforeItWasArmed) {
  EXPECT_EXIT(exit_with_handlers(false), ::testing::ExitedWithCode(0), "late ours ");
  EXPECT_EXIT(exit_with_handlers(true), ::testing::ExitedWithCode(0), "^ours late ");
}

TEST(ExitHandlerTest, ArmingWhileHandlersRunIsHarmless) {
  EXPECT_EXIT(
      {
        std::atexit([] { handler().arm(); });
        handler().arm();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^ours $");
}

TEST(ExitHandlerTest, ArmingAgainTakesNoMemory) {
  handler().arm();
  const std::size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 10'000; ++i) handler().arm();
  EXPECT_LT(mallinfo2().uordblks, before + 4096);
}

}  // namespace
}  // namespace amem::shim
