// The pool divided among owners: nobody is given what somebody else has had.
#include "daemon/memory/pools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "daemon/owners/account.h"

namespace amem {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kSegmentSize = 1 << 20;
constexpr std::uint64_t kPoolUnit = 1 << 16;
using Segments = std::vector<std::uint32_t>;

class PoolsTest : public testing::Test {
 protected:
  static Quotas quotas() {
    Quotas quotas;
    quotas.most[Resource::kPoolBytes] = 3 * kSegmentSize;
    return quotas;
  }
  void fill(int segments) {
    for (int i = 0; i < segments; ++i)
      pools.add({nullptr, kSegmentSize, Place::kMemfd, i % 2}, ++made);
  }
  std::shared_ptr<Account> owner(uid_t uid) { return accounts.of({uid, {}}); }
  /// A rank of the owner that may have so much to save, near node 0.
  Segments keep(const std::shared_ptr<Account>& account, RankId rank, std::uint64_t bytes) {
    pools.of(account).reach.add_need(rank, 0, bytes);
    return pools.extend(account, rank);
  }

  void limit(std::uint64_t bytes) { (void)pools.limit({bytes, bytes, kSegmentSize}); }

  EventLoop loop;
  Accounts accounts{loop, quotas()};
  std::vector<PoolSegment> renewed;
  std::vector<PoolSegment> released;
  std::vector<std::uint64_t> asked;  // for segments more
  std::uint64_t made = 0;
  Record record;
  Pools pools{kPoolUnit, record,
              [this](PoolSegment segment) { renewed.push_back(std::move(segment)); },
              [this](PoolSegment segment) { released.push_back(std::move(segment)); },
              [this](std::uint64_t size) { asked.push_back(size); }};
};

TEST_F(PoolsTest, OwnersGetSegmentsOfTheirOwnAsTheyNeedThem) {
  fill(6);
  const auto a = owner(1001);
  const auto b = owner(1002);
  EXPECT_EQ(keep(a, 1, kSegmentSize), Segments{0});
  EXPECT_EQ(keep(b, 2, kSegmentSize), Segments{0}) << "numbered from 0 for each";
  EXPECT_EQ(keep(a, 3, kSegmentSize), Segments{1})
      << "another rank has one of its own while there are more";
  EXPECT_EQ(pools.of(a).extents.total(), 2 * kSegmentSize);
  EXPECT_EQ(pools.of(b).extents.total(), kSegmentSize);
  EXPECT_EQ(pools.total(), 6 * kSegmentSize);
  EXPECT_EQ(a->used(Resource::kPoolBytes), 2 * kSegmentSize);
  // Of the near node first.
  EXPECT_EQ(pools.of(a).segments[0].of.segment.numa_node, 0);
  EXPECT_EQ(pools.of(b).segments[0].of.segment.numa_node, 0);
}

TEST_F(PoolsTest, RanksShareWhereTheQuotaEnds) {
  fill(8);
  const auto a = owner(1001);
  EXPECT_EQ(keep(a, 1, 3 * kSegmentSize).size(), 3U);
  EXPECT_EQ(keep(a, 2, kSegmentSize).size(), 1U) << "one that the other reaches, too";
  EXPECT_EQ(pools.of(a).segments.size(), 3U);
  const Status status = pools.make_space(a, 4 * kSegmentSize);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.text(), HasSubstr("This owner may have 3 MiB of 8 MiB (quotas.pool)"));
  EXPECT_TRUE(pools.make_space(owner(1002), 3 * kSegmentSize).ok());
  EXPECT_THAT(renewed, testing::IsEmpty());
}

