// The add-on's commands against a broker in this process: what they write, and their exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/ctl/exit_code.h"
#include "tests/unit/fixtures/commands_fixture.h"

namespace amem::ctl {
namespace {

using test::Commands;
using test::make_done;
using test::make_group;
using testing::HasSubstr;

using ToolCommands = Commands;

TEST_F(ToolCommands, AdviseAsksForAllThatItNeeds) {
  EXPECT_EQ(run({"advise", "train"}), kExitNotFound);
  v1::GroupInfo& group = *broker.node.add_groups() = make_group("train", v1::GROUP_STATE_RUNNING);
  EXPECT_EQ(run({"advise", "train"}), kExitOk) << err.str();
  EXPECT_THAT(out.str(), HasSubstr("train: nothing to advise"));
  EXPECT_EQ(broker.asked_group, "train") << "the ranks of this group";
  group.set_pinned_bytes(1ULL << 30);
  v1::UnbrokeredUsage& stays = *broker.rank_list.add_ranks()->add_unbrokered();
  stays.set_kind("device");
  stays.set_bytes(2ULL << 30);
  v1::PastOperation& pause = *broker.past.add_operations();
  pause.set_operation("pause");
  pause.set_us(1'000'000);
  pause.add_times()->set_phase("quiesce");
  pause.mutable_times(0)->set_us(900'000);
  EXPECT_EQ(run({"advise", "train"}), kExitOk);
  EXPECT_THAT(out.str(), testing::MatchesRegex("train: 2.00 GiB.*\ntrain: 1.00 GiB.*\ntrain: the "
                                               "last pause took 1.00 s.*\n"));
  EXPECT_EQ(run({"advise", "train", "--json"}), kExitOk);
  EXPECT_THAT(out.str(), testing::StartsWith(
                             R"({"group":"train","advice":[{"check":"scope","bytes":2147483648,)"));
}

TEST_F(ToolCommands, ADryRunOfAllIsOfThoseThatRun) {
  *broker.node.add_groups() = make_group("a", v1::GROUP_STATE_RUNNING);
  *broker.node.add_groups() = make_group("b", v1::GROUP_STATE_PAUSED);
  for (v1::GroupInfo& group : *broker.node.mutable_groups()) group.set_owner("uid 1000");
  broker.node.mutable_pool()->add_shares()->set_owner("uid 1000");
  EXPECT_EQ(run({"pause", "--all", "--dry-run"}), kExitOk) << err.str();
  EXPECT_THAT(out.str(), testing::StartsWith("a: a pause would free 0 B"));
  EXPECT_THAT(out.str(), testing::Not(HasSubstr("b: ")));
}

TEST_F(ToolCommands, ADryRunOfAPauseBeginsNothing) {
  EXPECT_EQ(run({"pause", "train", "--dry-run"}), kExitNotFound);
  v1::GroupInfo& group = *broker.node.add_groups() = make_group("train", v1::GROUP_STATE_RUNNING);
  group.set_owner("uid 1000");
  v1::TagUsage& heap = *group.add_tags();
  heap.set_tag("heap");
  heap.set_allocated_bytes(2ULL << 30);
  heap.set_resident_bytes(2ULL << 30);
  v1::PoolStatus& pool = *broker.node.mutable_pool();
  pool.set_ready_bytes(4ULL << 30);
  pool.set_unowned_bytes(4ULL << 30);
  v1::PoolShare& share = *pool.add_shares();
  share.set_owner("uid 1000");
  share.set_available_bytes(4ULL << 30);
  EXPECT_EQ(run({"pause", "train", "--dry-run"}), kExitOk) << err.str();
  EXPECT_THAT(out.str(), HasSubstr("train: a pause would free 2.00 GiB"));
  EXPECT_THAT(out.str(), HasSubstr("fits: the pool has 4.00 GiB free"));
  share.set_available_bytes(1ULL << 30);
  v1::PastOperation& pause = *broker.past.add_operations();
  pause.set_group("train");
  pause.set_operation("pause");
  pause.set_us(2'000'000);
  EXPECT_EQ(run({"pause", "train", "--dry-run", "--json"}), kExitOk) << "it copied nothing then";
  EXPECT_THAT(out.str(), HasSubstr(R"("fits":"likely")"));
  EXPECT_THAT(out.str(), HasSubstr(R"("us":2000000)"));
  pause.set_bytes(2ULL << 30);
  EXPECT_EQ(run({"pause", "train", "--dry-run"}), kExitResources);
  EXPECT_THAT(out.str(), HasSubstr("may not fit: the quota of uid 1000 has 1.00 GiB free"));
  EXPECT_THAT(broker.operated_on, testing::ElementsAre());
}

}  // namespace
}  // namespace amem::ctl
