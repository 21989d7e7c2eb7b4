// Deep pauses: what the broker does before the driver has the processes, meanwhile and afterwards.
// A scripted evictor stands for the driver.
#include <gmock/gmock.h>

#include "common/version.h"
#include "tests/unit/fixtures/swap_fixture.h"

namespace amem {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

/// What a test says of the driver, and what the broker has asked it for.
struct ScriptedDriver {
  std::optional<Status> verdict = Status();
  Status proof;                           // what a look finds out
  bool proves = true;                     // each look ends
  Status evicted;                         // so each eviction ends
  bool all_run = true;                    // after one that fails
  bool hangs = false;                     // the next eviction goes on with go_on()
  Status restored;                        // so each restore ends
  std::function<void()> leaves, returns;  // what the processes have on the devices
  std::function<void()> go_on;

  int proofs = 0;
  Evictor::Sets seen;  // by the last look
  Words calls;
  Duration limit{};  // of the last of them
};

class ScriptedEvictor final : public Evictor {
 public:
  ScriptedEvictor(EventLoop& loop, ScriptedDriver& driver) : loop_(loop), driver_(driver) {}

  std::optional<Status> verdict(const Sets&) const override { return driver_.verdict; }
  void prove(const Sets& sets, Done done) override {
    driver_.seen = sets;
    ++driver_.proofs;
    if (driver_.proves)
      loop_.post([this, done = std::move(done)] {
        driver_.verdict = driver_.proof;
        done(driver_.proof);
      });
  }
  std::string terms(const Sets&) const override { return "with NCCL 1.2.3"; }
  Calls evict(std::vector<EvictedProcess> processes, Duration limit, EvictDone done) override {
    note("evict", processes, limit);
    auto calls = std::make_shared<int>();
    Calls lives = calls;
    driver_.go_on = [this, done = std::move(done), calls = std::move(calls)]() mutable {
      if (driver_.evicted.ok()) driver_.leaves();
      calls.reset();
      done(driver_.evicted, !driver_.evicted.ok() && driver_.all_run);
    };
    if (!std::exchange(driver_.hangs, false)) loop_.post(std::exchange(driver_.go_on, nullptr));
    return lives;
  }
  Calls restore(std::vector<EvictedProcess> processes, Duration limit, const MakeSpace& space,
                Done done) override {
    note("restore", processes, limit);
    space([this, done = std::move(done)](const Result<RestoreClaim>& claim) {
      if (!claim.ok()) return done(claim.status());
      driver_.go_on = [this, done, claim = claim.value()]() mutable {
        if (driver_.restored.ok()) driver_.returns();
        claim.reset();
        done(driver_.restored);
      };
      if (!std::exchange(driver_.hangs, false)) std::exchange(driver_.go_on, nullptr)();
    });
    return {};
  }
  Duration restore_time(Duration limit) const override { return limit / 2; }
  void shut() override {}

 private:
  void note(const std::string& call, const std::vector<EvictedProcess>& processes, Duration limit) {
    driver_.limit = limit;
    std::string text = call;
    for (const EvictedProcess& each : processes)
      if (each.lives()) text += " " + each.label.substr(0, each.label.find(" ("));
    driver_.calls.push_back(text);
  }