TEST_F(PoolsTest, NothingIsHandedOnWhileAProcessMayReachItOrBytesLieInIt) {
  fill(1);
  const auto a = owner(1001);
  const auto b = owner(1002);
  pools.enter(a);
  pools.enter(a);
  EXPECT_EQ(keep(a, 1, kSegmentSize), Segments{0});
  auto saved = pools.of(a).extents.take({{kPoolUnit, 0}});
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(keep(b, 2, kSegmentSize), Segments());
  pools.leave(a);
  EXPECT_EQ(pools.extend(b, 2), Segments());
  pools.leave(a);
  EXPECT_EQ(pools.extend(b, 2), Segments()) << "its bytes are still there";
  EXPECT_THAT(renewed, testing::IsEmpty());
  ASSERT_TRUE(pools.of(a).extents.give_back(saved.value()[0]).ok());
  pools.saved_less(a);
  EXPECT_EQ(a->used(Resource::kPoolBytes), 0U);
  EXPECT_EQ(pools.extend(b, 2), Segments()) << "not the same memory";
  ASSERT_EQ(renewed.size(), 1U);
  EXPECT_EQ(pools.total(), 0U);
  pools.add(std::move(renewed[0]), ++made);
  EXPECT_EQ(pools.extend(b, 2), Segments{0});
}

TEST_F(PoolsTest, APoolThatIsTooLargeShrinksAsItsOwnersEnd) {
  fill(6);
  const auto a = owner(1001);
  const auto b = owner(1002);
  for (const auto& account : {a, b}) pools.enter(account);
  keep(a, 1, 2 * kSegmentSize);
  keep(b, 2, 2 * kSegmentSize);
  auto saved = pools.of(b).extents.take({{kPoolUnit, 0}});
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(pools.excess(), 0U);

  limit(kSegmentSize);
  EXPECT_EQ(released.size(), 2U) << "what nobody had, at once";
  EXPECT_EQ(pools.total(), 4 * kSegmentSize);
  EXPECT_EQ(pools.excess(), 3 * kSegmentSize);
  pools.leave(a);
  EXPECT_EQ(released.size(), 4U);
  pools.leave(b);
  EXPECT_EQ(pools.excess(), kSegmentSize) << "something is saved there still";
  ASSERT_TRUE(pools.of(b).extents.give_back(saved.value()[0]).ok());
  pools.saved_less(b);
  EXPECT_EQ(released.size(), 5U);
  EXPECT_EQ(pools.excess(), 0U);
  EXPECT_EQ(pools.total(), kSegmentSize);
  EXPECT_THAT(renewed, testing::IsEmpty());
}

TEST_F(PoolsTest, OfASegmentThatIsTooMuchInPartTheRestIsMadeAnew) {
  fill(2);
  limit(kSegmentSize + 3 * kPoolUnit);
  ASSERT_EQ(released.size(), 1U);
  ASSERT_EQ(renewed.size(), 1U);
  EXPECT_EQ(renewed[0].size, 3 * kPoolUnit);
  EXPECT_EQ(renewed[0].fd, nullptr) << "there is nothing to give back";
  EXPECT_EQ(pools.excess(), 0U);
  pools.add({nullptr, 3 * kPoolUnit, Place::kMemfd, 0, PoolSegment::Made::kAnew}, ++made);
  EXPECT_EQ(pools.total(), kSegmentSize + 3 * kPoolUnit);
  EXPECT_EQ(released.size(), 1U);
}

TEST_F(PoolsTest, WhatIsBeingMadeAnewCountsWhenThePoolIsTooLarge) {
  fill(1);
  const auto a = owner(1001);
  pools.enter(a);
  keep(a, 1, kSegmentSize);
  pools.leave(a);
  keep(owner(1002), 2, kSegmentSize);
  ASSERT_EQ(renewed.size(), 1U);
  limit(0);
  EXPECT_EQ(pools.excess(), kSegmentSize);
  pools.add({nullptr, kSegmentSize, Place::kMemfd, 0, PoolSegment::Made::kAnew}, ++made);
  EXPECT_EQ(released.size(), 1U);
  EXPECT_EQ(pools.total() + pools.excess(), 0U);
}

