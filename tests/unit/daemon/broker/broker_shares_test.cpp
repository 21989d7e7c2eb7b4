// What a node has of an operation over several nodes, as its own broker and the next one know it.
#include <gtest/gtest.h>

#include "tests/unit/fixtures/restart_fixture.h"

namespace amem {
namespace {

/// The other nodes: takes the cut as soon as there is one, and notes the rest.
class Others final : public RemoteNodes {
 public:
  explicit Others(std::function<void(std::string)> quiet) : quiet_(std::move(quiet)) {}
  const std::string& transaction() const override { return transaction_; }
  void quiesces(const std::string&, const std::vector<RankId>& ranks) override {
    left_ = ranks.size();
  }
  void reported(const std::string& group, RankId, const std::optional<CutReport>&) override {
    if (left_ > 0 && --left_ == 0) quiet_(group);
  }
  void asks(Side side) override { asked = side; }
  void withdraws(Side side) override { withdrawn = side; }

  std::optional<Side> asked;
  std::optional<Side> withdrawn;

 private:
  const std::string transaction_ = std::string(16, 'o');
  const std::function<void(std::string)> quiet_;
  std::size_t left_ = 0;
};

class BrokerSharesTest : public BrokerRestartTest {
 protected:
  void begin_with_others(Operation what) {
    watcher = std::make_shared<Watcher>();
    others = std::make_shared<Others>([this](const std::string& group) {
      loop->post([this, group] { broker->operations().tell(number, group, event::CutTaken{}); });
    });
    number = on_loop(
        [&] { return broker->start_operation(Caller{}, what, {"train"}, {}, watcher, others); });
    ASSERT_NE(number, 0U);
  }
  bool has_asked() {
    return eventually([&] { return on_loop([&] { return others->asked.has_value(); }); });
  }
  FleetShare share() {
    const std::vector<FleetShare> all = on_loop([&] { return broker->shares(); });
    return all.empty() ? FleetShare() : all.front();
  }

  std::shared_ptr<Watcher> watcher;
  std::shared_ptr<Others> others;
  std::uint64_t number = 0;
};

TEST_F(BrokerSharesTest, TheNextBrokerKnowsThatItHasAsked) {
  two();
  begin_with_others(Operation::kPause);
  ASSERT_TRUE(has_asked());
  restart();
  EXPECT_EQ(share().transaction, others->transaction());
  EXPECT_EQ(share().side, Side::kOut);
  EXPECT_TRUE(share().asked);
  EXPECT_FALSE(share().went_on || share().given_up);
  both_come_back();
  ASSERT_TRUE(eventually([&] { return group().state() == kRunning; }));
  EXPECT_TRUE(share().asked) << "until later operations have taken its place";
  for (int i = 0; i < 4; ++i) {
    begin_with_others(Operation::kPause);
    ASSERT_TRUE(has_asked());
    on_loop([&] { return broker->operations().may_go_on(number, Side::kOut); });
    ASSERT_TRUE(complete(watcher).ok());
    ASSERT_TRUE(resume().ok());
  }
  EXPECT_EQ(on_loop([&] { return broker->shares(); }).size(), 4U);
}

TEST_F(BrokerSharesTest, TheNextBrokerKnowsThatItHasNotAsked) {
  two();
  r2.moods[amem_v1_SessionMessage_save_tag] = Mood::kLate;
  begin_with_others(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return r2.received[amem_v1_SessionMessage_save_tag] > 0; }));
  restart();
  EXPECT_EQ(share().transaction, others->transaction());
  EXPECT_FALSE(share().asked || share().went_on);
}

TEST_F(BrokerSharesTest, TheNextBrokerKnowsThatItHasGoneOn) {
  two();
  begin_with_others(Operation::kPause);
  ASSERT_TRUE(has_asked());
  r2.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;
  EXPECT_TRUE(on_loop([&] { return broker->operations().may_go_on(number, Side::kOut); }));
  restart();
  EXPECT_TRUE(share().asked && share().went_on);
  both_come_back();
  ASSERT_TRUE(eventually([&] { return group().state() == kPaused; }));
  EXPECT_TRUE(share().went_on);
}

TEST_F(BrokerSharesTest, TheNextBrokerKnowsThatItHasGivenUp) {
  two();
  begin_with_others(Operation::kPause);
  ASSERT_TRUE(has_asked());
  on_loop([&] { broker->operations().give_up(number, {Code::kAborted, "lost"}); });
  EXPECT_EQ(complete(watcher).code(), Code::kAborted);
  restart();
  EXPECT_TRUE(share().asked && share().given_up);
  EXPECT_FALSE(share().went_on);
}

/// The other nodes would have their gates shut meanwhile.
TEST_F(BrokerSharesTest, WhatItsRanksCopyIsNotWaitedFor) {
  two();
  constexpr pb_size_t kSave = amem_v1_SessionMessage_save_tag;
  ASSERT_NE(r2.create(gpu(1), 2 * kMiB, "cache"), 0U);
  r2.moods[kSave] = Mood::kLate;
  r2.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"cache"});
  ASSERT_TRUE(eventually([&] { return r2.received[kSave] == 1; }));
  watcher = std::make_shared<Watcher>();
  others = std::make_shared<Others>([](const std::string&) {});
  number = on_loop([&] {
    return broker->start_operation(Caller{}, Operation::kPause, {"train"}, {}, watcher, others);
  });
  EXPECT_EQ(number, 0U);
  ASSERT_TRUE(watcher->done());
  EXPECT_EQ(watcher->status().code(), Code::kFailedPrecondition);
  EXPECT_NE(watcher->status().text().find("Try again when that has ended"), std::string::npos)
      << watcher->status().text();
  r2.catch_up();
  settle();
}

class BrokerWithdrawsTest : public BrokerSharesTest {
 protected:
  Duration patience() const override { return milliseconds(700); }
  void configure(Config& it) const override { it.deadlines.create = patience(); }
};

TEST_F(BrokerWithdrawsTest, WhatWaitsForOthersForTooLongDoesNotGoOnAnyMore) {
  two();
  ASSERT_TRUE(pause().ok());
  begin_with_others(Operation::kResume);
  ASSERT_TRUE(has_asked());
  r2.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;  // of the way back
  ASSERT_TRUE(eventually([&] { return on_loop([&] { return others->withdrawn.has_value(); }); }));
  EXPECT_EQ(others->withdrawn, Side::kIn);
  EXPECT_FALSE(watcher->done());
  EXPECT_FALSE(on_loop([&] { return broker->operations().may_go_on(number, Side::kIn); }))
      << "the leader's word comes too late";
  EXPECT_EQ(complete(watcher).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(group().state(), kPaused);
}

}  // namespace
}  // namespace amem
