#include "daemon/record/record.h"

#include <gtest/gtest.h>

namespace amem {
namespace {

TEST(RecordTest, AReservationThatWasMovedReleasesItsBytes) {
  EventLoop loop;
  Result<RecordLog> log = RecordLog::create(64 << 10);
  ASSERT_TRUE(log.ok()) << log.status().text();
  Record record(loop, std::move(log).value(), nullptr);
  constexpr std::uint64_t kMost = 20 << 10;  // a half of the log holds it once
  RowReservation kept;
  {
    Result<RowReservation> reserved = record.make_space(kMost);
    ASSERT_TRUE(reserved.ok()) << reserved.status().text();
    kept = std::move(reserved).value();
  }
  EXPECT_FALSE(record.make_space(kMost).ok()) << "it is still reserved";
  kept = RowReservation();
  EXPECT_TRUE(record.make_space(kMost).ok());
}

}  // namespace
}  // namespace amem
