// The broker's pauses and resumes, and what a rank's failure does to them.
#include <dirent.h>

#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

// ---- pause and resume ---------------------------------------------------------------------------

TEST_F(BrokerTest, PauseFreesTheDeviceAndResumeBringsEveryByteBack) {
  two_sharing();
  const std::uint64_t before = used(0) + used(1);
  EXPECT_EQ(before, 10 * kMiB);
  auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  for (const char* phase : {"quiesce", "save", "release", "drop"})
    EXPECT_TRUE(watcher->saw(phase)) << phase;
  EXPECT_TRUE(watcher->all().back().done());
  EXPECT_EQ(watcher->all().back().times_size(), 4);
  EXPECT_EQ(used(0) + used(1), 0U) << "by the driver's own figure";
  v1::GroupInfo info = group();
  EXPECT_EQ(info.state(), v1::GROUP_STATE_PAUSED);
  EXPECT_EQ(info.resident_bytes(), 0U);
  EXPECT_EQ(info.saved_bytes(), 10 * kMiB);
  EXPECT_EQ(info.note(), "");
  EXPECT_GT(info.last_pause_us(), 0U);
  EXPECT_EQ(status().pool().used_bytes(), 10 * kMiB);
  EXPECT_EQ(status().devices(0).brokered_bytes(), 0U);
  EXPECT_TRUE(a.gate_shut());

  watcher = begin(Operation::kResume);
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  for (const char* phase : {"admit", "create", "map+load", "open"})
    EXPECT_TRUE(watcher->saw(phase)) << phase;
  expect_intact();
  info = group();
  EXPECT_EQ(info.state(), v1::GROUP_STATE_RUNNING);
  EXPECT_EQ(info.resident_bytes(), 10 * kMiB);
  EXPECT_EQ(status().pool().used_bytes(), 0U);
  EXPECT_FALSE(a.gate_shut());
  EXPECT_FALSE(b.gate_shut());
}

TEST_F(BrokerTest, ARankReachesAsMuchOfThePoolAsItMayHaveToSave) {
  join(a);
  settle();
  EXPECT_TRUE(a.segments.empty());
  a.create(gpu(0), 8 * kMiB);
  settle();
  EXPECT_EQ(a.segments.size(), 1U);
  a.create(gpu(0), 32 * kMiB, "cache", amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
  settle();
  EXPECT_EQ(a.segments.size(), 1U) << "what is discarded needs no space";
  a.create(gpu(0), 2 * kMiB);
  settle();
  EXPECT_EQ(a.segments.size(), 2U);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(a.segments.size(), 2U) << "a pause finds everything there";
}

TEST_F(BrokerTest, WhoeverBecomesKeeperReachesThePoolToo) {
  two_sharing();
  settle();
  ASSERT_EQ(a.segments.size(), 1U);
  a.free(of_a);
  settle();
  EXPECT_EQ(b.segments.size(), 2U) << "6 MiB of its own and the 4 MiB that are left to it";
}

TEST_F(BrokerTest, ARankWhosePlaceIsTakenReachesAnotherBeforeItsSave) {
  join(a);
  const std::uint64_t mine = a.create(gpu(0), 8 * kMiB);
  a.write(mine, 0x5a);
  join(b, "other");
  const std::uint64_t most = b.create(gpu(0), 24 * kMiB);
  b.free(b.create(gpu(0), 8 * kMiB));
  settle();
  EXPECT_EQ(b.segments.size(), 4U);
  ASSERT_EQ(a.segments.size(), 1U);
  const std::uint32_t place = a.segments.begin()->first;
  EXPECT_EQ(place, 0U) << "one of those that b's bytes go to";
  b.write(most, 0x77);
  ASSERT_TRUE(pause("other").ok());
  const Status paused = pause();  // the rank checks that it was told of the segments first
  ASSERT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(a.segments.size(), 2U);
  ASSERT_TRUE(resume().ok());
  ASSERT_TRUE(resume("other").ok());
  EXPECT_TRUE(a.holds(mine, 0x5a));
  EXPECT_TRUE(b.holds(most, 0x77));
}

TEST_F(BrokerTest, ManyAllocationsGoInBatches) {
  join(a);
  join(b, "train", 1);
  std::vector<std::uint64_t> ids;
  ASSERT_TRUE(set_policy("scratch", v1::POLICY_DISCARD).ok());
  for (int i = 0; i < 30; ++i) ids.push_back(a.create(gpu(0), 2 * kMiB, "scratch"));
  for (int i = 0; i < 30; ++i) ids.push_back(a.create(gpu(1), 2 * kMiB, "scratch"));
  for (int i = 0; i < 14; ++i) ids.push_back(a.create(gpu(1), 2 * kMiB));
  a.write(ids.back(), 0x55);
  for (std::uint64_t id : ids) b.share(a, id);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0) + used(1), 0U);
  const Status resumed = resume();
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_TRUE(b.holds(ids.back(), 0x55));
  EXPECT_TRUE(b.holds(ids.front(), 0));
}

