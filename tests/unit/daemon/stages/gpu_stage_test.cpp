#include "daemon/stages/gpu_stage.h"

#include <gmock/gmock.h>

#include "tests/unit/fixtures/turns_fixture.h"

namespace amem {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Plays amemd: carries out switches when the test says so.
class GpuStageTest : public testing::Test, public GpuStage::Host {
 protected:
  static constexpr GroupId kA = 1, kB = 2, kC = 3;

  void make(TurnPolicy policy, Duration max_hold = {}, bool starts_alone = true) {
    wanted_.reset();
    recorded_.clear();
    TurnRules rules = some_rules(policy);
    rules.max_hold = max_hold;
    rules.starts_alone = starts_alone;
    rules.start_idle = s(8);
    stage_ = std::make_unique<GpuStage>(*this, "night", rules, some_stage(), s(0), figures_);
  }
  /// Two do not fit.
  void join(GroupId id, const std::string& name, Whereabouts where, std::uint64_t gib = 50) {
    stage_->join(id, name, {}, where, false, at(0));
    stage_->needs(id, {{some_device(1), gib * kGiB}}, at(0));
  }
  void start(GroupId id, const std::string& name, double time,
             FirstTurn first = FirstTurn::kOfRanks) {
    stage_->join(id, name, {}, Whereabouts::kPausedByStage, false, at(time), first);
  }
  void carry_out(GpuStage&, const StageSwitch& what) override {
    EXPECT_FALSE(wanted_) << "two switches at a time";
    wanted_ = what;
  }
  void wake(GpuStage&, Time time) override { wakeup_ = time; }
  void changed(GroupId group) override { recorded_.push_back(group); }
  void say(GpuStage&, GroupId, const std::string& text, bool trouble) override {
    (trouble ? troubles_ : news_).push_back(text);
  }

  /// Who leaves and who comes in; done at once.
  void expect_switch(double time, const std::vector<GroupId>& out, const std::vector<GroupId>& in) {
    SCOPED_TRACE(time);
    ASSERT_TRUE(wanted_);
    EXPECT_EQ(wanted_->out, out);
    EXPECT_EQ(wanted_->in, in);
    end_switch(time, {});
  }
  void end_switch(double time, const Status& status) {
    const StageSwitch what = *std::exchange(wanted_, std::nullopt);
    if (status.ok()) {
      for (const GroupId id : what.out) stage_->place(id, Whereabouts::kPausedByStage, at(time));
      for (const GroupId id : what.in) stage_->place(id, Whereabouts::kRuns, at(time));
    }
    stage_->switched(what.number, status, at(time));
  }
  void expect_nothing(double time) {
    stage_->tick(at(time));
    EXPECT_FALSE(wanted_) << time;
  }
  std::string turn(GroupId id, double time) {
    for (const GpuStage::GroupView& view : stage_->groups(at(time)))
      if (view.id == id) return view.what;
    return "none";
  }
  GpuStage::OnLease into(std::optional<Status>& answer) {
    return [&answer](const Status& status) {
      EXPECT_FALSE(answer) << "answered twice";
      answer = status;
    };
  }
  void waits(GroupId id, double time, const std::string& call = "cuLaunchKernel") {
    stage_->report(id, id * 10, {true, call, false}, at(time));
  }
  void works(GroupId id, double time) { stage_->report(id, id * 10, {false, "", true}, at(time)); }
  void rests(GroupId id, double time) { stage_->report(id, id * 10, {}, at(time)); }

