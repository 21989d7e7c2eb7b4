// Operations on chosen tags: the group runs on without them.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

const Task kPauseKv{Operation::kPause, {{"kv"}}};
const Task kResumeKv{Operation::kResume, {{"kv"}}};

/// Both ranks share memory of `kv` and of `weights`; the test says what is paused.
class GroupTagsTest : public GroupTest {
 protected:
  GroupTagsTest()
      : GroupTest({.can_leave = [this](const Selection& what) { return any(what, false); },
                   .paused = [this](const Selection& what) { return any(what, true); },
                   .sharers =
                       [](RankId, const Selection&) {
                         return std::set<RankId>{1, 2};
                       }}) {}

  bool any(const Selection& what, bool is_paused) const {
    for (const auto& [tag, paused] : memory)
      if (what.takes(tag) && paused == is_paused) return true;
    return false;
  }
  void set_paused(const Selection& what, bool is_paused) {
    for (auto& [tag, paused] : memory)
      if (what.takes(tag)) paused = is_paused;
  }

  /// From running to the end of a pause of these.
  void pause(const Task& task) {
    ASSERT_TRUE(group.start(task, {}, now).ok());
    quiet(1);
    quiet(2);
    drain();
    EXPECT_EQ(find<action::Begun>()->task, task);
    group.save_sent(kOk, {}, now);
    drain();
    const auto* release = find<action::Release>();
    ASSERT_NE(release, nullptr);
    EXPECT_EQ(group.phase(), Phase::kRelease);
    both(RankPhase::kRelease);
    drain();
    set_paused(task.selection, true);
    group.dropped("", now);
    if (task.selection.all()) return;
    drain();
    EXPECT_NE(find<action::Ask>(), nullptr) << "it runs on";
    EXPECT_EQ(group.phase(), Phase::kOpen);
    both(RankPhase::kOpen);
  }
  /// To the load phase of a resume of these.
  void to_load(const Task& task) {
    ASSERT_TRUE(group.start(task, {}, now).ok());
    group.admitted(kOk, now);
    set_paused(task.selection, false);
    group.created(kOk, now);
    drain();
    EXPECT_EQ(find<action::Quiesce>(), nullptr);
    ASSERT_EQ(group.phase(), Phase::kLoad);
  }
  void resume(const Task& task) {
    to_load(task);
    both(RankPhase::kMap);
    both(RankPhase::kLoad);
    drain();
    both(RankPhase::kOpen);
  }

  std::map<std::string, bool> memory = {{"kv", false}, {"weights", false}};  // → paused
};

TEST_F(GroupTagsTest, WithoutItsTagTheGroupRunsOn) {
  pause(kPauseKv);
  drain();
  expect_finished(Code::kOk, GroupState::kRunning);
  const auto* arrived = find<action::Arrived>();
  ASSERT_NE(arrived, nullptr);
  EXPECT_FALSE(arrived->loaded) << "what left has not come back";
  EXPECT_TRUE(group.may_allocate(1));
  EXPECT_EQ(group.last(Operation::kPause)->task, kPauseKv);

  EXPECT_EQ(group.can_start(kPauseKv).text(), "tag kv of group 'train' is already paused");
  EXPECT_TRUE(group.can_start({Operation::kPause, {{"kv", "weights"}}}).ok());
  EXPECT_TRUE(group.can_start(Operation::kPause).ok());
  EXPECT_TRUE(group.can_start(Operation::kResume).ok());
  EXPECT_EQ(group.can_start({Operation::kResume, {{"weights"}}}).text(),
            "tag weights of group 'train' is already running");
}

TEST_F(GroupTagsTest, ASelectionIsNamedByItsTags) {
  EXPECT_EQ(to_string(Selection()), "");
  EXPECT_EQ(to_string(Selection{{"kv"}}), "tag kv");
  EXPECT_EQ(to_string(Selection{{"kv", "weights"}}), "tags kv, weights");
  EXPECT_EQ(to_string(Selection{{"kv", "weights"}, true}), "all but tags kv, weights");
}

