// The history of operations as Chrome's trace events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/ctl/add_on.h"
#include "tests/unit/fixtures/past_operation.h"

namespace amem::ctl {
namespace {

using test::make_past;
using testing::HasSubstr;

TEST(ChromeTrace, ALaneForTheBrokerAndEachRank) {
  v1::ListHistoryResponse history;
  v1::PastOperation& past = *history.add_operations();
  past = make_past("tr\"ain", "pause");
  v1::PhaseSpan& save = *past.add_spans();
  save.set_phase("save");
  save.set_begin_us(1000);
  save.set_us(21'000);
  v1::RankSpan& rank = *save.add_ranks();
  rank.set_id(4);
  rank.set_rank(1);
  rank.set_pid(77);
  rank.set_work("save");
  rank.set_begin_us(1100);
  rank.set_us(20'000);
  rank.set_bytes(640ULL << 20);
  v1::CallSpan& copy = *rank.add_calls();
  copy.set_name("copy");
  copy.set_begin_us(1200);
  copy.set_us(10'000);
  v1::PhaseSpan& release = *past.add_spans();
  release.set_phase("release");
  v1::RankSpan& unknown = *release.add_ranks();
  unknown.set_id(5);
  unknown.set_rank(-1);
  unknown.set_work("release");
  v1::CallSpan& unmap = *unknown.add_calls();
  unmap.set_name("cuMemUnmap");
  unmap.set_in_calls_us(900);
  const std::string trace = chrome_trace({{"", history}}).value();
  EXPECT_THAT(trace, HasSubstr(R"("name":"process_name","args":{"name":"amemd"})"));
  EXPECT_THAT(trace, HasSubstr(R"("name":"process_name","args":{"name":"group tr\"ain"})"));
  EXPECT_THAT(trace,
              HasSubstr(R"("pid":1,"tid":1,"ts":1714567890123000,"dur":30000,"name":"pause")"));
  EXPECT_THAT(trace,
              HasSubstr(R"("pid":1,"tid":1,"ts":1714567890124000,"dur":21000,"name":"save")"));
  EXPECT_THAT(trace, HasSubstr(R"("name":"thread_name","args":{"name":"rank 1"})"));
  EXPECT_THAT(trace,
              HasSubstr(R"("pid":2,"tid":1,"ts":1714567890124100,"dur":20000,"name":"save")"));
  EXPECT_THAT(trace, HasSubstr(R"("ts":1714567890124200,"dur":10000,"name":"copy")"));
  EXPECT_THAT(trace, HasSubstr(R"("rate":"62.5 GiB/s")"));
  EXPECT_THAT(trace, HasSubstr(R"("name":"thread_name","args":{"name":"rank #5: cuMemUnmap"})"));
  EXPECT_THAT(trace, HasSubstr(R"("save: broker's CPU":"500 us")"));
}

TEST(ChromeTrace, NodesHaveProcessesOfTheirOwn) {
  v1::ListHistoryResponse history;
  *history.add_operations() = make_past("train", "pause");
  const std::string trace = chrome_trace({{"a", history}, {"b", history}}).value();
  for (const char* name :
       {R"("pid":1,"tid":0,"name":"process_name","args":{"name":"a: amemd"})",
        R"("pid":2,"tid":0,"name":"process_name","args":{"name":"a: group train"})",
        R"("pid":3,"tid":0,"name":"process_name","args":{"name":"b: amemd"})",
        R"("pid":4,"tid":0,"name":"process_name","args":{"name":"b: group train"})"})
    EXPECT_THAT(trace, HasSubstr(name));
  EXPECT_THAT(trace, HasSubstr(R"("pid":3,"tid":1,"ts":1714567890123000,"dur":30000)"));
}

}  // namespace
}  // namespace amem::ctl
