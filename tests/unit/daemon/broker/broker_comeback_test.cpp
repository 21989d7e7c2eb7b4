// Ranks that come back to another broker late, or with memory that the one before had counted as
// gone.
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>

#include "tests/unit/fixtures/restart_fixture.h"

namespace amem {
namespace {

/// Ranks that do not come back are waited for only so long.
class BrokerComebackTest : public BrokerRestartTest {
 protected:
  Duration patience() const override { return milliseconds(700); }

  ScriptedRank& come_back(ScriptedRank& rank) {
    EXPECT_EQ(ScriptedRank::code(rank.come_back(socket())), Code::kOk);
    settle();
    return rank;
  }
  void configure(Config& settings) const override { settings.swap_wave = 4 * kMiB; }
  bool in_phase(const std::string& phase) {
    return eventually([&] { return group().phase() == phase; });
  }
  static constexpr std::uint64_t kRollout = 6 * kMiB;
  void rollout_is_paused() {
    join_here(r3, "rollout", 0);
    ASSERT_NE(r3.create(gpu(0), kRollout), 0U);
    ASSERT_TRUE(pause("rollout").ok());
  }
  /// Device 0 has no space for even one piece of rollout beside the others.
  void fill() {
    join(b, "fill", 0);
    ASSERT_NE(b.create(gpu(0), nvml.memory(gpu(0))->free / (2 * kMiB) * 2 * kMiB), 0U);
  }
  void expect_to_leave_in_waves() {
    ASSERT_NO_FATAL_FAILURE(fill());
    const auto watcher = std::make_shared<Watcher>();
    on_loop(
        [&] { broker->swap(Caller{}, {"train"}, {"rollout"}, Operation::kPause, {}, watcher); });
    const Status swapped = complete(watcher);
    EXPECT_TRUE(swapped.ok()) << swapped.text();
    EXPECT_EQ(group().resident_bytes(), 0U);
    ASSERT_TRUE(pause("rollout").ok());
  }
  /// While rollout is paused: the first 4 MiB of train have left, and r1 takes its time to save the
  /// wave after, which is `second`.
  void swap_to_a_late_second_save(const std::vector<std::uint64_t>& second) {
    ASSERT_NO_FATAL_FAILURE(rollout_is_paused());
    join_here(r1, "train", 0);
    ASSERT_NE(r1.create(gpu(0), 4 * kMiB), 0U);
    for (const std::uint64_t size : second) ASSERT_NE(r1.create(gpu(0), size), 0U);
    ASSERT_NO_FATAL_FAILURE(fill());
    const pb_size_t save = amem_v1_SessionMessage_save_tag;
    r1.moods[save] = Mood::kLate;
    on_loop([&] {
      broker->swap(Caller{}, {"train"}, {"rollout"}, Operation::kPause, {},
                   std::make_shared<Watcher>());
    });
    ASSERT_TRUE(eventually([&] { return r1.received[save] == 1; }));
    r1.catch_up();
    r1.received[save] = 1;  // what it catches up with is counted again
    r1.moods[save] = Mood::kLate;
    ASSERT_TRUE(eventually([&] { return r1.received[save] == 2; }));
    settle();
  }
};

TEST_F(BrokerComebackTest, WhoIsLateReleasesAsTheOthersDid) {
  two();
  r2.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;
  begin(Operation::kPause);
  ASSERT_TRUE(in_phase("release"));
  restart();
  come_back(r1);
  ASSERT_TRUE(in_phase("release")) << "one does not come back";
  const int before = r2.received[amem_v1_SessionMessage_release_tag];
  come_back(r2);
  EXPECT_GT(r2.received[amem_v1_SessionMessage_release_tag], before);
  ASSERT_TRUE(eventually([&] { return group().state() == kPaused; }));
  EXPECT_TRUE(eventually([&] { return used(0) + 4 * kMiB == alone; }));
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(BrokerComebackTest, WhoIsLateUndoesAsTheOthersDid) {
  two();
  ASSERT_TRUE(pause().ok());
  const std::uint64_t paused = used(0);
  r1.moods[amem_v1_SessionMessage_load_tag] = Mood::kLate;
  begin(Operation::kResume);
  ASSERT_TRUE(in_phase("map+load"));
  settle();
  restart();
  come_back(r1);
  ASSERT_TRUE(in_phase("rollback"));
  come_back(r2);
  ASSERT_TRUE(eventually([&] { return group().state() == kPaused; }));
  EXPECT_TRUE(eventually([&] { return used(0) == paused; })) << "nobody holds what was undone";
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

// It has never heard the Release that it did not answer.
TEST_F(BrokerComebackTest, NobodyKeepsMemoryOfAPausedGroup) {
  two();
  r2.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;
  EXPECT_EQ(pause().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(group().state(), kPaused);
  EXPECT_GT(used(0) + 4 * kMiB, alone) << "one has it still";
  restart();
  come_back(r1);
  come_back(r2);
  EXPECT_TRUE(eventually([&] { return used(0) + 4 * kMiB == alone; }));
  EXPECT_TRUE(r2.gate_shut());
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(BrokerComebackTest, NobodyKeepsATagThatIsPaused) {
  two();
  r2.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;
  EXPECT_EQ(complete(begin({Operation::kPause, Selection{{"nccl"}}})).code(),
            Code::kDeadlineExceeded);
  ASSERT_EQ(group().state(), kRunning);
  restart();
  come_back(r1);
  come_back(r2);
  EXPECT_TRUE(eventually([&] { return used(0) + 4 * kMiB == alone; }));
  EXPECT_TRUE(eventually([&] { return r2.received[amem_v1_SessionMessage_ask_tag] > 0; }));
  EXPECT_FALSE(r2.gate_shut());
  EXPECT_TRUE(r2.holds(of_b, 0xbb)) << "what is not paused stays";
  ASSERT_TRUE(complete(begin({Operation::kResume, Selection{{"nccl"}}})).ok());
  expect_whole();
}

// It was stopped before it heard of the pause, and nothing is asked of it when it comes back. So it
// has answered nothing when the next pause asks whether it may be saving still.
TEST_F(BrokerComebackTest, WhoComesBackLateLeavesInWaves) {
  ASSERT_NO_FATAL_FAILURE(rollout_is_paused());
  join_here(r1, "train", 0);
  join_here(r2, "train", 1);
  for (ScriptedRank* rank : {&r1, &r2}) {
    of_a = rank->create(gpu(0), 4 * kMiB);
    rank->write(of_a, 0xaa);
  }
  r2.moods[amem_v1_SessionMessage_quiesce_tag] = Mood::kLate;
  begin(Operation::kPause);
  ASSERT_TRUE(in_phase("quiesce"));
  restart();
  come_back(r1);
  come_back(r3);
  ASSERT_TRUE(eventually([&] { return group().state() == kRunning; })) << "without the late one";
  come_back(r2);
  EXPECT_FALSE(r2.gate_shut());
  ASSERT_NO_FATAL_FAILURE(expect_to_leave_in_waves());
  b.die();
  b.memory.clear();
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 2; })) << "nothing fills it";
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(r2.holds(of_a, 0xaa));
}

TEST_F(BrokerComebackTest, WhoTookNoPartInAPauseOfSomeRanksLeavesInWaves) {
  ASSERT_NO_FATAL_FAILURE(rollout_is_paused());
  join_here(r1, "train", 0);
  join_here(r2, "train", 1);
  ASSERT_NE(r1.create(gpu(0), 4 * kMiB, "cache"), 0U);
  ASSERT_NE(r2.create(gpu(0), 4 * kMiB), 0U);
  const pb_size_t save = amem_v1_SessionMessage_save_tag;
  r1.moods[save] = Mood::kLate;
  r1.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"cache"});
  ASSERT_TRUE(eventually([&] { return r1.received[save] == 1; }));
  restart();
  for (ScriptedRank* rank : {&r1, &r2, &r3}) come_back(*rank);
  ASSERT_TRUE(eventually([&] { return !r1.gate_shut(); }));
  ASSERT_NO_FATAL_FAILURE(expect_to_leave_in_waves());
}

// What it had back it has let go of again, whether it comes back in time or not.
TEST_F(BrokerComebackTest, WhatAGuestHadOpenComesBackAfterAResumeThatWasUndone) {
  for (const bool late : {false, true}) {
    join_here(r1, "train", 0);
    join_here(r3, "guest", 0);
    of_a = r1.create(gpu(0), 4 * kMiB);
    r1.write(of_a, 0xaa);
    r3.share(r1, of_a);
    ASSERT_NE(r3.create(gpu(1), 2 * kMiB), 0U);
    ASSERT_TRUE(pause("guest").ok());
    ASSERT_FALSE(r3.memory.at(of_a).fd);
    r3.moods[amem_v1_SessionMessage_load_tag] = Mood::kLate;
    begin(Operation::kResume, "guest");
    ASSERT_TRUE(eventually([&] { return r3.holds(of_a, 0xaa); })) << "it has it, and not all yet";
    restart();
    come_back(r1);
    if (late) {
      ASSERT_TRUE(eventually([&] { return group("guest").state() == kPaused; }));
    }
    come_back(r3);
    ASSERT_TRUE(eventually([&] { return group("guest").state() == kPaused; }));
    settle();
    EXPECT_FALSE(r3.memory.at(of_a).fd) << "all of its group is paused";
    const Status resumed = resume("guest");
    ASSERT_TRUE(resumed.ok()) << resumed.text();
    EXPECT_TRUE(r3.holds(of_a, 0xaa)) << (late ? "late" : "in time");
    for (ScriptedRank* rank : {&r1, &r3}) {
      rank->lose_session();
      rank->memory.clear();
    }
    ranks.clear();
    ASSERT_TRUE(eventually([&] { return status().groups_size() == 0; }));
  }
}

// Else its frees would wait for the next command.
TEST_F(BrokerComebackTest, WhoHasNothingLeftHearsThatThePauseHasEnded) {
  join_here(r1, "train", 0);
  join_here(r2, "train", 1);
  ASSERT_NE(r1.create(gpu(0), 4 * kMiB), 0U);
  const pb_size_t release = amem_v1_SessionMessage_release_tag;
  r2.moods[release] = Mood::kLate;
  EXPECT_EQ(pause().code(), Code::kDeadlineExceeded);
  restart();
  come_back(r1);
  r2.received.clear();
  come_back(r2);
  EXPECT_EQ(r2.received[release], 1);
  EXPECT_TRUE(r2.gate_shut());
}

// It could not bind again what it has made and lets go of.
TEST_F(BrokerComebackTest, WhatStaysItsMakerKeeps) {
  r1.use(devices);
  join_here(r1, "train", 0);
  join_here(r3, "guest", 0);
  of_a = r1.make(gpu(0), 4 * kMiB);
  r1.write(of_a, 0xaa);
  of_b = r1.create(gpu(0), 4 * kMiB);
  r3.share(r1, of_a);
  r1.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;
  EXPECT_EQ(pause().code(), Code::kDeadlineExceeded);
  restart();
  come_back(r1);
  EXPECT_FALSE(r1.memory.at(of_b).fd);
  EXPECT_TRUE(r1.holds(of_a, 0xaa));
}

// It has answered its Save, so what it has saved is its peers' as well.
TEST_F(BrokerComebackTest, WhatAWaveHasSavedOutlivesItsSaver) {
  ASSERT_NO_FATAL_FAILURE(rollout_is_paused());
  join(a, "train", 0);
  join_here(r2, "train", 1);
  of_a = a.create(gpu(0), 4 * kMiB);
  r2.share(a, of_a);
  a.write(of_a, 0xaa);
  ASSERT_NE(a.create(gpu(0), 4 * kMiB), 0U);
  ASSERT_NO_FATAL_FAILURE(fill());
  r2.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;
  const auto watcher = std::make_shared<Watcher>();
  on_loop([&] { broker->swap(Caller{}, {"train"}, {"rollout"}, Operation::kPause, {}, watcher); });
  const bool told = eventually([&] { return r2.received[amem_v1_SessionMessage_release_tag] > 0; });
  ASSERT_TRUE(told) << complete(watcher).text();
  restart();
  for (ScriptedRank* rank : {&a, &b}) {
    rank->die();
    rank->memory.clear();
  }
  come_back(r2);
  ASSERT_TRUE(eventually([&] { return group("train").state() == kPaused; }));
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 2; })) << "nothing fills it";
  const Status resumed = resume("train");
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_TRUE(r2.holds(of_a, 0xaa));
}

