// What a whole broker owes to its threads, and to real processes.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <thread>

#include "tests/unit/fixtures/owners_fixture.h"
#include "tests/unit/fixtures/restart_fixture.h"

namespace amem {
namespace {

using ::testing::HasSubstr;

// ---- processes ----------------------------------------------------------------------------------

TEST_F(BrokerTest, ARankThatLeavesAChildBehindIsGoneAllTheSame) {
  join(b);
  int go[2];
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  const Fd waiting(go[0]);
  Fd ending(go[1]);
  int life[2];  // the child lives until the test ends
  ASSERT_EQ(::pipe2(life, O_CLOEXEC), 0);
  const Fd living(life[0]);
  Fd test_runs(life[1]);
  const pid_t rank = ::fork();
  if (rank == 0) {  // only raw calls: the parent has threads
    a.connect_here(simulated_node->dir() + "/session.sock");
    Message message = amem_v1_SessionMessage_init_zero;
    message.seq = 1;
    message.which_body = amem_v1_SessionMessage_hello_tag;
    message.body.hello.protocol = kProtocolVersion;
    set_text(message.body.hello.group, "train");
    a.send(message);
    Packet packet;
    (void)receive(a.socket(), 0, packet);
    if (::fork() == 0) {
      for (int fd : {0, 1, 2}) ::close(fd);
      ending.reset();  // or the rank would wait for this one's end
      test_runs.reset();
      char byte = 0;
      static_cast<void>(!::read(living.get(), &byte, 1));
      ::_exit(0);
    }
    char byte = 0;
    ending.reset();
    ::_exit(static_cast<int>(::read(waiting.get(), &byte, 1)));
  }
  ASSERT_GT(rank, 0);
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 2; }));
  ending.reset();
  EXPECT_EQ(::waitpid(rank, nullptr, 0), rank);
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
}

// ---- a device's thread --------------------------------------------------------------------------

class SlicesTest : public BrokerTest {
 protected:
  /// A paused group of one rank with more than a slice of memory on each device.
  void pause_many() {
    join(a);
    ASSERT_TRUE(set_policy("scratch", v1::POLICY_DISCARD).ok());
    for (int i = 0; i < 30; ++i) a.create(gpu(0), 2 * kMiB, "scratch");
    for (int i = 0; i < 44; ++i) a.create(gpu(1), 2 * kMiB, "scratch");
    first = a.create(gpu(0), 2 * kMiB);
    last = a.create(gpu(1), 2 * kMiB);
    a.write(first, 1);
    a.write(last, 2);
    ASSERT_TRUE(pause().ok());
    a.received.clear();
  }
  std::uint64_t first = 0, last = 0;
};

TEST_F(SlicesTest, RanksMapAndLoadWhileTheBrokerCreates) {
  pause_many();
  faults("cuMemCreate:65+:hold");
  auto watcher = begin(Operation::kResume);
  EXPECT_TRUE(eventually([&] { return a.received[amem_v1_SessionMessage_load_tag] > 0; }));
  EXPECT_FALSE(watcher->saw("map+load")) << "the broker still creates";
  EXPECT_GT(a.received[amem_v1_SessionMessage_map_tag], 0);
  faults("");
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  EXPECT_TRUE(a.holds(first, 1));
  EXPECT_TRUE(a.holds(last, 2));
}

TEST_F(SlicesTest, AFailedCreateTakesBackWhatRanksHaveMapped) {
  pause_many();
  faults("cuMemCreate:70:2");
  const Status failed = resume();
  EXPECT_EQ(failed.code(), Code::kResourceExhausted) << failed.text();
  EXPECT_NE(failed.text().find("create: "), std::string::npos) << failed.text();
  EXPECT_GT(a.received[amem_v1_SessionMessage_map_tag], 0) << "a slice had been sent";
  EXPECT_EQ(a.received[amem_v1_SessionMessage_release_tag], 1);
  EXPECT_EQ(group().state(), v1::GROUP_STATE_PAUSED);
  EXPECT_EQ(used(0) + used(1), 0U);
  EXPECT_EQ(status().pool().used_bytes(), 4 * kMiB);
  faults("");
  const Status resumed = resume();
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_TRUE(a.holds(first, 1));
  EXPECT_TRUE(a.holds(last, 2));
}

TEST_F(SlicesTest, ARankThatDiesBetweenSlicesLeavesTheRestToItsPeer) {
  pause_many();
  join(b, "train", 1);
  ASSERT_TRUE(resume().ok());
  b.share(a, first);
  b.share(a, last);
  ASSERT_TRUE(pause().ok());
  a.moods[amem_v1_SessionMessage_map_tag] = Mood::kDying;
  faults("cuMemCreate:65+:delay=30");
  const Status result = resume();
  a.memory.clear();
  // Its peer can load what it had not been sent yet.
  if (!result.ok()) {
    EXPECT_EQ(result.code(), Code::kAborted) << result.text();
    EXPECT_EQ(group().state(), v1::GROUP_STATE_PAUSED);
    EXPECT_TRUE(eventually([&] { return used(0) + used(1) == 0; }))
        << "what was being created, too";
    const Status resumed = resume();
    ASSERT_TRUE(resumed.ok()) << resumed.text();
  }
  EXPECT_TRUE(b.holds(first, 1));
  EXPECT_TRUE(b.holds(last, 2));
}

