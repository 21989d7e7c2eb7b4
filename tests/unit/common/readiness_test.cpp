// Whether a group takes requests.
#include "common/readiness.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

using State = GroupCondition::State;

GroupCondition group(State state) {
  GroupCondition condition;
  condition.name = "rollout";
  condition.state = state;
  condition.ranks = 2;
  return condition;
}

TEST(GroupReadiness, OnlyAWholeGroupThatRunsIsReady) {
  EXPECT_TRUE(is_ready(group(State::kRunning)));
  for (const State state : {State::kUnknown, State::kPausing, State::kPaused, State::kResuming})
    EXPECT_FALSE(is_ready(group(state)));
  GroupCondition lacks = group(State::kRunning);
  lacks.lost = "lost rank 1 (pid 7)";
  EXPECT_FALSE(is_ready(lacks));
  GroupCondition begins = group(State::kRunning);
  begins.ranks = 0;
  EXPECT_FALSE(is_ready(begins));
}

TEST(GroupReadiness, ARequestMayWaitForAGroupThatItsStageHasPaused) {
  EXPECT_TRUE(may_wait(group(State::kRunning)));
  GroupCondition paused = group(State::kPaused);
  paused.stage = "night";
  EXPECT_FALSE(may_wait(paused)) << "an operator has paused it";
  paused.paused_by_stage = true;
  EXPECT_TRUE(may_wait(paused));
  paused.lost = "lost rank 1 (pid 7) while it was paused";
  EXPECT_FALSE(may_wait(paused));
  paused.lost.clear();
  paused.ranks = 0;
  EXPECT_FALSE(may_wait(paused)) << "nobody would answer";
}

TEST(GroupReadiness, ARequestMayWaitForASwitchOfAStage) {
  for (const State state : {State::kPausing, State::kResuming}) {
    GroupCondition switches = group(state);
    EXPECT_FALSE(may_wait(switches)) << "somebody else pauses it";
    switches.stage = "night";
    EXPECT_TRUE(may_wait(switches));
    switches.lost = "lost rank 1 (pid 7)";
    EXPECT_FALSE(may_wait(switches));
  }
}

TEST(GroupReadiness, TheTextNamesLostRanksOnce) {
  GroupCondition paused = group(State::kPaused);
  paused.lost = "lost rank 1 (pid 7) while it was paused";
  const std::string bare = readiness_text(paused, 1'700'000'012'345);
  EXPECT_NE(bare.find(". It has lost rank 1 (pid 7) while it was paused"), std::string::npos)
      << bare;
  paused.note = "resume failed; " + paused.lost;
  const std::string text = readiness_text(paused, 1'700'000'012'345);
  EXPECT_EQ(text.find(paused.lost), text.rfind(paused.lost)) << text;
}

TEST(GroupReadiness, StatesAreNamedWithWhatTheyWaitFor) {
  GroupCondition saves = group(State::kPausing);
  saves.phase = "save";
  EXPECT_EQ(state_text(saves), "pausing (save)");
  GroupCondition deep = group(State::kPaused);
  EXPECT_EQ(state_text(deep), "paused");
  deep.partial = true;
  EXPECT_EQ(state_text(deep), "paused (partial)");
  deep.deep = true;
  EXPECT_EQ(state_text(deep), "paused (deep)");
  EXPECT_EQ(state_text(group(State::kUnknown)), "unknown");
}

}  // namespace
}  // namespace amem