// Of the wave that it is saving one has been freed, and the next broker gives the other back.
TEST_F(BrokerComebackTest, WhatIsGivenBackJoinsWhatARestartFindsInLimbo) {
  ASSERT_NO_FATAL_FAILURE(swap_to_a_late_second_save({2 * kMiB, 2 * kMiB}));
  r1.free(r1.memory.rbegin()->first);
  settle();
  for (int i = 0; i < 2; ++i) restart();  // both are on record, too
  EXPECT_EQ(status().pool().used_bytes(), kRollout + 8 * kMiB) << "it may be writing there still";
  come_back(r1);
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == kRollout + 4 * kMiB; }))
      << status().pool().used_bytes() << ", but only rollout and the first wave are saved";
}

// Of the wave that it is saving nothing has left: the group is paused with it, and the next pause
// takes it.
TEST_F(BrokerComebackTest, WhatAWaveHasNotReleasedLeavesWithTheNextPause) {
  ASSERT_NO_FATAL_FAILURE(swap_to_a_late_second_save({2 * kMiB, 2 * kMiB}));
  std::vector<AllocationId> rest;
  for (const auto& [id, each] : r1.memory)
    if (each.fd) rest.push_back(id);
  ASSERT_EQ(rest.size(), 2U) << "the first wave has left";
  for (const AllocationId id : rest) r1.write(id, static_cast<std::uint8_t>(id));
  for (int i = 0; i < 2; ++i) restart();
  come_back(r1);
  ASSERT_TRUE(eventually([&] { return group("train").state() == kPaused; }));
  EXPECT_EQ(group("train").resident_bytes(), 4 * kMiB) << "no rank was told to let go of it";
  const Status paused = pause("train");
  ASSERT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(group("train").resident_bytes(), 0);
  EXPECT_EQ(status().pool().used_bytes(), kRollout + 8 * kMiB);
  const Status again = pause("train");
  EXPECT_EQ(again.code(), Code::kFailedPrecondition) << again.text();
  b.die();
  b.memory.clear();
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 2; })) << "nothing fills it";
  const Status resumed = resume("train");
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  for (const AllocationId id : rest) EXPECT_TRUE(r1.holds(id, static_cast<std::uint8_t>(id)));
}