  StageFigures figures_;
  std::unique_ptr<GpuStage> stage_;
  std::optional<StageSwitch> wanted_;
  Time wakeup_{};
  std::vector<GroupId> recorded_;
  std::vector<std::string> troubles_, news_;
};

TEST_F(GpuStageTest, ALeaseIsGrantedWhenTheGroupRunsAndLastsUntilItYields) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  std::optional<Status> a, b;
  EXPECT_EQ(stage_->lease(kA, into(a), at(1)), 0U) << "it runs";
  ASSERT_TRUE(a);
  EXPECT_TRUE(a->ok());
  EXPECT_THAT(recorded_, ElementsAre(kA));
  EXPECT_NE(stage_->lease(kB, into(b), at(2)), 0U);
  expect_nothing(100);
  EXPECT_EQ(turn(kB, 100), "waits");
  EXPECT_TRUE(stage_->yield(kA, at(100)).ok());
  EXPECT_FALSE(b) << "the switch goes on";
  EXPECT_EQ(turn(kB, 100), "comes");
  expect_switch(101, {kA}, {kB});
  ASSERT_TRUE(b);
  EXPECT_TRUE(b->ok());
  EXPECT_TRUE(stage_->leased(kB));
  EXPECT_FALSE(stage_->leased(kA));
  EXPECT_EQ(figures_.waits.count(), 1U);
  EXPECT_EQ(figures_.switching, s(1));
}

TEST_F(GpuStageTest, AGroupThatNeverYieldsLeavesAfterMaxHoldAndComesBack) {
  make(TurnPolicy::kLease, s(60));
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  std::optional<Status> a, b;
  stage_->lease(kA, into(a), at(0));
  stage_->lease(kB, into(b), at(10));
  expect_nothing(59);
  EXPECT_EQ(wakeup_, at(60));
  stage_->tick(at(60));
  expect_switch(61, {kA}, {kB});
  EXPECT_TRUE(b && b->ok());
  EXPECT_TRUE(stage_->leased(kA)) << "it has not yielded";
  (void)stage_->yield(kB, at(70));
  expect_switch(71, {kB}, {kA});
}

TEST_F(GpuStageTest, ALeaseThatNobodyWaitsForIsForgotten) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  std::optional<Status> a, b;
  stage_->lease(kA, into(a), at(0));
  const auto number = stage_->lease(kB, into(b), at(1));
  stage_->forget(number, at(2));
  (void)stage_->yield(kA, at(3));
  expect_nothing(4);
  EXPECT_FALSE(b);
}

TEST_F(GpuStageTest, TheLeaseOfAGroupThatEndsFails) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  std::optional<Status> a, b, gone;
  stage_->lease(kA, into(a), at(0));
  stage_->lease(kB, into(b), at(1));
  stage_->leave(kB, at(2));
  ASSERT_TRUE(b);
  EXPECT_EQ(b->code(), Code::kAborted);
  EXPECT_THAT(b->text(), HasSubstr("group 'b' has ended"));
  stage_->lease(kB, into(gone), at(3));
  EXPECT_EQ(gone->code(), Code::kFailedPrecondition);
}

TEST_F(GpuStageTest, AGroupThatHasALeaseAndEndsMakesRoom) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  std::optional<Status> a, b;
  stage_->lease(kA, into(a), at(0));
  stage_->lease(kB, into(b), at(1));
  stage_->leave(kA, at(2));
  expect_switch(3, {}, {kB});
  EXPECT_TRUE(b && b->ok());
}

TEST_F(GpuStageTest, ACallThatWaitsBringsItsGroupInAndTheIdleOneLeaves) {
  make(TurnPolicy::kDemand);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  works(kA, 1);
  waits(kB, 2);
  expect_nothing(4);
  works(kA, 5);
  rests(kA, 6);
  expect_nothing(10.9);
  stage_->tick(at(11));
  ASSERT_TRUE(wanted_);
  EXPECT_THAT(wanted_->why, HasSubstr("group 'b' has waited for 9 s"));
  EXPECT_THAT(wanted_->why, HasSubstr("cuLaunchKernel waits"));
  expect_switch(12, {kA}, {kB});
  works(kB, 12);
  expect_nothing(100);
}

TEST_F(GpuStageTest, OneRankThatWaitsIsEnoughAndOneThatWorksIsNotIdle) {
  make(TurnPolicy::kDemand);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  stage_->report(kA, 10, {false, "", true}, at(1));
  stage_->report(kA, 11, {}, at(2));
  stage_->report(kB, 20, {}, at(2));
  stage_->report(kB, 21, {true, "cuMemcpyAsync", false}, at(2));
  expect_nothing(20);
  stage_->rank_gone(kA, 10, at(21));
  expect_nothing(25.9);
  stage_->tick(at(26));
  expect_switch(27, {kA}, {kB});
}

