// Who is told what in an operation over several nodes, and when.
#include "daemon/fleet/conductor.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr Duration kSilence = std::chrono::minutes(6);

std::string instance(std::size_t node) { return std::string(16, static_cast<char>('0' + node)); }

class ConductorTest : public ::testing::Test {
 protected:
  static Conductor::Params params(bool out, bool in) {
    return {out, in, milliseconds(20), seconds(10), {}, instance(0)};
  }
  /// Node 0 leads.
  void begin(std::size_t nodes, bool out = true, bool in = false) {
    std::vector<std::string> names;
    for (std::size_t node = 0; node < nodes; ++node) names.push_back("n" + std::to_string(node));
    conductor.emplace(names, params(out, in), now);
  }
  void begin_joined(std::size_t nodes, bool out = true, bool in = false) {
    begin(nodes, out, in);
    for (std::size_t node = 0; node < nodes; ++node) joins(node, instance(node));
  }
  void joins(std::size_t node, const std::string& who, std::uint64_t silence = to_us(kSilence)) {
    v1::FleetReport report;
    report.mutable_joined()->set_instance(who);
    report.mutable_joined()->set_silence_us(silence);
    conductor->told(node, report, now);
  }
  void quiesces(std::size_t node, std::initializer_list<std::uint32_t> ranks) {
    v1::FleetReport report;
    report.mutable_quiesces()->set_group("train");
    for (const std::uint32_t rank : ranks) report.mutable_quiesces()->add_ranks(rank);
    conductor->told(node, report, now);
  }
  void reports(std::size_t node, std::uint32_t rank, bool busy, std::uint32_t waiting = 0,
               std::uint32_t permits = 0) {
    v1::FleetReport report;
    v1::FleetRank& told = *report.mutable_rank();
    told.set_group("train");
    told.set_rank(rank);
    told.set_permits(permits);
    v1::FleetDevice& device = *told.add_devices();
    device.set_uuid(std::string(16, 'u'));
    device.set_busy(busy);
    device.set_waiting(waiting);
    conductor->told(node, report, now);
  }
  void asks(std::size_t node, bool out) {
    v1::FleetReport report;
    report.mutable_asks()->set_out(out);
    conductor->told(node, report, now);
  }
  void went_on(std::size_t node, bool out) {
    v1::FleetReport report;
    report.mutable_went_on()->set_out(out);
    conductor->told(node, report, now);
  }
  void ends(std::size_t node, const Status& status = {}) {
    v1::FleetReport report;
    report.mutable_ended()->set_code(static_cast<std::uint32_t>(status.code()));
    report.mutable_ended()->set_text(status.text());
    conductor->told(node, report, now);
  }
  void withdraws(std::size_t node, bool out) {
    v1::FleetReport report;
    report.mutable_withdraws()->set_out(out);
    conductor->told(node, report, now);
  }
  /// "1 go on out, 2 give up"; who leads apart.
  std::string said() {
    std::string text;
    for (const Conductor::NodeCommand& each : conductor->take_commands()) {
      if (each.command.has_leader()) {
        leader_told[each.node] = each.command.leader().number();
        continue;
      }
      text += (text.empty() ? "" : ", ") + std::to_string(each.node) + " ";
      const v1::FleetCommand& it = each.command;
      if (it.has_permit())
        text += "step " + std::to_string(it.permit().rank());
      else if (it.has_go_on())
        text += it.go_on().out() ? "go on out" : "go on in";
      else if (it.has_give_up())
        text += "give up", why[each.node] = it.give_up().text();
      else
        text += it.has_cut_taken() ? "cut taken" : "on its own";
    }
    return text;
  }

  Time now{seconds(100)};
  std::optional<Conductor> conductor;
  std::map<std::size_t, std::size_t> leader_told;  // to each node: which of them it is
  std::map<std::size_t, std::string> why;          // each node gives up
};

TEST_F(ConductorTest, OneCutOverTheRanksOfAllNodes) {
  begin_joined(2);
  quiesces(0, {7});
  reports(0, 7, false);
  EXPECT_EQ(said(), "") << "node 1 has not told of its ranks";
  quiesces(1, {7, 8});  // numbers are a node's own
  reports(1, 7, false);
  EXPECT_EQ(said(), "");
  reports(1, 8, true);
  EXPECT_EQ(said(), "");
  reports(1, 8, false);
  EXPECT_EQ(said(), "0 cut taken, 1 cut taken");
}

