// Another broker takes up what one has left with the holder, at any point of what was under way.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include "tests/unit/fixtures/log_heard.h"
#include "tests/unit/fixtures/restart_fixture.h"

namespace amem {
namespace {

using ::testing::HasSubstr;

TEST_F(BrokerRestartTest, ARunningGroupRunsOn) {
  two();
  end_broker();
  supervisor.reset();
  std::optional<LogHeard> log;
  ground::call(*holder_loop, [&] { log.emplace(); });
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  on_loop([&] {
    ground::call(*holder_loop, [&] {
      EXPECT_FALSE(log->has("stage")) << "it was in none: " << log->text();
      log.reset();
    });
  });
  EXPECT_EQ(group().state(), kRunning);
  EXPECT_EQ(pause().code(), Code::kUnavailable) << "nobody has come back";
  both_come_back();
  EXPECT_EQ(r1.received[amem_v1_SessionMessage_ask_tag], 0) << "nothing was to be done";
  const std::uint64_t next = r1.create(gpu(0), 2 * kMiB);
  EXPECT_GT(next, of_b) << "no id is used twice";
  r1.free(next);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0) + 4 * kMiB, alone);
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(BrokerRestartTest, APausedGroupComesBackWithItsBytes) {
  two();
  ASSERT_TRUE(pause().ok());
  for (int i = 0; i < 3; ++i) {
    restart();
    both_come_back();
    EXPECT_EQ(group().state(), kPaused);
    EXPECT_EQ(status().pool().used_bytes(), 10 * kMiB);
  }
  // What it has in the pool nobody else gets.
  join_here(r3, "other", 0);
  const std::uint64_t other = r3.create(gpu(0), 20 * kMiB);
  r3.write(other, 0x33);
  ASSERT_TRUE(pause("other").ok());
  restart();
  both_come_back();
  ASSERT_EQ(ScriptedRank::code(r3.come_back(socket())), Code::kOk);
  settle();
  ASSERT_TRUE(resume("other").ok());
  EXPECT_TRUE(r3.holds(other, 0x33));
  r3.free(other);
  ASSERT_TRUE(resume().ok());
  settle();
  expect_whole();
}

struct Point {
  const char* name;
  pb_size_t command;  // that one of the ranks has not answered when the broker ends
  bool resume;
  bool paused;  // it ends so
};
class BrokerRestartAtTest : public BrokerRestartTest,
                            public ::testing::WithParamInterface<std::tuple<Point, bool>> {};

TEST_P(BrokerRestartAtTest, NothingIsLostAndNothingIsBetween) {
  const auto [point, obeys] = GetParam();
  two();
  if (point.resume) {
    ASSERT_TRUE(pause().ok());
  }
  r2.moods[point.command] = Mood::kLate;
  const auto watcher = begin(point.resume ? Operation::kResume : Operation::kPause);
  const int before = r2.received[point.command];
  ASSERT_TRUE(eventually([&] { return r2.received[point.command] > before; }));
  settle();
  ASSERT_FALSE(watcher->done());
  restart();
  both_come_back(obeys);
  ASSERT_TRUE(eventually([&] { return at_rest(); })) << group().phase();
  settle();
  v1::ListHistoryResponse past;
  ASSERT_TRUE(on_loop([&] { return broker->reports().history(Caller{}, {}, past); }).ok());
  ASSERT_EQ(past.operations_size(), 1);
  EXPECT_EQ(past.operations(0).operation(), point.resume ? "resume" : "pause");
  EXPECT_FALSE(past.operations(0).partial());
  EXPECT_EQ(group().state(), point.paused ? kPaused : kRunning);
  EXPECT_EQ(r1.gate_shut(), point.paused);
  EXPECT_EQ(r2.gate_shut(), point.paused);
  if (point.paused) {
    EXPECT_EQ(used(0) + 4 * kMiB, alone);
    ASSERT_TRUE(resume().ok());
  }
  expect_whole();
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokerRestartAtTest,
    ::testing::Combine(
        ::testing::Values(Point{"Quiesce", amem_v1_SessionMessage_quiesce_tag, false, false},
                          Point{"Save", amem_v1_SessionMessage_save_tag, false, false},
                          Point{"Release", amem_v1_SessionMessage_release_tag, false, true},
                          Point{"Map", amem_v1_SessionMessage_map_tag, true, true},
                          Point{"Load", amem_v1_SessionMessage_load_tag, true, true},
                          Point{"Open", amem_v1_SessionMessage_ask_tag, true, false}),
        ::testing::Bool()),
    [](const auto& chosen) {
      return std::string(std::get<0>(chosen.param).name) +
             (std::get<1>(chosen.param) ? "Obeyed" : "Unheard");
    });

TEST_F(BrokerRestartTest, ATagStaysPausedWhileTheRestRuns) {
  two();
  ASSERT_TRUE(complete(begin({Operation::kPause, Selection{{"weights"}}})).ok());
  restart();
  both_come_back();
  EXPECT_EQ(group().state(), kRunning);
  EXPECT_TRUE(r1.holds(of_a, 0xaa));
  ASSERT_TRUE(complete(begin({Operation::kResume, Selection{{"weights"}}})).ok());
  expect_whole();
  // Its memory is there by a resume now, and stays there while that of the other tag comes back.
  ASSERT_TRUE(complete(begin({Operation::kPause, Selection{{"nccl"}}})).ok());
  r1.moods[amem_v1_SessionMessage_load_tag] = Mood::kLate;
  const auto watcher = begin({Operation::kResume, Selection{{"nccl"}}});
  ASSERT_TRUE(eventually([&] { return group().phase() == "map+load"; }));
  settle();
  restart();
  both_come_back();
  ASSERT_TRUE(eventually([&] { return at_rest(); }));
  EXPECT_TRUE(r1.holds(of_b, 0xbb));
  ASSERT_TRUE(complete(begin({Operation::kResume, Selection{{"nccl"}}})).ok());
  expect_whole();
}

TEST_F(BrokerRestartTest, WhatIsDroppedComesBackEmpty) {
  two();
  ASSERT_TRUE(set_policy("weights", v1::POLICY_DISCARD).ok());
  r2.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;
  begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return group().phase() == "release"; }));
  restart();
  both_come_back();
  ASSERT_TRUE(eventually([&] { return group().state() == kPaused; }));
  EXPECT_EQ(status().pool().used_bytes(), 4 * kMiB);
  restart();
  both_come_back();
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(r1.holds(of_a, 0xaa));
  EXPECT_TRUE(r2.holds(of_b, 0)) << "the policy is on record, too";
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(status().pool().used_bytes(), 4 * kMiB);
}