TEST_F(BrokerTest, DiscardedTagsComeBackZeroedAndNeedNoPool) {
  join(a);
  const std::uint64_t cache = a.create(gpu(0), 64 * kMiB, "kv_cache");
  const std::uint64_t kept = a.create(gpu(0), 2 * kMiB, "weights");
  a.write(cache, 1);
  a.write(kept, 2);
  EXPECT_EQ(pause().code(), Code::kResourceExhausted) << "64 MiB do not fit in the pool";
  ASSERT_TRUE(set_policy("kv_cache", v1::POLICY_DISCARD).ok());
  const Status paused = pause();
  ASSERT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(status().pool().used_bytes(), 2 * kMiB);
  EXPECT_EQ(set_policy("weights", v1::POLICY_DISCARD).code(), Code::kFailedPrecondition)
      << "not while paused";
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(cache, 0));
  EXPECT_TRUE(a.holds(kept, 2));
}

TEST_F(BrokerTest, MemoryThatHasBecomeFreeIsNotMissed) {
  join(a);
  ASSERT_NE(a.create(gpu(0), 24 * kMiB), 0U);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(group().note(), "");
}

TEST_F(BrokerTest, WhatAPauseHasGivenBackIsCountedAndWhatHasNotBecomeFreeIsNamed) {
  join(a);
  std::vector<Fd> held;  // as by a process that maps it still
  ASSERT_TRUE(set_policy("scratch", v1::POLICY_DISCARD).ok());
  for (const std::size_t device : {0U, 0U, 1U})
    held.push_back(a.memory.at(a.create(gpu(device), 24 * kMiB, "scratch")).fd.duplicate());
  ASSERT_NE(a.create(gpu(1), 2 * kMiB), 0U);
  const auto closed = [&] {
    const auto watcher = begin(Operation::kPause);
    EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
    return watcher->all().back().memory().closed_bytes();
  };
  EXPECT_EQ(closed(), 74 * kMiB);
  const std::string note = group().note();
  const std::string what = " dropped, but the memory in use fell by only ";
  EXPECT_NE(note.find(to_string(gpu(0)) + ": 48 MiB" + what + "0 B: a process may still map it"),
            std::string::npos)
      << note;
  EXPECT_NE(note.find(to_string(gpu(1)) + ": 26 MiB" + what + "2 MiB: "), std::string::npos)
      << note;
  EXPECT_NE(note.find("; GPU-"), std::string::npos) << note;
  held.clear();
  ASSERT_TRUE(resume().ok());
  EXPECT_EQ(closed(), 74 * kMiB);
  EXPECT_EQ(group().note(), "");
}