TEST_F(ConductorTest, TheRanksThatANodeTellsOfFirstCount) {
  begin_joined(2);
  quiesces(0, {1});
  quiesces(0, {1, 2});
  quiesces(1, {1});
  reports(0, 1, false);
  reports(1, 1, false);
  EXPECT_EQ(said(), "0 cut taken, 1 cut taken");
}

TEST_F(ConductorTest, ARankThatWaitsIsLetThroughForOneOfAnotherNode) {
  begin_joined(2);
  quiesces(0, {1});
  quiesces(1, {1});
  reports(0, 1, true);      // inside of a collective
  reports(1, 1, false, 1);  // has not begun it
  EXPECT_EQ(said(), "1 step 1");
  reports(1, 1, true, 0, 1);
  reports(0, 1, false);
  EXPECT_EQ(said(), "");
  reports(1, 1, false, 0, 1);
  EXPECT_EQ(said(), "0 cut taken, 1 cut taken");
}

TEST_F(ConductorTest, ARankThatHasGoneIsNotWaitedFor) {
  begin_joined(2);
  quiesces(0, {1});
  quiesces(1, {1, 2});
  reports(0, 1, false);
  reports(1, 1, false);
  v1::FleetReport gone;
  gone.mutable_rank()->set_group("train");
  gone.mutable_rank()->set_rank(2);
  gone.mutable_rank()->set_gone(true);
  conductor->told(1, gone, now);
  EXPECT_EQ(said(), "0 cut taken, 1 cut taken");
}

TEST_F(ConductorTest, ANodeThatIsDoneBeforeItTellsOfItsRanksIsNotWaitedFor) {
  begin_joined(2);
  quiesces(0, {1});
  reports(0, 1, false);
  ends(1);
  EXPECT_EQ(said(), "0 cut taken");
}

TEST_F(ConductorTest, NobodyGoesOnBeforeAllHaveAskedAndTheLeaderLast) {
  begin_joined(3);
  asks(0, true);
  asks(2, true);
  EXPECT_EQ(said(), "");
  asks(1, true);
  EXPECT_EQ(said(), "1 go on out, 2 go on out");
  went_on(2, true);
  EXPECT_EQ(said(), "0 go on out");
  for (const std::size_t node : {0U, 1U, 2U}) ends(node);
  EXPECT_TRUE(conductor->ended());
  EXPECT_TRUE(conductor->result().ok());
}

TEST_F(ConductorTest, ALeaderAloneGoesOnByItself) {
  begin_joined(1);
  asks(0, true);
  EXPECT_EQ(said(), "0 go on out");
}

TEST_F(ConductorTest, AFailureBeforeThatHasAllGiveUp) {
  begin_joined(3);
  asks(0, true);
  asks(1, true);
  ends(2, {Code::kResourceExhausted, "the pool is full"});
  EXPECT_EQ(said(), "0 give up, 1 give up");
  ends(0, {Code::kAborted, "given up"});
  ends(1, {Code::kAborted, "given up"});
  EXPECT_TRUE(conductor->ended());
  EXPECT_EQ(conductor->result().code(), Code::kResourceExhausted) << "the cause, not what followed";
  EXPECT_EQ(conductor->result().text().find("node 'n2': the pool is full"), 0U);
}

TEST_F(ConductorTest, ANodeThatIsLostBeforeThatLikewise) {
  begin_joined(2);
  quiesces(0, {1});
  reports(0, 1, true);
  conductor->lost(1, {Code::kUnavailable, "connection reset"}, now);
  EXPECT_EQ(said(), "0 give up");
  ends(0, {Code::kAborted, "given up"});
  EXPECT_TRUE(conductor->ended());
  EXPECT_EQ(conductor->result().text().find("go on by itself"), std::string::npos);
}

TEST_F(ConductorTest, ANodeThatIsLostLaterLeavesTheOthersToTheirEnd) {
  begin_joined(3);
  for (const std::size_t node : {0U, 1U, 2U}) asks(node, true);
  EXPECT_EQ(said(), "1 go on out, 2 go on out");
  conductor->lost(1, {Code::kUnavailable, "connection reset"}, now);
  EXPECT_EQ(said(), "2 give up") << "which comes too late for it";
  // What is decided is decided: the leader, too, goes on, once another has answered.
  went_on(2, true);
  EXPECT_EQ(said(), "0 go on out, 0 give up");
  ends(0);
  ends(2);
  const std::string text = conductor->result().text();
  EXPECT_NE(text.find("node 'n1': lost: connection reset. It continues its part alone"),
            std::string::npos);
  EXPECT_NE(text.find("node 'n2' has done its part"), std::string::npos);
}