TEST_F(BrokerRestartTest, WhatARankLetGoOfMeanwhileIsFree) {
  two();
  const std::uint64_t own = r1.create(gpu(0), 2 * kMiB);
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  const std::uint64_t before = used(0);
  restart();
  ASSERT_EQ(ScriptedRank::code(r1.come_back(socket(), false, {own, of_a})), Code::kOk);
  ASSERT_EQ(ScriptedRank::code(r2.come_back(socket())), Code::kOk);
  settle();
  EXPECT_TRUE(eventually([&] { return used(0) == before - 2 * kMiB; }));
  EXPECT_TRUE(r2.holds(of_a, 0xaa)) << "the other has it still";
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(r2.holds(of_a, 0xaa));
}

TEST_F(BrokerRestartTest, ARankThatEndsMeanwhileGivesItsMemoryBack) {
  join(a, "gone", 0);
  ASSERT_NE(a.create(gpu(0), 8 * kMiB), 0U);
  ASSERT_NE(a.create(gpu(0), 2 * kMiB), 0U);
  ASSERT_TRUE(pause("gone").ok());
  join(b, "alive", 0);
  const std::uint64_t other = b.create(gpu(0), 2 * kMiB);
  ASSERT_NE(other, 0U);
  end_broker();
  supervisor.reset();
  a.die();
  a.memory.clear();
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_TRUE(eventually([&] { return status().groups_size() == 1; }));
  EXPECT_EQ(status().pool().used_bytes(), 0U);
  b.die();
  b.memory.clear();
  EXPECT_TRUE(eventually([&] { return status().groups_size() == 0; }));
  EXPECT_TRUE(eventually([&] { return used(0) == 0; }));
}

TEST_F(BrokerRestartTest, NoIdIsZeroWhereThereWasNone) {
  join_here(r1, "train", 0);
  restart();
  ASSERT_EQ(ScriptedRank::code(r1.come_back(socket())), Code::kOk);
  EXPECT_NE(r1.create(gpu(0), 2 * kMiB), 0U);
}

