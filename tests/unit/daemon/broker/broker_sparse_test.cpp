// Sparse saves, as the broker sees them: how ranks are told to save, what they answer, and what
// that leaves in the pool.
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

class BrokerSparseTest : public BrokerTest {};

TEST_F(BrokerSparseTest, WhatARankDoesNotNeedGoesBackToThePool) {
  join(a);
  a.habits.sparse_bytes = 4096;
  const std::uint64_t id = a.create(gpu(0), 20 * kMiB);  // more than one segment of the pool
  a.write(id, 0x21);
  const Status paused = pause();
  ASSERT_TRUE(paused.ok()) << paused.text();
  ASSERT_EQ(a.saves.size(), 3U);
  EXPECT_EQ(a.saves[0].form, number_of(Form::kAuto));
  EXPECT_EQ(group().saved_bytes(), 3 * 4096U);
  EXPECT_EQ(group().tags(0).saved_bytes(), 3 * 4096U);
  EXPECT_EQ(status().pool().used_bytes(), 3 * 2 * kMiB) << "a chunk for each piece";

  const Status resumed = resume();
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  ASSERT_EQ(a.loads.size(), 3U);
  EXPECT_EQ(a.loads[2].form, number_of(Form::kSparse));
  EXPECT_EQ(a.loads[2].stored, 4096U);
  EXPECT_EQ(a.loads[2].offset, 16 * kMiB);
  EXPECT_EQ(a.loads[2].length, 4 * kMiB) << "also where its extent has become shorter";
  EXPECT_TRUE(a.holds(id, 0x21));
  EXPECT_EQ(status().pool().used_bytes(), 0U);
}

TEST_F(BrokerSparseTest, SecondPauseBeginsAnew) {
  join(a);
  a.habits.sparse_bytes = 4096;
  const std::uint64_t id = a.create(gpu(0), 6 * kMiB);
  a.write(id, 5);
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  a.habits.sparse_bytes = 0;
  a.write(id, 6);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(status().pool().used_bytes(), 6 * kMiB);
  EXPECT_EQ(group().saved_bytes(), 6 * kMiB);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(id, 6));
}

TEST_F(BrokerSparseTest, TheFormIsTheTagsOrTheConfiguredOne) {
  join(a);
  a.create(gpu(0), 2 * kMiB, "weights");
  a.create(gpu(0), 2 * kMiB, "nccl");
  a.create(gpu(0), 2 * kMiB, "other");
  ASSERT_TRUE(set_form("weights", v1::FORM_DENSE).ok());
  ASSERT_TRUE(set_form("nccl", v1::FORM_SPARSE).ok());
  EXPECT_EQ(set_form("x", v1::FORM_UNSPECIFIED).code(), Code::kInvalidArgument);
  EXPECT_EQ(set_form("x", static_cast<v1::Form>(9)).code(), Code::kInvalidArgument);
  ASSERT_TRUE(pause().ok());
  ASSERT_EQ(a.saves.size(), 3U);
  EXPECT_EQ(a.saves[0].form, number_of(Form::kDense));
  EXPECT_EQ(a.saves[1].form, number_of(Form::kSparse));
  EXPECT_EQ(a.saves[2].form, number_of(Form::kAuto));
  EXPECT_EQ(set_form("weights", v1::FORM_AUTO).code(), Code::kFailedPrecondition);
  const v1::GroupInfo info = group();
  ASSERT_EQ(info.policies_size(), 2);
  EXPECT_EQ(info.policies(1).tag(), "weights");
  EXPECT_EQ(info.policies(1).form(), v1::FORM_DENSE);
  EXPECT_EQ(info.policies(1).policy(), v1::POLICY_UNSPECIFIED);
}

TEST_F(BrokerSparseTest, ChecksumsComeBackWithTheLoadAlsoToAnotherKeeper) {
  join(a);
  join(b, "train", 1);
  a.habits.checksum = 0x1234567890abcdef;
  a.habits.sparse_bytes = 4096;
  const std::uint64_t id = a.create(gpu(0), 4 * kMiB);
  a.write(id, 7);
  b.share(a, id);
  ASSERT_TRUE(pause().ok());
  a.die();
  ASSERT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  const Status resumed = resume();
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  ASSERT_EQ(b.loads.size(), 1U);
  EXPECT_EQ(b.loads[0].checksum, 0x1234567890abcdefU);
  EXPECT_EQ(b.loads[0].form, number_of(Form::kSparse));
  EXPECT_TRUE(b.holds(id, 7));
}

TEST_F(BrokerSparseTest, APauseThatIsCalledOffLeavesNothingInThePool) {
  join(a);
  join(b, "train", 1);
  a.habits.sparse_bytes = 4096;
  const std::uint64_t id = a.create(gpu(0), 6 * kMiB);
  b.create(gpu(1), 2 * kMiB);
  a.write(id, 7);
  b.moods[amem_v1_SessionMessage_save_tag] = Mood::kFailing;
  EXPECT_FALSE(pause().ok());
  EXPECT_EQ(group().state(), v1::GROUP_STATE_RUNNING);
  EXPECT_EQ(status().pool().used_bytes(), 0U);
  EXPECT_EQ(group().saved_bytes(), 0U);
}

TEST_F(BrokerSparseTest, WhoClaimsToHaveSavedWhatItWasNotToldIsDisconnected) {
  join(a);
  join(b, "train", 1);
  const std::uint64_t id = a.create(gpu(0), 4 * kMiB);
  b.create(gpu(1), 2 * kMiB);
  b.send_saved(id, 0, 4096);  // of no pause: has no effect
  b.moods[amem_v1_SessionMessage_save_tag] = Mood::kSilent;
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return b.received[amem_v1_SessionMessage_save_tag] == 1; }));
  b.send_saved(id, 0, 4096);
  EXPECT_EQ(complete(watcher).code(), Code::kAborted);
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  EXPECT_EQ(group().state(), v1::GROUP_STATE_RUNNING);
}

}  // namespace
}  // namespace amem
