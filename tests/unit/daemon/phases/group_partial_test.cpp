// Pauses of tags after which the group does not run on, and of the rest of its memory.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

Task of_kv() {
  Task task{Operation::kPause, {{"kv"}}};
  task.partial = true;
  return task;
}

class GroupPartialTest : public GroupTest {
 protected:
  GroupPartialTest()
      : GroupTest({[this](const Selection& what) {
                     return (what.takes("kv") && !kv_paused) ||
                            (what.takes("rest") && !rest_paused);
                   },
                   [this](const Selection& what) {
                     return (what.takes("kv") && kv_paused) || (what.takes("rest") && rest_paused);
                   },
                   [](const Selection&) { return false; },
                   [this](const Selection&) { return !rest_paused; }}) {}

  void to_partial() {
    ASSERT_TRUE(group.start(of_kv(), {}, now).ok());
    quiet(1);
    quiet(2);
    group.save_sent(kOk, {}, now);
    both(RankPhase::kRelease);
    kv_paused = true;
    group.dropped("", now);
    drain();
  }
  void to_rest() {
    to_partial();
    ASSERT_TRUE(group.start(Operation::kPause, {}, now).ok());
    drain();
    ASSERT_EQ(group.phase(), Phase::kQuiesce) << "a program may be freeing";
  }
  /// To where its ranks are told to undo it.
  void expect_undo() {
    drain();
    EXPECT_EQ(group.phase(), Phase::kRollback);
    const auto* arrived = find<action::Arrived>();
    const auto* release = find<action::Release>();
    ASSERT_TRUE(arrived != nullptr && release != nullptr);
    EXPECT_FALSE(arrived->loaded);
    EXPECT_TRUE(release->undo);
    EXPECT_EQ(find<action::Ask>(), nullptr) << "no gate opens";
    EXPECT_EQ(restart_state_of(group).under_way->restart, OnRestart::kRollBack);
  }

  bool kv_paused = false;
  bool rest_paused = false;
};

TEST_F(GroupPartialTest, ItDoesNotRunOn) {
  to_partial();
  expect_finished(Code::kOk, GroupState::kPaused);
  EXPECT_EQ(find<action::Ask>(), nullptr);
  EXPECT_FALSE(group.may_allocate(1));
  EXPECT_TRUE(group.join(3, "rank 2 (pid 33)")) << "its gate is shut";
  EXPECT_EQ(restart_state_of(group).stable_state, GroupState::kPaused);
  EXPECT_EQ(describe(of_kv(), "train"), "partial pause of tag kv of group 'train'");
}

TEST_F(GroupPartialTest, ItsFailureBeforeTheFirstReleaseEndsRunning) {
  ASSERT_TRUE(group.start(of_kv(), {}, now).ok());
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {1}, now);
  done(1, RankPhase::kSave, {Code::kInternal, "broken"});
  drain();
  expect_finished(Code::kAborted, GroupState::kRunning, "broken");
}

TEST_F(GroupPartialTest, OneResumeBringsItBack) {
  to_partial();
  ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
  group.admitted(kOk, now);
  group.created(kOk, now);
  both(RankPhase::kMap);
  both(RankPhase::kLoad);
  both(RankPhase::kOpen);
  drain();
  expect_finished(Code::kOk, GroupState::kRunning);
}

TEST_F(GroupPartialTest, TheRestLeavesLater) {
  to_rest();
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {1}, now);
  done(1, RankPhase::kSave);
  drain();
  ASSERT_NE(find<action::Release>(), nullptr);
  EXPECT_FALSE(find<action::Release>()->undo);
  EXPECT_EQ(restart_state_of(group).under_way->restart, OnRestart::kRelease);
  both(RankPhase::kRelease);
  rest_paused = true;
  group.dropped("", now);
  drain();
  expect_finished(Code::kOk, GroupState::kPaused);
  EXPECT_EQ(group.can_start(Operation::kPause).text(), "group 'train' is already paused");
}

TEST_F(GroupPartialTest, MoreOfItsTagsDoNotLeaveAlone) {
  to_partial();
  EXPECT_EQ(group.can_start(of_kv()).code(), Code::kFailedPrecondition);
  EXPECT_EQ(group.can_start(Task{Operation::kPause, {{"rest"}}}).code(), Code::kFailedPrecondition);
}

