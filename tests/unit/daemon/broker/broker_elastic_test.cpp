// A pool of which only a part stays pinned, in a whole broker with ranks of several shims.
#include <memory>
#include <string>

#include "tests/unit/fixtures/owners_fixture.h"

namespace amem {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::uint64_t kReserve = 4 * kMiB;

class ElasticPoolTest : public OwnersTest {
 protected:
  void configure(Config& set) const override {
    OwnersTest::configure(set);
    set.pool_segment = kReserve;
    set.pool_reserve = kReserve;
    set.pool_idle = milliseconds(50);
  }
  std::uint64_t pinned() { return status().pool().ready_bytes(); }
  /// A rank that has something to save, and has been paused and resumed.
  std::uint64_t cycle(uid_t uid, ScriptedRank& rank, const std::string& name) {
    join_as(uid, rank, name);
    const std::uint64_t id = rank.create(gpu(0), 8 * kMiB);
    rank.write(id, 0x5a);
    EXPECT_TRUE(pause(name).ok());
    EXPECT_TRUE(resume(name).ok());
    EXPECT_TRUE(rank.holds(id, 0x5a));
    return id;
  }
};

TEST_F(ElasticPoolTest, AnOlderShimKeepsWhatItWasGiven) {
  b.habits.unmaps = true;
  cycle(kAlice, a, "one");
  const std::uint64_t hers = pinned();
  EXPECT_GE(hers, 8 * kMiB);
  const std::uint64_t his = cycle(kBob, b, "two");
  EXPECT_GE(pinned(), hers + 4 * kMiB);
  ASSERT_TRUE(eventually([&] { return pinned() == hers; })) << "Bob's have gone";
  EXPECT_EQ(b.segments.size(), 0U);
  EXPECT_EQ(a.segments.size(), hers / kReserve);
  EXPECT_TRUE(pause("two").ok());
  EXPECT_TRUE(resume("two").ok());
  EXPECT_TRUE(b.holds(his, 0x5a));
}

TEST_F(ElasticPoolTest, WhatARankKeepsItIsAskedForAgain) {
  a.habits.unmaps = true;
  const std::uint64_t id = cycle(kAlice, a, "one");
  a.moods[amem_v1_SessionMessage_unmap_segment_tag] = ScriptedRank::Mood::kFailing;
  const std::uint64_t before = pinned();
  EXPECT_TRUE(pause("one").ok());
  EXPECT_TRUE(resume("one").ok());
  EXPECT_EQ(pinned(), before) << "it has its segments still";
  a.moods.clear();
  ASSERT_TRUE(eventually([&] { return pinned() == kReserve; }));
  EXPECT_TRUE(pause("one").ok());
  EXPECT_TRUE(resume("one").ok());
  EXPECT_TRUE(a.holds(id, 0x5a));
}

TEST_F(ElasticPoolTest, WhoMaySteerAGroupMayPrepareIt) {
  join_as(kAlice, a, "one");
  a.create(gpu(0), 8 * kMiB);
  const auto prepare = [&](const Caller& caller, const std::vector<std::string>& groups) {
    const auto answer = std::make_shared<std::optional<std::pair<Status, ElasticPool::Prepared>>>();
    on_loop([&] {
      (void)broker->prepare(caller, groups, {}, [answer](const Status& status, const auto& what) {
        *answer = std::pair(status, what);
      });
    });
    EXPECT_TRUE(eventually([&] { return on_loop([&] { return answer->has_value(); }); }));
    return on_loop([&] { return **answer; });
  };
  EXPECT_EQ(prepare(caller(kBob), {"one"}).first.code(), Code::kNotFound);
  EXPECT_EQ(prepare(Caller{}, {}).first.code(), Code::kInvalidArgument);
  EXPECT_EQ(pinned(), kReserve) << "nothing has changed";
  const auto [status, done] = prepare(caller(kAlice), {"one"});
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(done.needed, 8 * kMiB);
  EXPECT_EQ(done.available, 8 * kMiB);
  EXPECT_EQ(done.pinned, 4 * kMiB);
}

}  // namespace
}  // namespace amem
