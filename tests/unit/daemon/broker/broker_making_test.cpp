// Memory that a rank makes itself: the broker keeps it, and has the rank make it again.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include "tests/unit/fixtures/restart_fixture.h"
#include "tests/unit/fixtures/swap_fixture.h"
#include "tests/world/device_memory.h"

namespace amem {
namespace {

using ::testing::HasSubstr;

constexpr pb_size_t kMake = amem_v1_SessionMessage_make_tag;

/// Of two ranks the first makes its memory itself; the second has it too.
class MakingTest : public BrokerRestartTest {
 protected:
  void SetUp() override {
    BrokerRestartTest::SetUp();
    r1.use(devices);
  }
  void two_making() {
    join_here(r1, "train", 0);
    join_here(r2, "train", 1);
    of_a = r1.make(gpu(0), 4 * kMiB);
    of_b = r2.create(gpu(1), 6 * kMiB);
    r2.share(r1, of_a);
    r1.share(r2, of_b);
    r1.write(of_a, 0xaa);
    r2.write(of_b, 0xbb);
    alone = used(0);
  }
  void two_paused() {
    two_making();
    ASSERT_TRUE(pause().ok());
    ASSERT_EQ(used(0) + used(1), 0U) << "nobody keeps any of it";
  }
  void expect_paused_and_usable() {
    settle();
    EXPECT_EQ(group().state(), kPaused);
    EXPECT_EQ(used(0) + used(1), 0U);
    r1.moods.clear();
    const Status resumed = resume();
    ASSERT_TRUE(resumed.ok()) << resumed.text();
    expect_whole();
  }
};

TEST_F(MakingTest, ThePeersHaveItAndItComesBackWithItsBytes) {
  two_making();
  EXPECT_TRUE(r2.holds(of_a, 0xaa));
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(pause().ok());
    EXPECT_EQ(r1.named, 0U) << "all of it leaves";
    EXPECT_EQ(used(0) + used(1), 0U);
    ASSERT_TRUE(resume().ok());
    EXPECT_EQ(r1.makes, i);
    expect_whole();
    r2.write(of_a, 0xaa);
    EXPECT_TRUE(r1.holds(of_a, 0xaa));
  }
  r1.free(of_a);
  r2.free(of_a);
  ASSERT_TRUE(eventually([&] { return used(0) == 0; }));
  EXPECT_EQ(group().allocation_count(), 1U);
}

TEST_F(MakingTest, WhatIsNoMemoryOfTheDeviceIsRefused) {
  join_here(r1, "train", 0);
  const auto refused = [&](const std::vector<int>& fds, std::uint64_t size = 4 * kMiB) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_create_tag;
    message.body.create.size = size;
    std::memcpy(message.body.create.device, gpu(0).bytes.data(), gpu(0).bytes.size());
    set_text(message.body.create.tag, "nccl");
    message.body.create.made = true;
    const Packet answer = r1.ask(message, fds);
    EXPECT_EQ(ScriptedRank::code(answer), Code::kInvalidArgument);
    return std::string(answer.message.body.reply.text);
  };
  EXPECT_THAT(refused({}), HasSubstr("came with 0 descriptors"));
  const Fd file(::memfd_create("no memory of a device", MFD_CLOEXEC));
  EXPECT_THAT(refused({file.get()}), HasSubstr("cuMemImportFromShareableHandle"));
  const CreatedMemory elsewhere = world::made_on(devices, gpu(1), 4 * kMiB).value();
  EXPECT_THAT(refused({elsewhere.fd.get()}), HasSubstr("it is on another device"));
  EXPECT_THAT(refused({elsewhere.fd.get()}, kMiB), HasSubstr("multiple"));
  EXPECT_THAT(refused({file.get(), elsewhere.fd.get()}), HasSubstr("came with 2 descriptors"));
  EXPECT_EQ(group().allocation_count(), 0U);
}

TEST_F(MakingTest, ARankThatCannotIsNamed) {
  two_paused();
  r1.moods[kMake] = ScriptedRank::Mood::kFailing;
  const Status failed = resume();
  EXPECT_EQ(failed.code(), Code::kInternal) << failed.text();
  EXPECT_THAT(failed.text(), HasSubstr("create: rank 0 (pid "));
  EXPECT_THAT(failed.text(), HasSubstr("scripted failure"));
  expect_paused_and_usable();
}