TEST_F(BrokerRestartTest, NothingIsHandedOverWhileADeviceHangs) {
  two();
  ASSERT_TRUE(pause().ok());
  faults("cuMemCreate:1:hold");
  const auto stuck = begin(Operation::kResume);
  ASSERT_TRUE(eventually([&] {
    const v1::NodeStatus node_status = status();
    return std::any_of(node_status.devices().begin(), node_status.devices().end(),
                       [](const auto& device) { return !device.trouble().empty(); });
  }));
  const Status refused = on_loop([&] { return broker->may_hand_over(Caller{}); });
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.text(), HasSubstr("hangs (cuMemCreate of"));
  std::filesystem::remove(simulated_node->fault_file());
  ASSERT_TRUE(complete(stuck).ok());
  EXPECT_TRUE(on_loop([&] { return broker->may_hand_over(Caller{}); }).ok());
  expect_whole();
}

// ---- the search for a holder --------------------------------------------------------------------

TEST_F(NoHolderTest, TheLoopServesOnWhileThereIsNone) {
  two();
  end_holder();
  Duration longest{};
  for (const Time until = Clock::now() + seconds(3); Clock::now() < until;) {
    const Time asked = Clock::now();
    status();
    longest = std::max(longest, Clock::now() - asked);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_LT(longest, seconds(1));
  ASSERT_TRUE(pause().ok()) << "operations go on";
  ASSERT_TRUE(resume().ok());
  expect_whole();
  ASSERT_NO_FATAL_FAILURE(begin_holder());
  EXPECT_TRUE(
      eventually([&] { return on_loop([&] { return broker->may_hand_over(Caller{}).ok(); }); }));
}

// ---- the pool's thread --------------------------------------------------------------------------

/// All of the pool has been others', and a segment is made anew as the test lets it.
class RenewedPoolTest : public OwnersTest {
 protected:
  class Told final : public EventSink {
   public:
    void event(const v1::Event& event) override {
      if (event.group().empty()) kinds.push_back(event.kind());
    }
    void ended() override {}
    std::vector<std::string> kinds;
  };
  void configure(Config& set) const override {
    OwnersTest::configure(set);
    set.deadlines.save = seconds(2);
    set.pool_place = Place::kHostNuma;  // the rules are about the driver's calls that make it
  }
  /// `rule`: of all calls that make memory but the first, which is Bob's own.
  void leave_all_to_bob(const std::string& rule) {
    ASSERT_NO_FATAL_FAILURE(come_and_go());
    on_loop([&] { broker->events().subscribe(Caller{}, "", told); });
    faults("cuMemCreate:2+:" + rule);
    join_as(kBob, b, "two");
    b.write(b.create(gpu(0), 12 * kMiB), 0xb0);
  }
  void TearDown() override {
    if (broker != nullptr) on_loop([&] { broker->events().unsubscribe(told.get()); });
    OwnersTest::TearDown();
  }
  static std::string waits(const Watcher& watcher) {
    for (const v1::Progress& progress : watcher.all())
      if (!progress.waits_for().empty()) return progress.phase() + ": " + progress.waits_for();
    return "";
  }
  const std::shared_ptr<Told> told = std::make_shared<Told>();
};

TEST_F(RenewedPoolTest, APauseWaitsForWhatIsMadeAnewForIt) {
  leave_all_to_bob("hold");
  const auto watcher = begin(Operation::kPause, "two");
  ASSERT_TRUE(eventually([&] { return !waits(*watcher).empty(); }));
  EXPECT_EQ(waits(*watcher), "save: amemd prepares 12 MiB of the pool that other users had");
  EXPECT_FALSE(watcher->done());
  faults("");
  const Status paused = complete(watcher);
  EXPECT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(group("two").saved_bytes(), 12 * kMiB);
  EXPECT_TRUE(resume("two").ok());
}

TEST_F(RenewedPoolTest, WhatDoesNotComeInTimeEndsThePause) {
  leave_all_to_bob("hold");
  const Status late = pause("two");
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(late.text(), HasSubstr("save: not done within 2s: amemd still prepares space in the "
                                     "pool; the group is running"));
  faults("");
  ASSERT_TRUE(eventually([&] { return b.segments.size() == 2; }));
  EXPECT_TRUE(pause("two").ok()) << "what comes later is the next one's";
}

TEST_F(RenewedPoolTest, WhatTheHostHasNoMemoryForIsTriedAgain) {
  leave_all_to_bob("2");
  ASSERT_TRUE(eventually([&] { return !status().pool().error().empty(); }));
  EXPECT_THAT(status().pool().error(),
              HasSubstr("could not make a segment of 8 MiB again for another user"));
  const Status refused = pause("two");
  EXPECT_EQ(refused.code(), Code::kResourceExhausted) << "nobody knows when it comes";
  EXPECT_THAT(refused.text(), HasSubstr("It tries again"));
  ASSERT_TRUE(eventually([&] { return on_loop([&] { return told->kinds.size(); }) == 1; }));
  faults("");
  ASSERT_TRUE(eventually([&] { return status().pool().error().empty(); }));
  ASSERT_TRUE(eventually([&] { return status().pool().ready_bytes() == kPool; }));
  EXPECT_TRUE(pause("two").ok());
  EXPECT_EQ(on_loop([&] { return told->kinds; }), (std::vector<std::string>{"error", "pool"}));
}

}  // namespace
}  // namespace amem