TEST_F(BrokerTest, ARankThatReachesThePoolIsNotSentItAgain) {
  two_sharing();
  const auto pool = [this] {
    std::map<std::uint32_t, int> fds;
    for (const auto& [segment, fd] : a.segments) fds[segment] = fd.get();
    return fds;
  };
  settle();
  const auto before = pool();
  ASSERT_FALSE(before.empty());
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(pause().ok());
    ASSERT_TRUE(resume().ok());
  }
  EXPECT_EQ(pool(), before);
}

TEST_F(BrokerTest, TheTimesOfARankThatHasEndedHaveNoNumber) {
  two_sharing();
  b.moods[amem_v1_SessionMessage_release_tag] = Mood::kDying;
  const auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  b.memory.clear();
  std::set<std::int32_t> numbers;
  const v1::Progress last = watcher->all().back();
  for (const v1::PhaseTime& phase : last.times())
    if (phase.phase() == "save")
      for (const v1::RankTime& rank : phase.ranks()) numbers.insert(rank.rank());
  EXPECT_EQ(numbers, (std::set<std::int32_t>{-1, 0}));
}

TEST_F(BrokerTest, PoliciesAreChecked) {
  join(a);
  const Status nccl = set_policy("nccl", v1::POLICY_DISCARD);
  EXPECT_EQ(nccl.code(), Code::kInvalidArgument);
  EXPECT_NE(nccl.text().find("nobody has proven"), std::string::npos);
  EXPECT_TRUE(set_policy("nccl", v1::POLICY_KEEP).ok());
  a.create(gpu(0), 4 * kMiB, "heap");
  const Status heap = set_policy("heap", v1::POLICY_DISCARD);
  EXPECT_EQ(heap.code(), Code::kInvalidArgument);
  EXPECT_NE(heap.text().find("would lose 4 MiB"), std::string::npos) << heap.text();
  EXPECT_EQ(status().groups(0).policies_size(), 1) << "nccl's";
  EXPECT_TRUE(set_policy("heap", v1::POLICY_KEEP).ok());
  EXPECT_TRUE(on_loop([&] {
                return broker->set_policy(Caller{}, "train", "heap", v1::POLICY_DISCARD,
                                          v1::FORM_UNSPECIFIED, true);
              }).ok());
  EXPECT_EQ(set_policy("x", v1::POLICY_UNSPECIFIED).code(), Code::kInvalidArgument);
  EXPECT_EQ(set_policy("", v1::POLICY_KEEP).code(), Code::kInvalidArgument);
  EXPECT_EQ(set_policy("x", v1::POLICY_KEEP, "nobody").code(), Code::kNotFound);
}

TEST_F(BrokerTest, APoolTooSmallLeavesEverythingRunning) {
  join(a);
  const std::uint64_t id = a.create(gpu(0), kPool + 2 * kMiB);
  a.write(id, 3);
  const Status status_of_pause = pause();
  EXPECT_EQ(status_of_pause.code(), Code::kResourceExhausted);
  EXPECT_NE(status_of_pause.text().find("it has 32 MiB of 32 MiB free, but 34 MiB are needed"),
            std::string::npos)
      << status_of_pause.text();
  EXPECT_EQ(group().state(), v1::GROUP_STATE_RUNNING);
  EXPECT_FALSE(a.gate_shut());
  EXPECT_TRUE(a.holds(id, 3));
  EXPECT_EQ(status().pool().used_bytes(), 0U);
}

TEST_F(BrokerTest, ADeviceThatIsFullRefusesTheResumeWithBothNumbers) {
  two_sharing();
  ASSERT_TRUE(pause().ok());
  join(c, "rollout");
  const std::uint64_t large = c.create(gpu(0), kDeviceMemory - 2 * kMiB);
  expect_trims();
  const Status refused = resume();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.text().find("2 MiB free, but 4 MiB are needed"), std::string::npos)
      << refused.text();
  EXPECT_EQ(group().state(), v1::GROUP_STATE_PAUSED);
  c.free(large);
  settle();
  ASSERT_TRUE(resume().ok());
  expect_intact();
}

