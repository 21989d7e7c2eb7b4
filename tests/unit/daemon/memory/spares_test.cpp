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
/// Each of another allocation.
Spare spare() {
  static AllocationId last = 0;
  return {memory(), ++last, 0};
}

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
  spares.put(kind(10), spare());
  EXPECT_EQ(spares.take({bob.get(), some_device(0), 10, false}, 1).fd, nullptr);
  const auto in_a_pod = accounts.of({1, "/kubepods/a"});
  EXPECT_EQ(spares.take({in_a_pod.get(), some_device(0), 10, false}, 1).fd, nullptr);
  EXPECT_EQ(spares.take({alice.get(), some_device(1), 10, false}, 1).fd, nullptr);
  EXPECT_EQ(spares.take({alice.get(), some_device(0), 11, false}, 1).fd, nullptr);
  EXPECT_EQ(spares.take({alice.get(), some_device(0), 10, true}, 1).fd, nullptr);
  EXPECT_NE(spares.take(kind(10), 1).fd, nullptr);
  EXPECT_TRUE(spares.empty());
  EXPECT_EQ(spares.take(kind(10), 1).fd, nullptr) << "once";
}

TEST_F(SparesTest, CountsAndBytesAreOfWhatIsThere) {
  spares.put(kind(10), spare());
  spares.put(kind(10), spare());
  spares.put(kind(7), spare());
  spares.put(kind(5, 1), spare());
  EXPECT_EQ(spares.count(kind(10)), 2U);
  EXPECT_EQ(spares.count(kind(5)), 0U);
  EXPECT_EQ(spares.bytes(some_device(0)), 27U);
  EXPECT_EQ(spares.bytes(some_device(1)), 5U);
}

TEST_F(SparesTest, OneWithoutItsOwnLeavesMostOthersTheirs) {
  for (AllocationId id = 2; id <= 5; ++id) spares.put(kind(10), {memory(), id, 0});
  for (const auto& [of, from] :
       {std::pair<AllocationId, AllocationId>{1, 5}, {2, 2}, {3, 3}, {4, 4}})
    EXPECT_EQ(spares.take(kind(10), of).from, from);
}

TEST_F(SparesTest, WhatIsMoreThanWantedIsTakenOut) {
  for (int i = 0; i < 3; ++i) spares.put(kind(10), spare());
  spares.put(kind(7), spare());
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
  spares.put(kind(10), spare(), now + seconds(2));
  spares.put(kind(10), spare(), now + seconds(1));
  spares.put(kind(7), spare());
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

TEST_F(SparesTest, AnAllocationTakesItsOwn) {
  for (const AllocationId id : {11U, 12U, 13U}) spares.put(kind(10), {memory(), id, 5});
  EXPECT_EQ(spares.take(kind(10), 12).from, 12U);
  EXPECT_NE(spares.take(kind(10), 12).fd, nullptr) << "or another's";
  EXPECT_EQ(spares.count(kind(10)), 1U);
}

TEST_F(SparesTest, BytesAreThereOnlyOfTheSamePauseWhichHasSavedThem) {
  const Spare left{memory(), 7, 5};
  Allocation a;
  a.id = 7;
  a.saved.attempt = 5;
  a.saved.extents = {{0, 0, 10}};
  EXPECT_TRUE(left.has_bytes_of(a));
  a.saved.attempt = 6;
  EXPECT_FALSE(left.has_bytes_of(a)) << "a later pause's";
  a.saved.attempt = 5;
  a.id = 8;
  EXPECT_FALSE(left.has_bytes_of(a));
  a.id = 7;
  a.saved.extents.clear();
  EXPECT_FALSE(left.has_bytes_of(a)) << "they are dropped";
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
    a.sharers_known = here;
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
  make(1, 10, true).sharers_known = false;
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
