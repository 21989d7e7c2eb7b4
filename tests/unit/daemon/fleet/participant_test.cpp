// A node's share of an operation over several nodes: what it tells its leader and the others, and
// what it does without a leader. Its node, the ways and the time are the test's. Orders of events
// are tests/model's.
#include "daemon/fleet/participant.h"

#include <gtest/gtest.h>

#include <utility>

#include "daemon/fleet/known_transactions.h"
#include "daemon/fleet/node_link.h"

namespace amem {
namespace {

class FakeLocalNode final : public LocalNode {
 public:
  std::uint64_t begin(const Caller&, const FleetTransaction&, const Operations::Observer&,
                      std::shared_ptr<RemoteNodes>) override {
    return 7;
  }
  void tell(std::uint64_t number, const std::string& group, const Event& event) override {
    EXPECT_EQ(number, 7U);
    told.emplace_back(group, event);
  }
  bool may_go_on(std::uint64_t number, Side side) override {
    EXPECT_EQ(number, 7U);
    if (!goes_on) return false;
    went_on = side;
    return true;
  }
  void give_up(std::uint64_t number, const Status& why) override {
    EXPECT_EQ(number, 7U);
    EXPECT_TRUE(given_up.ok()) << "twice";
    given_up = why;
  }

  bool goes_on = true;
  std::vector<std::pair<std::string, Event>> told;  // to groups
  std::optional<Side> went_on;
  Status given_up;
};

class FakeLinks final : public NodeLinks {
 public:
  Result<std::unique_ptr<NodeLink>> open(const std::string&, NodeLink::Heard) override {
    return Status(Code::kInternal, "none");
  }
  std::unique_ptr<Questions> questions(const std::string&) override {
    return std::make_unique<Asking>(*this);
  }
  std::vector<Questions::Question> asked;

 private:
  struct Asking final : Questions {
    explicit Asking(FakeLinks& of) : links(of) {}
    void ask(std::vector<Question> round) override { links.asked = std::move(round); }
    FakeLinks& links;
  };
};

class ParticipantTest : public ::testing::Test {
 protected:
  /// Node 1 of three.
  void begin(bool swap = false) {
    v1::FleetBegin begin;
    for (const char* node : {"n0", "n1", "n2"}) begin.add_nodes(node);
    begin.set_number(1);
    begin.set_transaction("transaction");
    begin.set_leader("n0");
    participant = std::make_shared<Participant>(
        local_node, links, [this](Duration, std::function<void()> job) { later.push_back(job); },
        begin,
        [this](v1::FleetReport report, bool more) {
          EXPECT_EQ(report.node(), 1U);
          told.push_back(std::move(report));
          more_follows.push_back(more);
        });
    FleetTransaction transaction;
    transaction.swap = swap;
    participant->begin(Caller{}, transaction);
    v1::FleetCommand command;
    command.mutable_leader()->set_number(0);
    participant->handle(command);
  }
  void go_on(Side side) {
    v1::FleetCommand command;
    put(side, *command.mutable_go_on());
    participant->handle(command);
  }
  bool has_told(v1::FleetReport::WhatCase what) const {
    for (const v1::FleetReport& report : told)
      if (report.what_case() == what) return true;
    return false;
  }
  static v1::FleetStanding waits() {
    v1::FleetStanding standing;
    standing.set_known(true);
    standing.set_asked_out(true);
    return standing;
  }
  void answers(std::size_t which, const Result<v1::FleetStanding>& standing) {
    const auto answer = links.asked.at(which).answer;
    answer(standing);
  }
  const Status none{Code::kUnavailable, "no answer"};