TEST_F(GpuStageTest, WorkLastsUntilItsEndIsReported) {
  make(TurnPolicy::kDemand, s(60));
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  works(kA, 1);
  waits(kB, 2);
  for (int time = 3; time < 60; time += 10) expect_nothing(time);
  stage_->tick(at(60));
  expect_switch(61, {kA}, {kB});
  // What it was last said to have done is of before its pause.
  waits(kA, 62);
  rests(kB, 63);
  stage_->tick(at(70));
  expect_switch(70, {kB}, {kA});
  expect_nothing(100);
}

TEST_F(GpuStageTest, ARankThatEndsDoesNotWaitAnyMore) {
  make(TurnPolicy::kDemand);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  stage_->report(kB, 20, {}, at(1));
  stage_->report(kB, 21, {true, "cuLaunchKernel", false}, at(1));
  stage_->rank_gone(kB, 21, at(2));
  expect_nothing(100);
}

TEST_F(GpuStageTest, SlicesGoAround) {
  make(TurnPolicy::kSlice);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  join(kC, "c", Whereabouts::kPausedByStage);
  EXPECT_TRUE(stage_->set_wishes(kB, {.weight = 2}, at(0)).ok());
  for (const GroupId id : {kA, kB, kC}) waits(id, 0);
  std::vector<std::pair<GroupId, double>> came;
  double time = 0;
  for (int i = 0; i < 6; ++i) {
    while (!wanted_ && time < 1000) stage_->tick(at(time += 1));
    ASSERT_TRUE(wanted_);
    came.emplace_back(wanted_->in.front(), time);
    end_switch(time, {});
    for (const GroupId id : {kA, kB, kC}) waits(id, time);
  }
  EXPECT_THAT(came, ElementsAre(std::pair(kB, 10.0), std::pair(kC, 30.0), std::pair(kA, 40.0),
                                std::pair(kB, 50.0), std::pair(kC, 70.0), std::pair(kA, 80.0)));
}

TEST_F(GpuStageTest, AnOperatorsPauseWins) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  stage_->place(kB, Whereabouts::kPausedByOperator, at(1));
  std::optional<Status> b;
  stage_->lease(kB, into(b), at(2));
  expect_nothing(100);
  EXPECT_EQ(turn(kB, 100), "paused");
  stage_->place(kB, Whereabouts::kPausedByStage, at(100));  // the operator lets go of it
  expect_switch(101, {kA}, {kB});
  EXPECT_TRUE(b && b->ok());
  stage_->place(kB, Whereabouts::kMoves, at(110));
  stage_->place(kB, Whereabouts::kPausedByOperator, at(111));
  expect_nothing(200);
  stage_->place(kA, Whereabouts::kMoves, at(200));  // the operator resumes that one
  expect_nothing(201);
  stage_->place(kA, Whereabouts::kRuns, at(202));
  EXPECT_EQ(turn(kA, 202), "runs");
}

TEST_F(GpuStageTest, NothingIsDecidedWhileAnOperatorsOperationIsUnderWay) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  stage_->place(kA, Whereabouts::kMoves, at(1));
  std::optional<Status> b;
  stage_->lease(kB, into(b), at(2));
  expect_nothing(3);
  stage_->place(kA, Whereabouts::kRuns, at(4));  // its pause has failed
  expect_switch(5, {kA}, {kB});
}

TEST_F(GpuStageTest, AGroupThatIsTooLargeStaysAsItIs) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  stage_->needs(kA, {{some_device(1), 79 * kGiB}}, at(1));
  ASSERT_EQ(troubles_.size(), 1U);
  EXPECT_THAT(troubles_.front(), HasSubstr("needs 79 GiB"));
  EXPECT_THAT(troubles_.front(), HasSubstr("It stays as it is"));
  EXPECT_EQ(turn(kA, 1), "apart");
  std::optional<Status> a, b;
  stage_->lease(kA, into(a), at(2));
  EXPECT_EQ(a->code(), Code::kFailedPrecondition);
  stage_->taken(some_device(1), 79 * kGiB, at(2));
  stage_->lease(kB, into(b), at(2));
  expect_nothing(100);
  stage_->needs(kA, {{some_device(1), 79 * kGiB}}, at(100));
  EXPECT_EQ(troubles_.size(), 1U) << "that has been said";
  stage_->taken(some_device(1), 0, at(101));
  stage_->needs(kA, {{some_device(1), 50 * kGiB}}, at(101));
  EXPECT_THAT(news_, ElementsAre(HasSubstr("takes turns in stage 'night' again")));
  expect_switch(102, {kA}, {kB});
}