// An allocation that is paused, and whose bytes are nowhere, would be missing: its group is not
// taken up then.
TEST_F(BrokerRestartTest, WhatIsFreedWhilePausedIsNotOnRecordWithoutItsBytes) {
  two();
  ASSERT_TRUE(set_policy("cache", v1::POLICY_DISCARD).ok());
  const std::uint64_t kept = r1.create(gpu(0), 2 * kMiB, "weights");
  const std::uint64_t dropped = r1.create(gpu(0), 2 * kMiB, "cache");
  ASSERT_TRUE(complete(begin({Operation::kPause, Selection{{"weights", "cache"}}})).ok());
  const std::uint64_t from = written();
  for (const std::uint64_t id : {kept, dropped}) r1.free(id);
  settle();
  std::vector<RowKey> rows;
  for (const WrittenRow& row : rows_written(from)) rows.push_back(row.key);
  for (const std::uint64_t id : {kept, dropped})
    EXPECT_LT(std::find(rows.begin(), rows.end(), row_key(RowKind::kAllocation, id)),
              std::find(rows.begin(), rows.end(), row_key(RowKind::kSaved, id)));
}

// The one before did not write that the guest has let go of it, and the guest comes back later.
TEST_F(BrokerRestartTest, WhatIsFreedWhilePausedAndOnlyAGuestsBringsNoGroupDown) {
  two();
  join_here(r3, "guest", 0);
  r3.share(r1, of_a);
  r3.free(of_a);
  settle();
  ASSERT_TRUE(pause().ok());
  restart();
  both_come_back();
  for (ScriptedRank* rank : {&r1, &r2}) rank->free(of_a);
  settle();
  restart();
  both_come_back();
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(r1.holds(of_b, 0xbb));
  EXPECT_EQ(status().pool().used_bytes(), 0U);
}

TEST_F(BrokerRestartTest, WhatARankWasSavingToIsFreeWithItsProcess) {
  two();
  join(a, "train", 2);
  r1.share(a, a.create(gpu(0), 2 * kMiB));
  a.moods[amem_v1_SessionMessage_save_tag] = Mood::kLate;
  const auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return a.received[amem_v1_SessionMessage_save_tag] > 0; }));
  a.lose_session();
  EXPECT_FALSE(complete(watcher).ok());
  restart();
  both_come_back();
  EXPECT_EQ(status().pool().used_bytes(), 2 * kMiB) << "it may be writing there still";
  a.die();
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }));
}

TEST_F(BrokerRestartTest, WhoIsNotExpectedIsRefused) {
  two();
  restart();
  ScriptedRank stranger;
  stranger.key = r1.key;
  stranger.key[3] ^= 1;
  const Packet answer = stranger.come_back(socket());
  EXPECT_EQ(ScriptedRank::code(answer), Code::kNotFound);
  EXPECT_THAT(answer.message.body.reply.text, HasSubstr("does not know the session"));
  both_come_back();
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

// A shim whose connection has failed may be faster than amemd. kNotFound would be final for it.
TEST_F(BrokerRestartTest, WhoReturnsBeforeItsSessionHasEndedIsToTryAgain) {
  two();
  ScriptedRank early;
  early.key = r1.key;
  EXPECT_EQ(ScriptedRank::code(early.come_back(socket())), Code::kUnavailable);
  ASSERT_TRUE(pause().ok()) << "the session goes on";
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

/// The broker has died between the row of the rank and its Welcome.
TEST_F(BrokerRestartTest, ARankThatWasNotWelcomedJoinsAnew) {
  two();
  join_here(r3, "train", 2);
  restart();
  both_come_back();
  EXPECT_EQ(pause().code(), Code::kUnavailable) << "rank 2 has not come back";
  r3.lose_session();
  r3.connect_here(socket());
  ASSERT_EQ(ScriptedRank::code(r3.hello("train", 2)), Code::kOk);
  settle();
  EXPECT_EQ(group().rank_count(), 3U);
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(BrokerRestartTest, AnotherRankOfItsProcessDoesNotTakeItsPlace) {
  two();
  restart();
  join_here(r3, "train", 2);
  both_come_back();
  EXPECT_EQ(group().rank_count(), 3U);
  expect_whole();
}

TEST_F(BrokerRestartTest, GuestsAreGuestsAgain) {
  two();
  join_here(r3, "guest", 0);
  r3.share(r1, of_a);
  restart();
  both_come_back();
  ASSERT_EQ(ScriptedRank::code(r3.come_back(socket())), Code::kOk);
  settle();
  ASSERT_TRUE(complete(begin(Operation::kPause)).ok()) << "it stays where it is";
  EXPECT_EQ(used(0), alone);
  EXPECT_TRUE(r3.holds(of_a, 0xaa));
  ASSERT_TRUE(resume().ok());
  r3.free(of_a);
  settle();
  expect_whole();
}

TEST_F(BrokerRestartTest, MemoryThatOnlyGuestsHaveIsTheirsStill) {
  join(a, "train", 0);
  of_a = a.create(gpu(0), 4 * kMiB);
  a.write(of_a, 0xaa);
  join_here(r3, "guest", 0);
  r3.share(a, of_a);
  a.die();
  a.memory.clear();
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 1; }));
  restart();
  EXPECT_EQ(group("guest").opened_size(), 1);
  ASSERT_EQ(ScriptedRank::code(r3.come_back(socket())), Code::kOk);
  settle();
  EXPECT_EQ(group("guest").opened_size(), 1);
  EXPECT_TRUE(r3.holds(of_a, 0xaa));
  r3.free(of_a);
  EXPECT_TRUE(eventually([&] { return used(0) == 0; }));
}