TEST_F(MakingTest, WithoutSpaceNothingComesBack) {
  two_paused();
  r1.habits.failure = Code::kResourceExhausted;
  r1.moods[kMake] = ScriptedRank::Mood::kFailing;
  EXPECT_EQ(resume().code(), Code::kResourceExhausted);
  expect_paused_and_usable();
}

TEST_F(MakingTest, WhatIsLeftOutIsMissed) {
  two_paused();
  r1.leaves_out = true;
  const Status failed = resume();
  EXPECT_EQ(failed.code(), Code::kInternal);
  EXPECT_THAT(failed.text(), HasSubstr("omits allocation " + std::to_string(of_a)));
  r1.leaves_out = false;
  expect_paused_and_usable();
}

TEST_F(MakingTest, AnAnswerOfAnotherAttemptCountsForNothing) {
  two_paused();
  r1.moods[kMake] = ScriptedRank::Mood::kLate;
  const auto watcher = begin(Operation::kResume);
  ASSERT_TRUE(eventually([&] { return r1.received[kMake] > 0; }));
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_made_tag;
  message.body.made.number = 1;
  for (const std::uint64_t epoch : {r1.epoch, r1.epoch + 100}) {
    message.body.made.epoch = epoch;
    r1.send(message);
    settle();
    EXPECT_FALSE(watcher->done()) << watcher->status().text();
  }
  r1.catch_up();
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  expect_whole();
}

/// For tests that wait for a deadline to pass.
class ImpatientMakingTest : public MakingTest {
 protected:
  void configure(Config& settings) const override { settings.deadlines.create = seconds(2); }
};

TEST_F(ImpatientMakingTest, ASilentRankIsNamedBeforeThePhaseIsOver) {
  two_paused();
  r1.moods[kMake] = ScriptedRank::Mood::kSilent;
  const Status failed = resume();
  EXPECT_EQ(failed.code(), Code::kDeadlineExceeded) << failed.text();
  EXPECT_THAT(failed.text(), HasSubstr("rank 0 (pid "));
  EXPECT_THAT(failed.text(), HasSubstr("has not made 1 of the allocations"));
  expect_paused_and_usable();
}

TEST_F(ImpatientMakingTest, AnAnswerThatComesTwiceOrTooLateCountsForNothing) {
  two_paused();
  // What it is told after that it does after that.
  for (const pb_size_t what : {kMake, pb_size_t{amem_v1_SessionMessage_release_tag}})
    r1.moods[what] = ScriptedRank::Mood::kLate;
  EXPECT_EQ(resume().code(), Code::kDeadlineExceeded);
  r1.catch_up();
  settle();
  EXPECT_EQ(used(0), 0U);
  ASSERT_TRUE(resume().ok());
  r1.make_again();
  settle();
  expect_whole();
}

TEST_F(MakingTest, WhenItsMakerEndsTheBrokerMakesIt) {
  join(a, "train", 0);
  join(b, "train", 1);
  a.use(devices);
  of_a = a.make(gpu(0), 4 * kMiB);
  const std::uint64_t more = a.make(gpu(0), 2 * kMiB);
  b.share(a, of_a);
  a.write(of_a, 0xaa);
  a.write(more, 0xcc);
  ASSERT_TRUE(pause().ok());
  a.moods[kMake] = ScriptedRank::Mood::kDying;
  const Status resumed = resume();
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_EQ(a.makes, 0);
  EXPECT_TRUE(b.holds(of_a, 0xaa));
  EXPECT_EQ(used(0), 4 * kMiB) << "nobody has the rest";
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(of_a, 0xaa));
}

TEST_F(MakingTest, WhatItsMakerHasFreedTheBrokerMakes) {
  two_making();
  r1.free(of_a);
  settle();
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_EQ(r1.makes, 0);
  EXPECT_TRUE(r2.holds(of_a, 0xaa));
  r1.share(r2, of_a);
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_EQ(r1.makes, 0) << "it has it as a peer's now";
  expect_whole();
}

