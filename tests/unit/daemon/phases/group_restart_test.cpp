// What becomes of a group whose broker has ended: another takes it up as it stood.
#include <gmock/gmock.h>

#include <optional>

#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

using ::testing::HasSubstr;

class GroupRestartTest : public GroupTest {
 protected:
  explicit GroupRestartTest(MemoryView memory = {}) : GroupTest(memory), view_(std::move(memory)) {}

  /// The broker ends now, and the next begins; nobody has come back.
  ToldGroup& restart() {
    Members members;
    members.add(1, "rank 0 (pid 11)");
    members.add(2, "rank 1 (pid 22)");
    next.emplace("train", Deadlines(), now, view_, restart_state_of(next ? *next : group),
                 std::move(members), seconds(60));
    return *next;
  }
  void drain_next() {
    actions.clear();
    while (auto action = next->next_action()) actions.push_back(std::move(*action));
  }
  void come_back() {
    next->join(1, "");
    EXPECT_FALSE(next->next_action()) << "one is missing";
    next->join(2, "");
    next->tick(next->wakeup() == kNever ? now : std::max(now, next->wakeup()));
    drain_next();
  }
  void both_of_next(RankPhase phase) {
    for (const RankId rank : {1U, 2U}) next->phase_done(rank, next->epoch(), phase, {}, 0, now);
    drain_next();
  }
  void expect_next(Code code, GroupState state, const std::string& text = "") {
    const auto* finished = find<action::Finished>();
    ASSERT_NE(finished, nullptr);
    EXPECT_EQ(finished->outcome.status.code(), code) << finished->outcome.status.text();
    EXPECT_THAT(finished->outcome.status.text(), HasSubstr(text));
    EXPECT_EQ(next->state(), state);
    EXPECT_EQ(next->phase(), Phase::kNone);
  }

  const MemoryView view_;
  std::optional<ToldGroup> next;
};

TEST_F(GroupRestartTest, WhatRunsRunsOn) {
  restart();
  EXPECT_EQ(next->state(), GroupState::kRunning);
  EXPECT_TRUE(next->may_allocate(1));
  const Status early = next->can_start(Operation::kPause);
  EXPECT_EQ(early.code(), Code::kUnavailable);
  EXPECT_THAT(early.text(), HasSubstr("waits for rank 0 (pid 11), rank 1 (pid 22) to reconnect"));
  EXPECT_FALSE(next->join(1, "")) << "its gate stays open";
  EXPECT_FALSE(next->join(2, ""));
  EXPECT_EQ(next->members().label(1), "rank 0 (pid 11)") << "it is the same rank";
  EXPECT_TRUE(next->start(Operation::kPause, {}, now).ok());
}

TEST_F(GroupRestartTest, WhatIsPausedStaysPausedAndComesBack) {
  to_paused();
  restart();
  EXPECT_EQ(next->state(), GroupState::kPaused);
  EXPECT_EQ(next->can_start(Operation::kResume).code(), Code::kUnavailable);
  EXPECT_TRUE(next->join(1, "")) << "its gate stays shut";
  next->leave(2, false, now);  // its process has ended
  EXPECT_TRUE(next->start(Operation::kResume, {}, now).ok());
}

TEST_F(GroupRestartTest, APauseBeforeItsFirstReleaseIsCalledOff) {
  for (const bool saving : {false, true}) {
    saving ? to_save() : to_quiesce();
    restart();
    EXPECT_EQ(next->state(), GroupState::kPausing);
    EXPECT_TRUE(next->may_allocate(1)) << "what passed the gate must be able to end";
    EXPECT_THAT(next->can_start(Operation::kPause).text(), HasSubstr("is incomplete"));
    EXPECT_EQ(next->note(), saving ? "amemd ended during save and has restarted"
                                   : "amemd ended during quiesce and has restarted");
    EXPECT_FALSE(will_take(*next, "nccl"));
    come_back();
    ASSERT_NE(find<action::Ask>(), nullptr);
    EXPECT_EQ(find<action::Release>(), nullptr);
    EXPECT_GT(find<action::Ask>()->epoch, group.epoch());
    both_of_next(RankPhase::kOpen);
    EXPECT_FALSE(find<action::Arrived>()->loaded);
    expect_next(Code::kAborted, GroupState::kRunning,
                saving ? "amemd ended during save" : "amemd ended during quiesce");
    next.reset();  // and once more
    group.tick(now + seconds(100));
    drain();
  }
}