TEST_F(GpuStageTest, AGroupOnAnotherGpuTakesNoTurns) {
  make(TurnPolicy::kLease);
  stage_->join(kA, "a", {}, Whereabouts::kRuns, false, at(0));
  stage_->needs(kA, {{some_device(9), 1}}, at(1));
  ASSERT_EQ(troubles_.size(), 1U);
  EXPECT_THAT(troubles_.front(), HasSubstr("is not in the stage"));
}

TEST_F(GpuStageTest, WhatOthersHaveIsNotThereForWhoComesIn) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns, 30);
  join(kB, "b", Whereabouts::kPausedByStage, 30);
  stage_->taken(some_device(1), 20 * kGiB, at(1));
  std::optional<Status> a, b;
  stage_->lease(kA, into(a), at(2));
  stage_->lease(kB, into(b), at(2));
  expect_nothing(3);
  stage_->taken(some_device(1), 18 * kGiB, at(4));
  stage_->tick(at(4));
  expect_switch(5, {}, {kB});
}

TEST_F(GpuStageTest, ASwitchThatFailsIsTriedAgain) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  std::optional<Status> b;
  stage_->lease(kB, into(b), at(1));
  ASSERT_TRUE(wanted_);
  end_switch(2, {Code::kDeadlineExceeded, "rank 0 did not become quiet"});
  EXPECT_FALSE(wanted_);
  EXPECT_EQ(turn(kA, 2), "runs");
  ASSERT_TRUE(stage_->last());
  EXPECT_EQ(stage_->last()->status.text(), "rank 0 did not become quiet");
  EXPECT_EQ(wakeup_, at(3));
  stage_->tick(at(3));
  expect_switch(4, {kA}, {kB});
  EXPECT_EQ(figures_.switches.at(Code::kOk), 1U);
  EXPECT_EQ(figures_.switches.at(Code::kDeadlineExceeded), 1U);
}

TEST_F(GpuStageTest, AGroupThatEndsInASwitchIsLeftOut) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  std::optional<Status> b;
  stage_->lease(kB, into(b), at(1));
  stage_->leave(kB, at(1));
  EXPECT_EQ(b->code(), Code::kAborted);
  stage_->place(kA, Whereabouts::kPausedByStage, at(2));
  stage_->switched(1, {Code::kAborted, "group 'b' has ended"}, at(2));
  EXPECT_NE(turn(kA, 2), "leaves");
}

TEST_F(GpuStageTest, AfterARestartLeasesAndPlacesGoOn) {
  make(TurnPolicy::kLease);
  stage_->join(kA, "a", {}, Whereabouts::kMoves, true, at(0));
  stage_->join(kB, "b", {}, Whereabouts::kPausedByStage, false, at(0));
  stage_->join(kC, "c", {}, Whereabouts::kPausedByOperator, true, at(0));
  for (const GroupId id : {kA, kB, kC}) stage_->needs(id, {{some_device(1), 50 * kGiB}}, at(0));
  expect_nothing(1);
  stage_->place(kA, Whereabouts::kRuns, at(2));
  EXPECT_TRUE(stage_->leased(kA));
  std::optional<Status> b;
  stage_->lease(kB, into(b), at(3));
  expect_nothing(100);
  EXPECT_EQ(turn(kC, 100), "paused");
  (void)stage_->yield(kA, at(100));
  expect_switch(101, {kA}, {kB});
}

TEST_F(GpuStageTest, ALongestWaitThatCannotBeKeptIsRefused) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  const Status status = stage_->set_wishes(kB, {.longest_wait = s(10)}, at(1));
  EXPECT_EQ(status.code(), Code::kFailedPrecondition) << "leases have no end here";
  EXPECT_EQ(stage_->set_wishes(kB, {.weight = 0}, at(1)).code(), Code::kInvalidArgument);
}