  EventLoop& loop_;
  ScriptedDriver& driver_;
};

/// Of the ranks a to d each sees both GPUs. What processes have on GPU 0 beside their groups'
/// memory are `contexts`.
class DeepTest : public SwapTest {
 protected:
  using BrokerTest::expect_intact;
  using SwapTest::expect_intact;
  static constexpr std::uint64_t kContext = 8 * kMiB;
  void configure(Config& settings) const override { settings.deep_pauses = true; }
  void SetUp() override {
    SwapTest::SetUp();
    for (ScriptedRank* rank : {&a, &b, &c, &d}) rank->use(devices);
    driver.leaves = [this] {
      if (!contexts.empty()) contexts.pop_back();
    };
    driver.returns = [this] {
      Result<CreatedMemory> made = world::made_on(devices, gpu(0), kContext);
      ASSERT_TRUE(made.ok()) << made.status().text();
      contexts.push_back(std::move(made).value());
    };
  }
  void make_broker() override {
    broker = std::make_unique<Broker>(*loop, config, devices, nvml, nullptr, ground::kRuns,
                                      [this](EventLoop& its_loop, Duration, MakeProofPool) {
                                        return std::make_unique<ScriptedEvictor>(its_loop, driver);
                                      });
  }
  static Task deep() {
    Task task(Operation::kPause);
    task.deep = true;
    return task;
  }
  Status pause_deep(const std::string& name = "train") { return complete(begin(deep(), name)); }
  /// Another group takes what is free on GPU 0, but for so much.
  std::uint64_t fill_device(std::uint64_t but) {
    join(d, "other");
    return d.create(gpu(0), nvml.memory(gpu(0))->free - but);
  }
  void expect_paused(bool is_deep) {
    EXPECT_EQ(group().state(), kPaused);
    EXPECT_EQ(group().deep(), is_deep);
  }
  void expect_running() {
    EXPECT_EQ(group().state(), kRunning);
    EXPECT_FALSE(group().deep());
    expect_intact();
  }

  ScriptedDriver driver;
  std::vector<CreatedMemory> contexts;
};

TEST_F(DeepTest, NothingOfTheProcessesStaysOnTheDevices) {
  two_sharing();
  driver.returns();
  const std::uint64_t before = used(0);
  for (int round = 0; round < 2; ++round) {
    driver.calls.clear();
    const auto watcher = begin(deep());
    const Status paused = complete(watcher);
    ASSERT_TRUE(paused.ok()) << paused.text();
    expect_paused(true);
    EXPECT_EQ(used(0), 0U);
    EXPECT_EQ(driver.calls, Words{"evict rank 0 rank 1"});
    EXPECT_LE(driver.limit, patience() * 9 / 10);
    EXPECT_GT(driver.limit, patience() * 8 / 10);
    const v1::Progress last = watcher->all().back();
    EXPECT_EQ(last.memory().closed_bytes(), 10 * kMiB);
    ASSERT_EQ(last.remarks_size(), round == 0 ? 1 : 0);
    if (round == 0) {
      EXPECT_THAT(last.remarks(0), HasSubstr("the group's first deep pause. The driver has "
                                             "checkpointed and restored a process of amemd before, "
                                             "with NCCL 1.2.3"));
    }
    EXPECT_THAT(pause_deep().text(), HasSubstr("paused, with nothing left on its devices"));
    ASSERT_TRUE(resume().ok());
    EXPECT_EQ(driver.calls.back(), "restore rank 0 rank 1");
    EXPECT_EQ(driver.limit, patience() * 9 / 10);
    EXPECT_EQ(used(0), before);
    expect_running();
  }
}

TEST_F(DeepTest, APausedGroupIsMadeDeep) {
  two_sharing();
  driver.returns();
  ASSERT_TRUE(pause().ok());
  expect_paused(false);
  EXPECT_EQ(driver.calls, Words());
  EXPECT_EQ(used(0), kContext);
  ASSERT_TRUE(pause_deep().ok());
  expect_paused(true);
  EXPECT_EQ(used(0), 0U);
  ASSERT_TRUE(resume().ok());
  expect_running();
}

TEST_F(DeepTest, WhatCannotBeDeepIsRefusedAndChangesNothing) {
  two_sharing();
  Task of_tag = deep();
  of_tag.selection.tags = {"heap"};
  Status refused = complete(begin(of_tag));
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.text(), "a deep pause takes all memory of a group. Pass no tags with it");
  ScriptedRank old;  // says nothing of devices
  join(old, "old", 3);
  refused = pause_deep("old");
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.text(), HasSubstr("group 'old': rank 3 (pid "));
  EXPECT_THAT(refused.text(), HasSubstr("does not say which GPUs it sees, because its shim ("));
  EXPECT_THAT(refused.text(), HasSubstr(") is older than amemd (" + std::string(kVersion) + "). "));
  EXPECT_THAT(refused.text(), HasSubstr("Restart the job with the shim of amemd's version"));
  refused = complete(begin(deep(), std::vector<std::string>{"train", "old"}));
  EXPECT_THAT(refused.text(), HasSubstr("does not say which GPUs it sees"));
  EXPECT_EQ(driver.calls, Words());
  EXPECT_EQ(a.received[amem_v1_SessionMessage_quiesce_tag], 0);
  expect_running();
  old.die();
  std::erase(ranks, &old);
}

