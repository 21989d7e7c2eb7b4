// A swap without space for both groups: one leaves in waves, and the other comes in where it has
// been.
#include "tests/unit/fixtures/swap_fixture.h"

namespace amem {
namespace {

class WavesTest : public SwapTest {
 protected:
  void configure(Config& settings) const override { settings.swap_wave = 4 * kMiB; }

  /// 10 MiB of kept memory, and `scratch` of what is discarded, which leaves in the first of the
  /// waves of 4, 4 and 2 MiB.
  void make_one(ScriptedRank& rank, Group& group, std::uint64_t scratch) {
    make(rank, group, 0, 5);
    for (; scratch > 0; scratch -= kPiece) ASSERT_NE(rank.create(gpu(0), kPiece, "scratch"), 0U);
  }
  void make_full() {
    make_one(b, rollout, 80 * kMiB);
    ASSERT_TRUE(pause("rollout").ok());
    make_one(a, train, 80 * kMiB);
    // So that not even one piece fits beside train.
    join(c, "other");
    fill = c.create(gpu(0), free_memory() / (2 * kMiB) * 2 * kMiB);
    ASSERT_NE(fill, 0U);
    a.received.clear();
    b.received.clear();
  }
  std::uint64_t free_memory() { return nvml.memory(gpu(0))->free; }
  /// The first wave of train has left, and it takes its time to save the second.
  std::shared_ptr<Watcher> swap_to_a_late_second_save() {
    a.moods[kSave] = Mood::kLate;
    auto watcher = begin_swap("train", "rollout");
    EXPECT_TRUE(eventually([&] { return a.received[kSave] == 1; }));
    a.catch_up();
    a.received[kSave] = 1;  // what it catches up with is counted again
    a.moods[kSave] = Mood::kLate;
    EXPECT_TRUE(eventually([&] { return a.received[kSave] == 2; }));
    return watcher;
  }
  std::uint64_t fill = 0;
};

TEST_F(WavesTest, EachWaveMakesSpaceForTheOtherGroup) {
  make_full();
  auto watcher = swap_to_a_late_second_save();
  EXPECT_EQ(mapped(a), 6 * kMiB);
  EXPECT_TRUE(eventually([&] { return mapped(b) == 84 * kMiB; })) << "the first wave's space";
  EXPECT_EQ(group("train").phase(), "save");
  EXPECT_EQ(group("rollout").phase(), "create");
  a.catch_up();
  a.received[kSave] = 2;
  const Status swapped = complete(watcher);
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  EXPECT_EQ(a.received[kSave], 3) << "what is discarded is not saved";
  EXPECT_EQ(a.received[kRelease], 3);
  EXPECT_EQ(mapped(a), 0U);
  EXPECT_EQ(group("train").resident_bytes(), 0U);
  expect_intact(b, rollout);
  expect_usable();
}

TEST_F(WavesTest, WhatTheSwapDropsIsNotSavedAndComesBackZeroed) {
  make_full();
  a.free(train.kept.back());
  train.kept.pop_back();
  settle();
  const std::uint64_t cache = a.create(gpu(0), 2 * kMiB, "kv_cache");
  ASSERT_NE(cache, 0U);
  a.write(cache, 0x77);
  const Status swapped = complete(begin_swap("train", "rollout", {}, {"kv_cache"}));
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  EXPECT_EQ(a.received[kRelease], 2) << "in waves";
  expect_intact(b, rollout);
  EXPECT_EQ(group("train").dropped_bytes(), 82 * kMiB) << "by this swap and by the policy";
  ASSERT_TRUE(swap("rollout", "train").ok());
  EXPECT_TRUE(a.holds(cache, 0));
  expect_intact(a, train);
}

TEST_F(WavesTest, AnAnswerOfAnotherWaveDoesNotCount) {
  make_full();
  auto watcher = swap_to_a_late_second_save();
  ASSERT_EQ(a.wave, 1U);
  a.wave = 0;
  a.done(RankPhase::kSave, a.epoch);
  settle();
  EXPECT_EQ(group("train").phase(), "save");
  EXPECT_EQ(a.received[kRelease], 1) << "the second wave has not been saved";
  a.catch_up();
  const Status swapped = complete(watcher);
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  expect_intact(b, rollout);
  expect_usable();
}

/// The other nodes of a swap, which say nothing of themselves.
class OtherNodes final : public RemoteNodes {
 public:
  const std::string& transaction() const override { return transaction_; }
  void quiesces(const std::string&, const std::vector<RankId>&) override {}
  void reported(const std::string&, RankId, const std::optional<CutReport>&) override { ++reports; }
  void asks(Side) override {}
  void withdraws(Side) override {}
  int reports = 0;

