#include "daemon/record/record.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tests/unit/fixtures/holder_fixture.h"
#include "tests/unit/fixtures/log_heard.h"

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

class RecordHolderTest : public HolderFixture {
 protected:
  void SetUp() override {
    HolderFixture::SetUp();
    serve();
    ASSERT_TRUE(its_loop.open().ok());
    holder = connect();
    record.replace(holder);
  }
  void settle(const std::set<std::uint32_t>& lanes) {
    record.await_closed(lanes, kLong, [this](bool all) { told.push_back(all); });
  }
  /// What the holder has said.
  void hear() {
    pollfd more{holder->fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&more, 1, 20'000), 1);
    ASSERT_TRUE(holder->check().ok());
  }

  EventLoop its_loop;
  std::shared_ptr<HolderClient> holder;
  Record record{its_loop, std::move(RecordLog::create(64 << 10)).value(), nullptr};
  std::vector<bool> told;
};

TEST_F(RecordHolderTest, OneAnswerForAllLanes) {
  settle({});
  EXPECT_EQ(told, std::vector<bool>{true}) << "nothing was dropped";
  settle({1, 2, 3});
  EXPECT_EQ(told.size(), 1U);
  while (told.size() < 2) hear();
  EXPECT_EQ(told, (std::vector<bool>{true, true}));
}

TEST_F(RecordHolderTest, AHolderThatHasEndedHasClosedEverything) {
  settle({1});
  while (told.empty()) hear();
  settle({1, 2});
  settle({3});
  record.replace(nullptr);
  EXPECT_EQ(told, (std::vector<bool>{true, true, true}));
  settle({1});
  EXPECT_EQ(told.size(), 4U) << "there is none to wait for";
}

TEST_F(RecordHolderTest, WhoeverAsksAHolderThatIsLostHearsSo) {
  end();
  settle({1, 2});
  EXPECT_EQ(told, std::vector<bool>{false});
}

TEST_F(RecordHolderTest, AfterDetachNobodyHearsAnything) {
  settle({1, 2});
  record.detach();
  settle({1});
  EXPECT_EQ(told, std::vector<bool>{true}) << "the second only: there is no holder any more";
}

TEST_F(RecordHolderTest, OnlyAHolderThatHasEverythingLetsMemoryOutliveThisProcess) {
  EXPECT_TRUE(record.outlives().ok()) << record.outlives().text();
  record.replace(nullptr);
  EXPECT_EQ(record.outlives().code(), Code::kFailedPrecondition);
  EXPECT_NE(record.outlives().text().find("amemd has no holder"), std::string::npos);
}

using RecordBehindTest = HolderFixture;

TEST_F(RecordBehindTest, AHolderThatHasCaughtUpIsSaidOnce) {
  DeafHolder deaf(path);
  EventLoop its_loop;
  ASSERT_TRUE(its_loop.open().ok());
  Record record(its_loop, std::move(RecordLog::create(64 << 10)).value(), nullptr);
  const auto holder = connect();
  deaf.join();
  record.replace(holder);
  const auto file = std::make_shared<const Fd>(some_file("one"));
  constexpr std::uint64_t kMany = 4000;
  for (std::uint64_t id = 0; id < kMany; ++id)  // a packet for each put and each drop
    (void)record.hold(HolderKind::kMemory, id, file);
  const LogHeard log;
  record.flush_soon();
  ASSERT_TRUE(holder->behind());
  std::thread reading([&] {
    for (std::uint64_t i = 0; i < 2 * kMany; ++i) deaf.read();
  });
  const Time until = Clock::now() + kLong;
  const std::function<void()> look = [&] {
    if (!holder->behind() || Clock::now() > until) return its_loop.stop();
    its_loop.at(Clock::now() + std::chrono::milliseconds(5), look);
  };
  look();
  its_loop.run();
  reading.join();
  EXPECT_FALSE(holder->behind());
  record.flush();
  const std::string said = "the holder has everything";
  EXPECT_TRUE(log.has(said)) << log.text();
  EXPECT_EQ(log.text().find(said), log.text().rfind(said)) << log.text();
}

}  // namespace
}  // namespace amem
