// A pause through a pool that is smaller than what the group has: what ranks are asked, what they
// tell, and which places follow from it.
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

constexpr pb_size_t kMeasure = amem_v1_SessionMessage_measure_tag;
constexpr pb_size_t kSave = amem_v1_SessionMessage_save_tag;

class BrokerMeasureTest : public BrokerTest {
 protected:
  /// A rank with more than the pool has, all but nothing of which is to be stored.
  std::uint64_t make_large(const std::string& tag = "nccl") {
    join(a);
    a.habits.mask = 0;
    a.habits.sparse_bytes = 4096;
    const std::uint64_t id = a.create(gpu(0), 2 * kPool, tag);
    a.write(id, 0x21);
    return id;
  }
  void expect_runs_on(const Status& status, Code code, const std::string& text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.text().find(text), std::string::npos) << status.text();
    EXPECT_EQ(group().state(), kRunning);
    EXPECT_FALSE(a.gate_shut());
    EXPECT_EQ(status_of_pool(), 0U) << "all space is free again";
  }
  std::uint64_t status_of_pool() { return status().pool().used_bytes(); }
};

TEST_F(BrokerMeasureTest, MoreThanThePoolHasGoesThroughIt) {
  const std::uint64_t id = make_large();
  auto watcher = begin(Operation::kPause);
  const Status paused = complete(watcher);
  ASSERT_TRUE(paused.ok()) << paused.text();
  EXPECT_TRUE(watcher->saw("measure"));
  ASSERT_EQ(a.saves.size(), 1U);
  EXPECT_EQ(a.saves[0].length, 2 * kPool);
  EXPECT_EQ(a.saves[0].form, number_of(Form::kSparse));
  EXPECT_EQ(a.saves[0].stored, 2 * kMiB) << "a chunk";
  EXPECT_EQ(status_of_pool(), 2 * kMiB);
  EXPECT_EQ(group().saved_bytes(), 4096U);
  const Status resumed = resume();
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_TRUE(a.holds(id, 0x21));
  EXPECT_EQ(status_of_pool(), 0U);
}

TEST_F(BrokerMeasureTest, WhatHasSpaceIsNotMeasured) {
  join(a);
  a.create(gpu(0), kPool);
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(complete(watcher).ok());
  EXPECT_FALSE(watcher->saw("measure"));
  EXPECT_EQ(a.received[kMeasure], 0);
  for (const amem_v1_Copy& save : a.saves) EXPECT_EQ(save.stored, 0U);
}

TEST_F(BrokerMeasureTest, TheRefusalHasTheFiguresAndDiscardingHelps) {
  join(a);
  join(b, "train", 1);
  a.habits.mask = b.habits.mask = ~0U;
  const std::uint64_t cache =
      a.create(gpu(0), 26 * kMiB, "cache", amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
  const std::uint64_t weights = b.create(gpu(1), 10 * kMiB, "weights");
  ASSERT_TRUE(set_policy("cache", v1::POLICY_KEEP).ok());
  a.write(cache, 3);
  b.write(weights, 4);
  expect_runs_on(pause(), Code::kResourceExhausted,
                 "it has 32 MiB of 32 MiB free, but 36 MiB are needed. The pause must save tag "
                 "'cache' 26 MiB of 26 MiB, tag 'weights' 10 MiB of 10 MiB. Remedies: to restart "
                 "amemd with a pool.size of 36MiB or more; if the job can lose what its regions "
                 "mark as a cache, to discard 'cache' (26 MiB)");
  EXPECT_EQ(a.received[kSave] + b.received[kSave], 0);
  EXPECT_TRUE(a.holds(cache, 3));
  EXPECT_TRUE(b.holds(weights, 4));
  const Status dropping = complete(begin(Task(Operation::kPause, {}, {"cache"})));
  ASSERT_TRUE(dropping.ok()) << dropping.text();
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(weights, 4));
}

TEST_F(BrokerMeasureTest, ATagIsNoCacheIfSomeOfItIsNone) {
  join(a);
  a.habits.mask = ~0U;
  a.create(gpu(0), 8 * kMiB, "mixed");
  a.create(gpu(0), 28 * kMiB, "mixed", amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
  ASSERT_TRUE(set_policy("mixed", v1::POLICY_KEEP).ok());
  const Status status = pause();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.text().find("discard"), std::string::npos) << status.text();
}

TEST_F(BrokerMeasureTest, TheRefusalNamesWhoElseHasSpaceInThePool) {
  join(b, "rollout");
  b.create(gpu(1), 20 * kMiB, "cache");
  ASSERT_TRUE(pause("rollout").ok());
  join(a);
  a.habits.mask = ~0U;
  a.create(gpu(0), 20 * kMiB);
  const Status status = pause();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.text().find("to resume or end 'rollout' (20 MiB), whose bytes are in the pool"),
            std::string::npos)
      << status.text();
  EXPECT_EQ(status.text().find("discard"), std::string::npos) << "NCCL's cannot be dropped";
}

TEST_F(BrokerMeasureTest, WhatNobodyCanLookAtCounts) {
  make_large("cache");
  a.habits.mask.reset();
  expect_runs_on(pause(), Code::kResourceExhausted, "could not look for zeros in 64 MiB of it");
}