TEST_F(BrokerTest, WrongStatesAreRefused) {
  two_sharing();
  EXPECT_EQ(resume().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(pause().code(), Code::kFailedPrecondition);
  const Status unknown = pause("nobody");
  EXPECT_EQ(unknown.code(), Code::kNotFound);
  EXPECT_NE(unknown.text().find("The groups are 'train'"), std::string::npos) << unknown.text();
  EXPECT_EQ(group().state(), v1::GROUP_STATE_PAUSED);
}

TEST_F(BrokerTest, WhatIsRefusedHasNoNumber) {
  two_sharing();
  auto watcher = std::make_shared<Watcher>();
  const std::uint64_t number = on_loop([&] {
    broker->operations().refuse_new_work({Code::kUnavailable, "amemd is about to end"});
    return broker->start_operation(Caller{}, Operation::kPause, {"train"}, {}, watcher);
  });
  EXPECT_EQ(number, 0U);
  EXPECT_EQ(watcher->status().code(), Code::kUnavailable);
  EXPECT_EQ(watcher->status().text(), "amemd is about to end");
  EXPECT_EQ(group().state(), kRunning);
  watcher = std::make_shared<Watcher>();
  EXPECT_EQ(on_loop([&] {
              return broker->swap(Caller{}, {"train"}, {"train"}, Operation::kPause, {}, watcher);
            }),
            0U);
  EXPECT_EQ(watcher->status().text(),
            "group 'train' is named both to pause and to resume. A swap requires different groups");
}

TEST_F(BrokerTest, NothingIsServedWhilePaused) {
  two_sharing();
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(ScriptedRank::code(a.try_create(gpu(0), 2 * kMiB, "nccl")), Code::kFailedPrecondition);
  EXPECT_EQ(ScriptedRank::code(a.try_redeem(of_b, b.token(of_b))), Code::kFailedPrecondition);
  a.free(of_a);
  b.free(of_a);
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 6 * kMiB; }))
      << "but memory can be given up";
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_b, 0xbb));
}

TEST_F(BrokerTest, ALateJoinerIsOpenedWithTheOthers) {
  two_sharing();
  ASSERT_TRUE(pause().ok());
  join(c, "train", 2);
  EXPECT_TRUE(c.gate_shut());
  ASSERT_TRUE(resume().ok());
  EXPECT_FALSE(c.gate_shut());
  EXPECT_NE(c.create(gpu(0), 2 * kMiB), 0U);
}

TEST_F(BrokerTest, TheRanksAreToldWhoHasPausedThem) {
  two_sharing();
  Caller caller;
  caller.who = "pid 12 of uid 1000";
  auto watcher = std::make_shared<Watcher>();
  on_loop([&] { broker->start_operation(caller, Operation::kPause, {"train"}, {}, watcher); });
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  EXPECT_EQ(a.paused_by, "pid 12 of uid 1000");
  EXPECT_EQ(b.paused_by, a.paused_by);
  c.connect(simulated_node->dir() + "/session.sock");
  const Packet welcome = c.hello("train", 2);
  ASSERT_EQ(ScriptedRank::code(welcome), Code::kOk);
  EXPECT_TRUE(welcome.message.body.reply.result.welcome.gate_shut);
  EXPECT_STREQ(welcome.message.body.reply.result.welcome.paused_by, "pid 12 of uid 1000");
  c.die();
  ASSERT_TRUE(resume().ok());
  a.request(amem_v1_GroupOp_GROUP_OP_PAUSE);
  b.request(amem_v1_GroupOp_GROUP_OP_PAUSE);
  ASSERT_TRUE(eventually([&] { return group().state() == kPaused; }));
  EXPECT_EQ(a.paused_by, "the group itself");
}

TEST_F(BrokerTest, TheNextSharerTakesOverFromADeadKeeper) {
  two_sharing();
  ASSERT_TRUE(pause().ok());
  a.memory.clear();
  a.die();
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  const Status resumed = resume();
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_TRUE(b.holds(of_a, 0xaa)) << "loaded by the next sharer";
  EXPECT_TRUE(b.holds(of_b, 0xbb));
}