// The next may end after any row that it writes, and another finds what it has written by then.
TEST_F(BrokerComebackTest, WhatIsInLimboIsOnRecordAllTheTime) {
  ASSERT_NO_FATAL_FAILURE(swap_to_a_late_second_save({2 * kMiB, 2 * kMiB}));
  r1.free(r1.memory.rbegin()->first);
  settle();
  const std::uint64_t from = written();
  restart();
  std::map<RowKey, std::uint64_t> saved;  // what of the pool each row has
  for (const WrittenRow& row : rows_written()) {
    v1::record::Limbo limbo;  // an erased row is empty
    v1::record::Saved of_one;
    if (kind_of_row(row.key) == RowKind::kLimbo) {
      ASSERT_TRUE(limbo.ParseFromString(row.bytes));
    } else if (kind_of_row(row.key) == RowKind::kSaved) {
      ASSERT_TRUE(of_one.ParseFromString(row.bytes));
    }
    limbo.mutable_extents()->MergeFrom(of_one.extents());
    saved[row.key] = 0;
    for (const v1::record::Extent& extent : limbo.extents()) saved[row.key] += extent.length();
    std::uint64_t all = 0;
    for (const auto& [key, length] : saved) all += length;
    if (row.end > from) {
      EXPECT_GE(all, kRollout + 8 * kMiB) << "after the row that ends at " << row.end;
    }
  }
}