TEST_F(SwapTest, WhereDeepPausesAreOffTheyAreRefused) {
  two_sharing();
  Task task(Operation::kPause);
  task.deep = true;
  const Status refused = complete(begin(task));
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.text(), HasSubstr("deep pauses are off on this node. Set deep.enabled"));
  EXPECT_EQ(group().state(), kRunning);
}

TEST_F(DeepTest, WhatHasNotBeenProvenIsLookedAtBeforeThePause) {
  two_sharing();
  driver.verdict.reset();
  driver.proof = {Code::kFailedPrecondition, "the driver loses processes"};
  for (int round = 0; round < 2; ++round) {
    const Status refused = pause_deep();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
    EXPECT_EQ(refused.text(), "the driver loses processes");
    EXPECT_EQ(driver.proofs, 1) << "it is refused for good";
  }
  EXPECT_EQ(driver.seen, (Evictor::Sets{{gpu(0), gpu(1)}}));
  EXPECT_EQ(a.received[amem_v1_SessionMessage_quiesce_tag], 0);
  driver.verdict.reset();
  driver.proof = {};
  const Status paused = pause_deep();
  EXPECT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(driver.proofs, 2);
  expect_paused(true);
}

TEST_F(DeepTest, WhoeverWaitsForAProofHearsOfItsEndOnce) {
  two_sharing();
  driver.verdict.reset();
  driver.proves = false;
  const auto gone = begin(deep());
  ASSERT_TRUE(gone->goes);
  EXPECT_FALSE(gone->done());
  on_loop([&] { gone->goes(); });
  on_loop([&] { gone->goes(); });
  EXPECT_EQ(gone->status().code(), Code::kCancelled);
  EXPECT_EQ(gone->status().text(), "the caller has disconnected");
  const auto watcher = begin(deep());
  EXPECT_FALSE(watcher->done());
  on_loop([&] { broker->shut(); });
  EXPECT_EQ(watcher->status().code(), Code::kUnavailable) << watcher->status().text();
}

TEST_F(DeepTest, AnEvictionThatFailsLeavesTheGroupPaused) {
  two_sharing();
  driver.returns();
  driver.evicted = {Code::kInternal, "the driver says no"};
  Status paused = pause_deep();
  EXPECT_EQ(paused.code(), Code::kInternal);
  EXPECT_THAT(paused.text(), HasSubstr("the driver says no; the group is paused"));
  expect_paused(false);
  driver.all_run = false;
  paused = pause_deep();
  EXPECT_FALSE(paused.ok());
  expect_paused(true);
  driver.calls.clear();
  driver.evicted = {};
  driver.returns = [] {};  // nothing has left
  ASSERT_TRUE(resume().ok());
  EXPECT_EQ(driver.calls, Words{"restore rank 0 rank 1"}) << "one may be locked still";
  expect_running();
}

TEST_F(DeepTest, ARestoreThatFailsIsTriedAgain) {
  two_sharing();
  driver.returns();
  ASSERT_TRUE(pause_deep().ok());
  driver.restored = {Code::kInternal, "rank 0 does not run"};
  const Status resumed = resume();
  EXPECT_EQ(resumed.code(), Code::kInternal);
  EXPECT_THAT(resumed.text(), HasSubstr("rank 0 does not run"));
  expect_paused(true);
  driver.restored = {};
  ASSERT_TRUE(resume().ok());
  expect_running();
}