  FakeLocalNode local_node;
  FakeLinks links;
  std::vector<std::function<void()>> later;
  std::vector<v1::FleetReport> told;
  std::vector<bool> more_follows;  // each of `told`
  std::shared_ptr<Participant> participant;
};

TEST_F(ParticipantTest, GoesOnWhenItIsToldToAndSaysSo) {
  begin();
  participant->asks(Side::kOut);
  EXPECT_TRUE(has_told(v1::FleetReport::kAsks));
  go_on(Side::kOut);
  EXPECT_EQ(local_node.went_on, Side::kOut);
  EXPECT_TRUE(has_told(v1::FleetReport::kWentOn));
  participant->leader_lost();
  EXPECT_TRUE(local_node.given_up.ok()) << "nothing is left to be given up";
}

TEST_F(ParticipantTest, WhatItIsToldBeforeItHasAskedIsNothing) {
  begin(true);
  go_on(Side::kOut);
  EXPECT_FALSE(local_node.went_on.has_value());
  participant->withdraws(Side::kOut);
  EXPECT_TRUE(told.empty());
  participant->asks(Side::kOut);
  go_on(Side::kIn);
  EXPECT_FALSE(local_node.went_on.has_value());
  go_on(Side::kOut);
  EXPECT_EQ(local_node.went_on, Side::kOut);
  local_node.goes_on = false;
  told.clear();
  go_on(Side::kOut);
  EXPECT_TRUE(has_told(v1::FleetReport::kWentOn)) << "once it has, it says so again";
}

TEST_F(ParticipantTest, ItGivesUpOnceAndByTheLeadersReason) {
  begin();
  participant->asks(Side::kOut);
  v1::FleetCommand give_up;
  give_up.mutable_give_up()->set_code(static_cast<std::uint32_t>(Code::kDeadlineExceeded));
  give_up.mutable_give_up()->set_text("node 'n2' failed");
  participant->handle(give_up);
  EXPECT_EQ(local_node.given_up.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(local_node.given_up.text(), "node 'n2' failed");
  participant->handle(give_up);  // not twice
  told.clear();
  go_on(Side::kOut);
  participant->asks(Side::kOut);
  participant->withdraws(Side::kOut);
  EXPECT_FALSE(local_node.went_on.has_value());
  EXPECT_TRUE(told.empty());
}

TEST_F(ParticipantTest, TheLeaderIsToldOfRanksAndOfTheEndAndThenNothing) {
  begin();
  participant->quiesces("train", {3, 5});
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].quiesces().group(), "train");
  ASSERT_EQ(told[0].quiesces().ranks_size(), 2);
  EXPECT_EQ(told[0].quiesces().ranks(0), 3U);
  EXPECT_EQ(told[0].quiesces().ranks(1), 5U);
  participant->finished({Code::kAborted, "a rank has ended"});
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[1].ended().code(), static_cast<std::uint32_t>(Code::kAborted));
  EXPECT_EQ(told[1].ended().text(), "a rank has ended");
  participant->asks(Side::kOut);
  participant->quiesces("train", {});
  participant->leader_lost();
  EXPECT_EQ(told.size(), 2U);
  EXPECT_TRUE(local_node.given_up.ok()) << "there is nothing to be given up";
  EXPECT_FALSE(participant->standing_for_others().led());
}

TEST_F(ParticipantTest, ProgressGoesWithAReportOrSoonAndNotTooOften) {
  begin();
  v1::Progress progress;
  progress.set_group("train");
  progress.set_phase("quiesce");
  participant->progress(progress);
  EXPECT_TRUE(told.empty());
  ASSERT_EQ(later.size(), 1U);
  progress.set_ranks_done(1);
  participant->progress(progress);  // of the same phase, so it can wait
  progress.set_group("rollout");
  participant->progress(progress);
  EXPECT_EQ(later.size(), 1U) << "both go together";
  std::exchange(later, {}).front()();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].progress().group(), "rollout");
  EXPECT_EQ(told[1].progress().group(), "train");
  EXPECT_EQ(told[1].progress().ranks_done(), 0U);
  EXPECT_EQ(more_follows, (std::vector<bool>{true, false}));
  progress.set_group("train");
  progress.set_phase("save");
  participant->progress(progress);
  progress.set_done(true);
  participant->progress(progress);
  EXPECT_EQ(told.size(), 2U);
  participant->asks(Side::kOut);
  ASSERT_EQ(told.size(), 4U);
  EXPECT_TRUE(told[2].progress().done());
  EXPECT_TRUE(told[3].has_asks());
  EXPECT_EQ(more_follows, (std::vector<bool>{true, false, true, false}));
  for (const auto& job : std::exchange(later, {})) job();
  EXPECT_EQ(told.size(), 4U) << "it has gone already";
}

TEST_F(ParticipantTest, ItsStandingIsWhatItHasAskedAndBeenTold) {
  begin(true);
  participant->asks(Side::kOut);
  v1::FleetStanding is = participant->standing_for_others();
  EXPECT_TRUE(is.known() && is.led() && is.asked_out());
  EXPECT_FALSE(is.went_on_out() || is.asked_in() || is.went_on_in() || is.given_up());
  ASSERT_TRUE(is.has_leader());
  EXPECT_EQ(is.leader().number(), 0U);
  go_on(Side::kOut);
  is = participant->standing_for_others();
  EXPECT_TRUE(is.went_on_out());
  EXPECT_TRUE(is.given_up()) << "of what comes in, for whoever has asked";
  EXPECT_EQ(local_node.given_up.text(), "the leader n0 is lost for another node, which gives up");
}