// Its session has ended, its process not: what it was saving it may be saving still. Neither its
// row nor its group's is on record any more.
TEST_F(BrokerComebackTest, WhatSomebodyGoneMayBeWritingToStaysHisUntilHeEnds) {
  join(a, "train", 0);
  ASSERT_NE(a.create(gpu(0), 4 * kMiB), 0U);
  a.moods[amem_v1_SessionMessage_save_tag] = Mood::kLate;
  begin(Operation::kPause);
  ASSERT_TRUE(in_phase("save"));
  a.lose_session();
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 0; }));
  EXPECT_EQ(status().pool().used_bytes(), 4 * kMiB);
  for (int i = 0; i < 2; ++i) {
    restart();
    EXPECT_EQ(status().pool().used_bytes(), 4 * kMiB) << "after restart " << i;
    ASSERT_NO_FATAL_FAILURE(replace_holder());  // which must know the process, too
  }
  restart();
  a.die();
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }));
}

TEST_F(BrokerComebackTest, BytesInAFormThatItDoesNotKnowAreNotLoadedInAnother) {
  join(a);
  a.create(gpu(0), 4 * kMiB);
  a.habits.sparse_bytes = 4096;
  ASSERT_TRUE(pause().ok());
  Fd memory(::dup(supervisor->record().log()->memory().get()));
  end_broker();
  {
    Result<RecordLog> log = RecordLog::open(std::move(memory));
    ASSERT_TRUE(log.ok()) << log.status().text();
    std::map<RowKey, std::string> changed;
    log.value().each([&](RowKey key, std::string_view bytes) {
      v1::record::Saved saved;
      if (kind_of_row(key) != RowKind::kSaved || !saved.ParseFromString(std::string(bytes))) return;
      for (v1::record::Saved::Piece& piece : *saved.mutable_pieces()) piece.set_form(77);
      changed[key] = saved.SerializeAsString();
    });
    ASSERT_EQ(changed.size(), 1U);
    for (const auto& [key, bytes] : changed) ASSERT_TRUE(log.value().put(key, bytes).ok());
  }
  supervisor.reset();
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_EQ(status().groups_size(), 0) << "it would get wrong bytes";
}

