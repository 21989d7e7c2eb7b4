// The cut under a real EventLoop, as the broker drives it.
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <functional>

#include "daemon/base/event_loop.h"
#include "daemon/phases/cut.h"
#include "tests/unit/fixtures/some_device.h"

namespace amem {
namespace {

// Two ranks that wait for one another. The one that is pushed becomes idle with its first permit,
// but its report comes late, and from a descriptor, as reports do.
TEST(CutLoop, TheReportOfAPushedRankIsReadBeforeAnythingElseIsDecided) {
  EventLoop loop;
  ASSERT_TRUE(loop.open().ok());
  const Fd mail(::eventfd(0, EFD_CLOEXEC));
  // Nothing of this may depend on how fast the test's machine is.
  Cut cut({1, 2}, std::chrono::hours(1), Clock::now());
  for (const RankId rank : {1U, 2U})
    cut.report(rank, {0, 0, {{some_device(0), true, 1, 1}}}, Clock::now());
  RankId pushed = 0;
  int decisions = 0;  // since it was pushed
  std::function<void()> decide = [&] {
    const std::vector<Cut::Permit> permits = cut.decide(Clock::now());
    if (pushed != 0 && ++decisions > 1000) return loop.stop();
    if (!permits.empty()) {
      ASSERT_EQ(permits.size(), 1U) << "one at a time";
      pushed = permits.front().rank;
      loop.at(Clock::now() + std::chrono::milliseconds(5), [&] {
        const std::uint64_t one = 1;
        ASSERT_EQ(::write(mail.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
      });
    }
    if (const Time next = cut.next_decision(); next != kNever) loop.at(next, decide);
  };
  loop.watch(mail.get(), EPOLLIN, [&](std::uint32_t) {
    cut.report(pushed, {1, 0, {{some_device(0), false, 0}}}, Clock::now());
    cut.report(3 - pushed, {0, 0, {{some_device(0), false, 0}}}, Clock::now());
    loop.stop();
  });
  loop.at(cut.next_decision(), decide);
  loop.run();
  EXPECT_NE(pushed, 0U);
  EXPECT_LE(decisions, 1) << "nobody but the pushed rank could change anything";
  EXPECT_TRUE(cut.taken());
}

}  // namespace
}  // namespace amem