TEST_F(BrokerTest, PinnedMemoryStaysWhereItIs) {
  two_sharing();
  b.pin(of_a);
  settle();
  const auto watcher = begin(Operation::kPause, "train");
  ASSERT_TRUE(complete(watcher).ok());
  EXPECT_EQ(watcher->all().back().pinned_bytes(), 4 * kMiB) << "and says so";
  EXPECT_EQ(used(0), 4 * kMiB);
  EXPECT_EQ(used(1), 0U);
  EXPECT_EQ(group().pinned_bytes(), 4 * kMiB);
  b.write(of_a, 0xcc);  // the device that it was given to goes on
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_a, 0xcc));
  EXPECT_TRUE(a.holds(of_b, 0xbb));
}

TEST_F(BrokerTest, UnpinnedMemoryLeavesAgain) {
  two_sharing();
  b.pin(of_a);
  settle();
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0), 4 * kMiB);
  ASSERT_TRUE(resume().ok());
  b.unpin(of_a);
  settle();
  EXPECT_EQ(group().pinned_bytes(), 0U);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0), 0U);
  ASSERT_TRUE(resume().ok());
  expect_intact();
}

TEST_F(BrokerTest, APauseThatHasFoundMemoryPinnedKeepsItSo) {
  two_sharing();
  b.pin(of_a);
  settle();
  ASSERT_TRUE(pause().ok());
  b.unpin(of_a);  // no shim does
  b.memory.at(of_a).pinned = true;
  settle();
  EXPECT_EQ(group().pinned_bytes(), 4 * kMiB);
  ASSERT_TRUE(resume().ok());
  expect_intact();
}

TEST_F(BrokerTest, MemoryThatIsUnpinnedWhileOthersAreSavedStays) {
  two_sharing();
  b.pin(of_a);
  settle();
  b.moods[amem_v1_SessionMessage_save_tag] = Mood::kLate;
  const auto watcher = begin(Operation::kPause, "train");
  ASSERT_TRUE(eventually([&] { return b.received[amem_v1_SessionMessage_save_tag] > 0; }));
  b.unpin(of_a);  // no shim does
  b.memory.at(of_a).pinned = true;
  settle();
  b.catch_up();
  ASSERT_TRUE(complete(watcher).ok());
  EXPECT_EQ(used(0), 4 * kMiB) << "it was not saved";
  ASSERT_TRUE(resume().ok());
  expect_intact();
}

TEST_F(BrokerTest, LostDataIsToldFromOtherFailures) {
  two_sharing();
  ASSERT_TRUE(pause().ok());
  a.moods[amem_v1_SessionMessage_load_tag] = Mood::kFailing;
  EXPECT_EQ(resume().code(), Code::kAborted);
  a.habits.failure = Code::kDataLoss;
  EXPECT_EQ(resume().code(), Code::kDataLoss);
  EXPECT_EQ(group().state(), kPaused);
  a.moods.clear();
  ASSERT_TRUE(resume().ok());
  expect_intact();
}

TEST_F(BrokerTest, WhatIsPinnedWhileOthersStillOpenStays) {
  two_sharing();
  ASSERT_TRUE(pause().ok());
  b.moods[amem_v1_SessionMessage_ask_tag] = Mood::kLate;
  const auto watcher = begin(Operation::kResume, "train");
  ASSERT_TRUE(eventually([&] { return !a.gate_shut() && group().phase() == "open"; }));
  a.pin(of_a);
  settle();
  b.catch_up();
  ASSERT_TRUE(complete(watcher).ok());
  EXPECT_EQ(group().pinned_bytes(), 4 * kMiB);
  EXPECT_EQ(status().pool().used_bytes(), 0U);
  a.write(of_a, 0xcc);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0), 4 * kMiB);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_a, 0xcc));
  EXPECT_TRUE(a.holds(of_b, 0xbb));
}