TEST_F(GpuStageTest, LeasesRequireTheirPolicy) {
  make(TurnPolicy::kDemand);
  join(kA, "a", Whereabouts::kRuns);
  std::optional<Status> a;
  stage_->lease(kA, into(a), at(1));
  EXPECT_EQ(a->code(), Code::kFailedPrecondition);
  EXPECT_THAT(a->text(), HasSubstr("the policy demand"));
  EXPECT_EQ(stage_->yield(kA, at(1)).code(), Code::kFailedPrecondition);
}

TEST_F(GpuStageTest, SharesOfTimeAreCounted) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns);
  join(kB, "b", Whereabouts::kPausedByStage);
  std::optional<Status> a, b;
  stage_->lease(kA, into(a), at(0));
  stage_->lease(kB, into(b), at(4));
  (void)stage_->yield(kA, at(10));
  expect_switch(11, {kA}, {kB});
  stage_->settle(at(31));
  EXPECT_EQ(figures_.groups[kA].ran, s(10));
  EXPECT_EQ(figures_.groups[kB].ran, s(20));
  EXPECT_EQ(figures_.groups[kB].waited, s(7));
  EXPECT_EQ(figures_.groups[kB].there, s(31));
}

// ---- first turns

TEST_F(GpuStageTest, GroupsThatStartComeOneAfterTheOther) {
  for (const TurnPolicy policy : {TurnPolicy::kLease, TurnPolicy::kDemand, TurnPolicy::kSlice}) {
    SCOPED_TRACE(to_string(policy));
    make(policy, s(60));
    start(kA, "a", 0);
    start(kB, "b", 1);
    EXPECT_EQ(turn(kB, 1), "waits");
    expect_switch(2, {}, {kA});
    EXPECT_EQ(turn(kA, 2), "starts");
    stage_->needs(kA, {{some_device(1), 20 * kGiB}}, at(3));
    works(kA, 4);
    expect_nothing(5);
    rests(kA, 6);
    // After 8 s without work, or when its slice of 10 s is over.
    const double ends = policy == TurnPolicy::kSlice ? 12 : 14;
    expect_nothing(ends - 0.1);
    stage_->tick(at(ends));
    EXPECT_FALSE(stage_->starts(kA));
    EXPECT_THAT(recorded_, Contains(kA));
    expect_switch(ends + 1, {kA}, {kB});
    EXPECT_EQ(turn(kB, ends + 1), "starts");
  }
}

TEST_F(GpuStageTest, WhatHasStartedRunsBesideOthers) {
  make(TurnPolicy::kDemand);
  start(kA, "a", 0);
  expect_switch(0, {}, {kA});
  rests(kA, 0);
  stage_->needs(kA, {{some_device(1), 20 * kGiB}}, at(1));
  start(kB, "b", 1);
  expect_nothing(7.9);
  stage_->tick(at(8));
  expect_switch(9, {kA}, {kB});
  rests(kB, 9);
  stage_->needs(kB, {{some_device(1), 20 * kGiB}}, at(10));
  waits(kA, 10);
  expect_nothing(16);
  EXPECT_EQ(turn(kA, 16), "waits") << "one that starts is alone";
  stage_->tick(at(17));
  expect_switch(18, {}, {kA});
  EXPECT_EQ(turn(kA, 18), "runs");
  EXPECT_EQ(turn(kB, 18), "runs");
}

TEST_F(GpuStageTest, OneThatIsNeverIdleMakesWayAfterMaxHold) {
  make(TurnPolicy::kDemand, s(60));
  join(kA, "a", Whereabouts::kRuns, 20);
  works(kA, 0);
  start(kB, "b", 10);
  EXPECT_EQ(turn(kB, 10), "waits") << "though it would fit";
  expect_nothing(59);
  stage_->tick(at(60));
  expect_switch(61, {kA}, {kB});
  // And it has started after as long.
  works(kB, 62);
  waits(kA, 62);
  stage_->needs(kB, {{some_device(1), 20 * kGiB}}, at(63));
  expect_nothing(120);
  stage_->tick(at(121));
  expect_switch(121, {}, {kA});
}