TEST_F(ParticipantTest, WithoutALeaderItSaysWhoseAnswerItGivesUpBy) {
  for (const bool gave_up : {true, false}) {
    local_node.given_up = {};
    begin();
    participant->asks(Side::kOut);
    participant->leader_lost();
    ASSERT_EQ(links.asked.size(), 2U);
    EXPECT_EQ(links.asked[0].address, "n0");
    EXPECT_EQ(links.asked[1].address, "n2");
    const std::vector<Questions::Question> asked = std::exchange(links.asked, {});
    participant->leader_lost();
    EXPECT_TRUE(links.asked.empty()) << "it asks already";
    v1::FleetStanding standing = waits();
    standing.set_given_up(gave_up);
    asked[0].answer(none);
    asked[1].answer(standing);
    EXPECT_EQ(local_node.given_up.code(), Code::kAborted);
    EXPECT_EQ(local_node.given_up.text(),
              std::string("the leader n0 is lost, and ") +
                  (gave_up ? "node n2 has given up" : "no node was told to continue"));
  }
}

TEST_F(ParticipantTest, WhatANodeKnowsOfATransactionIsWhatItsParticipantSays) {
  KnownTransactions known({}, true);
  begin();
  participant->asks(Side::kOut);
  known.add("transaction", participant);
  const v1::FleetStanding is = known.standing("transaction", false);
  EXPECT_TRUE(is.known() && is.asked_out());
  EXPECT_FALSE(is.never() || is.given_up());
}

TEST_F(ParticipantTest, WhatHasPromisedNeverToAskDoesNot) {
  begin();
  EXPECT_FALSE(participant->standing_for_others().asked_out());
  participant->asks(Side::kOut);  // in the same turn of the loop
  EXPECT_FALSE(has_told(v1::FleetReport::kAsks));
  EXPECT_FALSE(local_node.given_up.ok());
  EXPECT_TRUE(participant->standing_for_others().given_up());
}

TEST_F(ParticipantTest, WhatGoesOutIsHeldToItsPromiseForWhatComesIn) {
  begin(true);
  participant->asks(Side::kOut);
  EXPECT_FALSE(participant->standing_for_others().asked_in());
  EXPECT_TRUE(local_node.given_up.ok()) << "it may still be told to go on with what goes out";
  go_on(Side::kOut);
  EXPECT_EQ(local_node.went_on, Side::kOut);
  told.clear();
  participant->asks(Side::kIn);
  EXPECT_FALSE(has_told(v1::FleetReport::kAsks));
  EXPECT_FALSE(local_node.given_up.ok());
}

TEST_F(ParticipantTest, WhatLosesItsLeaderBeforeItHasAskedGivesUp) {
  begin();
  participant->leader_lost();
  EXPECT_FALSE(local_node.given_up.ok());
  EXPECT_TRUE(links.asked.empty());
}

TEST_F(ParticipantTest, WhatIsWithdrawnDoesNotGoOnAndProvesNothing) {
  begin(true);
  participant->asks(Side::kOut);
  go_on(Side::kOut);
  participant->asks(Side::kIn);
  participant->withdraws(Side::kIn);
  EXPECT_TRUE(has_told(v1::FleetReport::kWithdraws));
  local_node.goes_on = false;
  told.clear();
  go_on(Side::kIn);
  EXPECT_FALSE(has_told(v1::FleetReport::kWentOn));
  v1::FleetCommand give_up;
  give_up.mutable_give_up()->set_code(static_cast<std::uint32_t>(Code::kAborted));
  participant->handle(give_up);
  participant->leader_lost();
  const v1::FleetStanding standing = participant->standing_for_others();
  EXPECT_TRUE(standing.asked_in());
  EXPECT_FALSE(standing.given_up() || standing.went_on_in());
}

TEST_F(ParticipantTest, WaitsForTheEndOfTheRoundUnlessOneHasGoneOn) {
  begin();
  participant->asks(Side::kOut);
  participant->leader_lost();
  ASSERT_EQ(links.asked.size(), 2U) << "all but itself";
  v1::FleetStanding never;
  never.set_never(true);
  answers(0, never);
  EXPECT_TRUE(local_node.given_up.ok());
  v1::FleetStanding gone_on = waits();
  gone_on.set_went_on_out(true);
  answers(1, gone_on);
  EXPECT_EQ(local_node.went_on, Side::kOut);
  EXPECT_TRUE(local_node.given_up.ok());
}

