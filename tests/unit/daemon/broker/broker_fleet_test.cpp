// Operations over several nodes that a whole broker leads and takes part in. The way to this node
// leads back to it; of the others it is only noted what they are told.
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>

#include "daemon/control/tasks.h"
#include "daemon/fleet/fan_out.h"
#include "daemon/fleet/fleet.h"
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

using ::testing::HasSubstr;

class BrokerFleetTest : public BrokerTest, private NodeLinks {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(BrokerTest::SetUp());
    on_loop(
        [&] { fleet.emplace(*broker, *loop, static_cast<NodeLinks&>(*this), config.deadlines); });
    two_sharing();
  }
  void TearDown() override {
    on_loop([&] {
      taken.reset();
      fleet.reset();
    });
    BrokerTest::TearDown();
  }

  static v1::FleetBegin pause_of(const std::vector<std::string>& nodes) {
    v1::FleetBegin begin;
    for (const std::string& node : nodes) begin.add_nodes(node);
    begin.mutable_pause()->add_groups("train");
    begin.mutable_pause()->set_timeout_ms(5000);
    return begin;
  }
  std::shared_ptr<Watcher> lead(const v1::FleetBegin& begin, bool operates = true) {
    auto watcher = std::make_shared<Watcher>();
    on_loop([&] {
      Caller caller;
      caller.operates = operates;
      fleet->lead(caller, begin, watcher);
    });
    return watcher;
  }
  Status refused(const v1::FleetBegin& begin, bool operates = true) {
    const auto watcher = lead(begin, operates);
    EXPECT_TRUE(watcher->done()) << "it has begun";
    return watcher->status();
  }
  /// What this node answers to a leader first.
  v1::FleetReport first_answer(const v1::FleetBegin& begin) {
    answers.clear();
    on_loop([&] {
      taken = fleet->take(Caller{}, begin, transaction_of(begin.pause()).value(),
                          [&](v1::FleetReport report, bool) { answers.push_back(report); });
    });
    return answers.empty() ? v1::FleetReport() : answers.front();
  }
  bool was_told(const std::string& node, v1::FleetCommand::WhatCase what) const {
    const auto to = told.find(node);
    if (to == told.end()) return false;
    return std::any_of(to->second.begin(), to->second.end(),
                       [&](const v1::FleetCommand& each) { return each.what_case() == what; });
  }

  std::optional<Fleet> fleet;
  std::map<std::string, std::vector<v1::FleetCommand>> told;
  std::map<std::string, std::weak_ptr<NodeLink::Heard>> ways;  // what comes back from each
  std::shared_ptr<Participant> taken;
  std::vector<v1::FleetReport> answers;  // of it, to a leader that is not this node

 private:
  class Link final : public NodeLink {
   public:
    Link(BrokerFleetTest& test, std::string address, Heard heard)
        : test_(test), address_(std::move(address)), heard_(std::make_shared<Heard>(heard)) {
      test_.ways[address_] = heard_;
    }
    void send(v1::FleetCommand command) override {
      test_.told[address_].push_back(command);
      if (address_ != "here") return;
      test_.loop->post([&test = test_, command, heard = std::weak_ptr<Heard>(heard_)] {
        test.carry_out(command, heard);
      });
    }

   private:
    BrokerFleetTest& test_;
    const std::string address_;
    const std::shared_ptr<Heard> heard_;
  };

  void carry_out(const v1::FleetCommand& command, const std::weak_ptr<NodeLink::Heard>& heard) {
    if (!command.has_begin()) return taken->handle(command);
    taken = fleet->take(Caller{}, command.begin(), transaction_of(command.begin()).value(),
                        [this, heard](v1::FleetReport report, bool) {
                          v1::FleetReports reports;
                          *reports.add_each() = std::move(report);
                          loop->post([heard, reports] {
                            if (const auto leader = heard.lock()) leader->reports(reports);
                          });
                        });
  }
  Result<std::unique_ptr<NodeLink>> open(const std::string& address,
                                         NodeLink::Heard heard) override {
    if (address == "nowhere") return Status(Code::kInvalidArgument, "no port");
    return std::unique_ptr<NodeLink>(std::make_unique<Link>(*this, address, std::move(heard)));
  }
  std::unique_ptr<Questions> questions(const std::string&) override { return nullptr; }
};