// The one before had taken up another's, and ended when it had written where the rank may be
// writing still, and not yet that nothing is saved there.
TEST_F(BrokerComebackTest, WhatIsGivenBackTwiceIsNotLostToThePool) {
  ASSERT_NO_FATAL_FAILURE(swap_to_a_late_second_save({4 * kMiB}));
  Fd memory(::dup(supervisor->record().log()->memory().get()));
  end_broker();
  {
    Result<RecordLog> log = RecordLog::open(std::move(memory));
    ASSERT_TRUE(log.ok()) << log.status().text();
    v1::record::Limbo limbo;
    log.value().each([&](RowKey key, std::string_view bytes) {
      v1::record::Saved saved;
      if (kind_of_row(key) != RowKind::kSaved || !saved.ParseFromString(std::string(bytes))) return;
      if (saved.saver() == r1.id() && !saved.leaves()) *limbo.mutable_extents() = saved.extents();
    });
    ASSERT_GT(limbo.extents_size(), 0) << "the second wave is being saved";
    ASSERT_TRUE(log.value().put(row_key(RowKind::kLimbo, r1.id()), limbo.SerializeAsString()).ok());
  }
  supervisor.reset();
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  b.die();
  b.memory.clear();
  come_back(r1);
  come_back(r3);
  ASSERT_TRUE(eventually([&] { return group("train").state() == kPaused; }));
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 2; })) << "nothing fills it";
  const Status resumed = resume("train");
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_EQ(status().pool().used_bytes(), kRollout);
}

}  // namespace
}  // namespace amem