TEST_F(DeepTest, ARestoreWaitsForTheSpaceThatItsCheckpointHasFreedAndATenth) {
  two_sharing();
  driver.returns();
  ASSERT_TRUE(pause_deep().ok());
  const std::uint64_t filler = fill_device(8 * kMiB);
  ASSERT_NE(filler, 0U);
  auto watcher = begin(Operation::kResume);
  const Status resumed = complete(watcher);
  EXPECT_EQ(resumed.code(), Code::kResourceExhausted);
  const std::string lack = to_string(gpu(0)) +
                           " has 8 MiB free, but to restore the processes of group 'train' takes "
                           "8.8 MiB (what their checkpoint freed, and a tenth)";
  EXPECT_THAT(resumed.text(), HasSubstr(lack + ". Pause another group, or end a process on this "
                                               "device, and resume again"));
  expect_paused(true);
  watcher = begin(Operation::kResume);
  EXPECT_TRUE(eventually([&] { return watcher->saw_wait(lack); }));
  d.free(filler);
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  expect_running();
}

TEST_F(DeepTest, AResumeWaitsForTheCallsOfAnEvictionThatWasLate) {
  two_sharing();
  driver.returns();
  driver.hangs = true;
  const Status paused = pause_deep();
  EXPECT_EQ(paused.code(), Code::kDeadlineExceeded) << paused.text();
  driver.calls.clear();
  const auto watcher = begin(Operation::kResume);
  settle();
  EXPECT_EQ(driver.calls, Words());
  on_loop([&] { std::exchange(driver.go_on, nullptr)(); });
  const Status resumed = complete(watcher);
  EXPECT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_EQ(driver.calls, Words{"restore rank 0 rank 1"});
  expect_running();
}

TEST_F(DeepTest, WhoeverNeedsMemoryOfADeviceWaitsForTheRestoreThatIsUnderWayThere) {
  make(a, train, 0, 2);
  driver.returns();
  make(b, rollout, 0, 2);
  driver.returns();
  Group third{"third", {}, 50};
  make(c, third, 0, 2);
  Group apart{"apart", {}, 70};
  make(d, apart, 0, 2, 1);
  for (const char* name : {"train", "rollout"}) ASSERT_TRUE(pause_deep(name).ok());
  for (const char* name : {"third", "apart"}) ASSERT_TRUE(pause(name).ok());
  driver.hangs = true;
  const auto first = begin(Operation::kResume, "train");
  ASSERT_TRUE(eventually([&] { return driver.go_on != nullptr; }));
  const auto second = begin(Operation::kResume, "rollout");
  EXPECT_TRUE(eventually([&] {
    return second->saw_wait("there is no space to restore the processes of group 'rollout': " +
                            to_string(gpu(0)) + " has another restore under way");
  }));
  const auto shallow = begin(Operation::kResume, "third");
  EXPECT_TRUE(resume("apart").ok()) << "on another device";
  EXPECT_FALSE(shallow->done());
  on_loop([&] { std::exchange(driver.go_on, nullptr)(); });
  for (const auto& watcher : {first, second, shallow})
    EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
  EXPECT_EQ(contexts.size(), 2U);
  expect_intact(a, train);
  expect_intact(b, rollout);
  expect_intact(c, third);
}

// ---- swaps --------------------------------------------------------------------------------------

