// Swaps: one group in while the other goes out.
#include "tests/unit/fixtures/log_heard.h"
#include "tests/unit/fixtures/swap_fixture.h"

namespace amem {
namespace {

TEST_F(SwapTest, TwoGroupsTakeTurnsOnADeviceThatHoldsOne) {
  make_both(80 * kMiB, 80 * kMiB);
  for (int i = 0; i < 5; ++i) {
    auto watcher = begin_swap("train", "rollout");
    ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
    expect_intact(b, rollout);
    EXPECT_EQ(used(0), 86 * kMiB);
    std::vector<v1::Progress> done;
    for (const v1::Progress& p : watcher->all())
      if (p.done()) done.push_back(p);
    ASSERT_EQ(done.size(), 2U);
    EXPECT_EQ(done[0].group(), "train") << "the pause ends first";
    EXPECT_EQ(done[0].swap_us(), 0U);
    EXPECT_EQ(done[1].group(), "rollout");
    EXPECT_GE(done[1].swap_us(), done[1].elapsed_us());
    ASSERT_TRUE(swap("rollout", "train").ok());
    expect_intact(a, train);
  }
}

TEST_F(SwapTest, WhatCannotWorkIsRefusedBeforeThePause) {
  join(a, "train");
  join(b, "rollout");
  EXPECT_EQ(swap("train", "rollout").code(), Code::kFailedPrecondition) << "both run";
  const Status same = swap("train", "train");
  EXPECT_EQ(same.code(), Code::kInvalidArgument);
  EXPECT_EQ(same.text(),
            "group 'train' is named both to pause and to resume. A swap requires different groups");
  EXPECT_EQ(swap("train", "nobody").code(), Code::kNotFound);
  EXPECT_EQ(swap("nobody", "train").code(), Code::kNotFound);
  const std::vector<std::string> none, one = {"train"};
  for (const auto& [out, in] : {std::pair(one, none), std::pair(none, one)}) {
    const Status missing = complete(begin_swap(out, in));
    EXPECT_EQ(missing.code(), Code::kInvalidArgument);
    EXPECT_EQ(missing.text(), "a swap requires groups to pause and groups to resume");
  }
  EXPECT_EQ(complete(begin(Operation::kPause, none)).text(), "no group is named");
  EXPECT_EQ(complete(begin(Operation::kPause, std::vector<std::string>{"train", "train"})).text(),
            "group 'train' is named twice");
  expect_states(kRunning, kRunning);
}

TEST_F(SwapTest, ItCountsAsAnOperationOfItsOwn) {
  make_both(10 * kMiB, 10 * kMiB);
  std::optional<LogHeard> log;
  on_loop([&] { log.emplace(); });
  ASSERT_TRUE(swap("train", "rollout").ok());
  on_loop([&] {
    EXPECT_TRUE(log->has("swap of 'train' for 'rollout' took ")) << log->text();
    log.reset();
  });
  ASSERT_TRUE(swap("rollout", "train").ok());
  std::uint64_t swaps = 0;
  const v1::NodeStatus is = status();
  for (const v1::TimeHistogram& times : is.times())
    if (times.operation() == "swap") swaps += times.count();
  EXPECT_EQ(swaps, 2U);
}

// ---- what overlaps ------------------------------------------------------------------------------

TEST_F(SwapTest, WithSpaceForBothOneLoadsWhileTheOtherSaves) {
  make_both(10 * kMiB, 10 * kMiB);
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(rollout_reaches("turn")) << "it has loaded everything";
  EXPECT_EQ(group("train").phase(), "save");
  EXPECT_EQ(used(0), 32 * kMiB) << "both are there";
  expect_intact(b, rollout);
  EXPECT_TRUE(b.gate_shut()) << "but only one runs";
  EXPECT_EQ(ScriptedRank::code(b.try_create(gpu(0), 2 * kMiB, "nccl")), Code::kFailedPrecondition);
  a.catch_up();
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  EXPECT_FALSE(b.gate_shut());
  expect_states(kPaused, kRunning);
  EXPECT_EQ(used(0), 16 * kMiB);
  expect_usable();
}

TEST_F(SwapTest, WithLittleSpaceWhatFitsComesFirst) {
  make_both(100 * kMiB, 40 * kMiB, 10);  // 22 MiB free, of which 2 stay free
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(eventually([&] { return mapped(b) == 20 * kMiB; })) << mapped(b);
  settle();
  EXPECT_EQ(mapped(b), 20 * kMiB) << "not more than there was";
  EXPECT_EQ(group("rollout").phase(), "create");
  EXPECT_EQ(group("train").phase(), "save");
  a.catch_up();
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  expect_states(kPaused, kRunning);
  EXPECT_EQ(mapped(b), 60 * kMiB);
  expect_usable();
}

TEST_F(SwapTest, WithoutSpaceItWaitsForTheMemory) {
  make_both(122 * kMiB, 100 * kMiB);
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(rollout_reaches("create"));
  settle();
  EXPECT_EQ(b.received[kMap], 0);
  a.catch_up();
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  expect_states(kPaused, kRunning);
  expect_usable();
}

TEST_F(SwapTest, OnAnotherDeviceNothingIsWaitedFor) {
  make_both(122 * kMiB, 122 * kMiB, 3, 1);
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(rollout_reaches("turn"));
  EXPECT_EQ(used(1), 128 * kMiB) << "no reserve where nobody leaves";
  a.catch_up();
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  expect_usable();
}

TEST_F(SwapTest, SpaceThatSomebodyElseTookIsWaitedFor) {
  make_both(10 * kMiB, 10 * kMiB);
  faults("cuMemCreate:2:2;cuMemCreate:3:2");
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(eventually([&] { return b.received[kMap] > 0; })) << "the first could be made";
  settle();
  EXPECT_EQ(group("rollout").phase(), "create");
  EXPECT_LT(mapped(b), 16 * kMiB);
  a.catch_up();
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  expect_usable();
}

// ---- what goes wrong ----------------------------------------------------------------------------

TEST_F(SwapTest, MemoryThatTheDriverCannotMakeIsNotWaitedFor) {
  make_both(10 * kMiB, 10 * kMiB);
  faults("cuMemCreate:3:999");
  EXPECT_EQ(swap("train", "rollout").code(), Code::kInternal);
  expect_states(kPaused, kPaused);
  expect_usable();
}

TEST_F(SwapTest, WhenTheCutFailsNothingHasChanged) {
  make_both(10 * kMiB, 10 * kMiB);
  a.moods[amem_v1_SessionMessage_quiesce_tag] = Mood::kSilent;
  EXPECT_EQ(complete(begin_swap("train", "rollout", milliseconds(200))).code(),
            Code::kDeadlineExceeded);
  a.moods.clear();
  EXPECT_EQ(b.received[kMap], 0);
  expect_states(kRunning, kPaused);
  expect_usable();
}

TEST_F(SwapTest, WhenThePoolIsTooSmallNothingHasChanged) {
  make_both(10 * kMiB, 10 * kMiB);
  const std::uint64_t more = a.create(gpu(1), kPool);
  EXPECT_EQ(swap("train", "rollout").code(), Code::kResourceExhausted);
  EXPECT_EQ(b.received[kMap], 0);
  expect_states(kRunning, kPaused);
  a.free(more);
  expect_usable();
}

TEST_F(SwapTest, AFailedSaveTakesTheOtherGroupBack) {
  make_both(10 * kMiB, 10 * kMiB);
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(rollout_reaches("turn"));
  a.moods.clear();
  a.done(RankPhase::kSave, a.epoch, true);
  const Status failed = complete(watcher);
  EXPECT_EQ(failed.code(), Code::kAborted);
  EXPECT_NE(failed.text().find("pause of group 'train': save"), std::string::npos) << failed.text();
  EXPECT_NE(failed.text().find("resume of group 'rollout': turn: called off"), std::string::npos)
      << failed.text();
  expect_states(kRunning, kPaused);
  EXPECT_FALSE(a.gate_shut());
  EXPECT_EQ(used(0), 16 * kMiB) << "rollout's memory is gone again";
  EXPECT_EQ(group("rollout").saved_bytes(), 6 * kMiB) << "and its bytes are not";
  expect_usable();
}

TEST_F(SwapTest, ADeathInSaveTakesTheOtherGroupBack) {
  make_both(100 * kMiB, 40 * kMiB, 10);
  join(c, "train", 1);
  const std::uint64_t own = c.create(gpu(1), 2 * kMiB);
  c.write(own, 77);
  c.moods[kSave] = Mood::kLate;
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(eventually([&] { return mapped(b) > 0; })) << "rollout is under way";
  c.memory.clear();
  c.die();
  const Status failed = complete(watcher);
  EXPECT_EQ(failed.code(), Code::kAborted) << failed.text();
  a.catch_up();
  settle();
  expect_states(kRunning, kPaused);
  expect_usable();
}

TEST_F(SwapTest, WhenTheWholeFirstGroupDiesTheSecondIsPausedAgain) {
  make_both(10 * kMiB, 10 * kMiB);
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(rollout_reaches("turn"));
  a.memory.clear();
  a.die();
  EXPECT_EQ(complete(watcher).code(), Code::kAborted);
  EXPECT_EQ(group("rollout").state(), kPaused);
  EXPECT_TRUE(eventually([&] { return used(0) == 0; }));
  const Status resumed = resume("rollout");
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  expect_intact(b, rollout);
}

TEST_F(SwapTest, AFailedLoadLeavesBothPaused) {
  make_both(10 * kMiB, 10 * kMiB);
  b.moods[kLoad] = Mood::kFailing;
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(eventually([&] { return group("rollout").state() == kPaused; }));
  EXPECT_FALSE(watcher->done()) << "the pause goes on as asked";
  b.moods.clear();
  a.catch_up();
  const Status failed = complete(watcher);
  EXPECT_EQ(failed.code(), Code::kAborted);
  EXPECT_NE(failed.text().find("group 'train' is paused"), std::string::npos) << failed.text();
  expect_states(kPaused, kPaused);
  EXPECT_EQ(used(0), 0U);
  EXPECT_EQ(status().pool().used_bytes(), 12 * kMiB);
  expect_usable();
}

TEST_F(SwapTest, WhenTheWholeSecondGroupDiesTheFirstIsPaused) {
  make_both(10 * kMiB, 10 * kMiB);
  b.moods[kLoad] = Mood::kDying;
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(eventually([&] { return !b.alive(); }));
  b.memory.clear();
  a.catch_up();
  EXPECT_EQ(complete(watcher).code(), Code::kAborted);
  EXPECT_EQ(group("train").state(), kPaused);
  EXPECT_EQ(used(0), 0U);
  ASSERT_TRUE(resume("train").ok());
  expect_intact(a, train);
}

TEST_F(SwapTest, AReleaseThatFailsLeavesBothPaused) {
  make_both(10 * kMiB, 10 * kMiB);
  a.moods[amem_v1_SessionMessage_release_tag] = Mood::kFailing;
  const Status failed = swap("train", "rollout");
  EXPECT_EQ(failed.code(), Code::kAborted) << failed.text();
  a.moods.clear();
  expect_states(kPaused, kPaused);
  expect_usable();
}

TEST_F(SwapTest, ASecondGroupThatCannotFitLeavesBothPausedWithAllNumbers) {
  make_both(10 * kMiB, 100 * kMiB);
  join(c, "other");
  const std::uint64_t large = c.create(gpu(0), 60 * kMiB);
  expect_trims();
  const Status failed = swap("train", "rollout");
  EXPECT_EQ(failed.code(), Code::kResourceExhausted);
  EXPECT_NE(failed.text().find("has 68 MiB free, but 106 MiB are needed"), std::string::npos)
      << failed.text();
  expect_states(kPaused, kPaused);
  c.free(large);
  expect_usable();
}

TEST_F(SwapTest, WhatWillBecomeFreeIsToldWithWhatIsMissing) {
  make_both(10 * kMiB, 100 * kMiB);
  join(c, "other");
  ASSERT_NE(c.create(gpu(0), 60 * kMiB), 0U);
  expect_trims();
  const auto watcher = swap_with_a_late_save();
  ASSERT_TRUE(eventually([&] { return !group("rollout").note().empty(); }));
  a.catch_up();
  const Status failed = complete(watcher);
  EXPECT_EQ(failed.code(), Code::kResourceExhausted);
  EXPECT_NE(failed.text().find(to_string(gpu(0)) +
                               " has 52 MiB free, but 106 MiB are needed (another 16 MiB become "
                               "free when the groups that pause have left). Pause the group or end "
                               "the process that uses the device"),
            std::string::npos)
      << failed.text();
}

TEST_F(SwapTest, WhatGroupsLackTogetherIsTold) {
  make_both(80 * kMiB, 80 * kMiB);
  ASSERT_TRUE(pause("train").ok());
  expect_trims();
  const Status failed =
      complete(begin(Operation::kResume, std::vector<std::string>{"train", "rollout"}));
  EXPECT_NE(
      failed.text().find("has 128 MiB free, but 172 MiB are needed by the 2 groups together."),
      std::string::npos)
      << failed.text();
}

TEST_F(SwapTest, TheHistoryHasEachOperationWithItsMemoryAndItsError) {
  make_both(10 * kMiB, 10 * kMiB);
  ASSERT_TRUE(swap("train", "rollout").ok());
  a.moods[kMap] = Mood::kFailing;
  const Status failed = resume("train");
  ASSERT_FALSE(failed.ok());
  a.moods.clear();
  v1::ListHistoryResponse past;
  ASSERT_TRUE(on_loop([&] { return broker->reports().history(Caller{}, {}, past); }).ok());
  ASSERT_EQ(past.operations_size(), 4);
  const v1::PastOperation& first = past.operations(0);  // before train came
  EXPECT_FALSE(first.swap());
  EXPECT_EQ(first.group(), "rollout");
  const v1::PastOperation& out = past.operations(1);
  const v1::PastOperation& in = past.operations(2);
  EXPECT_TRUE(out.swap() && in.swap());
  EXPECT_GT(out.transaction(), first.transaction());
  EXPECT_EQ(out.transaction(), in.transaction());
  EXPECT_EQ(out.operation() + " " + out.group(), "pause train");
  EXPECT_EQ(in.operation() + " " + in.group(), "resume rollout");
  EXPECT_EQ(out.memory().closed_bytes(), 16 * kMiB);
  EXPECT_EQ(in.memory().made_bytes(), 16 * kMiB);
  for (const v1::PastOperation* each : {&out, &in}) {
    EXPECT_EQ(each->code(), 0U);
    EXPECT_EQ(each->error() + each->tags() + each->stage() + each->why(), "");
    EXPECT_FALSE(each->by_broker() || each->deep() || each->partial());
    EXPECT_GT(each->us(), 0U);
    EXPECT_LE(each->began_us(), to_us(std::chrono::system_clock::now().time_since_epoch()));
  }
  const v1::PastOperation& last = past.operations(3);
  EXPECT_FALSE(last.swap());
  EXPECT_GT(last.transaction(), in.transaction());
  EXPECT_EQ(last.code(), static_cast<std::uint32_t>(failed.code()));
  EXPECT_EQ(last.error(), failed.text());
}

TEST_F(SwapTest, AGroupThatRunsWithoutSomeTagsGetsThemBack) {
  make(b, rollout, 20 * kMiB, 3);
  ASSERT_TRUE(complete(begin(Task(Operation::kPause, {{"scratch"}}), "rollout")).ok());
  make(a, train, 10 * kMiB, 3);
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(rollout_reaches("turn"));
  EXPECT_FALSE(b.gate_shut());
  a.moods.clear();
  a.done(RankPhase::kSave, a.epoch, true);
  EXPECT_EQ(complete(watcher).code(), Code::kAborted);
  expect_states(kRunning, kRunning);
  EXPECT_EQ(mapped(b), 6 * kMiB) << "only what had come is taken back";
  watcher = begin_swap("train", "rollout");
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  EXPECT_EQ(mapped(b), 26 * kMiB);
  expect_usable();
}

TEST_F(SwapTest, OperationsOnEitherGroupWaitTheirTurn) {
  make_both(10 * kMiB, 10 * kMiB);
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(rollout_reaches("turn"));
  for (const char* name : {"train", "rollout"}) {
    EXPECT_EQ(pause(name).code(), Code::kFailedPrecondition) << name;
    EXPECT_EQ(resume(name).code(), Code::kFailedPrecondition) << name;
  }
  EXPECT_EQ(swap("rollout", "train").code(), Code::kFailedPrecondition);
  a.catch_up();
  EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
}

TEST_F(SwapTest, ShuttingInTheMiddleTellsTheCallerOnce) {
  make_both(10 * kMiB, 10 * kMiB);
  auto watcher = swap_with_a_late_save();
  EXPECT_TRUE(rollout_reaches("turn"));
  on_loop([&] { broker->shut(); });
  EXPECT_EQ(watcher->status().code(), Code::kUnavailable);
}

// ---- with and without ---------------------------------------------------------------------------

class InTurnTest : public SwapTest {
 protected:
  void configure(Config& settings) const override { settings.swap_duplex = false; }
};

TEST_F(InTurnTest, NothingOverlapsWhenItIsTurnedOff) {
  make_both(10 * kMiB, 10 * kMiB);
  auto watcher = swap_with_a_late_save();
  settle();
  EXPECT_EQ(group("rollout").state(), kPaused);
  EXPECT_EQ(b.received[kMap], 0);
  a.catch_up();
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  for (const v1::Progress& p : watcher->all())
    EXPECT_NE(p.phase(), "turn") << "there is nothing to wait for";
  expect_usable();
}

TEST_F(InTurnTest, AFailedResumeLeavesBothPaused) {
  make_both(80 * kMiB, 80 * kMiB);
  b.moods[kMap] = Mood::kFailing;
  EXPECT_EQ(swap("train", "rollout").code(), Code::kAborted);
  b.moods.clear();
  expect_states(kPaused, kPaused);
  expect_usable();
}

// Its end is noticed while the two begin: the other is called off only after it has begun.
TEST_F(InTurnTest, OneOfASetThatHasEndedInTheMeantimeTakesTheOtherBack) {
  Group evaluation{"evaluation", {}, 50};
  make(c, evaluation, 10 * kMiB, 3);
  ASSERT_TRUE(pause("evaluation").ok());
  make_both(10 * kMiB, 10 * kMiB);
  a.moods[kSave] = Mood::kLate;
  auto watcher = begin_swap(std::vector<std::string>{"train"}, {"rollout", "evaluation"});
  ASSERT_TRUE(eventually([&] { return a.received[kSave] > 0; }));
  b.die();
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 2; }));
  a.catch_up();
  const Status swapped = complete(watcher);
  EXPECT_EQ(swapped.code(), Code::kAborted);
  EXPECT_NE(swapped.text().find("group 'rollout' has ended in the meantime"), std::string::npos)
      << swapped.text();
  EXPECT_EQ(group("train").state(), kPaused);
  EXPECT_EQ(group("evaluation").state(), kPaused);
  EXPECT_TRUE(resume("evaluation").ok());
  expect_intact(c, evaluation);
}

TEST_F(SwapTest, WhatTheSwapDropsComesBackZeroedAndTheRestIntact) {
  make_both(10 * kMiB, 10 * kMiB);
  const std::uint64_t cache = a.create(gpu(0), 4 * kMiB, "kv_cache");
  a.write(cache, 0x77);
  const Status unknown = complete(begin_swap("train", "rollout", {}, {"cash"}));
  EXPECT_EQ(unknown.code(), Code::kNotFound) << unknown.text();
  expect_states(kRunning, kPaused);
  ASSERT_TRUE(complete(begin_swap("train", "rollout", {}, {"kv_cache"})).ok());
  expect_intact(b, rollout);
  EXPECT_EQ(group("train").dropped_bytes(), 14 * kMiB);
  ASSERT_TRUE(swap("rollout", "train").ok());
  EXPECT_TRUE(a.holds(cache, 0));
  expect_intact(a, train);
  a.write(cache, 0x77);
  ASSERT_TRUE(swap("train", "rollout").ok());
  ASSERT_TRUE(swap("rollout", "train").ok());
  EXPECT_TRUE(a.holds(cache, 0x77));
}

}  // namespace
}  // namespace amem