TEST_F(ConductorTest, ALeaderWhoseNodesAreAllLostUnheardIsLeftToItself) {
  begin_joined(2);
  asks(0, true);
  asks(1, true);
  EXPECT_EQ(said(), "1 go on out");
  conductor->lost(1, {Code::kUnavailable, "connection reset"}, now);
  EXPECT_EQ(said(), "0 on its own");
  conductor->lost(0, {Code::kAborted, "not known"}, now);
  EXPECT_TRUE(conductor->ended());
}

TEST_F(ConductorTest, ASwapWhoseOutHasGoneIsGivenUpForWhatComesIn) {
  begin_joined(2, true, true);
  asks(0, true);
  asks(1, true);
  EXPECT_EQ(said(), "1 go on out");
  went_on(1, true);
  EXPECT_EQ(said(), "0 go on out");
  asks(0, false);
  ends(1, {Code::kDeadlineExceeded, "map+load: late"});
  EXPECT_EQ(said(), "0 give up");
  ends(0, {Code::kAborted, "given up"});
  EXPECT_EQ(conductor->result().code(), Code::kDeadlineExceeded);
}

TEST_F(ConductorTest, ASwapGoesOnTwice) {
  begin_joined(2, true, true);
  asks(0, true);
  asks(1, true);
  went_on(1, true);
  EXPECT_EQ(said(), "1 go on out, 0 go on out");
  asks(1, false);
  asks(0, false);
  EXPECT_EQ(said(), "1 go on in");
  went_on(1, false);
  EXPECT_EQ(said(), "0 go on in");
}

TEST_F(ConductorTest, ANodeThatDoesNotAnswerInTime) {
  begin(2);
  joins(0, instance(0));
  EXPECT_EQ(conductor->wakeup(), now + seconds(10));
  now += seconds(10);
  conductor->tick(now);
  EXPECT_EQ(said(), "0 give up");
  ends(0, {Code::kAborted, "given up"});
  EXPECT_EQ(conductor->result().code(), Code::kDeadlineExceeded);
  EXPECT_NE(conductor->result().text().find("node 'n1'"), std::string::npos);
}

TEST_F(ConductorTest, OneNodeByTwoAddresses) {
  begin(2);
  joins(0, instance(0));
  joins(1, instance(0));
  EXPECT_EQ(said(), "0 give up, 1 give up");
  ends(0, {Code::kAborted, "given up"});
  ends(1, {Code::kAborted, "given up"});
  EXPECT_TRUE(conductor->ended());
}

TEST_F(ConductorTest, AllAreToldWhichNodeLeads) {
  begin(3);
  joins(2, instance(2));
  EXPECT_EQ(said(), "");
  EXPECT_TRUE(leader_told.empty());
  joins(0, instance(0));
  EXPECT_EQ(said(), "");
  EXPECT_EQ(leader_told, (std::map<std::size_t, std::size_t>{{0, 0}, {1, 0}, {2, 0}}));
}

TEST_F(ConductorTest, ANodeThatWithdrawsWhatItHasAskedHasAllGiveUp) {
  begin_joined(3, false, true);
  asks(0, false);
  asks(1, false);
  withdraws(1, false);
  EXPECT_EQ(said(), "0 give up, 1 give up, 2 give up");
  EXPECT_EQ(why[0], "node 'n1' failed while it waited for other nodes");
  asks(2, false);
  EXPECT_EQ(said(), "") << "nobody opens any more";
}

TEST_F(ConductorTest, AWithdrawalThatComesTooLateChangesNothing) {
  begin_joined(3, false, true);
  for (const std::size_t node : {0U, 1U, 2U}) asks(node, false);
  EXPECT_EQ(said(), "1 go on in, 2 go on in");
  withdraws(1, false);
  EXPECT_EQ(said(), "");
  went_on(2, false);
  EXPECT_EQ(said(), "0 go on in");
}