TEST_F(GpuStageTest, AGroupWithoutRanksIsNotIdle) {
  make(TurnPolicy::kDemand);
  start(kA, "a", 0, FirstTurn::kAnnounced);
  start(kB, "b", 0);
  expect_switch(0, {}, {kA});
  expect_nothing(1000);
  stage_->arrived(kA, at(1000));
  rests(kA, 1000);
  expect_nothing(1007);
  stage_->tick(at(1008));
  expect_switch(1008, {kA}, {kB});
}

TEST_F(GpuStageTest, AGroupThatNeverGetsRanksIsForgotten) {
  make(TurnPolicy::kLease);
  start(kA, "a", 0, FirstTurn::kAnnounced);
  start(kB, "b", 0);
  expect_switch(0, {}, {kA});
  stage_->leave(kA, at(5));
  expect_switch(5, {}, {kB});
}

TEST_F(GpuStageTest, AYieldEndsAFirstTurnWithEveryPolicy) {
  for (const TurnPolicy policy : {TurnPolicy::kLease, TurnPolicy::kDemand, TurnPolicy::kSlice}) {
    SCOPED_TRACE(to_string(policy));
    make(policy);
    start(kA, "a", 0);
    expect_switch(0, {}, {kA});
    start(kB, "b", 1);
    EXPECT_TRUE(stage_->yield(kA, at(2)).ok());
    EXPECT_FALSE(stage_->starts(kA));
    stage_->tick(at(7));  // demand and slice: it must be idle, too
    expect_switch(7, {kA}, {kB});
  }
}

TEST_F(GpuStageTest, ALeaseInAFirstTurnIsPartOfIt) {
  make(TurnPolicy::kLease);
  start(kA, "a", 0);
  expect_switch(0, {}, {kA});
  start(kB, "b", 1);
  std::optional<Status> a;
  stage_->lease(kA, into(a), at(2));
  ASSERT_TRUE(a && a->ok()) << "it runs";
  expect_nothing(100);
  EXPECT_TRUE(stage_->yield(kA, at(100)).ok());
  expect_switch(100, {kA}, {kB});
}

TEST_F(GpuStageTest, AStartThatIsCutOffGoesOnWithoutALease) {
  make(TurnPolicy::kLease, s(60));
  start(kA, "a", 0);
  expect_switch(0, {}, {kA});
  works(kA, 0);
  stage_->needs(kA, {{some_device(1), 60 * kGiB}}, at(1));
  start(kB, "b", 1);
  stage_->tick(at(60));
  expect_switch(60, {kA}, {kB});
  EXPECT_TRUE(stage_->asks_by_calls(kA));
  EXPECT_TRUE(stage_->wants_reports(kA));
  waits(kA, 61);
  rests(kB, 62);
  stage_->needs(kB, {{some_device(1), 60 * kGiB}}, at(62));
  EXPECT_EQ(turn(kA, 63), "waits");
  // A lease that is given up, or a yield without one, changes nothing.
  std::optional<Status> vain;
  stage_->forget(stage_->lease(kA, into(vain), at(64)), at(65));
  EXPECT_TRUE(stage_->yield(kA, at(66)).ok());
  EXPECT_TRUE(stage_->asks_by_calls(kA));
  EXPECT_EQ(turn(kA, 67), "waits");
  stage_->tick(at(70));  // B has had no work for 8 s
  expect_switch(70, {kB}, {kA});
  // From its first lease on it has its turns by leases alone.
  std::optional<Status> a;
  stage_->lease(kA, into(a), at(80));
  EXPECT_FALSE(stage_->asks_by_calls(kA));
  EXPECT_FALSE(stage_->wants_reports(kA));
  EXPECT_TRUE(stage_->yield(kA, at(81)).ok());
  waits(kA, 82);
  EXPECT_EQ(turn(kA, 83), "runs") << "nobody asks for its place";
}