// It would be written for each of thousands of allocations.
TEST_F(BrokerRestartTest, WhatASaveTellsThatIsOnRecordIsNotWrittenAgain) {
  join_here(r1, "train", 0);
  r1.habits.hashes = true;
  of_a = r1.create(gpu(0), 4 * kMiB);
  r1.moods[amem_v1_SessionMessage_save_tag] = Mood::kLate;
  const auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return r1.received[amem_v1_SessionMessage_save_tag] == 1; }));
  const std::uint64_t from = written();
  r1.catch_up();
  ASSERT_TRUE(complete(watcher).ok());
  for (const WrittenRow& row : rows_written(from)) EXPECT_NE(kind_of_row(row.key), RowKind::kSaved);
}

TEST_F(BrokerRestartTest, APinHolds) {
  two();
  r1.pin(of_a);
  settle();
  restart();
  both_come_back();
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0), alone) << "a NIC knows where it is";
  restart();
  both_come_back();
  ASSERT_TRUE(resume().ok());
  r1.unpin(of_a);
  settle();
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0) + 4 * kMiB, alone);
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(BrokerRestartTest, WhatHadFailedIsNoSuccessOfTheNext) {
  two();
  const auto both_ask = [&](amem_v1_GroupOp what) {
    return std::pair(r1.request(what, 0, {"weights"}), r2.request(what, 0, {"weights"}));
  };
  const auto answered = [&](std::pair<std::uint64_t, std::uint64_t> asked) {
    settle();
    const Code first = ScriptedRank::code(r1.await_reply(asked.first));
    EXPECT_EQ(ScriptedRank::code(r2.await_reply(asked.second)), first);
    return first;
  };
  ASSERT_EQ(answered(both_ask(amem_v1_GroupOp_GROUP_OP_PAUSE)), Code::kOk);
  r2.moods[amem_v1_SessionMessage_load_tag] = Mood::kFailing;
  r2.moods[amem_v1_SessionMessage_ask_tag] = Mood::kLate;
  both_ask(amem_v1_GroupOp_GROUP_OP_RESUME);
  ASSERT_TRUE(eventually([&] { return group().phase() == "open"; }));
  settle();
  restart();
  for (ScriptedRank* rank : {&r1, &r2})
    ASSERT_EQ(ScriptedRank::code(rank->come_back(socket())), Code::kOk);
  EXPECT_EQ(answered(both_ask(amem_v1_GroupOp_GROUP_OP_RESUME)), Code::kAborted)
      << "it was taken back before";
  ASSERT_EQ(answered(both_ask(amem_v1_GroupOp_GROUP_OP_RESUME)), Code::kOk);
  expect_whole();
}

