// What `amemctl wait` makes of the broker's answers.
#include "client/ctl/conclusions/waiting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace amem::ctl {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

v1::ListGroupsResponse one(v1::GroupState state, std::uint32_t ranks,
                           const std::string& phase = "") {
  v1::ListGroupsResponse groups;
  v1::GroupInfo& group = *groups.add_groups();
  group.set_name("train");
  group.set_address("train@1000");
  group.set_state(state);
  group.set_phase(phase);
  group.set_rank_count(ranks);
  return groups;
}

WaitTarget train(Goal goal = Goal::kRunning, std::uint32_t ranks = 1) {
  return {WaitFor::kGroup, "train", goal, ranks};
}

TEST(Waiting, AGroupIsReadyWhenItRunsWithItsRanks) {
  EXPECT_TRUE(see_group(one(v1::GROUP_STATE_RUNNING, 1), train()).met);
  EXPECT_FALSE(see_group(one(v1::GROUP_STATE_RUNNING, 0), train()).met);
  EXPECT_TRUE(see_group(one(v1::GROUP_STATE_RUNNING, 8), train(Goal::kRunning, 8)).met);
  const Sight few = see_group(one(v1::GROUP_STATE_RUNNING, 7), train(Goal::kRunning, 8));
  EXPECT_FALSE(few.met);
  EXPECT_EQ(few.found, "it is running with 7 ranks; `amemctl ranks train` lists them");
  EXPECT_EQ(waited_in_vain(train(Goal::kRunning, 8), std::chrono::seconds(300), few.found),
            "waited 300 s for group train to run with 8 ranks: it is running with 7 ranks; "
            "`amemctl ranks train` lists them");
}

TEST(Waiting, AGroupIsFoundByItsAddress) {
  WaitTarget other = train();
  other.group = "train@1000";
  EXPECT_TRUE(see_group(one(v1::GROUP_STATE_RUNNING, 1), other).met);
  other.group = "train@1001";
  EXPECT_FALSE(see_group(one(v1::GROUP_STATE_RUNNING, 1), other).met);
}

TEST(Waiting, EachStateThatIsNotWantedHasItsRemedy) {
  EXPECT_THAT(see_group({}, train()).found, HasSubstr("amemctl doctor --group train -- COMMAND"));
  EXPECT_THAT(see_group({}, train(Goal::kPaused)).found, StartsWith("there is no such group"));
  EXPECT_THAT(see_group(one(v1::GROUP_STATE_PAUSED, 2), train()).found,
              HasSubstr("it is paused with 2 ranks; `amemctl resume train`"));
  EXPECT_THAT(see_group(one(v1::GROUP_STATE_RUNNING, 1), train(Goal::kPaused)).found,
              HasSubstr("it is running with 1 rank; `amemctl pause train`"));
  EXPECT_THAT(see_group(one(v1::GROUP_STATE_PAUSING, 2, "quiesce"), train(Goal::kPaused)).found,
              HasSubstr("pausing (quiesce) with 2 ranks; `amemctl ranks train` shows which ranks"));
  EXPECT_THAT(see_group(one(v1::GROUP_STATE_RUNNING, 2), train(Goal::kGone)).found,
              HasSubstr("processes that must end"));
}

TEST(Waiting, PausedAndGone) {
  EXPECT_TRUE(see_group(one(v1::GROUP_STATE_PAUSED, 2), train(Goal::kPaused)).met);
  const Sight gone = see_group({}, train(Goal::kGone));
  EXPECT_TRUE(gone.met);
  EXPECT_EQ(gone.json, R"({"group":"train","state":"gone","ranks":0})");
}

TEST(Waiting, IdleIsWhenNoGroupChangesItsState) {
  EXPECT_TRUE(see_idle({}).met);
  EXPECT_TRUE(see_idle(one(v1::GROUP_STATE_PAUSED, 2)).met);
  v1::ListGroupsResponse two = one(v1::GROUP_STATE_PAUSING, 2, "save");
  *two.add_groups() = one(v1::GROUP_STATE_RESUMING, 2).groups(0);
  const Sight sight = see_idle(two);
  EXPECT_FALSE(sight.met);
  EXPECT_THAT(sight.found, StartsWith("group train is pausing (save), group train is resuming; "));
}

TEST(Waiting, APoolThatGetsNoMoreIsNotWaitedFor) {
  v1::PoolStatus pool;
  pool.set_configured_bytes(64ULL << 30);
  pool.set_ready_bytes(3ULL << 30);
  EXPECT_TRUE(see_pool(pool).hopeless.ok());
  pool.set_error("cuMemCreate: out of memory");
  const Sight sight = see_pool(pool);
  EXPECT_EQ(sight.hopeless.code(), Code::kResourceExhausted);
  EXPECT_THAT(sight.found, HasSubstr("3.00 GiB of 64.0 GiB"));
  EXPECT_THAT(sight.found, HasSubstr("cuMemCreate: out of memory. Free host memory"));
  pool.set_ready_bytes(70ULL << 30);
  EXPECT_TRUE(see_pool(pool).met) << "a pool that shrinks as jobs end has enough";
}

}  // namespace
}  // namespace amem::ctl