 private:
  const std::string transaction_ = std::string(16, 'o');
};

/// A pause of what has left in part is rolled back, which takes longer than the look.
TEST_F(WavesTest, WhatIsGivenUpWhileTheDeviceIsLookedAtIsNotSaved) {
  make_full();
  const auto in_part = swap_to_a_late_second_save();
  a.moods[kSave] = Mood::kFailing;
  a.done(RankPhase::kSave, a.epoch, true);
  ASSERT_FALSE(complete(in_part).ok());
  a.moods.clear();
  a.received.clear();
  const auto nodes = std::make_shared<OtherNodes>();
  const auto watcher = std::make_shared<Watcher>();
  const std::uint64_t number = on_loop([&] {
    return broker->swap(Caller{}, {"train"}, {"rollout"}, Operation::kPause, {}, watcher, nodes);
  });
  ASSERT_TRUE(eventually([&] { return nodes->reports == 1; }));
  on_loop([&] {
    broker->operations().tell(number, "train", event::CutTaken{});
    broker->operations().give_up(number, {Code::kAborted, "another node has failed"});
  });
  const Status given_up = complete(watcher);
  EXPECT_EQ(given_up.code(), Code::kAborted);
  EXPECT_NE(given_up.text().find("another node has failed"), std::string::npos) << given_up.text();
  EXPECT_EQ(a.received[kSave], 0);
  expect_states(kPaused, kPaused);
  expect_usable();
}

TEST_F(WavesTest, WithSpaceForBothItLeavesAtOnce) {
  make_both(10 * kMiB, 10 * kMiB);
  a.received.clear();
  ASSERT_TRUE(swap("train", "rollout").ok());
  EXPECT_EQ(a.received[kRelease], 1);
  expect_usable();
}

TEST_F(WavesTest, AFailureInTheFirstWaveIsCalledOff) {
  make_full();
  a.moods[kSave] = Mood::kFailing;
  const Status failed = swap("train", "rollout");
  EXPECT_EQ(failed.code(), Code::kAborted) << failed.text();
  expect_states(kRunning, kPaused);
  EXPECT_EQ(mapped(a), 90 * kMiB);
  a.moods.clear();
  expect_usable();
}

TEST_F(WavesTest, AFailureInALaterWaveLeavesBothPausedAndNothingLost) {
  make_full();
  auto watcher = swap_to_a_late_second_save();
  a.moods[kSave] = Mood::kFailing;
  a.done(RankPhase::kSave, a.epoch, true);
  const Status failed = complete(watcher);
  EXPECT_EQ(failed.code(), Code::kAborted);
  EXPECT_NE(failed.text().find("save: rank 0"), std::string::npos) << failed.text();
  expect_states(kPaused, kPaused);
  EXPECT_TRUE(a.gate_shut());
  EXPECT_EQ(mapped(a), 6 * kMiB) << "what the rank could not save";
  EXPECT_EQ(group("train").resident_bytes(), 6 * kMiB);
  EXPECT_EQ(mapped(b), 0U);
  EXPECT_EQ(a.received[kSave], 2) << "it is not asked again";
  a.moods.clear();
  expect_usable();
  expect_intact(a, train);
}

TEST_F(WavesTest, ADeathInALaterWaveTakesNothingFromItsPeers) {
  make_full();
  ScriptedRank& dying = d;
  join(dying, "train", 1);
  c.free(fill);
  ASSERT_TRUE(eventually([&] { return free_memory() >= 38 * kMiB; }));
  std::vector<std::uint64_t> shared;
  for (std::uint8_t i = 0; i < 3; ++i) {
    shared.push_back(dying.create(gpu(0), 2 * kMiB));
    dying.write(shared.back(), static_cast<std::uint8_t>(50 + i));
    a.share(dying, shared.back());
  }
  fill = c.create(gpu(0), free_memory() / (2 * kMiB) * 2 * kMiB);
  dying.moods[kSave] = Mood::kLate;
  auto watcher = begin_swap("train", "rollout");
  EXPECT_TRUE(eventually([&] { return dying.received[kSave] == 1; }));
  dying.catch_up();
  dying.moods[kSave] = Mood::kDying;
  EXPECT_TRUE(eventually([&] { return !dying.alive(); })) << "in the second wave";
  dying.memory.clear();
  const Status swapped = complete(watcher);
  EXPECT_TRUE(a.memory.at(shared[2]).fd) << "not saved, so it stayed";
  EXPECT_NE(swapped.text().find("drop: 2 MiB of rank 0"), std::string::npos) << swapped.text();
  EXPECT_FALSE(a.memory.at(shared[0]).fd);
  c.free(fill);
  settle();
  if (group("rollout").state() == kRunning) {
    ASSERT_TRUE(pause("rollout").ok());
  }
  const Status resumed = resume("train");
  ASSERT_TRUE(resumed.ok()) << resumed.text() << "; swap: " << swapped.text();
  for (std::uint8_t i = 0; i < 3; ++i)
    EXPECT_TRUE(a.holds(shared[i], static_cast<std::uint8_t>(50 + i))) << int{i};
  expect_intact(a, train);
}

TEST_F(WavesTest, WhatADeadRankSavedInEarlierWavesLeavesThePool) {
  make_full();
  auto watcher = swap_to_a_late_second_save();
  a.memory.clear();
  a.lose_session();
  c.free(fill);
  EXPECT_FALSE(complete(watcher).ok());
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 2; })) << "train is gone";
  settle();
  if (group("rollout").state() != kRunning) {
    ASSERT_TRUE(resume("rollout").ok());
  }
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 6 * kMiB; }))
      << status().pool().used_bytes() << ": what it may still copy waits for its process";
  a.die();
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }));
}

