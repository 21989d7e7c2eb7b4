// Bytes that stay in the pool after a resume, as the broker sees them: when a rank is told that its
// bytes are still there, and who gets their space.
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

constexpr pb_size_t kSaveTag = amem_v1_SessionMessage_save_tag;

class BrokerRetainTest : public BrokerTest {
 protected:
  std::uint64_t used() { return status().pool().used_bytes(); }
  std::uint64_t retained() { return status().pool().retained_bytes(); }
  /// A rank that takes hashes and has some memory, which a pause has saved and a resume loaded.
  std::uint64_t cycle_of(ScriptedRank& rank, const std::string& name, std::uint64_t size,
                         std::size_t device = 0, const std::string& tag = "weights") {
    join(rank, name);
    rank.habits.hashes = true;
    const std::uint64_t id = rank.create(gpu(device), size, tag);
    rank.write(id, 0x21);
    cycle(name);
    return id;
  }
  void cycle(const std::string& name = "train") {
    const Status paused = pause(name);
    ASSERT_TRUE(paused.ok()) << paused.text();
    const Status resumed = resume(name);
    ASSERT_TRUE(resumed.ok()) << resumed.text();
  }
  /// Of the first copy of the last Save.
  static std::uint64_t since(const ScriptedRank& rank, std::size_t of = 0) {
    return rank.saves.at(of).since;
  }
};

TEST_F(BrokerRetainTest, TheNextSaveIsToldWhichSavesBytesAreThere) {
  const std::uint64_t id = cycle_of(a, "train", 12 * kMiB);
  ASSERT_EQ(a.saves.size(), 2U) << "more than one segment of the pool";
  EXPECT_TRUE(a.saves[0].hash);
  EXPECT_EQ(since(a), 0U);
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(retained(), 12 * kMiB);
  EXPECT_EQ(group().retained_bytes(), 12 * kMiB);
  EXPECT_EQ(group().tags(0).retained_bytes(), 12 * kMiB);
  const std::uint64_t first = a.hashed.at({id, 0}).epoch;
  const std::vector<amem_v1_Copy> before = std::exchange(a.saves, {});
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(complete(watcher).ok());
  EXPECT_EQ(used(), 12 * kMiB);
  EXPECT_EQ(retained(), 0U) << "the pause has them";
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(a.saves[i].since, first);
    EXPECT_EQ(a.saves[i].segment, before[i].segment);
    EXPECT_EQ(a.saves[i].segment_offset, before[i].segment_offset);
  }
  const v1::Progress done = watcher->all().back();
  ASSERT_EQ(done.saves_size(), 1);
  EXPECT_EQ(done.saves(0).tag(), "weights");
  EXPECT_EQ(done.saves(0).kept_bytes(), 12 * kMiB);
  EXPECT_EQ(done.saves(0).compared_bytes(), 12 * kMiB);
  EXPECT_EQ(done.saves(0).unchanged_bytes(), 12 * kMiB);
  EXPECT_EQ(done.saves(0).copied_bytes(), 0U);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(id, 0x21));
  EXPECT_EQ(retained(), 12 * kMiB);
}

TEST_F(BrokerRetainTest, WhatAnotherRankHasSavedIsSavedAnew) {
  const std::uint64_t id = cycle_of(a, "train", 4 * kMiB);
  join(b, "train", 1);
  b.habits.hashes = true;
  b.share(a, id);
  a.free(id);  // b is its keeper now, and has no hashes of what a has saved
  settle();
  b.saves.clear();
  cycle();
  ASSERT_EQ(b.saves.size(), 1U);
  EXPECT_EQ(since(b), 0U);
  EXPECT_TRUE(b.holds(id, 0x21));
}

TEST_F(BrokerRetainTest, WithoutHashesNothingIsRetained) {
  join(a);
  a.create(gpu(0), 4 * kMiB);
  cycle();
  EXPECT_EQ(retained(), 0U);
  a.saves.clear();
  cycle();
  EXPECT_EQ(since(a), 0U);
}

TEST_F(BrokerRetainTest, NobodyHasToReachAnotherSegmentBecauseOfThem) {
  cycle_of(a, "one", 30 * kMiB);  // all segments but 2 MiB of the last
  EXPECT_EQ(retained(), 30 * kMiB);
  join(b, "two");
  const std::uint64_t id = b.create(gpu(0), 6 * kMiB, "weights");
  b.write(id, 4);
  settle();
  const std::set<std::uint32_t> reached = [&] {
    std::set<std::uint32_t> indices;
    for (const auto& [index, fd] : b.segments) indices.insert(index);
    return indices;
  }();
  ASSERT_EQ(reached.size(), 1U);
  ASSERT_TRUE(pause("two").ok());
  for (const amem_v1_Copy& save : b.saves) EXPECT_TRUE(reached.contains(save.segment));
  ASSERT_TRUE(resume("two").ok());
  EXPECT_TRUE(b.holds(id, 4));
}