TEST_F(GroupRestartTest, APauseAfterItsFirstReleaseGoesOn) {
  to_release();
  done(1, RankPhase::kRelease);
  EXPECT_TRUE(will_take(group, "nccl"));
  restart();
  EXPECT_TRUE(will_take(*next, "nccl")) << "so nobody new may open it meanwhile";
  come_back();
  ASSERT_NE(find<action::Begun>(), nullptr);
  EXPECT_TRUE(find<action::Begun>()->continues);
  ASSERT_NE(find<action::Release>(), nullptr);
  EXPECT_EQ(find<action::Release>()->ranks, (std::vector<RankId>{1, 2}));
  both_of_next(RankPhase::kRelease);
  ASSERT_NE(find<action::Drop>(), nullptr);
  next->dropped("", now);
  drain_next();
  expect_next(Code::kOk, GroupState::kPaused);
}

TEST_F(GroupRestartTest, AResumeBeforeItOpensIsRolledBack) {
  to_paused();
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  drain();
  group.admitted(kOk, now);
  drain();
  group.created(kOk, now);
  drain();
  ASSERT_EQ(group.phase(), Phase::kLoad);
  restart();
  EXPECT_FALSE(next->may_allocate(1));
  come_back();
  EXPECT_EQ(next->phase(), Phase::kRollback);
  ASSERT_NE(find<action::Release>(), nullptr);
  both_of_next(RankPhase::kRelease);
  next->dropped("", now);
  drain_next();
  expect_next(Code::kAborted, GroupState::kPaused, "amemd ended during map+load");
  EXPECT_TRUE(next->can_start(Operation::kResume).ok());
}

TEST_F(GroupRestartTest, AResumeThatOpensIsOpened) {
  to_paused();
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  drain();
  group.admitted(kOk, now);
  group.created(kOk, now);
  both(RankPhase::kMap);
  both(RankPhase::kLoad);
  drain();
  ASSERT_EQ(group.phase(), Phase::kOpen);
  done(1, RankPhase::kOpen);
  restart();
  come_back();
  ASSERT_NE(find<action::Ask>(), nullptr);
  both_of_next(RankPhase::kOpen);
  EXPECT_TRUE(find<action::Arrived>()->loaded);
  expect_next(Code::kOk, GroupState::kRunning);
}

TEST_F(GroupRestartTest, AnotherRestartFindsTheSame) {
  to_release();
  restart();
  restart();  // before anybody has come back
  come_back();
  EXPECT_EQ(next->phase(), Phase::kRelease);
  restart();  // while they release again
  come_back();
  EXPECT_EQ(next->phase(), Phase::kRelease);
  both_of_next(RankPhase::kRelease);
  next->dropped("", now);
  drain_next();
  expect_next(Code::kOk, GroupState::kPaused);
}

TEST_F(GroupRestartTest, ARankThatDoesNotComeBackIsNotWaitedForForEver) {
  to_release();
  restart();
  next->join(1, "");
  next->tick(now + seconds(59));
  EXPECT_EQ(next->phase(), Phase::kNone);
  now += seconds(60);
  next->tick(now);
  drain_next();
  ASSERT_EQ(next->phase(), Phase::kRelease);
  next->phase_done(1, next->epoch(), RankPhase::kRelease, {}, 0, now);
  now += Deadlines().release;
  next->tick(now);
  next->dropped("", now);
  drain_next();
  expect_next(Code::kDeadlineExceeded, GroupState::kPaused, "rank 1 (pid 22)");
}

TEST_F(GroupRestartTest, ARankThatComesBackLateIsToldWhatTheOthersWere) {
  to_release();
  restart();
  next->join(1, "");
  now += seconds(60);
  next->tick(now);
  drain_next();
  ASSERT_EQ(next->phase(), Phase::kRelease);
  next->phase_done(1, next->epoch(), RankPhase::kRelease, {}, 0, now);
  EXPECT_TRUE(next->join(2, ""));
  drain_next();
  ASSERT_NE(find<action::Release>(), nullptr);
  EXPECT_EQ(find<action::Release>()->ranks, (std::vector<RankId>{2}));
  next->phase_done(2, next->epoch(), RankPhase::kRelease, {}, 0, now);
  drain_next();
  next->dropped("", now);
  drain_next();
  expect_next(Code::kOk, GroupState::kPaused);
}

TEST_F(GroupRestartTest, ARankThatComesBackLateOpensToo) {
  to_save();
  restart();
  next->join(1, "");
  now += seconds(60);
  next->tick(now);
  drain_next();
  ASSERT_EQ(next->phase(), Phase::kOpen);
  EXPECT_FALSE(next->join(2, ""));
  drain_next();
  ASSERT_NE(find<action::Ask>(), nullptr);
  EXPECT_EQ(find<action::Ask>()->ranks, (std::vector<RankId>{2}));
  both_of_next(RankPhase::kOpen);
  expect_next(Code::kAborted, GroupState::kRunning);
}