TEST_F(PoolsTest, AnOwnerThatComesBackGetsWhatItHad) {
  fill(2);
  const auto a = owner(1001);
  pools.enter(a);
  EXPECT_EQ(keep(a, 1, kSegmentSize), Segments{0});
  pools.leave(a);
  EXPECT_EQ(pools.total(), 2 * kSegmentSize);
  pools.enter(a);
  EXPECT_EQ(keep(a, 1, kSegmentSize), Segments{0});
  EXPECT_THAT(renewed, testing::IsEmpty());
  // Another gets what nobody has had.
  EXPECT_EQ(keep(owner(1002), 2, kSegmentSize), Segments{0});
  EXPECT_THAT(renewed, testing::IsEmpty());
}

TEST_F(PoolsTest, SpaceIsDrawnForASave) {
  fill(3);
  const auto a = owner(1001);
  EXPECT_TRUE(pools.make_space(a, kSegmentSize + 1).ok());
  EXPECT_EQ(pools.of(a).extents.available(), 2 * kSegmentSize);
  EXPECT_TRUE(pools.make_space(a, kSegmentSize + 1).ok());
  EXPECT_EQ(pools.of(a).segments.size(), 2U);
  EXPECT_EQ(pools.unowned(), kSegmentSize);
  EXPECT_EQ(pools.largest_segment(), kSegmentSize);
  const Status status = pools.make_space(a, 4 * kSegmentSize);
  EXPECT_THAT(status.text(), HasSubstr("uid 1001 has 3 MiB of 3 MiB free, but 4 MiB are needed"));
  EXPECT_THAT(status.text(), Not(HasSubstr("quotas.pool"))) << "it has all that there is";
  EXPECT_EQ(pools.used([](const Account&) { return true; }), 0U);
  EXPECT_EQ(pools.place(), "memfd");
}

TEST_F(PoolsTest, WhatOthersHadIsMadeAnewForAPauseThatLacksIt) {
  fill(3);
  const auto a = owner(1001);
  pools.enter(a);
  EXPECT_TRUE(pools.make_space(a, 3 * kSegmentSize).ok());
  pools.leave(a);
  const auto b = owner(1002);
  const Status status = pools.make_space(b, 3 * kSegmentSize);
  EXPECT_THAT(status.text(), HasSubstr("that other users had. Try again in a moment"));
  ASSERT_EQ(renewed.size(), 3U) << "all that is missing at once";
  for (int i = 0; i < 3; ++i)
    pools.add({nullptr, kSegmentSize, Place::kMemfd, 0, PoolSegment::Made::kAnew}, ++made);
  EXPECT_TRUE(pools.make_space(b, 3 * kSegmentSize).ok());
}

TEST_F(PoolsTest, WhatIsComingIsWhatTheOwnerMayHaveOfIt) {
  fill(4);
  const auto a = owner(1001);
  const auto b = owner(1002);
  pools.enter(a);
  EXPECT_TRUE(pools.make_space(a, 3 * kSegmentSize).ok());
  pools.leave(a);
  EXPECT_EQ(pools.coming(*b), 0U);
  EXPECT_FALSE(pools.make_space(b, 3 * kSegmentSize).ok());
  EXPECT_EQ(renewed.size(), 2U) << "one that nobody has had there was";
  EXPECT_EQ(pools.coming(*b), 2 * kSegmentSize);
  EXPECT_FALSE(pools.make_space(b, 3 * kSegmentSize).ok());
  EXPECT_EQ(renewed.size(), 2U) << "no more than is missing";
  pools.expect_renewals(false);
  EXPECT_EQ(pools.coming(*b), 0U);
  pools.expect_renewals(true);
  for (int left = 1; left >= 0; --left) {
    pools.add({nullptr, kSegmentSize, Place::kMemfd, 0, PoolSegment::Made::kAnew}, ++made);
    EXPECT_EQ(pools.coming(*b), static_cast<std::uint64_t>(left) * kSegmentSize);
  }
  EXPECT_TRUE(pools.make_space(b, 3 * kSegmentSize).ok());
}

