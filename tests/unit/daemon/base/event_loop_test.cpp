#include "daemon/base/event_loop.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <thread>

namespace amem {
namespace {

using std::chrono::milliseconds;

class EventLoopTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop.open().ok()); }
  EventLoop loop;
};

TEST_F(EventLoopTest, TasksFromOtherThreadsKeepTheirOrder) {
  std::vector<int> seen;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) loop.post([&, i] { seen.push_back(i); });
    loop.stop();
  });
  loop.run();
  other.join();
  ASSERT_EQ(seen.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST_F(EventLoopTest, TimersRunInOrderAndCanBeCancelled) {
  std::string seen;
  const Time now = Clock::now();
  loop.at(now + milliseconds(20), [&] { seen += "b"; });
  loop.at(now + milliseconds(10), [&] { seen += "a"; });
  const auto cancelled = loop.at(now + milliseconds(15), [&] { seen += "x"; });
  loop.at(now + milliseconds(12), [&] { loop.cancel(cancelled); });
  loop.at(now + milliseconds(30), [&] {
    loop.at(Clock::now() - milliseconds(5), [&] {
      seen += "c";
      loop.stop();
    });
  });
  loop.run();
  EXPECT_EQ(seen, "abc");
  EXPECT_GE(Clock::now(), now + milliseconds(30));
}

TEST_F(EventLoopTest, ATimerThatIsAlwaysDueKeepsNoDescriptorWaiting) {
  const Fd fd(::eventfd(0, EFD_CLOEXEC));
  loop.watch(fd.get(), EPOLLIN, [&](std::uint32_t) { loop.stop(); });
  const Time past = Clock::now();
  int calls = 0;
  std::function<void()> again = [&] {
    if (++calls == 1) {
      const std::uint64_t one = 1;
      ASSERT_EQ(::write(fd.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    }
    if (calls < 1000) loop.at(past, again);
  };
  loop.at(past, again);
  loop.run();
  EXPECT_LE(calls, 3) << "the descriptor, then the end of the loop";
}

TEST_F(EventLoopTest, HandlersMayRemoveOneAnother) {
  const Fd a(::eventfd(1, EFD_CLOEXEC));
  const Fd b(::eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  EventLoop::WatchId first = 0;
  EventLoop::WatchId second = 0;
  auto handler = [&](std::uint32_t) {  // both are ready at once; the second must not run
    ++calls;
    loop.unwatch(first);
    loop.unwatch(second);
    loop.stop();
  };
  first = loop.watch(a.get(), EPOLLIN, handler);
  second = loop.watch(b.get(), EPOLLIN, handler);
  ASSERT_NE(first, 0U);
  loop.run();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, WatchesCanBeChanged) {
  const Fd fd(::eventfd(0, EFD_CLOEXEC));
  std::uint32_t events = 0;
  const auto id = loop.watch(fd.get(), EPOLLIN, [&](std::uint32_t e) {
    events = e;
    loop.stop();
  });
  loop.change(id, EPOLLOUT);
  loop.run();
  EXPECT_EQ(events, static_cast<std::uint32_t>(EPOLLOUT));
}

TEST_F(EventLoopTest, WhatCannotBeWatchedIsRefused) {
  EXPECT_EQ(loop.watch(-1, EPOLLIN, [](std::uint32_t) {}), 0U);
}

}  // namespace
}  // namespace amem