TEST_F(BrokerFleetTest, ALeaderTakesPartInWhatItLeads) {
  const auto watcher = lead(pause_of({"here"}));
  EXPECT_TRUE(complete(watcher).ok()) << watcher->status().text();
  EXPECT_EQ(group().state(), v1::GROUP_STATE_PAUSED);
  EXPECT_FALSE(on_loop([&] { return fleet->leads(); }));
  const std::vector<v1::Progress> all = watcher->all();
  ASSERT_FALSE(all.empty());
  EXPECT_NE(all.back().node(), "");
  v1::FleetBegin back;
  back.add_nodes("here");
  back.mutable_resume()->add_groups("train");
  EXPECT_TRUE(complete(lead(back)).ok());
  expect_intact();
}

/// The gates of the others would stay shut until the deadline of a phase.
TEST_F(BrokerFleetTest, WhereTheFirstAddressIsNoneTheOthersEndAtOnce) {
  for (const std::vector<std::string>& nodes :
       {std::vector<std::string>{"nowhere", "here", "other"}, {"here", "nowhere", "other"}}) {
    told.clear();
    const Time began = Clock::now();
    const Status status = complete(lead(pause_of(nodes)));
    EXPECT_THAT(status.text(), HasSubstr("node 'nowhere': lost: no port"));
    EXPECT_TRUE(was_told("other", v1::FleetCommand::kBegin));
    EXPECT_TRUE(was_told("other", v1::FleetCommand::kGiveUp));
    settle();
    EXPECT_EQ(group().state(), v1::GROUP_STATE_RUNNING);
    EXPECT_FALSE(a.gate_shut());
    EXPECT_LT(Clock::now() - began, seconds(15)) << "a node that does not answer is waited for";
  }
}

TEST_F(BrokerFleetTest, OnlyOperatorsLeadAndEachNodeOnce) {
  const Status denied = refused(pause_of({"here"}), false);
  EXPECT_EQ(denied.code(), Code::kPermissionDenied);
  EXPECT_THAT(denied.text(), HasSubstr("only root, amemd's own user and the group"));
  EXPECT_EQ(refused(pause_of({"here", "other", "here"})).text(), "a node is named twice");
  v1::FleetBegin many = pause_of({});
  for (std::size_t i = 0; i <= kMaxNodes; ++i) many.add_nodes("n" + std::to_string(i));
  EXPECT_THAT(refused(many).text(), HasSubstr("at most " + std::to_string(kMaxNodes) + " nodes"));
  EXPECT_TRUE(told.empty());
}

TEST_F(BrokerFleetTest, AllOfAMessageIsReadAlsoAfterANodeThatIsLost) {
  std::vector<std::string> nodes;
  for (std::size_t node = 0; node <= kAllDirect; ++node)
    nodes.push_back("n" + std::to_string(node));
  const std::vector<std::size_t> rest = fan_out(nodes.size()).front().rest;
  ASSERT_GE(rest.size(), 2U);
  const auto watcher = lead(pause_of(nodes));
  v1::FleetReports reports;
  v1::FleetReport& lost = *reports.add_each();
  lost.set_node(static_cast<std::uint32_t>(rest[0]));
  lost.mutable_lost()->set_text("connection reset");
  v1::FleetReport& goes_on = *reports.add_each();
  goes_on.set_node(static_cast<std::uint32_t>(rest[1]));
  goes_on.mutable_progress()->set_phase("save");
  on_loop([&] { ways.at("n0").lock()->reports(reports); });
  ASSERT_EQ(watcher->all().size(), 1U);
  EXPECT_EQ(watcher->all()[0].node(), nodes[rest[1]]);
  EXPECT_EQ(watcher->all()[0].phase(), "save");
}