TEST_F(BrokerRetainTest, APauseDoesNotTakeTheSpaceOfItsOwnBytes) {
  cycle_of(a, "train", 12 * kMiB);
  const std::uint64_t more = a.create(gpu(0), 20 * kMiB, "weights");
  a.write(more, 9);
  a.saves.clear();
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(), kPool);
  EXPECT_NE(since(a), 0U);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(more, 9));
}

TEST_F(BrokerRetainTest, APauseThatThePoolIsTooSmallForLeavesThemThere) {
  const std::uint64_t id = cycle_of(a, "train", 12 * kMiB);
  const std::uint64_t more = a.create(gpu(0), 40 * kMiB, "weights");
  a.habits.mask = ~0U;
  EXPECT_EQ(pause().code(), Code::kResourceExhausted);
  EXPECT_EQ(used(), 0U);
  a.free(more);
  settle();
  a.saves.clear();
  cycle();
  EXPECT_TRUE(a.holds(id, 0x21));
}

TEST_F(BrokerRetainTest, ASaveThatFailsLeavesNothingToCompareWith) {
  const std::uint64_t id = cycle_of(a, "train", 4 * kMiB);
  a.moods[kSaveTag] = Mood::kFailing;
  EXPECT_FALSE(pause().ok());
  EXPECT_EQ(retained(), 0U) << "some of the bytes may have been overwritten";
  EXPECT_EQ(used(), 0U);
  a.moods.clear();
  a.saves.clear();
  cycle();
  EXPECT_EQ(since(a), 0U);
  EXPECT_TRUE(a.holds(id, 0x21));
}

TEST_F(BrokerRetainTest, WhatOneRankHasSavedBeforeAnotherFailedIsRetained) {
  const std::uint64_t id = cycle_of(a, "train", 4 * kMiB);
  join(b, "train", 1);
  b.habits.hashes = true;
  const std::uint64_t of_other = b.create(gpu(1), 2 * kMiB, "weights");
  b.write(of_other, 5);
  cycle();
  b.moods[kSaveTag] = Mood::kSilent;
  a.received.clear();
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return a.received[kSaveTag] > 0; }));
  settle();
  b.done(RankPhase::kSave, b.epoch, true);
  EXPECT_FALSE(complete(watcher).ok());
  b.moods.clear();
  EXPECT_EQ(retained(), 4 * kMiB) << "with the bytes of this Save";
  a.saves.clear();
  b.saves.clear();
  const std::uint64_t last = a.hashed.at({id, 0}).epoch;
  cycle();
  EXPECT_EQ(since(a), last);
  EXPECT_EQ(since(b), 0U);
}

TEST_F(BrokerRetainTest, AFreeAPinAndADiscardEndThem) {
  cycle_of(a, "train", 4 * kMiB);
  const std::uint64_t second = a.create(gpu(0), 2 * kMiB, "cache");
  const std::uint64_t third = a.create(gpu(0), 6 * kMiB, "nccl");
  cycle();
  EXPECT_EQ(retained(), 12 * kMiB);
  a.free(a.hashed.begin()->first.first);
  settle();
  EXPECT_EQ(retained(), 8 * kMiB);
  a.pin(third);
  settle();
  EXPECT_EQ(retained(), 2 * kMiB);
  ASSERT_TRUE(complete(begin(Task(Operation::kPause, {}, {"cache"}))).ok());
  EXPECT_EQ(retained(), 0U);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(second, 0));
}

TEST_F(BrokerRetainTest, AnotherKeeperCopiesAll) {
  const std::uint64_t id = cycle_of(a, "train", 4 * kMiB);
  join(b, "train", 1);
  b.habits.hashes = true;
  b.share(a, id);
  a.free(id);
  settle();
  EXPECT_EQ(retained(), 0U) << "b has no hashes of it";
  b.saves.clear();
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(since(b), 0U);
  EXPECT_EQ(used(), 4 * kMiB);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(id, 0x21));
}

TEST_F(BrokerRetainTest, TheyGoWithTheRankThatHasTheHashes) {
  const std::uint64_t id = cycle_of(a, "train", 4 * kMiB);
  join(b, "train", 1);
  b.share(a, id);
  a.die();
  ASSERT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  EXPECT_EQ(retained(), 0U);
}

