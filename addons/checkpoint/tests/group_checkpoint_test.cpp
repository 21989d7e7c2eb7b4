// All processes of a group are checkpointed, or none; and restored from whatever state they are in.
#include "addons/checkpoint/group_checkpoint.h"

#include <gmock/gmock.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace amem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum ProcessState;

/// Processes and a driver that does what it is told, a call at a time.
class FakeCalls final : public ProcessCalls {
 public:
  using Call = std::pair<pid_t, CheckpointAction>;

  void call(pid_t pid, CheckpointAction action, Time deadline, Done done) override {
    if (action != CheckpointAction::kState) limits += deadline - Clock::now();
    asked.push_back([this, pid, action, done = std::move(done)] { done(answer(pid, action)); });
    most = std::max(most, asked.size());
  }
  void run() {
    while (!asked.empty()) {
      const auto next = std::move(asked.front());
      asked.pop_front();
      next();
    }
  }

  std::map<pid_t, ProcessState> states;
  std::map<Call, Status> failing;
  std::set<Call> losing;
  std::vector<Call> made;
  std::deque<std::function<void()>> asked;
  std::size_t most = 0;
  Duration limits{};

 private:
  CheckpointResult answer(pid_t pid, CheckpointAction action) {
    ProcessState& state = states.at(pid);
    if (action == CheckpointAction::kState) return {{}, "", 0, state};
    made.emplace_back(pid, action);
    if (losing.contains({pid, action})) {
      state = kFailed;
      return {{Code::kFailedPrecondition, "lost"}, "CUDA_ERROR_UNKNOWN", 0, state};
    }
    if (const auto failure = failing.find({pid, action}); failure != failing.end())
      return {failure->second, "", 0, state};
    static const std::map<CheckpointAction, std::pair<ProcessState, ProcessState>> kSteps = {
        {CheckpointAction::kLock, {kRunning, kLocked}},
        {CheckpointAction::kCheckpoint, {kLocked, kCheckpointed}},
        {CheckpointAction::kRestore, {kCheckpointed, kLocked}},
        {CheckpointAction::kUnlock, {kLocked, kRunning}}};
    const auto [from, to] = kSteps.at(action);
    if (state != from)
      return {{Code::kFailedPrecondition, "wrong state"}, "CUDA_ERROR_ILLEGAL_STATE", 0, state};
    state = to;
    return {{}, "", 0, state};
  }
};

class GroupCheckpointTest : public ::testing::Test {
 protected:
  GroupCheckpointTest() { calls.states = {{11, kRunning}, {22, kRunning}}; }

  using Way = void (*)(ProcessCalls&, std::vector<EvictedProcess>, Duration, Evictor::Done);
  Status all(Way way) {
    std::optional<Status> ended;
    way(calls, {{11, "rank 0 (pid 11)"}, {22, "rank 1 (pid 22)"}}, std::chrono::seconds(54),
        [&](const Status& status) { ended = status; });
    calls.run();
    EXPECT_TRUE(ended.has_value());
    return ended.value_or(Status(Code::kInternal, "it has not ended"));
  }
  static void checkpoint(ProcessCalls& made, std::vector<EvictedProcess> targets, Duration limit,
                         Evictor::Done done) {
    checkpoint_all(made, std::move(targets), limit,
                   [done = std::move(done)](const Status& status, bool run) {
                     all_run = run;
                     done(status);
                   });
  }
  static void restore(ProcessCalls& made, std::vector<EvictedProcess> targets, Duration limit,
                      Evictor::Done done) {
    const auto space = [](const auto& answer) { answer(RestoreClaim()); };
    restore_all(made, std::move(targets), limit, space, std::move(done));
  }
  void expect_states(ProcessState first, ProcessState second) {
    EXPECT_EQ(calls.states.at(11), first);
    EXPECT_EQ(calls.states.at(22), second);
  }

  FakeCalls calls;
  static inline bool all_run = false;
};

TEST_F(GroupCheckpointTest, AllAreLockedBeforeTheFirstIsCheckpointed) {
  EXPECT_TRUE(all(checkpoint).ok());
  expect_states(kCheckpointed, kCheckpointed);
  using enum CheckpointAction;
  EXPECT_THAT(calls.made, ElementsAre(std::pair(11, kLock), std::pair(22, kLock),
                                      std::pair(11, kCheckpoint), std::pair(22, kCheckpoint)));
  EXPECT_EQ(calls.most, 2U) << "side by side";
  calls.made.clear();
  EXPECT_TRUE(all(restore).ok());
  expect_states(kRunning, kRunning);
  EXPECT_THAT(calls.made, ElementsAre(std::pair(11, kRestore), std::pair(22, kRestore),
                                      std::pair(11, kUnlock), std::pair(22, kUnlock)));
}

TEST_F(GroupCheckpointTest, OneThatCannotBeLockedUnlocksTheOthers) {
  calls.failing[{22, CheckpointAction::kLock}] = {Code::kDeadlineExceeded, "no answer"};
  const Status status = all(checkpoint);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(status.text(), HasSubstr("rank 1 (pid 22): no answer"));
  expect_states(kRunning, kRunning);
}

TEST_F(GroupCheckpointTest, OneThatCannotBeCheckpointedRestoresTheOthers) {
  calls.failing[{11, CheckpointAction::kCheckpoint}] = {Code::kInternal, "refused"};
  EXPECT_THAT(all(checkpoint).text(), HasSubstr("rank 0 (pid 11): refused"));
  expect_states(kRunning, kRunning);
}

TEST_F(GroupCheckpointTest, OneThatTheDriverLosesIsNamedAndTheOthersRun) {
  calls.losing.emplace(11, CheckpointAction::kCheckpoint);
  const Status status = all(checkpoint);
  EXPECT_THAT(status.text(), HasSubstr("rank 0 (pid 11): lost"));
  EXPECT_THAT(status.text(), HasSubstr("rank 0 (pid 11): the driver has lost this process"));
  expect_states(kFailed, kRunning);
}