TEST_F(DeepTest, ASwapsPauseIsProvenWhenItComesToThat) {
  make_both(10 * kMiB, 10 * kMiB);
  driver.returns();
  driver.verdict.reset();
  driver.proof = {Code::kFailedPrecondition, "the driver loses processes"};
  const auto swap_deep = [this](const std::string& out, const std::string& in) {
    auto watcher = std::make_shared<Watcher>();
    on_loop([&] { broker->swap(Caller{}, {out}, {in}, deep(), {}, watcher); });
    return complete(watcher);
  };
  EXPECT_THAT(swap_deep("train", "rollout").text(), HasSubstr("the driver loses processes"));
  EXPECT_EQ(driver.proofs, 1);
  expect_states(kPaused, kRunning);
  expect_intact(b, rollout);
  EXPECT_FALSE(group().deep());
  driver.verdict.reset();
  driver.proof = {};
  ASSERT_TRUE(swap("rollout", "train").ok());
  ASSERT_TRUE(swap_deep("train", "rollout").ok());
  EXPECT_EQ(driver.proofs, 2);
  EXPECT_EQ(driver.calls, Words{"evict rank 0"});
  expect_states(kPaused, kRunning);
  EXPECT_TRUE(group().deep());
  ASSERT_TRUE(swap("rollout", "train").ok());
  expect_intact(a, train);
}

TEST_F(DeepTest, WhatADeepGroupNeedsToBeRestoredIsClosedBeforeTheRestIsHandedOn) {
  make(b, rollout, 80 * kMiB, 3);
  driver.returns();
  ASSERT_TRUE(pause_deep("rollout").ok());
  make(a, train, 80 * kMiB, 3);
  ASSERT_NE(fill_device(8 * kMiB), 0U);
  const auto watcher = begin_swap("train", "rollout");
  ASSERT_TRUE(complete(watcher).ok()) << watcher->status().text();
  std::map<std::string, v1::MovedMemory> moved;
  for (const v1::Progress& each : watcher->all())
    if (each.done()) moved[each.group()] = each.memory();
  EXPECT_EQ(moved["train"].closed_bytes(), kPiece);
  EXPECT_EQ(moved["train"].handed_on_bytes(), 7 * kPiece + 6 * kMiB);
  EXPECT_EQ(moved["rollout"].handed_on_bytes(), 7 * kPiece + 6 * kMiB);
  EXPECT_EQ(moved["rollout"].made_bytes(), kPiece);
  expect_intact(b, rollout);
}

// ---- deep.after ---------------------------------------------------------------------------------

class DeepAfterTest : public DeepTest {
 protected:
  void configure(Config& settings) const override {
    DeepTest::configure(settings);
    settings.deadlines.deepen = seconds(3);
  }
  v1::PastOperation last_operation() {
    v1::ListHistoryResponse history;
    EXPECT_TRUE(on_loop([&] { return broker->reports().history(Caller{}, {}, history); }).ok());
    return history.operations().empty() ? v1::PastOperation() : *history.operations().rbegin();
  }
};

TEST_F(DeepAfterTest, AGroupThatIsPausedForSoLongIsMadeDeep) {
  two_sharing();
  driver.returns();
  ASSERT_TRUE(pause().ok());
  const Time began = Clock::now();
  ASSERT_TRUE(eventually([&] { return group().deep(); }));
  EXPECT_GE(Clock::now() - began, seconds(2));
  EXPECT_TRUE(last_operation().by_broker());
  EXPECT_TRUE(last_operation().deep());
  EXPECT_EQ(used(0), 0U);
  ASSERT_TRUE(resume().ok());
  expect_running();
  EXPECT_FALSE(last_operation().by_broker());
}

TEST_F(DeepAfterTest, OneThatFailsIsTriedAgainUnlessItIsRefusedForGood) {
  two_sharing();
  driver.evicted = {Code::kInternal, "the driver says no"};
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(eventually([&] { return driver.calls.size() == 2; }));
  settle();
  driver.verdict = Status(Code::kFailedPrecondition, "the driver loses processes");
  EXPECT_FALSE(eventually([&] { return driver.calls.size() > 2; }));
  expect_paused(false);
}

}  // namespace
}  // namespace amem
