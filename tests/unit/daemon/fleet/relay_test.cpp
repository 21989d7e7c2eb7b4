// What a node passes on between a leader and other nodes, with ways to them that only note it.
#include "daemon/fleet/relay.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace amem {
namespace {

class FakeLinks final : public NodeLinks {
 public:
  struct Way {
    NodeLink::Heard heard;
    std::vector<v1::FleetCommand> sent;
    bool broken = false;
  };
  Result<std::unique_ptr<NodeLink>> open(const std::string& address,
                                         NodeLink::Heard heard) override {
    if (address == "nowhere") return Status(Code::kInvalidArgument, "no address");
    Way& way = ways[address];
    way.heard = std::move(heard);
    return std::unique_ptr<NodeLink>(std::make_unique<Link>(way));
  }
  std::unique_ptr<Questions> questions(const std::string&) override { return nullptr; }

  std::map<std::string, Way> ways;

 private:
  class Link final : public NodeLink {
   public:
    explicit Link(Way& way) : way_(way) {}
    ~Link() override { way_.broken = true; }
    void send(v1::FleetCommand command) override { way_.sent.push_back(std::move(command)); }

   private:
    Way& way_;
  };
};

class RelayTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop.open().ok()); }
  /// Node 1 of n0, n1, ..., which passes on to these.
  void begin(std::initializer_list<std::uint32_t> to, const std::string& last = "n4") {
    v1::FleetBegin begin;
    for (const char* node : {"n0", "n1", "n2", "n3"}) begin.add_nodes(node);
    begin.add_nodes(last);
    begin.set_number(1);
    begin.set_transaction("transaction");
    for (const std::uint32_t node : to) begin.add_passes_on(node);
    relay = std::make_shared<Relay>(
        links, loop, [this](v1::FleetReport report, bool) { told.push_back(std::move(report)); },
        [this] { ++idle; });
    relay->begin(begin);
  }
  /// What is to happen at once, and no later.
  void turn() {
    loop.post([this] { loop.stop(); });
    loop.run();
  }
  static v1::FleetCommand go_on(std::uint32_t node) {
    v1::FleetCommand command;
    command.set_node(node);
    command.mutable_go_on()->set_out(true);
    return command;
  }
  static v1::FleetReports asks(std::uint32_t says_it_is) {
    v1::FleetReports reports;
    v1::FleetReport& report = *reports.add_each();
    report.set_node(says_it_is);
    report.mutable_asks()->set_out(true);
    return reports;
  }

  EventLoop loop;
  FakeLinks links;
  std::vector<v1::FleetReport> told;
  int idle = 0;
  std::shared_ptr<Relay> relay;
};

TEST_F(RelayTest, BeginsEachNodeAsTheOneItIs) {
  begin({3, 4});
  ASSERT_EQ(links.ways.size(), 2U);
  const v1::FleetCommand& first = links.ways["n3"].sent.at(0);
  EXPECT_EQ(first.node(), 3U);
  EXPECT_EQ(first.begin().number(), 3U);
  EXPECT_EQ(first.begin().transaction(), "transaction");
  EXPECT_EQ(first.begin().nodes_size(), 5);
  EXPECT_EQ(first.begin().passes_on_size(), 0);
  EXPECT_EQ(idle, 0);
}

TEST_F(RelayTest, PassesOnInBothDirections) {
  begin({3, 4});
  relay->pass(go_on(4));
  relay->pass(go_on(2));  // nobody to whom it passes on
  EXPECT_EQ(links.ways["n3"].sent.size(), 1U);
  ASSERT_EQ(links.ways["n4"].sent.size(), 2U);
  EXPECT_TRUE(links.ways["n4"].sent[1].go_on().out());
  links.ways["n3"].heard.reports(asks(0));
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].node(), 3U);  // and not who it says it is
  EXPECT_TRUE(told[0].asks().out());
}

TEST_F(RelayTest, ANodeThatIsLostIsReportedAndTheLastEndsIt) {
  begin({3, 4});
  links.ways["n3"].heard.over({Code::kUnavailable, "gone"});
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].node(), 3U);
  EXPECT_EQ(told[0].lost().code(), static_cast<std::uint32_t>(Code::kUnavailable));
  EXPECT_NE(told[0].lost().text().find("gone (it is reached through node 'n1')"),
            std::string::npos);
  EXPECT_EQ(idle, 0);
  links.ways["n4"].heard.over({});
  EXPECT_EQ(told.at(1).lost().code(), static_cast<std::uint32_t>(Code::kAborted));
  EXPECT_EQ(idle, 1);
  relay->pass(go_on(3));
  turn();
  EXPECT_TRUE(links.ways["n3"].broken);
}

TEST_F(RelayTest, AnAddressThatIsNoneIsLostAtOnce) {
  begin({4}, "nowhere");
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].node(), 4U);
  EXPECT_TRUE(told[0].has_lost());
  EXPECT_EQ(idle, 1);
  relay->pass(go_on(4));
  EXPECT_TRUE(links.ways.empty());
}

TEST_F(RelayTest, WhatIsForOneThatWasNotReachedGoesNowhereWhileOthersGoOn) {
  begin({3, 4}, "nowhere");
  relay->pass(go_on(4));
  relay->pass(go_on(3));
  EXPECT_EQ(links.ways["n3"].sent.size(), 2U);
  EXPECT_EQ(idle, 0);
}

TEST_F(RelayTest, NobodyToPassOnToIsIdle) {
  begin({});
  EXPECT_EQ(idle, 1);
}

TEST_F(RelayTest, NumbersThatCannotBeAreLeftOut) {
  begin({1, 3, 3, 9});
  EXPECT_EQ(links.ways.size(), 1U);
  EXPECT_EQ(links.ways["n3"].sent.size(), 1U);
}

TEST_F(RelayTest, WithoutItsLeaderItBreaksTheWaysAndReportsNothing) {
  begin({3, 4});
  relay->end();
  turn();
  EXPECT_TRUE(links.ways["n3"].broken);
  EXPECT_TRUE(links.ways["n4"].broken);
  links.ways["n3"].heard.reports(asks(3));
  EXPECT_TRUE(told.empty());
}

}  // namespace
}  // namespace amem