TEST_F(BrokerRetainTest, WhatARankWithoutASessionMayHaveWrittenIsNotRetained) {
  const std::uint64_t shared = cycle_of(a, "train", 4 * kMiB);
  a.create(gpu(0), 2 * kMiB, "weights");
  join(b, "train", 1);
  b.habits.hashes = true;
  b.share(a, shared);
  b.create(gpu(1), 6 * kMiB, "weights");
  cycle();
  EXPECT_EQ(retained(), 12 * kMiB);
  b.moods[kSaveTag] = Mood::kSilent;
  a.received.clear();
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return a.received[kSaveTag] > 0; }));
  settle();
  b.lose_session();
  EXPECT_FALSE(complete(watcher).ok());
  EXPECT_EQ(retained(), 2 * kMiB) << "of what only the other has";
  a.saves.clear();
  b.die();
  ASSERT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  cycle();
  for (const amem_v1_Copy& copy : a.saves) EXPECT_EQ(copy.since == 0, copy.id == shared);
  EXPECT_TRUE(a.holds(shared, 0x21));
}

TEST_F(BrokerRetainTest, PausesOfATagLeaveThoseOfOthers) {
  cycle_of(a, "train", 4 * kMiB);
  a.create(gpu(0), 2 * kMiB, "cache");
  cycle();
  Task task(Operation::kPause, Selection{{"cache"}});
  ASSERT_TRUE(complete(begin(task)).ok());
  EXPECT_EQ(retained(), 4 * kMiB);
  ASSERT_TRUE(resume().ok());
  EXPECT_EQ(retained(), 6 * kMiB);
}

class BrokerRetainOneSegmentTest : public BrokerRetainTest {
 protected:
  void configure(Config& chosen) const override { chosen.pool_segment = kPool; }
};

TEST_F(BrokerRetainOneSegmentTest, TheOldestGoesWhereAnotherGroupNeedsTheSpace) {
  cycle_of(a, "one", 12 * kMiB);
  cycle_of(b, "two", 12 * kMiB);
  EXPECT_EQ(retained(), 24 * kMiB);
  join(c, "three");
  const std::uint64_t id = c.create(gpu(1), 20 * kMiB, "weights");
  c.write(id, 3);
  ASSERT_TRUE(pause("three").ok());
  EXPECT_EQ(retained(), 12 * kMiB) << "of the second group";
  EXPECT_EQ(group("two").retained_bytes(), 12 * kMiB);
  a.saves.clear();
  b.saves.clear();
  ASSERT_TRUE(pause("two").ok());
  EXPECT_NE(since(b), 0U);
  ASSERT_TRUE(resume("three").ok());
  EXPECT_TRUE(c.holds(id, 3));
  ASSERT_TRUE(pause("one").ok());
  EXPECT_EQ(since(a), 0U);
}

class BrokerRetainOffTest : public BrokerRetainTest {
 protected:
  void configure(Config& chosen) const override { chosen.pool_retain = Retain::kOff; }
};

TEST_F(BrokerRetainOffTest, NobodyIsToldToTakeHashes) {
  cycle_of(a, "train", 4 * kMiB);
  EXPECT_FALSE(a.saves.at(0).hash);
  EXPECT_EQ(retained(), 0U);
}

TEST_F(BrokerRetainTest, WhatChangesIsCopiedPlainlyAndLookedAtNowAndThen) {
  join(a);
  a.habits.hashes = true;
  const std::uint64_t id = a.create(gpu(0), 4 * kMiB, "state");
  std::vector<int> hashed;
  for (int i = 0; i < 12; ++i) {
    a.write(id, static_cast<std::uint8_t>(i + 1));
    a.saves.clear();
    cycle();
    if (a.saves.at(0).hash) hashed.push_back(i);
    EXPECT_TRUE(a.holds(id, static_cast<std::uint8_t>(i + 1)));
  }
  EXPECT_EQ(hashed, (std::vector{0, 1, 2, 10, 11}));
}

TEST_F(BrokerRetainTest, OfCallsThatPassNoGateEverythingIsCopied) {
  join(a);
  a.habits.hashes = true;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_unknown_calls_tag;
  message.body.unknown_calls.calls_count = 1;
  set_text(message.body.unknown_calls.calls[0].name, "cuExample");
  message.body.unknown_calls.calls[0].fate = amem_v1_UnknownCalls_Fate_FATE_HIDDEN;
  a.send(message);
  a.create(gpu(0), 4 * kMiB, "weights");
  cycle();
  EXPECT_TRUE(a.saves.at(0).hash);
  message.body.unknown_calls.calls[0].fate = amem_v1_UnknownCalls_Fate_FATE_LISTED;
  a.send(message);
  a.saves.clear();
  cycle();
  EXPECT_FALSE(a.saves.at(0).hash);
  EXPECT_EQ(since(a), 0U);
  EXPECT_EQ(retained(), 0U);
}

}  // namespace
}  // namespace amem