TEST_F(GroupRestartTest, WhatIsCalledOffEndsWithAnErrorAlsoAfterAnotherRestart) {
  to_save();
  restart();
  come_back();
  ASSERT_EQ(next->phase(), Phase::kOpen);
  restart();
  come_back();
  both_of_next(RankPhase::kOpen);
  expect_next(Code::kAborted, GroupState::kRunning, "amemd ended during open, after a failure");
}

TEST_F(GroupRestartTest, WhatComesBackToAGroupThatRunsShutsNoGate) {
  Members members;
  members.add(1, "");
  const Interrupted resume{Task(Operation::kResume, Selection{{"kv"}}), OnRestart::kRollBack,
                           "create"};
  next.emplace("train", Deadlines(), now, view_,
               RestartState{GroupState::kRunning, 3, resume, false, false, {}, 0},
               std::move(members), seconds(60));
  EXPECT_TRUE(next->may_allocate(1));
  EXPECT_FALSE(next->join(1, "")) << "one that has missed its Open is told to open";
}

TEST_F(GroupRestartTest, WhatAnOperatorHasPausedIsStillHis) {
  to_paused();
  restart();
  come_back();
  for (const RankId rank : {1U, 2U})
    next->request(rank, 5, Task(Operation::kResume, Selection{{"weights"}}), {}, now);
  EXPECT_EQ(next->state(), GroupState::kPaused);
}

TEST_F(GroupRestartTest, OneThatEndsMeanwhileIsNotWaitedFor) {
  to_quiesce();
  restart();
  next->join(1, "");
  next->leave(2, false, now);
  next->tick(now);
  drain_next();
  ASSERT_NE(find<action::Ask>(), nullptr);
  EXPECT_EQ(find<action::Ask>()->ranks, (std::vector<RankId>{1}));
}

TEST_F(GroupRestartTest, WithoutRanksNothingIsUnderWay) {
  to_save();
  restart();
  for (const RankId rank : {1U, 2U}) next->leave(rank, false, now);
  EXPECT_FALSE(next->under_way()) << "the group would never end";
  EXPECT_EQ(next->wakeup(), kNever) << "its timer would be due in each turn of the loop";
  EXPECT_EQ(next->state(), GroupState::kRunning);
}

TEST_F(GroupRestartTest, WhatRanksAskForAgainWaitsForTheEndOfWhatWasUnderWay) {
  to_save();
  restart();
  next->join(1, "");
  next->request(1, 7, Operation::kPause, {}, now);
  EXPECT_FALSE(next->next_action());
  next->join(2, "");
  next->request(2, 8, Operation::kPause, {}, now);
  next->tick(now);
  drain_next();
  ASSERT_NE(find<action::Ask>(), nullptr);
  both_of_next(RankPhase::kOpen);
  EXPECT_EQ(next->phase(), Phase::kQuiesce) << "then they get what they ask for";
  EXPECT_EQ(all<action::Answer>().size(), 0U);
}

TEST_F(GroupRestartTest, APauseOfTagsThatHadNotOpenedOpens) {
  Task task(Operation::kPause, Selection{{"kv"}});
  ASSERT_TRUE(group.start(task, {}, now).ok());
  drain();
  quiet(1);
  quiet(2);
  drain();
  group.save_sent(kOk, {}, now);
  both(RankPhase::kRelease);
  drain();
  group.dropped("", now);
  drain();
  ASSERT_EQ(group.phase(), Phase::kOpen);
  restart();
  come_back();
  both_of_next(RankPhase::kOpen);
  EXPECT_FALSE(find<action::Arrived>()->loaded);
  expect_next(Code::kOk, GroupState::kRunning);
}

TEST(LostRanksTest, OfManyTheFirstAreNamed) {
  Members members;
  for (RankId rank = 1; rank <= 6; ++rank) members.add(rank, "rank " + std::to_string(rank));
  RestartState restart_state;
  restart_state.stable_state = GroupState::kPaused;
  const Time now{seconds(1)};
  ToldGroup group("train", Deadlines(), now, MemoryView(), restart_state, members, seconds(60));
  for (RankId rank = 1; rank <= 6; ++rank) group.leave(rank, false, now);
  EXPECT_EQ(group.lost(),
            "lost rank 1 while it was paused; lost rank 2 while it was paused; lost rank 3 while "
            "it was paused; lost rank 4 while it was paused; and more");
}

}  // namespace
}  // namespace amem