TEST_F(ConductorTest, ANodeThatSaysNothingForTooLongIsLost) {
  begin_joined(2);
  ends(0, {Code::kDeadlineExceeded, "quiesce: not in time"});
  EXPECT_EQ(said(), "1 give up");
  EXPECT_EQ(conductor->wakeup(), now + kSilence);
  now += kSilence - seconds(1);
  conductor->tick(now);
  EXPECT_FALSE(conductor->ended());
  reports(1, 1, true);  // it still says something
  now += kSilence - seconds(1);
  conductor->tick(now);
  EXPECT_FALSE(conductor->ended());
  now += seconds(1);
  conductor->tick(now);
  EXPECT_EQ(said(), "1 on its own");
  EXPECT_TRUE(conductor->ended());
  EXPECT_NE(conductor->result().text().find("node 'n1': lost: it has sent nothing for 360s"),
            std::string::npos)
      << conductor->result().text();
}

TEST_F(ConductorTest, ANodeThatDoesNotJoinInTimeIsLostByName) {
  begin(2);
  joins(0, instance(0));
  now += seconds(10) - milliseconds(1);
  conductor->tick(now);
  EXPECT_EQ(said(), "");
  EXPECT_EQ(conductor->wakeup(), now + milliseconds(1));
  now += milliseconds(1);
  conductor->tick(now);
  EXPECT_EQ(said(), "0 give up");
  EXPECT_EQ(conductor->wakeup(), now + kSilence - seconds(10));
  ends(0, {Code::kAborted, "given up"});
  EXPECT_TRUE(conductor->ended());
  EXPECT_EQ(conductor->result().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(conductor->result().text(),
            "node 'n1': lost: it has not answered within 10s. Check that amemd runs there and "
            "listens at this address; node 'n0': given up");
}

TEST_F(ConductorTest, OneNodeByTwoNamesIsRefused) {
  begin(3);
  joins(1, instance(5));
  joins(2, instance(5));
  for (const Conductor::NodeCommand& each : conductor->take_commands())
    if (each.command.has_give_up()) {
      EXPECT_EQ(each.command.give_up().code(), static_cast<std::uint32_t>(Code::kInvalidArgument));
      why[each.node] = each.command.give_up().text();
    }
  const std::string text = "node 'n2' and node 'n1' are the same node. Name each node once";
  EXPECT_EQ(why, (std::map<std::size_t, std::string>{{0, text}, {1, text}, {2, text}}));
}

TEST_F(ConductorTest, SilenceIsOfThoseThatHaveJoinedAndNotEnded) {
  begin(3);
  joins(0, instance(0), 1'000'000);
  joins(1, instance(1), 2'000'000);
  ends(0);
  EXPECT_EQ(said(), "");
  EXPECT_EQ(conductor->wakeup(), now + seconds(1));
  now += seconds(1);
  conductor->tick(now);
  EXPECT_EQ(said(), "") << "node 2 has time to join";
  EXPECT_EQ(conductor->wakeup(), now + seconds(1)) << "node 1 is the next that may be silent";
  now += seconds(1);
  conductor->tick(now);
  EXPECT_EQ(said(), "1 on its own, 2 give up");
  EXPECT_FALSE(conductor->ended());
  EXPECT_EQ(conductor->wakeup(), now + seconds(8)) << "until node 2 must have joined";
}

TEST_F(ConductorTest, ASilenceWithoutEndIsAYear) {
  begin(1);
  joins(0, instance(0), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(conductor->wakeup(), now + std::chrono::hours(24 * 365));
}

TEST_F(ConductorTest, WhatComesAfterTheEndIsNothing) {
  begin_joined(2);
  ends(1, {Code::kNotFound, "no group"});
  EXPECT_EQ(said(), "0 give up");
  asks(1, true);
  went_on(1, true);
  conductor->lost(1, {Code::kUnavailable, "gone"}, now);
  EXPECT_EQ(said(), "");
  EXPECT_FALSE(conductor->ended());
}

TEST_F(ConductorTest, ANodeHasItsOwnNameUnlessAnotherHasIt) {
  begin(3);
  const char* const names[] = {"b", "a", "a"};
  for (std::size_t node = 0; node < 3; ++node) {
    v1::FleetReport report;
    report.mutable_joined()->set_instance(instance(node));
    report.mutable_joined()->set_silence_us(to_us(kSilence));
    report.mutable_joined()->set_name(names[node]);
    conductor->told(node, report, now);
  }
  ends(1, {Code::kAborted, "no space"});
  ends(2, {Code::kAborted, "no memory"});
  ends(0);
  EXPECT_NE(conductor->result().text().find("node 'a': no space"), std::string::npos)
      << conductor->result().text();
}

}  // namespace
}  // namespace amem