TEST_F(BrokerTest, PinnedMemoryKeepsItsBytesWhenThePinnerDies) {
  two_sharing();
  b.pin(of_a);
  settle();
  ASSERT_TRUE(pause().ok());
  b.memory.clear();
  b.die();
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_a, 0xaa));
}

TEST_F(BrokerTest, TwentyCyclesLeaveNothingBehind) {
  two_sharing();
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(pause().ok());
    ASSERT_TRUE(resume().ok());
  }
  expect_intact();
  // Devices' threads close what has left when they get to it, also what left before we counted.
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }));
}

// ---- the cut ------------------------------------------------------------------------------------

TEST_F(BrokerTest, ABusyRankGetsItsPeerStepped) {
  two_sharing();
  auto device = [&](ScriptedRank& rank, std::size_t ordinal, bool busy, std::uint32_t waiting) {
    amem_v1_DeviceCut& cut = rank.habits.cut.emplace_back();
    cut = amem_v1_DeviceCut_init_zero;
    std::memcpy(cut.device, gpu(ordinal).bytes.data(), 16);
    cut.busy = busy;
    cut.waiting = waiting;
  };
  device(a, 0, true, 0);
  device(b, 1, false, 1);
  b.on_step = [&](ScriptedRank&) {  // launches what a waits for: both become idle
    for (ScriptedRank* rank : {&a, &b}) rank->habits.cut.clear();
    device(b, 1, false, 0);
    device(a, 0, false, 0);
    a.report();
  };
  const Status paused = pause();
  ASSERT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(b.received[amem_v1_SessionMessage_permit_tag], 1);
  EXPECT_EQ(a.received[amem_v1_SessionMessage_permit_tag], 0);
}

// ---- from inside --------------------------------------------------------------------------------

TEST_F(BrokerTest, WhatWaitsForOneGroupsRanksHoldsUpNoOtherGroup) {
  constexpr pb_size_t kSave = amem_v1_SessionMessage_save_tag;
  for (ScriptedRank* const rank : {&a, &b}) {
    join(*rank, rank == &a ? "train" : "rollout");
    ASSERT_NE(rank->create(gpu(0), 4 * kMiB, "cache"), 0U);
    rank->moods[kSave] = Mood::kLate;
    rank->request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"cache"});
    ASSERT_TRUE(eventually([&] { return rank->received[kSave] == 1; }));
  }
  const auto first = begin(Operation::kPause, "train");
  const auto second = begin(Operation::kPause, "rollout");
  settle();
  EXPECT_FALSE(second->done());
  b.catch_up();
  EXPECT_TRUE(complete(second).ok()) << second->status().text();
  EXPECT_FALSE(first->done());
  EXPECT_EQ(a.received[amem_v1_SessionMessage_quiesce_tag], 1)
      << "its rank saves what it asked for";
  a.catch_up();
  EXPECT_TRUE(complete(first).ok()) << first->status().text();
}

TEST_F(BrokerTest, AnOperatorsPauseGoesBeforeWhatARankHasNotBegunToSave) {
  constexpr pb_size_t kQuiesce = amem_v1_SessionMessage_quiesce_tag;
  two_sharing();
  ASSERT_NE(a.create(gpu(0), 4 * kMiB, "cache"), 0U);
  a.moods[kQuiesce] = Mood::kLate;
  a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"cache"});
  ASSERT_TRUE(eventually([&] { return a.received[kQuiesce] == 1; }));
  const Time began = Clock::now();
  const auto watcher = std::make_shared<Watcher>();
  EXPECT_EQ(on_loop([&] {
              return broker->start_operation(Caller{}, Operation::kPause, {"train"}, {}, watcher);
            }),
            0U)
      << "it has not begun";
  ASSERT_FALSE(watcher->all().empty());
  EXPECT_EQ(watcher->all()[0].waits_for(),
            "pause of tag cache of 1 rank of group 'train' is under way (quiesce)");
  EXPECT_TRUE(eventually([&] { return b.received[kQuiesce] == 1; }));
  EXPECT_LT(Clock::now() - began, seconds(1)) << "which a busy rank may take";
  a.catch_up();
  EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
}