TEST_F(MakingTest, WhatIsFreedWhileItIsToBeMadeIsMadeByTheBroker) {
  two_making();
  const std::uint64_t more = r1.create(gpu(0), 2 * kMiB, "more");
  ASSERT_TRUE(complete(begin({Operation::kPause, Selection{{"nccl"}}})).ok());
  r1.moods[kMake] = ScriptedRank::Mood::kLate;
  const auto watcher = begin({Operation::kResume, Selection{{"nccl"}}});
  ASSERT_TRUE(eventually([&] { return r1.received[kMake] > 0; }));
  r1.free(of_a);  // the program runs
  r1.catch_up();
  const Status resumed = complete(watcher);
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_TRUE(r2.holds(of_a, 0xaa));
  r1.free(more);
}

// Else it would have to import it, and the driver would not let it bind that.
TEST_F(MakingTest, WhatAnotherRanksNicKeepsOnItsDeviceItsMakerKeepsToo) {
  two_making();
  r1.stays = true;
  r2.pin(of_a);
  for (const Selection& what : {Selection(), Selection{{"nccl"}}}) {
    ASSERT_TRUE(complete(begin({Operation::kPause, what})).ok());
    EXPECT_EQ(used(0), 4 * kMiB);
    EXPECT_EQ(used(1), 0U);
    EXPECT_TRUE(r1.holds(of_a, 0xaa)) << "it was not told to let go of it";
    EXPECT_FALSE(r1.memory.at(of_b).fd);
    restart();
    both_come_back();
    ASSERT_TRUE(complete(begin({Operation::kResume, what})).ok());
    EXPECT_EQ(r1.makes, 0);
    expect_whole();
  }
  r2.unpin(of_a);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0), 0U);
  ASSERT_TRUE(resume().ok());
  EXPECT_EQ(r1.makes, 1);
  expect_whole();
}

TEST_F(MakingTest, TheNextBrokerAsksItsMakerToo) {
  two_making();
  restart();
  both_come_back();
  ASSERT_TRUE(pause().ok());
  restart();
  both_come_back();
  ASSERT_TRUE(resume().ok());
  EXPECT_EQ(r1.makes, 1);
  expect_whole();
}

TEST_F(MakingTest, ABrokerThatEndsMeanwhileLeavesThePauseAsItWas) {
  for (const bool obeys : {false, true}) {
    if (obeys)
      ASSERT_TRUE(pause().ok());
    else
      two_paused();
    r1.moods[kMake] = ScriptedRank::Mood::kLate;
    const int before = r1.received[kMake];
    const auto watcher = begin(Operation::kResume);
    ASSERT_TRUE(eventually([&] { return r1.received[kMake] > before; }));
    settle();
    ASSERT_FALSE(watcher->done());
    restart();
    both_come_back(obeys);
    ASSERT_TRUE(eventually([&] { return at_rest(); })) << group().phase();
    expect_paused_and_usable();
  }
}

/// What waits for space in a swap.
class MakingSwapTest : public SwapTest {};

TEST_F(MakingSwapTest, WithoutSpaceItIsAskedAgainWhenSomethingHasLeft) {
  join(b, "rollout");
  b.use(devices);
  const std::uint64_t own = b.make(gpu(0), 4 * kMiB);
  b.write(own, 0x44);
  ASSERT_TRUE(pause("rollout").ok());
  make(a, train, 10 * kMiB, 3);
  b.moods[kMake] = ScriptedRank::Mood::kFailing;
  b.habits.failure = Code::kResourceExhausted;
  const auto watcher = swap_with_a_late_save();
  ASSERT_TRUE(eventually([&] { return b.received[kMake] > 0; }));
  settle();
  EXPECT_EQ(b.received[kMake], 1) << "it waits";
  EXPECT_EQ(group("rollout").phase(), "create");
  b.moods.clear();
  a.catch_up();
  const Status swapped = complete(watcher);
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  EXPECT_GT(b.received[kMake], 1);
  EXPECT_TRUE(b.holds(own, 0x44));
  expect_states(kPaused, kRunning);
}

}  // namespace
}  // namespace amem