TEST_F(BrokerMeasureTest, WhatIsSavedDenseIsNotLookedAt) {
  const std::uint64_t zeros = make_large();
  a.create(gpu(0), 4 * kMiB, "weights");
  ASSERT_TRUE(set_form("weights", v1::FORM_DENSE).ok());
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(a.looked_at, std::set<std::uint64_t>{zeros});
  EXPECT_EQ(status_of_pool(), 6 * kMiB);
  ASSERT_TRUE(resume().ok());
  ASSERT_TRUE(set_form("nccl", v1::FORM_DENSE).ok());
  a.looked_at.clear();
  expect_runs_on(pause(), Code::kResourceExhausted, "tag 'nccl' 64 MiB of 64 MiB");
  EXPECT_TRUE(a.looked_at.empty());
}

TEST_F(BrokerMeasureTest, WhatNoSegmentHasSpaceForIsSavedInPieces) {
  const std::uint64_t id = make_large();
  a.habits.mask = 0xff;  // 16 MiB, twice what a segment has
  const Status paused = pause();
  ASSERT_TRUE(paused.ok()) << paused.text();
  ASSERT_GE(a.saves.size(), 3U);
  std::uint64_t offset = 0;
  for (const amem_v1_Copy& save : a.saves) {
    EXPECT_EQ(save.offset, offset);
    EXPECT_LE(save.stored, 8 * kMiB);
    offset += save.length;
  }
  EXPECT_EQ(offset, 2 * kPool);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(id, 0x21));
}

TEST_F(BrokerMeasureTest, EachSectionOfAMessageHasItsOwnMasks) {
  const std::uint64_t zeros = make_large();
  const std::uint64_t full = a.create(gpu(0), 4 * kMiB, "weights");
  a.moods[kMeasure] = Mood::kSilent;
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return a.received[kMeasure] == 1; }));
  constexpr std::uint32_t kZeros = sparse::groups(2 * kPool);
  constexpr std::uint32_t kFull = sparse::groups(4 * kMiB);
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_measured_tag;
  amem_v1_Measured& told = message.body.measured;
  told.epoch = a.epoch;
  told.sections_count = 2;
  told.sections[0] = {zeros, 0, kZeros};
  told.sections[1] = {full, 0, kFull};
  told.masks_count = kZeros + kFull;
  std::fill_n(told.masks + kZeros, kFull, ~0U);
  a.send(message);
  a.done(RankPhase::kMeasure, a.epoch);
  const Status paused = complete(watcher);
  ASSERT_TRUE(paused.ok()) << paused.text();
  ASSERT_EQ(a.saves.size(), 2U);
  for (const amem_v1_Copy& save : a.saves)
    EXPECT_EQ(save.stored, save.id == zeros ? 2 * kMiB : 0U) << "0: it gets its whole length";
}

TEST_F(BrokerMeasureTest, AFailureOrADeathCallsThePauseOff) {
  make_large();
  join(b, "train", 1);
  a.moods[kMeasure] = Mood::kFailing;
  expect_runs_on(pause(), Code::kAborted, "measure: rank 0");
  a.moods.clear();
  b.moods[kMeasure] = Mood::kDying;
  expect_runs_on(pause(), Code::kAborted, "ended during measure");
  ASSERT_TRUE(pause().ok());
}

TEST_F(BrokerMeasureTest, WhoLooksAtWhatItWasNotToldIsDisconnected) {
  const std::uint64_t id = make_large();
  join(b, "train", 1);
  b.send_measured(id, 0, 0);  // of no pause: has no effect
  b.moods[kMeasure] = Mood::kSilent;
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return b.received[kMeasure] == 1; }));
  b.send_measured(id, 0, 0);
  expect_runs_on(complete(watcher), Code::kAborted, "during measure");
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
}

TEST_F(BrokerMeasureTest, WhoDoesNotTellHowItHasStoredHasNotSaved) {
  const std::uint64_t id = make_large();
  a.moods[kSave] = Mood::kSilent;
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return a.received[kSave] == 1; }));
  a.done(RankPhase::kSave, a.epoch);
  expect_runs_on(complete(watcher), Code::kAborted, "and its extents are shorter");
  EXPECT_TRUE(a.holds(id, 0x21));
}

TEST_F(BrokerMeasureTest, WhatAnotherRankHasNotStoredYetIsNotMissed) {
  make_large();
  join(b, "train", 1);
  b.habits.mask = 0;
  b.habits.sparse_bytes = 4096;
  ASSERT_NE(b.create(gpu(1), 2 * kPool), 0U);
  b.moods[kSave] = Mood::kLate;
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return b.received[kSave] == 1; }));
  settle();
  EXPECT_EQ(group().phase(), "save") << "the first has answered";
  b.catch_up();
  EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
}

TEST_F(BrokerMeasureTest, WhoHasStoredMoreThanItsPlaceHasIsDisconnected) {
  const std::uint64_t id = make_large();
  join(b, "train", 1);
  a.moods[kSave] = Mood::kSilent;
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return a.received[kSave] == 1; }));
  a.send_saved(id, 0, 2 * kMiB + 4096);
  EXPECT_EQ(complete(watcher).code(), Code::kAborted);
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
}

}  // namespace
}  // namespace amem