TEST_F(BrokerRestartTest, WhoHasOpenedIsServedBeforeTheOthersAreBack) {
  two();
  r1.pin(of_b);
  settle();
  ASSERT_TRUE(pause().ok());
  r2.moods[amem_v1_SessionMessage_ask_tag] = Mood::kLate;
  begin(Operation::kResume);
  ASSERT_TRUE(eventually([&] { return group().phase() == "open"; }));
  settle();
  ASSERT_FALSE(r1.gate_shut());
  restart();
  ASSERT_EQ(ScriptedRank::code(r1.come_back(socket())), Code::kOk);
  r1.pin(of_a);
  r1.unpin(of_b);
  EXPECT_NE(r1.create(gpu(1), 2 * kMiB), 0U);
  join_here(r3, "guests", 0);
  r3.share(r1, of_a);
  r3.free(of_a);
  settle();
  ASSERT_NE(group().state(), kRunning) << "the other rank is not back";
  ASSERT_EQ(ScriptedRank::code(r2.come_back(socket())), Code::kOk);
  ASSERT_TRUE(eventually([&] { return at_rest(); })) << group().phase();
  EXPECT_EQ(group().state(), kRunning);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0), alone) << "a NIC knows where it is";
  EXPECT_EQ(group().resident_bytes(), 4 * kMiB) << "and not where the rest is";
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(NoHolderTest, NothingIsHandedOverBeforeAnotherHolderHasEverything) {
  two();
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(may_hand_over().ok());
  end_holder();
  const Status refused = may_hand_over();
  EXPECT_EQ(refused.code(), Code::kAborted) << "it may be tried again";
  EXPECT_THAT(refused.text(), HasSubstr("is lost: it has ended"));
  EXPECT_THAT(refused.text(), HasSubstr("An upgrade requires a holder that has everything"));
  ASSERT_NO_FATAL_FAILURE(begin_holder());
  ASSERT_TRUE(eventually([&] { return may_hand_over().ok(); }));
  restart();
  both_come_back();
  EXPECT_EQ(group().state(), kPaused);
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(BrokerRestartTest, AnotherHolderGetsEverything) {
  two();
  ASSERT_TRUE(pause().ok());
  ASSERT_NO_FATAL_FAILURE(replace_holder());
  restart();
  both_come_back();
  EXPECT_EQ(group().state(), kPaused);
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

/// What a broker says that cannot make sense of what there is.
class UnusableTest : public BrokerRestartTest {
 protected:
  Status attach() {
    EventLoop other;
    EXPECT_TRUE(other.open().ok());
    return HolderSupervisor(other, config, ground::kRuns).attach();
  }
  /// As the broker has left it, and it has gone.
  std::unique_ptr<HolderClient> leave() {
    two();
    EXPECT_TRUE(pause().ok());
    end_broker();
    supervisor.reset();
    return connect();
  }
  std::unique_ptr<HolderClient> connect() {
    HolderLaunch launch;
    launch.path = simulated_node->dir() + "/holder.sock";
    Result<std::unique_ptr<HolderClient>> found = ensure_holder(launch);
    EXPECT_TRUE(found.ok()) << found.status().text();
    return std::move(found).value();
  }
  /// The broker ends, and the next finds the descriptor of that memory lost.
  void restart_without(std::uint64_t allocation) {
    end_broker();
    supervisor.reset();
    std::unique_ptr<HolderClient> all = connect();
    all->drop(holder_key(HolderKind::kMemory, allocation));
    ASSERT_TRUE(all->flush().ok());
    all.reset();
    ASSERT_NO_FATAL_FAILURE(begin_broker());
  }
  /// The broker has ended, and another holder had got nothing of any process yet. `known`: which of
  /// the ranks can be found by the numbers of their processes.
  void lose_processes(const std::set<RankId>& known) {
    supervisor.reset();
    std::unique_ptr<HolderClient> all = connect();
    Result<std::map<HolderKey, Fd>> there = all->list();
    ASSERT_TRUE(there.ok());
    for (const auto& [key, fd] : there.value())
      if (kind_of(key) == HolderKind::kProcess) all->drop(key);
    // Without any process that lives the holder would end.
    const Fd alive = process_with(::getpid()).process;
    all->put(holder_key(HolderKind::kProcess, 1U << 30U), alive.get());
    ASSERT_TRUE(all->flush().ok());
    Result<RecordLog> record = RecordLog::open(std::move(there.value().at(kRecord)));
    ASSERT_TRUE(record.ok());
    std::map<RowKey, v1::record::Rank> rows;
    record.value().each([&](RowKey key, std::string_view bytes) {
      if (kind_of_row(key) != RowKind::kRank || known.contains(static_cast<RankId>(id_of_row(key))))
        return;
      ASSERT_TRUE(rows[key].ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
    });
    for (auto& [key, row] : rows) {
      row.set_pid_namespace(row.pid_namespace() + 1);
      ASSERT_TRUE(record.value().put(key, row.SerializeAsString()).ok());
    }
  }
  /// Rank a saves, and does not say yet that it has.
  void begin_to_save() {
    a.moods[amem_v1_SessionMessage_save_tag] = Mood::kLate;
    begin(Operation::kPause);
    ASSERT_TRUE(eventually([&] { return a.received[amem_v1_SessionMessage_save_tag] > 0; }));
  }
  void expect_refused(const std::string& why) {
    for (int i = 0; i < 2; ++i) {
      const Status status = attach();
      EXPECT_EQ(status.code(), Code::kDataLoss);
      EXPECT_THAT(status.text(), HasSubstr(why));
      EXPECT_THAT(status.text(), HasSubstr("end the holder (amem-holder) first"));
    }
  }
  static constexpr HolderKey kRecord = holder_key(HolderKind::kRecord, 0);
};

TEST_F(UnusableTest, ATornRecordIsRefusedAndTakenUpOnceItIsWhole) {
  std::unique_ptr<HolderClient> all = leave();
  Result<std::map<HolderKey, Fd>> there = all->list();
  ASSERT_TRUE(there.ok());
  const int record = there.value().at(kRecord).get();
  char byte = 0;
  ASSERT_EQ(::pread(record, &byte, 1, 4096 + 25), 1);
  const char torn = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(record, &torn, 1, 4096 + 25), 1);
  all.reset();
  expect_refused("a row is damaged at byte 0");
  ASSERT_EQ(::pwrite(record, &byte, 1, 4096 + 25), 1);
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  both_come_back();
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

/// An amemd that served without it would tell the ranks that it keeps that they are lost.
TEST_F(UnusableTest, AHolderThatRefusesAmemdIsNotDoneWithout) {
  config.holder = HolderUse::kAuto;
  config.holder_socket = simulated_node->dir() + "/other.sock";
  const Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = unix_address(config.holder_socket).value();
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  EventLoop refuses;
  ASSERT_TRUE(refuses.open().ok());
  refuses.watch(listener.get(), EPOLLIN, [&](std::uint32_t) {
    const Fd socket(::accept(listener.get(), nullptr, nullptr));
    const HolderHeader no{HolderMessage::kRefused, 0,
                          static_cast<std::uint32_t>(HolderRefusal::kContainer), 1};
    EXPECT_EQ(::send(socket.get(), &no, sizeof no, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof no));
  });
  ground::run(refuses);
  const Status status = attach();
  ground::end(refuses);
  EXPECT_EQ(status.code(), Code::kPermissionDenied);
  EXPECT_THAT(status.text(), HasSubstr("hostPID"));
}

TEST_F(UnusableTest, DescriptorsWithoutARecordAreLeftAlone) {
  std::unique_ptr<HolderClient> all = leave();
  Result<std::map<HolderKey, Fd>> there = all->list();
  ASSERT_TRUE(there.ok());
  all->drop(kRecord);
  ASSERT_TRUE(all->flush().ok());
  all.reset();
  expect_refused(std::to_string(there.value().size() - 1) + " descriptors have no record");
  all = connect();
  EXPECT_EQ(all->list().value().size(), there.value().size() - 1);
  all->put(kRecord, there.value().at(kRecord).get());
  ASSERT_TRUE(all->flush().ok());
  all.reset();
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  both_come_back();
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(UnusableTest, AGroupWhoseMemoryIsMissingIsNamedAndOthersAreTakenUp) {
  join_here(r3, "other", 0);
  const std::uint64_t others = r3.create(gpu(1), 2 * kMiB);
  r3.write(others, 0x33);
  two();
  ASSERT_NO_FATAL_FAILURE(restart_without(of_b));
  EXPECT_EQ(status().groups_size(), 1);
  EXPECT_EQ(ScriptedRank::code(r1.come_back(socket())), Code::kNotFound);
  ASSERT_EQ(ScriptedRank::code(r3.come_back(socket())), Code::kOk);
  settle();
  ASSERT_TRUE(pause("other").ok());
  ASSERT_TRUE(resume("other").ok());
  EXPECT_TRUE(r3.holds(others, 0x33));
}

// It may be saving still when its group is not taken up any more.
TEST_F(UnusableTest, WhatItsRanksMayBeWritingToIsNobodysUntilTheyEnd) {
  join(a, "train", 0);
  ASSERT_NE(a.create(gpu(0), 4 * kMiB), 0U);
  const std::uint64_t lost = a.create(gpu(0), 2 * kMiB);
  ASSERT_NO_FATAL_FAILURE(begin_to_save());
  ASSERT_NO_FATAL_FAILURE(restart_without(lost));
  EXPECT_EQ(status().groups_size(), 0);
  EXPECT_EQ(status().pool().used_bytes(), 6 * kMiB);
  restart();
  EXPECT_EQ(status().pool().used_bytes(), 6 * kMiB);
  a.die();
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }));
}

// A row without its process is not one of a rank that has ended: another holder may not have got
// the process yet when the broker ended.
TEST_F(UnusableTest, ARankWhoseProcessTheHolderLacksIsFoundByItsNumber) {
  two();
  end_broker();
  ASSERT_NO_FATAL_FAILURE(lose_processes({r1.id(), r2.id()}));
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_EQ(pause().code(), Code::kUnavailable) << "nobody has come back";
  both_come_back();
  ASSERT_TRUE(pause().ok());
  restart();
  both_come_back();
  ASSERT_TRUE(resume().ok());
  expect_whole();
}

TEST_F(UnusableTest, ARankThatEndsMeanwhileIsGoneThoughTheHolderLacksItsProcess) {
  join(a, "train", 0);
  join(b, "train", 1);
  const std::uint64_t memory = a.create(gpu(0), 4 * kMiB);
  b.share(a, memory);
  end_broker();
  ASSERT_NO_FATAL_FAILURE(lose_processes({a.id(), b.id()}));
  b.die();
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  a.die();
  EXPECT_TRUE(eventually([&] { return status().groups_size() == 0; }));
}

TEST_F(UnusableTest, AGroupOneOfWhoseProcessesIsNotKnownIsNotTakenUp) {
  two();
  end_broker();
  ASSERT_NO_FATAL_FAILURE(lose_processes({r1.id()}));
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_EQ(status().groups_size(), 0) << "r2 could write to what a pause of r1 saves";
  EXPECT_EQ(ScriptedRank::code(r1.come_back(socket())), Code::kNotFound);
  EXPECT_EQ(ScriptedRank::code(r2.come_back(socket())), Code::kNotFound);
}

TEST_F(UnusableTest, NorIsOneWhoseMemorySuchARankMayHaveOpen) {
  join_here(r3, "other", 0);
  const std::uint64_t others = r3.create(gpu(1), 2 * kMiB);
  join_here(r1, "train", 0);
  of_a = r1.create(gpu(0), 4 * kMiB);
  r1.share(r3, others);
  end_broker();
  ASSERT_NO_FATAL_FAILURE(lose_processes({r3.id()}));
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_EQ(status().groups_size(), 0);
  EXPECT_EQ(ScriptedRank::code(r3.come_back(socket())), Code::kNotFound);
}

// That it has let go of it the record need not say.
TEST_F(UnusableTest, ButOneOfWhoseMemoryNothingIsOnADeviceIs) {
  join_here(r3, "other", 0);
  const std::uint64_t others = r3.create(gpu(1), 2 * kMiB);
  r3.write(others, 0x33);
  join_here(r1, "train", 0);
  ASSERT_NE(r1.create(gpu(0), 4 * kMiB), 0U);
  r1.share(r3, others);
  r1.free(others);
  settle();
  ASSERT_TRUE(pause("other").ok());
  end_broker();
  ASSERT_NO_FATAL_FAILURE(lose_processes({r3.id()}));
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_EQ(status().groups_size(), 1);
  ASSERT_EQ(ScriptedRank::code(r3.come_back(socket())), Code::kOk);
  settle();
  ASSERT_TRUE(resume("other").ok());
  EXPECT_TRUE(r3.holds(others, 0x33));
}

TEST_F(UnusableTest, WhatARankThatIsNotKnownMayBeWritingToIsNobodysEver) {
  join(a, "train", 0);
  ASSERT_NE(a.create(gpu(0), 4 * kMiB), 0U);
  ASSERT_NO_FATAL_FAILURE(begin_to_save());
  end_broker();
  ASSERT_NO_FATAL_FAILURE(lose_processes({}));
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_EQ(status().groups_size(), 0);
  EXPECT_EQ(status().pool().used_bytes(), 4 * kMiB);
}

// Of one that can be found by its number the bytes are nobody's until it ends.
TEST_F(UnusableTest, WhatARankThatIsFoundMayBeWritingToIsNobodysUntilItEnds) {
  join(a, "train", 0);
  ASSERT_NE(a.create(gpu(0), 4 * kMiB), 0U);
  const std::uint64_t lost = a.create(gpu(0), 2 * kMiB);
  ASSERT_NO_FATAL_FAILURE(begin_to_save());
  end_broker();
  ASSERT_NO_FATAL_FAILURE(lose_processes({a.id()}));
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  ASSERT_NO_FATAL_FAILURE(restart_without(lost));
  EXPECT_EQ(status().groups_size(), 0);
  end_broker();
  ASSERT_NO_FATAL_FAILURE(lose_processes({a.id()}));
  ASSERT_NO_FATAL_FAILURE(begin_broker());
  EXPECT_EQ(status().pool().used_bytes(), 6 * kMiB);
  a.die();
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }));
}