TEST_F(PoolsTest, TheSpaceOfAnOwnerIsWhatAPauseGets) {
  fill(4);
  const auto a = owner(1001);
  const auto b = owner(1002);
  pools.enter(a);
  EXPECT_EQ(pools.space(a).all(), 3 * kSegmentSize) << "by its quota";
  ASSERT_TRUE(pools.make_space(a, 2 * kSegmentSize).ok());
  auto saved = pools.of(a).extents.take({{kPoolUnit, 0}});
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(pools.space(a).own, 2 * kSegmentSize - kPoolUnit);
  EXPECT_EQ(pools.space(a).stock, kSegmentSize);
  EXPECT_EQ(pools.space(b).all(), 2 * kSegmentSize) << "the rest is another's, used or not";
  pools.of(a).retained.add(7, {saved.value()[0], 1, 1});
  EXPECT_EQ(pools.space(a).own, 2 * kSegmentSize) << "what is retained is free";

  pools.leave(a);
  EXPECT_EQ(pools.space(b).stock, 2 * kSegmentSize);
  EXPECT_EQ(pools.space(b).coming, kSegmentSize) << "as far as its quota goes";
  pools.expect_renewals(false);
  EXPECT_EQ(pools.space(b).all(), 2 * kSegmentSize);
  EXPECT_EQ(pools.unowned(), 4 * kSegmentSize);
  pools.expect_renewals(true);
}

/// Whatever owners have, need and leave.
TEST_F(PoolsTest, APauseGetsAllOfTheSpaceThatIsSaidAndNoMore) {
  std::mt19937 random(20261129);
  const auto below = [&](std::uint64_t most) { return random() % most; };
  const std::shared_ptr<Account> all[] = {owner(1001), owner(1002), owner(1003)};
  bool entered[3] = {};
  for (int i = 0; i < 8; ++i)  // a quota has space for four, and some more
    pools.add({nullptr, 11 * kPoolUnit, Place::kMemfd, static_cast<int>(below(2))}, ++made);
  int limited = 0;
  int came = 0;
  const auto make_anew = [&] {
    while (!renewed.empty()) {
      PoolSegment segment = std::move(renewed.back());
      renewed.pop_back();
      segment.made = PoolSegment::Made::kAnew;
      pools.add(std::move(segment), ++made);
    }
  };
  for (int round = 0; round < 2000; ++round) {
    const std::size_t which = below(3);
    const auto& account = all[which];
    if (std::exchange(entered[which], !entered[which])) {
      pools.leave(account);  // all that it has is free
      continue;
    }
    pools.enter(account);
    const Pools::Space space = pools.space(account);
    limited += space.all() < pools.unowned() + space.own;
    came += space.coming > 0;
    const bool more = below(2) == 0;
    const std::uint64_t bytes = space.all() + (more ? kPoolUnit : 0);
    EXPECT_EQ(pools.make_space(account, bytes).ok(), !more && space.coming == 0) << round;
    make_anew();
    EXPECT_EQ(pools.make_space(account, bytes).ok(), !more) << round;
  }
  EXPECT_GT(limited, 10);
  EXPECT_GT(came, 10);
}

TEST_F(PoolsTest, WhatACompartmentHadIsNobodys) {
  fill(1);
  const Owner pod{0, "user:[12]"};
  {
    const auto a = accounts.of(pod);
    pools.enter(a);
    EXPECT_TRUE(pools.make_space(a, kSegmentSize).ok());
    pools.leave(a);
  }
  const auto next = accounts.of(pod);  // the number may be another's by now
  EXPECT_FALSE(pools.make_space(next, kSegmentSize).ok());
  EXPECT_EQ(renewed.size(), 1U);
}

class ElasticPoolsTest : public PoolsTest {
 protected:
  /// A pool of so many segments, one of which stays.
  void start(std::uint64_t segments) {
    missing = pools.limit({segments * kSegmentSize, kSegmentSize, kSegmentSize});
    pools.add({nullptr, kSegmentSize, Place::kMemfd, 0}, ++made);
    pools.started();
  }
  void come() {
    ASSERT_FALSE(asked.empty());
    pools.add({nullptr, asked.back(), Place::kMemfd, 0, PoolSegment::Made::kMore}, ++made);
    asked.pop_back();
  }
  /// So many segments more than the reserve.
  void grow(const std::shared_ptr<Account>& account, int segments) {
    for (int i = 0; i < segments; ++i) {
      EXPECT_TRUE(pools.make_more(account));
      come();
    }
  }
  std::uint64_t missing = 0;
};