TEST_F(GroupTagsTest, AllButATagComesBackAndTheTagLater) {
  const Task pause_rest{Operation::kPause, {{"weights"}, true}};
  EXPECT_EQ(describe(pause_rest, "train"), "pause of all but tag weights of group 'train'");
  pause(pause_rest);
  drain();
  expect_finished(Code::kOk, GroupState::kRunning);
  EXPECT_FALSE(any({{"weights"}}, true));
  EXPECT_EQ(group.can_start(pause_rest).text(),
            "all but tag weights of group 'train' is already paused");
  pause(Operation::kPause);
  drain();
  const Task resume_rest{Operation::kResume, {{"kv"}, true}};
  resume(resume_rest);
  drain();
  expect_finished(Code::kOk, GroupState::kRunning);
  EXPECT_EQ(find<action::Arrived>()->what, resume_rest.selection);
  EXPECT_TRUE(any({{"kv"}}, true));
  resume(kResumeKv);
  drain();
  EXPECT_FALSE(any({}, true));
}

TEST_F(GroupTagsTest, RequestsMustAgreeOnWhatIsDropped) {
  const Task dropping{Operation::kPause, {}, {"kv"}};
  group.request(1, 11, dropping, seconds(5), now);
  group.request(2, 21, Operation::kPause, seconds(5), now);
  EXPECT_EQ(group.phase(), Phase::kNone);
  now += seconds(5);
  group.tick(now);
  drain();
  const auto answers = all<action::Answer>();
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].status.text(),
            "pause of group 'train', dropping tag kv from inside: not every rank asked for it in "
            "time; missing: rank 1 (pid 22); the group is running");
  group.request(1, 12, dropping, {}, now);
  group.request(2, 22, dropping, {}, now);
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
  drain();
  EXPECT_EQ(find<action::Begun>()->task, dropping);
}

TEST_F(GroupTagsTest, ComingBackDisturbsNobody) {
  pause(kPauseKv);
  to_load(kResumeKv);
  EXPECT_EQ(group.state(), GroupState::kResuming);
  EXPECT_TRUE(group.may_allocate(1)) << "the group runs";
  EXPECT_FALSE(group.join(3, "rank 2 (pid 33)")) << "nor does one that comes now wait";
  both(RankPhase::kMap);
  both(RankPhase::kLoad);
  drain();
  both(RankPhase::kOpen);
  done(3, RankPhase::kOpen);
  drain();
  expect_finished(Code::kOk, GroupState::kRunning);
  EXPECT_TRUE(find<action::Arrived>()->loaded);
  EXPECT_EQ(find<action::Arrived>()->what, kResumeKv.selection);
}

TEST_F(GroupTagsTest, WeightsFirstThenTheRest) {
  pause(Operation::kPause);
  drain();
  expect_finished(Code::kOk, GroupState::kPaused);
  resume({Operation::kResume, {{"weights"}}});
  drain();
  expect_finished(Code::kOk, GroupState::kRunning);
  EXPECT_TRUE(any({{"kv"}}, true));
  resume(Operation::kResume);
  drain();
  expect_finished(Code::kOk, GroupState::kRunning);
  EXPECT_FALSE(any({}, true));
}

TEST_F(GroupTagsTest, WhenItCannotComeBackTheGroupStillRuns) {
  pause(kPauseKv);
  to_load(kResumeKv);
  done(1, RankPhase::kMap, {Code::kInternal, "no"});
  ASSERT_EQ(group.phase(), Phase::kRollback);
  drain();
  EXPECT_NE(find<action::Release>(), nullptr);
  both(RankPhase::kRelease);
  drain();
  set_paused(kResumeKv.selection, true);
  group.dropped("", now);
  drain();
  EXPECT_NE(find<action::Ask>(), nullptr);
  both(RankPhase::kOpen);
  drain();
  EXPECT_FALSE(find<action::Arrived>()->loaded) << "its bytes stay in the pool";
  expect_finished(Code::kAborted, GroupState::kRunning, "resume of tag kv of group 'train'");
}

TEST_F(GroupTagsTest, NoSpaceLeavesTheGroupAsItWas) {
  pause(kPauseKv);
  drain();
  ASSERT_TRUE(group.start(kResumeKv, {}, now).ok());
  group.admitted({Code::kResourceExhausted, "full"}, now);
  drain();
  EXPECT_EQ(find<action::Ask>(), nullptr) << "no gate was shut";
  expect_finished(Code::kResourceExhausted, GroupState::kRunning, "full");
}