/// Else the next broker would take it for the memory of the group that has left.
TEST_F(BrokerRestartTest, NothingIsHandedOnThatTheHolderMayHaveStill) {
  constexpr pb_size_t kRelease = amem_v1_SessionMessage_release_tag;
  const auto make = [&](ScriptedRank& rank, const std::string& name) {
    join_here(rank, name, 0);
    EXPECT_TRUE(set_policy("scratch", v1::POLICY_DISCARD, name).ok());
    return rank.create(gpu(0), 60 * kMiB, "scratch");
  };
  const std::uint64_t its = make(b, "rollout");
  ASSERT_TRUE(pause("rollout").ok());
  ASSERT_NE(make(a, "train"), 0U);
  join_here(c, "other", 0);
  ASSERT_NE(c.create(gpu(0), nvml.memory(gpu(0))->free / (2 * kMiB) * 2 * kMiB), 0U);
  a.moods[kRelease] = Mood::kLate;
  const auto watcher = std::make_shared<Watcher>();
  on_loop([&] { broker->swap(Caller{}, {"train"}, {"rollout"}, Operation::kPause, {}, watcher); });
  ASSERT_TRUE(eventually([&] { return a.received[kRelease] > 0; }));
  ground::end(*holder_loop);  // it answers nothing
  a.catch_up();
  const bool came = eventually([&] { return watcher->done(); });
  ground::run(*holder_loop);
  ASSERT_TRUE(came);
  EXPECT_EQ(watcher->status().text().find("pause of"), std::string::npos)
      << "train is paused within its deadlines: " << watcher->status().text();
  EXPECT_FALSE(b.mapped().contains(its)) << "while the holder has it, it is not free either";
}