TEST_F(WavesTest, WhatIsFreedBetweenTwoWavesIsInNone) {
  make_full();
  auto watcher = swap_to_a_late_second_save();
  a.free(train.kept.back());
  train.kept.pop_back();
  settle();
  a.catch_up();
  const Status swapped = complete(watcher);
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  expect_intact(b, rollout);
  expect_usable();
}

TEST_F(WavesTest, APauseAfterASwapGoesAtOnce) {
  make_full();
  ASSERT_TRUE(swap("train", "rollout").ok());
  ASSERT_TRUE(pause("rollout").ok());
  a.request(amem_v1_GroupOp_GROUP_OP_RESUME);
  ASSERT_TRUE(eventually([&] { return group("train").state() == kRunning; }));
  a.received.clear();
  a.request(amem_v1_GroupOp_GROUP_OP_PAUSE);
  ASSERT_TRUE(eventually([&] { return group("train").state() == kPaused; }));
  EXPECT_EQ(a.received[kRelease], 1) << "nobody comes in";
}

TEST_F(WavesTest, WhatIsPinnedStays) {
  make_full();
  a.pin(train.kept[1]);
  c.free(fill);
  ASSERT_TRUE(eventually([&] { return free_memory() >= 38 * kMiB; }));
  fill = c.create(gpu(0), (free_memory() - 4 * kMiB) / (2 * kMiB) * 2 * kMiB);
  const Status swapped = swap("train", "rollout");
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  EXPECT_EQ(mapped(a), 2 * kMiB);
  expect_intact(b, rollout);
  expect_usable();
}

class NoWavesTest : public WavesTest {
 protected:
  void configure(Config& settings) const override { settings.swap_wave = 0; }
};

TEST_F(NoWavesTest, AllLeavesAtOnce) {
  make_full();
  ASSERT_TRUE(swap("train", "rollout").ok());
  EXPECT_EQ(a.received[kRelease], 1);
  expect_usable();
}

}  // namespace
}  // namespace amem