TEST_F(ElasticPoolsTest, MoreThanTheReserveIsMadeOnlyWhenItIsAskedFor) {
  start(5);
  EXPECT_EQ(missing, kSegmentSize) << "the reserve";
  EXPECT_TRUE(pools.elastic());
  EXPECT_EQ(pools.total(), kSegmentSize);
  EXPECT_EQ(pools.beyond_reserve(), 0U);
  const auto a = owner(1001);
  EXPECT_EQ(pools.can_make(a), 2 * kSegmentSize) << "its quota is 3 segments, and one is there";
  EXPECT_TRUE(pools.make_more(a));
  EXPECT_TRUE(pools.make_more(a));
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{kSegmentSize})) << "one at a time";
  come();
  EXPECT_EQ(pools.beyond_reserve(), kSegmentSize);
  pools.draw(a, 2 * kSegmentSize);
  EXPECT_EQ(pools.of(a).available(), 2 * kSegmentSize);
  EXPECT_TRUE(pools.make_more(a));
  come();
  pools.draw(a, 3 * kSegmentSize);
  EXPECT_EQ(pools.can_make(a), 0U);
  EXPECT_FALSE(pools.make_more(a));
  const auto b = owner(1002);
  EXPECT_EQ(pools.can_make(b), 2 * kSegmentSize) << "what is left of the pool";
}

TEST_F(ElasticPoolsTest, WhatIsStillBeingStartedIsNotMadeTwice) {
  (void)pools.limit({2 * kSegmentSize, kSegmentSize, kSegmentSize});
  EXPECT_EQ(pools.can_make(owner(1001)), kSegmentSize);
  pools.started();
  EXPECT_EQ(pools.can_make(owner(1001)), 2 * kSegmentSize) << "the reserve is not to be had";
}

TEST_F(ElasticPoolsTest, APoolThatIsAllReserveDoesNotGrow) {
  limit(4 * kSegmentSize);
  pools.started();
  EXPECT_FALSE(pools.elastic());
  EXPECT_EQ(pools.can_make(owner(1001)), 0U);
  EXPECT_FALSE(pools.make_more(owner(1001)));
}

TEST_F(ElasticPoolsTest, WhatCannotBeMadeIsToldForASecond) {
  start(3);
  EXPECT_TRUE(pools.no_more().ok());
  EXPECT_TRUE(pools.make_more(owner(1001)));
  pools.not_made(asked.back(), {Code::kResourceExhausted, "no space"});
  EXPECT_EQ(pools.no_more().text(), "no space");
  asked.clear();
  EXPECT_TRUE(pools.make_more(owner(1001))) << "whoever asks may try again";
  EXPECT_EQ(asked.size(), 1U);
}

TEST_F(ElasticPoolsTest, WhatHasBeenInStockForLongIsGivenBackDownToTheReserve) {
  start(4);
  grow(owner(1001), 2);
  const Time now = Clock::now();
  EXPECT_LE(pools.release_idle(now - std::chrono::seconds(1)), now) << "none has for so long";
  EXPECT_THAT(released, testing::IsEmpty());
  EXPECT_EQ(pools.release_idle(now), std::nullopt);
  EXPECT_EQ(released.size(), 2U);
  EXPECT_EQ(pools.total(), kSegmentSize);
}