/// Calls a function of the simulated NVML, which serves while it has been begun more often than
/// ended.
void call_nvml(const char* name) {
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto function = reinterpret_cast<int (*)()>(::dlsym(library, name));
  ASSERT_NE(function, nullptr);
  EXPECT_EQ(function(), 0);
  ::dlclose(library);
}

TEST_F(BrokerRestartTest, WhereADeviceDoesNotSayHowMuchItHasFreeNothingIsMissed) {
  constexpr pb_size_t kRelease = amem_v1_SessionMessage_release_tag;
  join_here(a, "train", 0);
  ASSERT_NE(a.create(gpu(0), 24 * kMiB), 0U);
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before);
    a.moods[kRelease] = Mood::kLate;
    const auto watcher = begin(Operation::kPause);
    const int released = a.received[kRelease];
    ASSERT_TRUE(eventually([&] { return a.received[kRelease] > released; }));
    ground::end(*holder_loop);  // the broker waits for it between its two looks
    if (before) call_nvml("nvmlShutdown");
    a.catch_up();
    settle();
    call_nvml(before ? "nvmlInit_v2" : "nvmlShutdown");
    ground::run(*holder_loop);
    EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
    if (!before) call_nvml("nvmlInit_v2");
    EXPECT_EQ(group().note(), "");
    EXPECT_EQ(used(0), 0U);
    ASSERT_TRUE(resume().ok());
  }
}

