// What `amemctl ready` says of a group.
#include "client/ctl/conclusions/readiness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace amem::ctl {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::uint64_t kNow = 1'700'000'012'345;

v1::GroupInfo rollout(v1::GroupState state, const std::string& phase = "") {
  v1::GroupInfo group;
  group.set_name("rollout");
  group.set_state(state);
  group.set_phase(phase);
  group.set_since_ms(12'000);
  group.set_rank_count(1);
  return group;
}

TEST(Readiness, AGroupThatRunsIsReady) {
  const Readiness answer = readiness(rollout(v1::GROUP_STATE_RUNNING), kNow);
  EXPECT_TRUE(answer.ready);
  EXPECT_THAT(answer.text, StartsWith("group rollout is ready: running since "));
  EXPECT_EQ(answer.json, R"({"group":"rollout","ready":true,"alive":true,"state":"running",)"
                         R"("paused_since_ms":0,"paused_by_stage":false,"lost":"","note":""})");
}

TEST(Readiness, APausedGroupIsAliveAndNotReady) {
  v1::GroupInfo group = rollout(v1::GROUP_STATE_PAUSED);
  Readiness answer = readiness(group, kNow);
  EXPECT_FALSE(answer.ready);
  EXPECT_THAT(answer.text, StartsWith("group rollout is not ready: paused since "));
  EXPECT_THAT(answer.text, EndsWith("(12 s). It is paused until somebody resumes it"));
  EXPECT_EQ(answer.json,
            R"({"group":"rollout","ready":false,"alive":true,"state":"paused",)"
            R"("paused_since_ms":1700000000345,"paused_by_stage":false,"lost":"","note":""})");
  group.set_stage("night");
  group.set_paused_by_stage(true);
  answer = readiness(group, kNow);
  EXPECT_FALSE(answer.ready);
  EXPECT_THAT(answer.text, EndsWith("It resumes at its next turn in stage night"));
  EXPECT_THAT(answer.json, HasSubstr(R"("paused_by_stage":true)"));
}

TEST(Readiness, AGroupWithoutRanksIsNotAlive) {
  v1::GroupInfo group = rollout(v1::GROUP_STATE_RUNNING);
  group.set_rank_count(0);
  const Readiness answer = readiness(group, kNow);
  EXPECT_FALSE(answer.ready);
  EXPECT_THAT(answer.text, EndsWith("It has no rank yet"));
  EXPECT_THAT(answer.json, HasSubstr(R"("ready":false,"alive":false)"));
}

TEST(Readiness, AGroupThatHasLostARankIsNotReady) {
  v1::GroupInfo group = rollout(v1::GROUP_STATE_RUNNING);
  group.set_lost("lost rank 1 (pid 7)");
  const Readiness answer = readiness(group, kNow);
  EXPECT_FALSE(answer.ready);
  EXPECT_THAT(answer.text, StartsWith("group rollout is not ready: running since "));
  EXPECT_THAT(answer.text, EndsWith("(12 s). It has lost rank 1 (pid 7)"));
  EXPECT_THAT(answer.json, HasSubstr(R"x("lost":"lost rank 1 (pid 7)","note":"")x"));
}

TEST(Readiness, ALostRankIsInTheNote) {
  v1::GroupInfo group = rollout(v1::GROUP_STATE_PAUSED);
  group.set_note("lost rank 1 (pid 7) while it was paused");
  const Readiness answer = readiness(group, kNow);
  EXPECT_THAT(answer.text, EndsWith("lost rank 1 (pid 7) while it was paused"));
  EXPECT_THAT(answer.json, HasSubstr(R"("note":"lost rank 1 (pid 7) while it was paused")"));
}

TEST(Readiness, AGroupThatIsBeingResumedIsNotReadyYet) {
  const Readiness answer = readiness(rollout(v1::GROUP_STATE_RESUMING, "map+load"), kNow);
  EXPECT_FALSE(answer.ready);
  EXPECT_THAT(answer.text, HasSubstr("resuming (map+load) since "));
  EXPECT_THAT(answer.json, HasSubstr(R"("state":"resuming","paused_since_ms":0)"));
}

}  // namespace
}  // namespace amem::ctl
