// The history of operations: as a table, as a trace; and memory over time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/ctl/views/format.h"
#include "client/ctl/views/top_view.h"
#include "client/ctl/views/views.h"
#include "common/times.h"
#include "tests/unit/fixtures/past_operation.h"

namespace amem::ctl {
namespace {

using test::make_past;
using testing::HasSubstr;

constexpr Style kUncoloured;

TEST(HistoryView, ALineEachAndTheErrors) {
  v1::ListHistoryResponse history;
  *history.add_operations() = make_past("train", "pause");
  v1::PastOperation& failed = *history.add_operations();
  failed = make_past("rollout", "resume");
  failed.set_transaction(0);
  failed.set_tags("tag kv_cache");
  failed.set_code(10);
  failed.set_error("resume of group 'rollout': map+load: rank 0 ended");
  const std::string when = format_time(1'714'567'890'123);
  EXPECT_EQ(
      history_view(history, kUncoloured),
      "BEGAN                    TRANSACTION  GROUP    OPERATION                  TOOK   COPIED  "
      "HANDED ON  LONGEST PHASE  RESULT\n" +
          when +
          "  7 swap       train    pause                   30.0 ms  640 MiB        0 B  "
          "save 21.0 ms   ok\n" +
          when +
          "  ranks        rollout  resume of tag kv_cache  30.0 ms  640 MiB        0 B  "
          "save 21.0 ms   ABORTED\n"
          "\n" +
          when + "  resume of group 'rollout': map+load: rank 0 ended\n");
  EXPECT_EQ(history_view({}, kUncoloured), "no operations since amemd started\n");
}

v1::NodeStatus with_group(const std::string& name, std::uint64_t resident) {
  v1::NodeStatus status;
  v1::GroupInfo& group = *status.add_groups();
  group.set_name(name);
  group.set_address(name + "@0");
  group.set_resident_bytes(resident);
  return status;
}

TEST(TrendsTest, ALineForEachGroupOnOneScale) {
  Trends trends;
  trends.add(with_group("train", 800));
  EXPECT_EQ(trends.view(80, kUncoloured), "");
  trends.add(with_group("train", 0));
  v1::NodeStatus both = with_group("train", 1);
  *both.add_groups() = with_group("rollout", 400).groups(0);
  trends.add(both);
  EXPECT_THAT(trends.view(80, kUncoloured),
              testing::StartsWith("GROUP    ON DEVICES OVER TIME   MOST\n"
                                  "rollout    ▅                   400 B\n"
                                  "train    █.▁                   800 B\n"));
  trends.add(with_group("rollout", 400));
  EXPECT_THAT(trends.view(80, kUncoloured), testing::Not(HasSubstr("train")));
}

TEST(TrendsTest, TheLatestAreShownWhereTheScreenIsNarrow) {
  Trends trends;
  for (std::size_t i = 0; i < Trends::kMost + 50; ++i) trends.add(with_group("g", i < 280 ? 0 : 8));
  const std::string text = trends.view(60, kUncoloured);
  EXPECT_THAT(text, HasSubstr("\ng      " + std::string(31, '.') + "██████████   8 B\n"));
}

}  // namespace
}  // namespace amem::ctl