class LettingGoTest : public BrokerRestartTest {
 protected:
  void configure(Config& settings) const override { settings.swap_wave = 4 * kMiB; }
};

TEST_F(LettingGoTest, WhatNobodyLacksAnyMoreWhenTheHolderHasLetGoIsSpaceForTheRest) {
  constexpr pb_size_t kSave = amem_v1_SessionMessage_save_tag;
  constexpr pb_size_t kRelease = amem_v1_SessionMessage_release_tag;
  const auto make = [&](ScriptedRank& rank, const std::string& name) {
    join_here(rank, name, 0);
    EXPECT_TRUE(set_policy("scratch", v1::POLICY_DISCARD, name).ok());
    return std::pair(rank.create(gpu(0), 10 * kMiB, "scratch"),
                     rank.create(gpu(0), 10 * kMiB, "scratch"));
  };
  const auto lacked = make(b, "rollout");
  const std::uint64_t other = b.create(gpu(0), 12 * kMiB, "scratch");
  ASSERT_TRUE(pause("rollout").ok());
  make(a, "train");
  for (int i = 0; i < 3; ++i) ASSERT_NE(a.create(gpu(0), 4 * kMiB), 0U);  // of a wave each
  join_here(c, "other", 0);
  ASSERT_NE(c.create(gpu(0), nvml.memory(gpu(0))->free / (2 * kMiB) * 2 * kMiB), 0U);
  a.moods[kSave] = Mood::kLate;
  const auto watcher = std::make_shared<Watcher>();
  on_loop([&] { broker->swap(Caller{}, {"train"}, {"rollout"}, Operation::kPause, {}, watcher); });
  ASSERT_TRUE(eventually([&] { return a.received[kSave] == 1; }));
  ground::end(*holder_loop);  // it answers nothing
  a.catch_up();
  a.moods[kSave] = Mood::kLate;
  EXPECT_TRUE(eventually([&] { return a.received[kRelease] == 1; }));
  settle();
  b.free(lacked.first);
  b.free(lacked.second);
  settle();
  ground::run(*holder_loop);
  EXPECT_TRUE(eventually([&] { return b.mapped().contains(other); }));
  EXPECT_EQ(group("train").phase(), "save") << "the second wave is on its device";
  a.catch_up();
  EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
}

}  // namespace
}  // namespace amem