TEST_F(ElasticPoolsTest, WhatItsOwnerDoesNotNeedIsWithdrawnAndItsNumberIsFreeAgain) {
  start(4);
  const auto a = owner(1001);
  pools.enter(a);
  grow(a, 2);
  pools.draw(a, 3 * kSegmentSize);
  const Time now = Clock::now();
  EXPECT_EQ(pools.withdraw(a, now - std::chrono::seconds(1), 1), std::nullopt) << "it was needed";
  const std::optional<std::uint32_t> first = pools.withdraw(a, now, 1);
  ASSERT_TRUE(first);
  EXPECT_EQ(pools.of(a).available(), 2 * kSegmentSize);
  EXPECT_EQ(pools.total(), 3 * kSegmentSize) << "it is still pinned";
  EXPECT_EQ(pools.space(a).own, 3 * kSegmentSize) << "it can be had";
  EXPECT_TRUE(keep(a, 7, kSegmentSize) != Segments{*first});
  pools.left(a, *first, 2);
  EXPECT_THAT(released, testing::IsEmpty()) << "that was another number";
  pools.left(a, *first, 1);
  EXPECT_EQ(released.size(), 1U);
  EXPECT_EQ(pools.total(), 2 * kSegmentSize);
  EXPECT_EQ(a->used(Resource::kPoolBytes), 2 * kSegmentSize);
  const std::optional<std::uint32_t> second = pools.withdraw(a, now, 3);
  ASSERT_TRUE(second);
  EXPECT_EQ(pools.withdraw(a, now, 4), std::nullopt) << "the reserve stays";
  pools.left(a, *second, 3);
  EXPECT_TRUE(pools.make_more(a));
  come();
  pools.draw(a, 2 * kSegmentSize);
  EXPECT_EQ(pools.of(a).segments.size(), 3U) << "numbers do not grow without end";
  EXPECT_EQ(pools.of(a).available(), 2 * kSegmentSize);
}

TEST_F(ElasticPoolsTest, WhatIsWithdrawnComesBackForWhoLacksSpace) {
  start(3);
  const auto a = owner(1001);
  pools.enter(a);
  EXPECT_TRUE(pools.make_more(a));
  come();
  pools.draw(a, 2 * kSegmentSize);
  const std::optional<std::uint32_t> leaves = pools.withdraw(a, Clock::now(), 1);
  ASSERT_TRUE(leaves);
  EXPECT_TRUE(pools.make_space(a, kSegmentSize).ok());
  EXPECT_EQ(pools.of(a).segments[*leaves].leaving, 1U) << "there was enough";
  EXPECT_TRUE(pools.make_space(a, 2 * kSegmentSize).ok());
  EXPECT_EQ(pools.of(a).available(), 2 * kSegmentSize);
  pools.left(a, *leaves, 1);
  pools.stayed(a, *leaves, 1);
  EXPECT_EQ(pools.of(a).available(), 2 * kSegmentSize) << "an answer that comes late says nothing";
  EXPECT_THAT(released, testing::IsEmpty());
}

TEST_F(ElasticPoolsTest, WhatHoldsSavedBytesStaysAndWhatIsRetainedGoesLast) {
  start(4);
  const auto a = owner(1001);
  pools.enter(a);
  grow(a, 2);
  pools.draw(a, 3 * kSegmentSize);
  OwnPool& pool = pools.of(a);
  auto taken = pool.extents.take({{kPoolUnit, 0}, {kPoolUnit, 1}}, {{0, 1, 2}, {1, 0, 2}});
  ASSERT_TRUE(taken.ok());
  pool.retained.add(5, {taken.value()[1], 1, 1});
  const Time now = Clock::now();
  EXPECT_EQ(pools.withdraw(a, now, 1), 2U);
  EXPECT_EQ(pool.retained.bytes(), kPoolUnit);
  EXPECT_EQ(pools.withdraw(a, now, 2), 1U);
  EXPECT_EQ(pool.retained.bytes(), 0U);
  pools.leave(a);
  EXPECT_EQ(pools.total(), 3 * kSegmentSize);
  EXPECT_TRUE(pool.extents.give_back(taken.value()[0]).ok());
  pools.saved_less(a);
  EXPECT_EQ(pools.total(), 3 * kSegmentSize) << "what was leaving is in stock with the rest";
  EXPECT_EQ(pools.release_idle(Clock::now()), std::nullopt);
  EXPECT_EQ(released.size(), 2U);
}

}  // namespace
}  // namespace amem