TEST_F(GroupCheckpointTest, OneThatIsNotBroughtBackIsNotTakenForRunning) {
  calls.failing[{11, CheckpointAction::kCheckpoint}] = {Code::kInternal, "refused"};
  EXPECT_FALSE(all(checkpoint).ok());
  EXPECT_TRUE(all_run);
  calls.failing[{22, CheckpointAction::kRestore}] = {Code::kResourceExhausted, "no memory"};
  EXPECT_FALSE(all(checkpoint).ok());
  EXPECT_FALSE(all_run);
  expect_states(kRunning, kCheckpointed);
}

TEST_F(GroupCheckpointTest, OneThatIsLostInTheRestoreIsNamed) {
  calls.states = {{11, kCheckpointed}, {22, kCheckpointed}};
  calls.losing.emplace(22, CheckpointAction::kRestore);
  EXPECT_THAT(all(restore).text(),
              HasSubstr("rank 1 (pid 22): the driver has lost this process, and each of its calls "
                        "fails. End it"));
  expect_states(kRunning, kFailed);
}

TEST_F(GroupCheckpointTest, ItLivesWhileCallsAreUnderWay) {
  calls.states = {{11, kCheckpointed}, {22, kCheckpointed}};
  const Evictor::Calls under_way = restore_all(
      calls, {{11, "rank 0"}}, std::chrono::seconds(54),
      [](const auto& answer) { answer(RestoreClaim()); }, [](const Status&) {});
  EXPECT_FALSE(under_way.expired());
  calls.run();
  EXPECT_TRUE(under_way.expired());
}

TEST_F(GroupCheckpointTest, ItGoesOnFromWhereAnotherHasEnded) {
  calls.states = {{11, kLocked}, {22, kCheckpointed}};
  EXPECT_TRUE(all(checkpoint).ok());
  expect_states(kCheckpointed, kCheckpointed);
  calls.states = {{11, kLocked}, {22, kCheckpointed}};
  EXPECT_TRUE(all(restore).ok());
  expect_states(kRunning, kRunning);
}

TEST_F(GroupCheckpointTest, ARestoreThatFailsLeavesItForTheNext) {
  calls.states = {{11, kCheckpointed}, {22, kCheckpointed}};
  calls.failing[{22, CheckpointAction::kRestore}] = {Code::kResourceExhausted, "no memory"};
  EXPECT_EQ(all(restore).code(), Code::kResourceExhausted);
  expect_states(kRunning, kCheckpointed);
  calls.failing.clear();
  EXPECT_TRUE(all(restore).ok());
  expect_states(kRunning, kRunning);
}

class RestoreSpaceTest : public GroupCheckpointTest {
 protected:
  /// The restore has begun and, if it needs space, asked for it.
  void begin() {
    restore_all(
        calls, {{11, "rank 0 (pid 11)", [this] { return first_lives; }}, {22, "rank 1 (pid 22)"}},
        std::chrono::seconds(54), [this](const auto& asked) { answer = asked; },
        [this](const Status& status) { ended = status; });
    calls.run();
  }
  std::function<void(const Result<RestoreClaim>&)> answer;
  std::optional<Status> ended;
  bool first_lives = true;
};

TEST_F(RestoreSpaceTest, NothingIsRestoredBeforeThereIsSpaceWhichIsHeldUntilAllRun) {
  calls.states = {{11, kCheckpointed}, {22, kCheckpointed}};
  begin();
  ASSERT_TRUE(answer);
  EXPECT_THAT(calls.made, ElementsAre());
  auto hold = std::make_shared<int>(1);
  const std::weak_ptr<int> held = hold;
  answer(RestoreClaim(std::move(hold)));
  EXPECT_FALSE(held.expired());
  calls.run();
  EXPECT_TRUE(ended.has_value() && ended->ok());
  EXPECT_TRUE(held.expired());
  expect_states(kRunning, kRunning);
}

TEST_F(RestoreSpaceTest, WithoutSpaceNothingIsTouched) {
  calls.states = {{11, kLocked}, {22, kCheckpointed}};
  begin();
  ASSERT_TRUE(answer);
  answer(Status(Code::kResourceExhausted, "full"));
  calls.run();
  EXPECT_TRUE(ended.has_value() && ended->code() == Code::kResourceExhausted);
  expect_states(kLocked, kCheckpointed);
}

TEST_F(RestoreSpaceTest, WhatIsOnlyLockedNeedsNone) {
  calls.states = {{11, kLocked}, {22, kRunning}};
  begin();
  EXPECT_FALSE(answer);
  EXPECT_TRUE(ended.has_value() && ended->ok());
  expect_states(kRunning, kRunning);
}

TEST_F(RestoreSpaceTest, AProcessThatEndsMeanwhileIsLeftOut) {
  calls.states = {{11, kCheckpointed}, {22, kCheckpointed}};
  begin();
  ASSERT_TRUE(answer);
  first_lives = false;
  answer(RestoreClaim());
  calls.run();
  EXPECT_TRUE(ended.has_value() && ended->ok());
  expect_states(kCheckpointed, kRunning);
}

TEST_F(GroupCheckpointTest, CallsInTurnEndWithinTheLimit) {
  calls.failing[{11, CheckpointAction::kCheckpoint}] = {Code::kInternal, "refused"};
  (void)all(checkpoint);
  // Lock, checkpoint, restore, unlock, of one process; two looks come on top.
  EXPECT_LE(calls.limits / 2, std::chrono::seconds(54));
}

}  // namespace
}  // namespace amem
