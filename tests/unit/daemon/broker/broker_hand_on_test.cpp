// Memory that a group leaves goes to the group that comes in for it, if nobody can write to it any
// more and both are one owner's.
#include "tests/unit/fixtures/swap_fixture.h"

namespace amem {
namespace {

using world::MemoryId;

class HandOnTest : public SwapTest {
 protected:
  void configure(Config&) const override {}
  static std::set<MemoryId> memory_of(const ScriptedRank& rank) {
    std::set<MemoryId> memory;
    for (const auto& [id, is] : rank.mapped()) memory.insert(is);
    return memory;
  }
  /// Of the memory that `rank` has, how much is of these.
  static std::size_t of_these(const ScriptedRank& rank, const std::set<MemoryId>& these) {
    const std::set<MemoryId> memory = memory_of(rank);
    return static_cast<std::size_t>(std::count_if(
        memory.begin(), memory.end(), [&](const MemoryId& is) { return these.contains(is); }));
  }
  /// Both have 8 times 10 MiB that is discarded and 3 times 2 MiB.
  void make_twins() {
    make_both(80 * kMiB, 80 * kMiB);
    fill_device();
  }
  /// Else what is copied comes in beside what leaves.
  void fill_device() {
    join(d, "other");
    ASSERT_NE(d.create(gpu(0), nvml.memory(gpu(0))->free / (2 * kMiB) * 2 * kMiB), 0U);
  }
  static constexpr std::size_t kAll = 11;
  ScriptedRank d;
};

TEST_F(HandOnTest, TwinsTakeEachOthersMemory) {
  make_twins();
  for (int i = 0; i < 2; ++i) {
    std::set<MemoryId> before = memory_of(a);
    ASSERT_TRUE(swap("train", "rollout").ok());
    EXPECT_EQ(of_these(b, before), kAll);
    expect_intact(b, rollout);
    EXPECT_TRUE(b.holds(b.memory.begin()->first, 0)) << "what is discarded comes back as zeros";
    before = memory_of(b);
    ASSERT_TRUE(swap("rollout", "train").ok());
    EXPECT_EQ(of_these(a, before), kAll);
    expect_intact(a, train);
  }
}

TEST_F(HandOnTest, OnlyMemoryOfOneSizeAndDevice) {
  make(b, rollout, 80 * kMiB, 3);
  b.free(rollout.kept.back());
  rollout.kept.back() = b.create(gpu(1), 2 * kMiB);
  b.write(rollout.kept.back(), 102);
  const std::uint64_t other = b.create(gpu(0), 4 * kMiB);
  b.write(other, 0x44);
  ASSERT_TRUE(pause("rollout").ok());
  make(a, train, 80 * kMiB, 4);
  fill_device();
  const std::set<MemoryId> before = memory_of(a);
  ASSERT_TRUE(swap("train", "rollout").ok());
  EXPECT_EQ(of_these(b, before), kAll - 1);
  expect_intact(b, rollout);
  EXPECT_TRUE(b.holds(other, 0x44));
}

TEST_F(HandOnTest, NotWhatARankMayHaveStill) {
  make_twins();
  const std::set<MemoryId> before = memory_of(a);
  a.moods[kRelease] = Mood::kFailing;
  EXPECT_FALSE(swap("train", "rollout").ok());
  EXPECT_EQ(of_these(b, before), 0U);
  d.die();  // what a has kept takes space
  settle();
  ASSERT_TRUE(resume("rollout").ok());
  EXPECT_EQ(of_these(b, before), 0U);
  expect_intact(b, rollout);
}

TEST_F(HandOnTest, NotWhatAPeerThatHasGoneMayHaveStill) {
  make_twins();
  join(c, "train", 1);
  c.share(a, train.kept[0]);
  c.die();
  settle();
  std::set<MemoryId> before = memory_of(a);
  ASSERT_TRUE(swap("train", "rollout").ok());
  EXPECT_EQ(of_these(b, before), kAll - 1);
  ASSERT_TRUE(swap("rollout", "train").ok());
  expect_intact(a, train);
  before = memory_of(a);
  ASSERT_TRUE(swap("train", "rollout").ok());
  EXPECT_EQ(of_these(b, before), kAll) << "it has other memory now";
}

TEST_F(HandOnTest, NotWhatStaysOrARankHasMadeItself) {
  make_both(80 * kMiB, 80 * kMiB);
  a.use(devices);
  ASSERT_NE(a.make(gpu(0), 2 * kMiB), 0U);
  fill_device();
  a.pin(train.kept[0]);
  settle();
  const std::set<MemoryId> before = memory_of(a);
  const Status swapped = swap("train", "rollout");
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  EXPECT_EQ(of_these(b, before), kAll - 1) << "the third of 2 MiB is new";
  expect_intact(b, rollout);
}

TEST_F(HandOnTest, WhatTheOtherGroupLacksNoMoreBecomesFree) {
  make_twins();
  const std::uint64_t free = nvml.memory(gpu(0))->free;
  a.moods[kSave] = Mood::kLate;
  const auto watcher = begin_swap("train", "rollout");
  ASSERT_TRUE(eventually([&] { return a.received[kSave] > 0; }));
  b.free(b.memory.begin()->first);
  a.catch_up();
  ASSERT_TRUE(complete(watcher).ok());
  EXPECT_TRUE(eventually([&] { return nvml.memory(gpu(0))->free == free + kPiece; }));
}

class SparesKeptTest : public HandOnTest {
 protected:
  static constexpr Duration kIdle = seconds(5);
  void configure(Config& settings) const override { settings.spare_idle = kIdle; }
  std::uint64_t spare_bytes() {
    v1::NodeStatus status;
    on_loop([&] { broker->reports().status(Caller{}, status); });
    return status.devices(0).spare_bytes();
  }
  void settled_twins() {
    make_both(80 * kMiB, 80 * kMiB);
    EXPECT_EQ(spare_bytes(), 0U) << "of rollout's pause, because train came";
    fill_device();
  }
  std::uint64_t free_bytes() { return nvml.memory(gpu(0))->free; }
  static constexpr std::uint64_t kBytes = 8 * kPiece + 3 * 2 * kMiB;
};

TEST_F(SparesKeptTest, AResumeTakesWhatThePauseLeft) {
  make(a, train, 80 * kMiB, 3);
  const std::set<MemoryId> before = memory_of(a);
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t free = free_bytes();
    ASSERT_TRUE(pause("train").ok());
    EXPECT_EQ(free_bytes(), free) << "nothing has been closed";
    EXPECT_EQ(spare_bytes(), kBytes);
    a.loads.clear();
    ASSERT_TRUE(resume("train").ok());
    EXPECT_EQ(of_these(a, before), kAll);
    EXPECT_EQ(a.loads.size(), 3U);
    for (const amem_v1_Copy& copy : a.loads) EXPECT_TRUE(copy.in_place);
    EXPECT_EQ(spare_bytes(), 0U);
    expect_intact(a, train);
    EXPECT_TRUE(a.holds(a.memory.begin()->first, 0)) << "what is discarded comes back as zeros";
  }
}

TEST_F(SparesKeptTest, AnotherGroupOfTheOwnerTakesIt) {
  settled_twins();
  const std::set<MemoryId> before = memory_of(a);
  ASSERT_TRUE(pause("train").ok());
  b.loads.clear();
  ASSERT_TRUE(resume("rollout").ok());
  EXPECT_EQ(of_these(b, before), kAll);
  EXPECT_EQ(b.loads.size(), 3U);
  for (const amem_v1_Copy& copy : b.loads) EXPECT_FALSE(copy.in_place) << "others' bytes";
  expect_intact(b, rollout);
  ASSERT_TRUE(pause("rollout").ok());
  ASSERT_TRUE(resume("train").ok());
  expect_intact(a, train);
}

TEST_F(SparesKeptTest, ItIsClosedInTime) {
  make(a, train, 80 * kMiB, 3);
  const std::uint64_t free = free_bytes();
  ASSERT_TRUE(pause("train").ok());
  EXPECT_EQ(free_bytes(), free);
  EXPECT_TRUE(eventually([&] { return free_bytes() == free + kBytes; }));
  EXPECT_EQ(spare_bytes(), 0U);
  ASSERT_TRUE(resume("train").ok());
  expect_intact(a, train);
}

TEST_F(SparesKeptTest, WhoLacksMemoryHasAsMuchClosedAsItNeeds) {
  settled_twins();
  const std::set<MemoryId> before = memory_of(a);
  ASSERT_TRUE(pause("train").ok());
  ASSERT_LT(free_bytes(), 2 * kPiece);
  const std::uint64_t id = d.create(gpu(0), 2 * kPiece);
  ASSERT_NE(id, 0U);
  EXPECT_EQ(of_these(d, before), 0U) << "programs rely on zeros of new memory";
  EXPECT_LE(spare_bytes(), kBytes - 2 * kPiece);
  EXPECT_GE(spare_bytes(), kBytes - 4 * kPiece);
  d.free(id);
  settle();
  ASSERT_TRUE(resume("train").ok()) << "new memory, where there is none of its own any more";
  expect_intact(a, train);
}

TEST_F(SparesKeptTest, AResumeOfOtherKindsHasItClosed) {
  make(b, rollout, 0, 3);
  const std::uint64_t large = b.create(gpu(0), 12 * kMiB);
  b.write(large, 0x66);
  ASSERT_TRUE(pause("rollout").ok());
  make(a, train, 80 * kMiB, 3);
  fill_device();
  ASSERT_TRUE(pause("train").ok());
  EXPECT_EQ(spare_bytes(), kBytes);
  const Status resumed = resume("rollout");
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_EQ(spare_bytes(), 0U) << "what runs needs memory for more than it asks amemd for";
  EXPECT_TRUE(b.holds(large, 0x66));
  expect_intact(b, rollout);
}

TEST_F(SparesKeptTest, ItWaitsForTheRestOfAGroupThatComesBackInParts) {
  settled_twins();
  const std::set<MemoryId> before = memory_of(a);
  ASSERT_TRUE(pause("train").ok());
  ASSERT_TRUE(complete(begin({Operation::kResume, {{"nccl"}}}, "rollout")).ok());
  EXPECT_EQ(spare_bytes(), 8 * kPiece);
  ASSERT_TRUE(complete(begin({Operation::kResume, {{"scratch"}}}, "rollout")).ok());
  EXPECT_EQ(of_these(b, before), kAll);
  EXPECT_EQ(spare_bytes(), 0U);
  expect_intact(b, rollout);
}

TEST_F(SparesKeptTest, NothingIsKeptThatARankMayHaveStill) {
  make(a, train, 80 * kMiB, 3);
  a.moods[kRelease] = Mood::kFailing;
  EXPECT_FALSE(pause("train").ok());
  EXPECT_EQ(spare_bytes(), 0U);
}

TEST_F(SparesKeptTest, WhatNobodyLacksAnyMoreIsClosed) {
  make(a, train, 80 * kMiB, 3);
  const std::uint64_t free = free_bytes();
  ASSERT_TRUE(pause("train").ok());
  EXPECT_EQ(spare_bytes(), kBytes);
  const Time died = Clock::now();
  a.die();
  EXPECT_TRUE(eventually([&] { return free_bytes() == free + kBytes; }));
  EXPECT_LT(Clock::now() - died, kIdle / 2);
}

class HandOnInTurnTest : public HandOnTest {
  void configure(Config& settings) const override { settings.swap_duplex = false; }
};

TEST_F(HandOnInTurnTest, ItWaitsForTheOtherGroup) {
  make_twins();
  const std::set<MemoryId> before = memory_of(a);
  ASSERT_TRUE(swap("train", "rollout").ok());
  EXPECT_EQ(of_these(b, before), kAll);
  expect_intact(b, rollout);
  expect_usable();
}

class HandOnOffTest : public HandOnTest {
  void configure(Config& settings) const override { settings.swap_hand_on = false; }
};

TEST_F(HandOnOffTest, TheDriverMakesAll) {
  make_twins();
  const std::set<MemoryId> before = memory_of(a);
  ASSERT_TRUE(swap("train", "rollout").ok());
  EXPECT_EQ(of_these(b, before), 0U);
  expect_usable();
}

}  // namespace
}  // namespace amem