TEST_F(BrokerTest, WhileAnOperatorWaitsForARankNoOtherBegins) {
  constexpr pb_size_t kQuiesce = amem_v1_SessionMessage_quiesce_tag;
  constexpr pb_size_t kSave = amem_v1_SessionMessage_save_tag;
  two_sharing();
  ASSERT_NE(a.create(gpu(0), 4 * kMiB, "cache"), 0U);
  ASSERT_NE(b.create(gpu(1), 4 * kMiB, "weights"), 0U);
  a.moods[kSave] = Mood::kLate;
  a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"cache"});
  ASSERT_TRUE(eventually([&] { return a.received[kSave] == 1; }));
  const auto watcher = begin(Operation::kPause);
  b.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"weights"});
  settle();
  a.catch_up();
  b.moods[kQuiesce] = Mood::kLate;
  EXPECT_TRUE(eventually([&] { return b.received[kQuiesce] == 1; }));
  EXPECT_EQ(group().state(), v1::GROUP_STATE_PAUSING) << "the operator's is next";
  b.catch_up();
  EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
}

TEST_F(BrokerTest, AnOperatorThatWaitsForARankHearsWhyAndMayGo) {
  constexpr pb_size_t kSave = amem_v1_SessionMessage_save_tag;
  two_sharing();
  ASSERT_NE(a.create(gpu(0), 4 * kMiB, "cache"), 0U);
  a.moods[kSave] = Mood::kLate;
  a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"cache"});
  ASSERT_TRUE(eventually([&] { return a.received[kSave] == 1; }));
  const auto gone = begin(Operation::kPause);
  settle();
  ASSERT_TRUE(gone->goes);
  EXPECT_FALSE(gone->done());
  EXPECT_EQ(gone->all().at(0).group(), "train");
  EXPECT_TRUE(gone->saw_wait("is under way")) << gone->all().at(0).waits_for();
  on_loop([&] { gone->goes(); });
  EXPECT_EQ(gone->status().code(), Code::kCancelled);
  on_loop([&] { gone->goes(); });
  a.catch_up();
  ASSERT_TRUE(eventually([&] { return a.replies.size() == 1; }));
  EXPECT_EQ(ScriptedRank::code(a.replies[0]), Code::kOk);
  settle();
  EXPECT_EQ(group().state(), kRunning) << "nobody waits to pause it";
}

TEST_F(BrokerTest, RanksPauseAndResumeFromInside) {
  two_sharing();
  for (const amem_v1_GroupOp op :
       {amem_v1_GroupOp_GROUP_OP_PAUSE, amem_v1_GroupOp_GROUP_OP_RESUME}) {
    a.request(op);
    settle();
    EXPECT_TRUE(a.replies.empty()) << "not before every rank has asked";
    b.request(op);
    ASSERT_TRUE(eventually([&] { return a.replies.size() == 1 && b.replies.size() == 1; }));
    EXPECT_EQ(ScriptedRank::code(a.replies[0]), Code::kOk) << a.replies[0].message.body.reply.text;
    EXPECT_EQ(ScriptedRank::code(b.replies[0]), Code::kOk);
    a.replies.clear();
    b.replies.clear();
  }
  expect_intact();
}

TEST_F(BrokerTest, ARequestThatNotAllMakeTimesOutNamingTheMissing) {
  two_sharing();
  a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 50);
  ASSERT_TRUE(eventually([&] { return a.replies.size() == 1; }));
  EXPECT_EQ(ScriptedRank::code(a.replies[0]), Code::kDeadlineExceeded);
  EXPECT_NE(std::string(a.replies[0].message.body.reply.text).find("missing: rank 1 (pid "),
            std::string::npos)
      << a.replies[0].message.body.reply.text;
}

}  // namespace
}  // namespace amem