TEST_F(GpuStageTest, WhoeverPausesAGroupThatStartsEndsItsFirstTurn) {
  make(TurnPolicy::kDemand);
  start(kA, "a", 0);
  expect_switch(0, {}, {kA});
  start(kB, "b", 1);
  stage_->place(kA, Whereabouts::kPausedByOperator, at(2));
  EXPECT_FALSE(stage_->starts(kA));
  expect_switch(2, {}, {kB});
  // One that waits for its first turn does so after the operator's pause, too.
  start(kC, "c", 3);
  stage_->place(kC, Whereabouts::kPausedByOperator, at(4));
  EXPECT_TRUE(stage_->starts(kC));
  rests(kB, 5);
  expect_nothing(100);
  stage_->place(kC, Whereabouts::kPausedByStage, at(100));
  expect_switch(100, {kB}, {kC});
}

TEST_F(GpuStageTest, AHeldStageDecidesNothing) {
  make(TurnPolicy::kLease);
  stage_->hold(true);
  start(kA, "a", 0);
  expect_nothing(1);
  stage_->hold(false);
  stage_->tick(at(2));
  expect_switch(2, {}, {kA});
}

TEST_F(GpuStageTest, AGroupThatTurnsOutTooLargeIsLeftAlone) {
  make(TurnPolicy::kDemand);
  start(kA, "a", 0);
  expect_switch(0, {}, {kA});
  for (const double time : {1.0, 2.0}) {
    stage_->needs(kA, {{some_device(1), 79 * kGiB}}, at(time));
    EXPECT_EQ(turn(kA, time), "apart");
  }
  stage_->needs(kA, {{some_device(1), 20 * kGiB}}, at(3));
  EXPECT_EQ(turn(kA, 3), "starts");
}

TEST_F(GpuStageTest, ARuleSaysThatGroupsStartBesideOthers) {
  make(TurnPolicy::kDemand, {}, false);
  start(kA, "a", 0);
  EXPECT_FALSE(stage_->starts(kA));
  expect_nothing(100);
}

// ---- partial turns

TEST_F(GpuStageTest, OnlyTheTagsThatAreNeededLeave) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kRuns, 60);
  join(kB, "b", Whereabouts::kPausedByStage, 40);
  const TurnNeeds some = {{some_device(1), 12 * kGiB}};
  stage_->parts(kA, {{"kv", some}, {"workspace", some}, {"weights", some}}, at(0));
  std::optional<Status> b;
  stage_->lease(kB, into(b), at(1));
  ASSERT_TRUE(wanted_);
  EXPECT_THAT(wanted_->parts,
              ElementsAre(std::pair(kA, std::vector<std::string>{"kv", "workspace"})));
  EXPECT_THAT(wanted_->why, HasSubstr("of group 'a' only kv, workspace leaves"));
  stage_->place(kA, Whereabouts::kMoves, at(1));
  stage_->stays(kA, {{some_device(1), 36 * kGiB}}, at(2));
  expect_switch(2, {kA}, {kB});
  ASSERT_TRUE(b && b->ok());
  for (const GpuStage::GroupView& view : stage_->groups(at(2)))
    EXPECT_EQ(view.stays, view.id == kA ? 36 * kGiB : 0U);
}

TEST_F(GpuStageTest, WhatIsLeftLeavesForAThirdGroup) {
  make(TurnPolicy::kLease);
  join(kA, "a", Whereabouts::kPausedByStage, 60);
  stage_->stays(kA, {{some_device(1), 36 * kGiB}}, at(0));
  join(kB, "b", Whereabouts::kRuns, 40);
  join(kC, "c", Whereabouts::kPausedByStage, 30);
  std::optional<Status> b, c;
  stage_->lease(kB, into(b), at(1));
  stage_->lease(kC, into(c), at(2));
  ASSERT_TRUE(wanted_);
  EXPECT_THAT(wanted_->parts, IsEmpty());
  stage_->stays(kA, {}, at(3));
  expect_switch(3, {kA}, {kC});
  ASSERT_TRUE(c && c->ok());
  EXPECT_EQ(turn(kA, 3), "idle");
  EXPECT_EQ(turn(kB, 3), "runs");
}

}  // namespace
}  // namespace amem