TEST_F(GroupTagsTest, RequestsMustAgreeOnTheTags) {
  group.request(1, 11, kPauseKv, seconds(5), now);
  group.request(2, 21, Operation::kPause, seconds(9), now);
  EXPECT_EQ(group.phase(), Phase::kNone);
  now += seconds(5);
  group.tick(now);
  drain();
  const auto answers = all<action::Answer>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].seq, 11U);
  EXPECT_EQ(answers[0].status.text(),
            "pause of tag kv of 2 ranks of group 'train' from inside: not done in time; missing, "
            "because they share this memory or are of one set: rank 1 (pid 22)");
  group.request(2, 22, kPauseKv, {}, now);
  group.request(1, 12, kPauseKv, {}, now);
  EXPECT_EQ(group.phase(), Phase::kQuiesce);
  drain();
  EXPECT_EQ(find<action::Begun>()->task, kPauseKv.of({1, 2}));
}

TEST_F(GroupTagsTest, RequestsForWhatIsSoAlreadySucceed) {
  pause(kPauseKv);
  drain();
  group.request(1, 11, kPauseKv, {}, now);
  group.request(1, 12, {Operation::kResume, {{"weights"}}}, {}, now);
  drain();
  const auto answers = all<action::Answer>();
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_TRUE(answers[0].status.ok());
  EXPECT_TRUE(answers[1].status.ok());
}

TEST_F(GroupTagsTest, WhoWaitsForATagIsAnsweredByAnyResumeThatBringsIt) {
  pause(kPauseKv);
  group.request(1, 11, kResumeKv, {}, now);
  resume(Operation::kResume);
  drain();
  const auto answers = all<action::Answer>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].seq, 11U);
  EXPECT_TRUE(answers[0].status.ok());
}

TEST_F(GroupTagsTest, WhatTheLoaderFreesIsNotGivenToTheOthers) {
  pause(kPauseKv);
  to_load(kResumeKv);
  done(2, RankPhase::kMap);
  done(2, RankPhase::kLoad);
  group.freed_unloaded(2, now);
  EXPECT_EQ(group.phase(), Phase::kLoad) << "it had loaded it";
  group.freed_unloaded(1, now);
  drain();
  ASSERT_EQ(group.phase(), Phase::kRollback);
  ASSERT_NE(find<action::Release>(), nullptr);
  both(RankPhase::kRelease);
  drain();
  set_paused(kResumeKv.selection, true);
  group.dropped("", now);
  drain();
  both(RankPhase::kOpen);
  drain();
  expect_finished(Code::kAborted, GroupState::kRunning, "before it had loaded");
}

TEST_F(GroupTagsTest, WhoJoinsWhileMemoryComesBackIsInOnItsEnd) {
  pause(kPauseKv);
  to_load(kResumeKv);
  EXPECT_FALSE(group.join(3, "rank 2 (pid 33)")) << "the group runs";
  done(1, RankPhase::kMap, {Code::kInternal, "no memory"});
  drain();
  ASSERT_EQ(group.phase(), Phase::kRollback);
  EXPECT_EQ(find<action::Release>()->ranks, (std::vector<RankId>{1, 2, 3}));
  both(RankPhase::kRelease);
  EXPECT_EQ(group.phase(), Phase::kRollback);
  group.leave(3, false, now);
  drain();
  EXPECT_NE(find<action::Drop>(), nullptr) << "its death is no reason to wait";
}

TEST_F(GroupTagsTest, ADeathThatLeavesNothingToDoAnswersTheOthers) {
  group.request(1, 5, kPauseKv, {}, now);
  memory.erase("kv");  // rank 2 had all of it
  group.leave(2, false, now);
  drain();
  const auto* answer = find<action::Answer>();
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->seq, 5U);
  EXPECT_TRUE(answer->status.ok());
  EXPECT_EQ(group.phase(), Phase::kNone);
}

}  // namespace
}  // namespace amem
