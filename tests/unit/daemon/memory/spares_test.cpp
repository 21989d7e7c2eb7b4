#include "daemon/memory/spares.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "daemon/plans/handing_on.h"
#include "tests/unit/fixtures/some_device.h"

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SharedFd memory() { return std::make_shared<const Fd>(::memfd_create("spares_test", MFD_CLOEXEC)); }

class SparesTest : public ::testing::Test {
 protected:
  SparesTest() { EXPECT_TRUE(loop.open().ok()); }
  MemoryKind kind(std::uint64_t size, std::size_t device = 0) const {
    return {alice.get(), some_device(device), size, false};
  }
  EventLoop loop;
  Accounts accounts{loop, Quotas{}};
  std::shared_ptr<Account> alice = accounts.of({1, ""});
  std::shared_ptr<Account> bob = accounts.of({2, ""});
  Spares spares;
};

TEST_F(SparesTest, WhatDiffersInAnythingIsOfAnotherKind) {
  spares.put(kind(10), memory());
  EXPECT_EQ(spares.take({bob.get(), some_device(0), 10, false}), nullptr);
  EXPECT_EQ(spares.take({alice.get(), some_device(1), 10, false}), nullptr);
  EXPECT_EQ(spares.take({alice.get(), some_device(0), 11, false}), nullptr);
  EXPECT_EQ(spares.take({alice.get(), some_device(0), 10, true}), nullptr);
  EXPECT_NE(spares.take(kind(10)), nullptr);
  EXPECT_TRUE(spares.empty());
  EXPECT_EQ(spares.take(kind(10)), nullptr) << "once";
}

TEST_F(SparesTest, CountsAndBytesAreOfWhatIsThere) {
  spares.put(kind(10), memory());
  spares.put(kind(10), memory());
  spares.put(kind(7), memory());
  spares.put(kind(5, 1), memory());
  EXPECT_EQ(spares.count(kind(10)), 2U);
  EXPECT_EQ(spares.count(kind(5)), 0U);
  EXPECT_EQ(spares.bytes(some_device(0)), 27U);
  EXPECT_EQ(spares.bytes(some_device(1)), 5U);
}

TEST_F(SparesTest, WhatIsMoreThanWantedIsTakenOut) {
  for (int i = 0; i < 3; ++i) spares.put(kind(10), memory());
  spares.put(kind(7), memory());
  const auto rest = spares.take_but({{kind(10), 2}, {kind(5), 9}});
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest.at(kind(10)).size(), 1U);
  EXPECT_EQ(rest.at(kind(7)).size(), 1U);
  EXPECT_EQ(spares.bytes(some_device(0)), 20U);
  EXPECT_TRUE(spares.take_but({{kind(10), 2}}).empty());
}

TEST_F(SparesTest, SomeWaitLongerThanOthers) {
  EXPECT_EQ(spares.first_until(), std::nullopt);
  const Time now = Clock::now();
  spares.put(kind(10), memory(), now + seconds(2));
  spares.put(kind(10), memory(), now + seconds(1));
  spares.put(kind(7), memory());
  EXPECT_EQ(spares.first_until(), now + seconds(1));
  const auto late = [&](Duration after) {
    return spares.take_if([&](const MemoryKind&, Time until) { return until <= now + after; })
        .size();
  };
  EXPECT_EQ(late(milliseconds(999)), 0U);
  EXPECT_EQ(late(seconds(1)), 1U);
  EXPECT_EQ(spares.count(kind(10)), 1U);
  EXPECT_EQ(late(seconds(5)), 1U);
  EXPECT_EQ(spares.bytes(some_device(0)), 7U) << "nothing waits for longer than that";
}

class HandingOnTest : public SparesTest {
 protected:
  Allocation& make(GroupId group, std::uint64_t size, bool here, RankId maker = 0) {
    Allocation a;
    a.group = group;
    a.size = size;
    a.device = some_device(0);
    a.maker = maker;
    a.sharers = {1};
    a.charge = alice->charge({});
    a.paused = !here;
    a.holders_known = here;
    if (here) a.fd = memory();
    return table.add(std::move(a));
  }
  Allocations table;
};

TEST_F(HandingOnTest, GroupsLackWhatIsPausedAndNotThere) {
  make(1, 10, false);
  make(2, 10, false);
  make(3, 10, false);
  make(1, 10, true);
  make(1, 10, false, 1);
  make(1, 7, true).paused = true;
  EXPECT_EQ(lacking(table, {1, 2}), (KindCounts{{kind(10), 2}}));
}

TEST_F(HandingOnTest, OnlyWhatCanLeaveAndIsNobodysComes) {
  make(1, 10, true);
  make(1, 10, true).holders_known = false;
  make(1, 10, true).stayed = true;
  make(1, 10, true).pinners = {{1, PinReason::kNic}};
  make(1, 10, true, 1);
  make(1, 7, true).tag = "kv";
  make(2, 10, true);
  EXPECT_EQ(to_come(table, 1, [](const Allocation& a) { return a.tag != "kv"; }),
            (KindCounts{{kind(10), 1}}));
}

}  // namespace
}  // namespace amem
