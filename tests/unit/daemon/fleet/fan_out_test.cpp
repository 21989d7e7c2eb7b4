// Who calls whom in an operation over many nodes.
#include "daemon/fleet/fan_out.h"

#include <gtest/gtest.h>

#include <vector>

namespace amem {
namespace {

TEST(FanOut, ReachesEachNodeOnceWithFewCalls) {
  for (const std::size_t count : {1U, 2U, 16U, 17U, 64U, 100U, 1000U, 1024U, 4095U, 4096U}) {
    std::vector<int> reached(count, 0);
    const std::vector<Branch> branches = fan_out(count);
    EXPECT_LE(branches.size(), kMostCalls) << count;
    for (const Branch& branch : branches) {
      ++reached.at(branch.head);
      EXPECT_LE(branch.rest.size(), kMostCalls) << count;
      for (const std::size_t node : branch.rest) ++reached.at(node);
    }
    EXPECT_EQ(reached, std::vector<int>(count, 1)) << count;
  }
}

TEST(FanOut, OfFewNodesEachHasACallFromTheLeader) {
  for (const Branch& branch : fan_out(kAllDirect)) EXPECT_TRUE(branch.rest.empty());
  EXPECT_EQ(fan_out(kAllDirect).size(), kAllDirect);
}

TEST(FanOut, OfManyAHeadHasAsManyCallsAsTheLeader) {
  const std::vector<Branch> branches = fan_out(1000);
  EXPECT_EQ(branches.size(), 32U);
  for (const Branch& branch : branches) EXPECT_LE(branch.rest.size(), 31U);
}

}  // namespace
}  // namespace amem