TEST_F(ParticipantTest, GoesOnAtTheFirstAnswerOfOneThatHas) {
  begin();
  participant->asks(Side::kOut);
  participant->leader_lost();
  v1::FleetStanding gone_on = waits();
  gone_on.set_went_on_out(true);
  answers(1, gone_on);
  EXPECT_EQ(local_node.went_on, Side::kOut) << "the others cannot change it";
}

TEST_F(ParticipantTest, AsksAgainWhileOneThatMayKnowDoesNotAnswer) {
  begin();
  participant->asks(Side::kOut);
  participant->leader_lost();
  for (int round = 0; round < 3; ++round) {
    answers(0, none);
    answers(1, none);
    EXPECT_TRUE(local_node.given_up.ok());
    ASSERT_EQ(later.size(), 1U);
    std::exchange(later, {}).front()();
  }
  answers(0, none);
  answers(1, waits());
  EXPECT_FALSE(local_node.given_up.ok()) << "the leader's own node is told last";
}

TEST_F(ParticipantTest, AnswersThatComeTooLateAreNothing) {
  begin();
  participant->asks(Side::kOut);
  participant->leader_lost();
  const auto late = links.asked.at(0).answer;
  v1::FleetStanding gone_on = waits();
  gone_on.set_went_on_out(true);
  answers(1, gone_on);
  v1::FleetStanding given_up = waits();
  given_up.set_given_up(true);
  late(given_up);
  EXPECT_TRUE(local_node.given_up.ok());
}

TEST_F(ParticipantTest, OneWhoseDeadlineHasPassedAsksNoMore) {
  begin();
  participant->asks(Side::kOut);
  participant->leader_lost();
  answers(0, none);
  answers(1, none);
  participant->finished({Code::kDeadlineExceeded, "agree: not in time"});
  links.asked.clear();
  std::exchange(later, {}).front()();
  EXPECT_TRUE(links.asked.empty());
  EXPECT_FALSE(participant->standing_for_others().given_up()) << "it may have been told meanwhile";
}

TEST_F(ParticipantTest, ALeaderThatHangsUpIsLost) {
  begin();
  v1::FleetCommand hang_up;
  hang_up.set_hang_up(true);
  participant->handle(hang_up);
  EXPECT_EQ(local_node.given_up.text(), "the leader n0 is lost");
}

TEST_F(ParticipantTest, WhatARankReportsTheLeaderIsToldInFull) {
  begin();
  CutReport report;
  report.permits = 3;
  report.captures = 2;
  report.devices.push_back({DeviceUuid{}, true, 5, 4});
  participant->reported("train", 7, report);
  ASSERT_EQ(told.size(), 1U);
  const v1::FleetRank& rank = told[0].rank();
  EXPECT_EQ(rank.group(), "train");
  EXPECT_EQ(rank.rank(), 7U);
  EXPECT_FALSE(rank.gone());
  EXPECT_EQ(rank.permits(), 3U);
  EXPECT_EQ(rank.captures(), 2U);
  ASSERT_EQ(rank.devices_size(), 1);
  EXPECT_EQ(rank.devices(0).uuid(), std::string(16, '\0'));
  EXPECT_TRUE(rank.devices(0).busy());
  EXPECT_EQ(rank.devices(0).waiting(), 5U);
  EXPECT_EQ(rank.devices(0).ready(), 4U);
  participant->reported("train", 7, std::nullopt);
  EXPECT_TRUE(told.back().rank().gone());
}

TEST_F(ParticipantTest, StepsAndTheCutAreTheGroups) {
  begin();
  v1::FleetCommand command;
  v1::FleetPermit& permit = *command.mutable_permit();
  permit.set_group("train");
  permit.set_rank(7);
  permit.set_in_turn(true);
  permit.set_device(std::string(15, 'u'));
  participant->handle(command);
  EXPECT_TRUE(local_node.told.empty()) << "that is no device";
  permit.set_device(std::string(16, 'u'));
  participant->handle(command);
  command.set_cut_taken("train");
  participant->handle(command);
  ASSERT_EQ(local_node.told.size(), 2U);
  EXPECT_EQ(local_node.told[0].first, "train");
  const Cut::Permit is = std::get<event::PermitOf>(local_node.told[0].second).permit;
  EXPECT_EQ(is.rank, 7U);
  EXPECT_TRUE(is.in_turn);
  EXPECT_EQ(is.device.bytes[15], 'u');
  EXPECT_EQ(local_node.told[1].first, "train");
  EXPECT_TRUE(std::holds_alternative<event::CutTaken>(local_node.told[1].second));
}

}  // namespace
}  // namespace amem