TEST_F(BrokerFleetTest, EachHeadIsToldWhichNodesItPassesOnToAndAnswersForNoOther) {
  std::vector<std::string> nodes;
  for (std::size_t node = 0; node <= kAllDirect; ++node)
    nodes.push_back("n" + std::to_string(node));
  const auto watcher = lead(pause_of(nodes));
  const std::vector<Branch> branches = fan_out(nodes.size());
  ASSERT_EQ(told.size(), branches.size());
  for (const Branch& branch : branches) {
    ASSERT_EQ(told[nodes[branch.head]].size(), 1U);
    const v1::FleetCommand& first = told[nodes[branch.head]][0];
    EXPECT_EQ(first.node(), branch.head);
    EXPECT_EQ(first.begin().number(), branch.head);
    const auto& passes_on = first.begin().passes_on();
    EXPECT_EQ(std::vector<std::size_t>(passes_on.begin(), passes_on.end()), branch.rest);
    EXPECT_EQ(first.begin().nodes_size(), static_cast<int>(nodes.size()));
    EXPECT_EQ(first.begin().protocol(), kFleetProtocol);
    EXPECT_EQ(first.begin().transaction().size(), 16U);
    std::array<char, 256> host{};
    ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
    EXPECT_EQ(first.begin().leader(), host.data());
  }
  v1::FleetReports reports;
  for (const std::size_t node : {std::size_t{1}, branches[1].rest[0], nodes.size()}) {
    v1::FleetReport& report = *reports.add_each();
    report.set_node(static_cast<std::uint32_t>(node));
    report.mutable_progress()->set_phase("save");
  }
  on_loop([&] { ways.at("n0").lock()->reports(reports); });
  EXPECT_TRUE(watcher->all().empty()) << "they are of another branch, or none";
  on_loop([&] { ways.at("n1").lock()->reports(reports); });
  ASSERT_EQ(watcher->all().size(), 2U);
  EXPECT_EQ(watcher->all()[0].node(), "n1");
  EXPECT_EQ(watcher->all()[0].node_number(), 1U);
  EXPECT_EQ(watcher->all()[1].node_number(), branches[1].rest[0]);
}

TEST_F(BrokerFleetTest, TheNodesThatAHeadPassesOnToAreLostWithIt) {
  std::vector<std::string> nodes;
  for (std::size_t node = 0; node <= kAllDirect; ++node)
    nodes.push_back("n" + std::to_string(node));
  const auto watcher = lead(pause_of(nodes));
  on_loop([&] { ways.at("n0").lock()->over({Code::kUnavailable, "connection refused"}); });
  EXPECT_FALSE(watcher->done());
  EXPECT_FALSE(was_told("n0", v1::FleetCommand::kGiveUp)) << "there is no way to it";
  const std::vector<Branch> branches = fan_out(nodes.size());
  for (std::size_t branch = 1; branch < branches.size(); ++branch) {
    const std::string& head = nodes[branches[branch].head];
    EXPECT_TRUE(was_told(head, v1::FleetCommand::kGiveUp)) << head;
    const auto way = ways.at(head).lock();
    on_loop([&] { way->over({Code::kUnavailable, "broken"}); });
  }
  ASSERT_TRUE(watcher->done());
  const std::string text = watcher->status().text();
  EXPECT_THAT(text,
              HasSubstr("node 'n0': lost: connection refused; node '" + nodes[branches[0].rest[0]] +
                        "': lost: it is reached through node 'n0', which is lost: connection "
                        "refused; node '"));
  EXPECT_FALSE(on_loop([&] { return fleet->leads(); }));
}

TEST_F(BrokerFleetTest, WhatCannotBeTakenIsRefusedByItsReason) {
  v1::FleetBegin begin = pause_of({"leader", "here"});
  begin.set_protocol(kFleetProtocol + 1);
  begin.set_transaction(std::string(16, 't'));
  begin.set_leader("leader");
  EXPECT_THAT(first_answer(begin).ended().text(), HasSubstr("the leader speaks version"));
  begin.set_protocol(kFleetProtocol);
  begin.set_transaction("short");
  EXPECT_THAT(first_answer(begin).ended().text(), HasSubstr("must have 16 bytes"));
  begin.set_transaction(std::string(16, 't'));
  begin.set_number(1);
  const v1::FleetReport joined = first_answer(begin);
  EXPECT_TRUE(joined.has_joined());
  EXPECT_EQ(joined.node(), 1U);
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
  EXPECT_EQ(joined.joined().name(), host.data());
  EXPECT_EQ(joined.joined().silence_us(),
            static_cast<std::uint64_t>(to_us(config.deadlines.longest())));
}

TEST_F(BrokerFleetTest, AnAmemdThatEndsSaysSoToWhoeverAsked) {
  const auto watcher = lead(pause_of({"other"}));
  EXPECT_FALSE(watcher->done());
  EXPECT_TRUE(on_loop([&] { return fleet->leads(); }));
  on_loop([&] { fleet->shut(); });
  EXPECT_EQ(watcher->status().code(), Code::kUnavailable);
  EXPECT_THAT(watcher->status().text(), HasSubstr("amemd is ending"));
  EXPECT_FALSE(on_loop([&] { return fleet->leads(); }));
  EXPECT_TRUE(ways.at("other").expired()) << "the way there is closed";
}

}  // namespace
}  // namespace amem