TEST_F(GroupPartialTest, WithoutItsRestItStaysPaused) {
  to_rest();
  EXPECT_EQ(restart_state_of(group).under_way->restart, OnRestart::kRollBack);
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {1}, now);
  const Epoch before = group.epoch();
  done(1, RankPhase::kSave, {Code::kInternal, "broken"});
  expect_undo();
  EXPECT_GT(group.epoch().attempt, before.attempt) << "late answers are of another attempt";
  both(RankPhase::kRelease);
  drain();
  EXPECT_EQ(find<action::Drop>(), nullptr);
  expect_finished(Code::kAborted, GroupState::kPaused, "broken");
  EXPECT_TRUE(group.can_start(Operation::kPause).ok());
}

TEST_F(GroupPartialTest, ADeadlineOfTheQuiesceEndsPaused) {
  to_rest();
  now += Deadlines().quiesce;
  group.tick(now);
  expect_undo();
  both(RankPhase::kRelease);
  drain();
  expect_finished(Code::kDeadlineExceeded, GroupState::kPaused);
}

TEST_F(GroupPartialTest, ADeathInItsSaveEndsPaused) {
  to_rest();
  group.leave(2, false, now);
  expect_undo();
  done(1, RankPhase::kRelease);
  drain();
  expect_finished(Code::kAborted, GroupState::kPaused);
}

TEST_F(GroupPartialTest, OneOfASetIsNotReadyAnyMoreWhenItIsUndone) {
  to_partial();
  ASSERT_TRUE(group.start(Operation::kPause, {}, now, Barrier::kWithinNode).ok());
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {}, now);
  drain();
  ASSERT_NE(find<action::Ready>(), nullptr);
  group.leave(2, false, now);
  drain();
  EXPECT_NE(find<action::Unready>(), nullptr);
  EXPECT_EQ(group.phase(), Phase::kRollback);
}

TEST_F(GroupPartialTest, ItsRanksAskForAPauseThatTheyHave) {
  to_partial();
  group.request(1, 7, Operation::kPause, {}, now);
  drain();
  ASSERT_NE(find<action::Answer>(), nullptr);
  EXPECT_TRUE(find<action::Answer>()->status.ok());
  EXPECT_EQ(group.state(), GroupState::kPaused);
}

TEST_F(GroupPartialTest, ADeepPauseTakesTheRestFirst) {
  to_partial();
  Task deep(Operation::kPause);
  deep.deep = true;
  ASSERT_TRUE(group.start(deep, {}, now).ok());
  quiet(1);
  quiet(2);
  group.save_sent(kOk, {}, now);
  both(RankPhase::kRelease);
  rest_paused = true;
  group.dropped("", now);
  EXPECT_EQ(group.phase(), Phase::kDetach);
}

/// As the next broker finds it.
TEST_F(GroupPartialTest, TheNextBrokerGoesOn) {
  Members members;
  members.add(1, "rank 0 (pid 11)");
  RestartState restart_state;
  restart_state.under_way = Interrupted{of_kv(), OnRestart::kRelease, "release"};
  ToldGroup released("train", Deadlines(), now, {}, restart_state, members, seconds(1));
  released.join(1, "rank 0 (pid 11)");
  released.tick(now);
  released.phase_done(1, released.epoch(), RankPhase::kRelease, kOk, 0, now);
  released.dropped("", now);
  EXPECT_EQ(released.state(), GroupState::kPaused) << "it does not run on";

  restart_state.stable_state = GroupState::kPaused;
  restart_state.under_way = Interrupted{Operation::kPause, OnRestart::kRollBack, "save"};
  ToldGroup undone("train", Deadlines(), now, {}, restart_state, members, seconds(1));
  EXPECT_TRUE(undone.join(1, "rank 0 (pid 11)")) << "its gate stays shut";
  undone.tick(now);
  EXPECT_EQ(undone.phase(), Phase::kRollback);
  undone.phase_done(1, undone.epoch(), RankPhase::kRelease, kOk, 0, now);
  EXPECT_EQ(undone.state(), GroupState::kPaused);
  EXPECT_NE(undone.note().find("amemd ended during save"), std::string::npos) << undone.note();
}

}  // namespace
}  // namespace amem
