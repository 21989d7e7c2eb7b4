// Turns: a stage of one GPU, and groups whose ranks report their work.
#include <unistd.h>

#include <mutex>

#include "tests/unit/fixtures/log_heard.h"
#include "tests/unit/fixtures/swap_fixture.h"

namespace amem {
namespace {

constexpr pb_size_t kReports = amem_v1_SessionMessage_turn_reports_tag;

/// The texts of events of one kind, a line each.
class TextsHeard final : public EventSink {
 public:
  explicit TextsHeard(std::string kind) : kind_(std::move(kind)) {}
  void event(const v1::Event& e) override {
    if (e.kind() == kind_) text += e.text() + "\n";
  }
  void ended() override {}
  std::string text;

 private:
  std::string kind_;
};

class BrokerTurnsTest : public SwapTest {
 protected:
  virtual TurnPolicy policy() const { return TurnPolicy::kDemand; }
  void configure(Config& with) const override {
    StageSettings stage;
    stage.name = "night";
    stage.devices = {"0"};
    stage.margin = 2 * kMiB;
    stage.min_residency = Duration{};
    stage.rules.policy = policy();
    stage.rules.grace = milliseconds(20);
    stage.rules.idle = milliseconds(200);
    stage.rules.slice = milliseconds(400);
    stage.rules.start_idle = std::chrono::hours(1);
    with.stages = {stage};
  }
  /// Group `name` of one rank, with so much memory on GPU 0.
  void make_member(ScriptedRank& rank, Group& group, std::uint64_t scratch = 80 * kMiB) {
    make(rank, group, scratch, 2);
    Stages::Change change;
    change.stage = "night";
    const Status status = on_loop([&] { return broker->set_turn(Caller{}, group.name, change); });
    ASSERT_TRUE(status.ok()) << status.text();
  }
  void pause_for_stage(const std::string& name) { ASSERT_TRUE(pause(name).ok()); }
  /// It does not fit now, so its stage has it from now on.
  void let_go(const std::string& name) {
    expect_trims();
    const Status status = resume(name);
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_NE(status.text().find("Stage 'night' resumes the group at its turn"), std::string::npos)
        << status.text();
    EXPECT_TRUE(eventually([&] { return turn(name).what != "paused"; }));
  }
  struct Turn {
    std::string what, call;
    std::uint64_t needs = 0;
  };
  Turn turn(const std::string& name) {
    v1::TurnsResponse turns;
    EXPECT_TRUE(on_loop([&] { return broker->stages().report(Caller{}, "", turns); }).ok());
    for (const v1::TurnInfo& each : turns.stages(0).groups())
      if (each.group() == name) return {each.turn(), each.call(), each.needs_bytes()};
    return {"none", ""};
  }
  v1::StageInfo stage() {
    v1::TurnsResponse turns;
    EXPECT_TRUE(on_loop([&] { return broker->stages().report(Caller{}, "night", turns); }).ok());
    return turns.stages(0);
  }
  /// The text with which a lease is refused at once.
  std::string refusal_of_lease(const std::string& name) {
    std::optional<Status> answer;
    on_loop(
        [&] { return broker->lease(Caller{}, name, {}, [&](const Status& is) { answer = is; }); });
    if (!answer) return "it waits";
    EXPECT_EQ(answer->code(), Code::kFailedPrecondition);
    return answer->text();
  }
  bool needs_are_known(const std::string& name) {
    return eventually([&] { return turn(name).needs > 80 * kMiB; });
  }
  /// Both groups are in the stage. Train runs, and rollout is out.
  void begin_with_train() {
    make_member(b, rollout);
    pause_for_stage("rollout");
    make_member(a, train);
    let_go("rollout");
    ASSERT_TRUE(needs_are_known("train"));
    ASSERT_TRUE(needs_are_known("rollout"));
  }
  static void report(ScriptedRank& rank, bool waiting, bool worked) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_work_tag;
    message.body.work.waiting = waiting;
    message.body.work.worked = worked;
    if (waiting) set_text(message.body.work.call, "cuLaunchKernel");
    rank.send(message);
  }

  Group third{"third", {}, 50};
};

TEST_F(BrokerTurnsTest, TheTimeOfEachGroupCounts) {
  begin_with_train();
  const auto times = [&] {
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> there_and_ran;
    const v1::StageInfo is = stage();
    for (const v1::TurnInfo& each : is.groups())
      there_and_ran[each.group()] = {each.there_ms(), each.ran_ms()};
    return there_and_ran;
  };
  ASSERT_TRUE(
      eventually([&] { return times()["train"].first > 10 && times()["rollout"].first > 10; }));
  EXPECT_GT(times()["train"].second, 10U);
  EXPECT_EQ(times()["rollout"].second, 0U) << "it has been out since it came";
  ASSERT_TRUE(eventually([&] { return times()["rollout"].first > 500; }));
  Stages::Change change;
  for (const char* name : {kNoStage.data(), "night"}) {
    change.stage = name;
    ASSERT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "rollout", change); }).ok());
  }
  EXPECT_LT(times()["rollout"].first, 500U) << "it has come anew";
}

TEST_F(BrokerTurnsTest, ARankThatHasSaidNothingForLongIsAskedOnce) {
  make_member(a, train);
  settle();
  report(a, false, true);
  settle();
  const auto asked_after = [&](Duration time) {
    const Time until = Clock::now() + time;
    const int before = a.received[kReports];
    EXPECT_TRUE(eventually([&] { return Clock::now() >= until; }));
    return a.received[kReports] - before;
  };
  EXPECT_EQ(asked_after(seconds(4)), 0) << "it may still work";
  EXPECT_EQ(asked_after(seconds(3)), 1);
  EXPECT_EQ(asked_after(seconds(7)), 0) << "it has answered that it does not work";
}

TEST_F(BrokerTurnsTest, ALaterRankThatNamesTheStageBringsItsGroupIn) {
  const auto heard = std::make_shared<TextsHeard>("error");
  on_loop([&] { broker->events().subscribe(Caller{}, "train", heard); });
  join(a, "train");
  EXPECT_EQ(turn("train").what, "none");
  b.origin.stage = "night";
  join(b, "train", 1);
  EXPECT_NE(turn("train").what, "none");
  on_loop([&] { EXPECT_EQ(heard->text, ""); });
}

TEST_F(BrokerTurnsTest, ARankThatNamesAnotherStageChangesNothingAndSomebodyHears) {
  const auto heard = std::make_shared<TextsHeard>("error");
  on_loop([&] { broker->events().subscribe(Caller{}, "train", heard); });
  join(a, "train");
  b.origin.stage = "day";
  join(b, "train", 1);
  on_loop([&] {
    EXPECT_EQ(heard->text,
              "there is no stage 'day', so the group takes no turns. This node's stages are "
              "'night'\n");
  });
  EXPECT_EQ(turn("train").what, "none");
  make_member(c, third);
  std::optional<LogHeard> log;
  on_loop([&] { log.emplace(); });
  d.origin.stage = "day";
  join(d, "third", 1);
  on_loop([&] {
    EXPECT_TRUE(log->has("names the stage 'day', but the group is in stage 'night'"))
        << log->text();
    log.reset();
  });
  EXPECT_NE(turn("third").what, "none");
}

TEST_F(BrokerTurnsTest, WhoCannotStartAGroupIsTold) {
  Caller caller;
  const auto refusal = [&](const std::string& name, const std::string& in) {
    std::optional<Status> answer;
    on_loop([&] {
      return broker->start_group(caller, name, in, {}, {}, [&](const Status& is) { answer = is; });
    });
    return answer.value_or(Status());
  };
  EXPECT_EQ(refusal("train", "night").text(), "only a process of this node can start a group here");
  caller.account = on_loop([&] { return broker->accounts().of(Owner{::getuid(), ""}); });
  EXPECT_EQ(refusal("train", "day").code(), Code::kNotFound);
  EXPECT_EQ(refusal("train", "day").text(),
            "there is no stage 'day'. This node's stages are 'night'");
  EXPECT_EQ(status().groups_size(), 0);
}

TEST_F(BrokerTurnsTest, ACallThatWaitsBringsItsGroupBack) {
  make_member(b, rollout);
  pause_for_stage("rollout");
  make_member(a, train);
  settle();
  EXPECT_EQ(a.received[kReports], 1) << "the policy needs them";
  let_go("rollout");
  ASSERT_TRUE(needs_are_known("train"));
  ASSERT_TRUE(needs_are_known("rollout"));
  report(a, false, true);
  report(b, true, false);
  ASSERT_TRUE(eventually([&] { return turn("rollout").what == "waits"; }));
  EXPECT_EQ(turn("rollout").call, "cuLaunchKernel");
  std::this_thread::sleep_for(milliseconds(150));
  report(a, false, false);
  const Time idle_from = Clock::now();
  ASSERT_TRUE(eventually([&] { return group("rollout").state() == kRunning; }));
  EXPECT_GE(Clock::now() - idle_from, milliseconds(200)) << "it may have more work at once";
  EXPECT_EQ(group("train").state(), kPaused);
  EXPECT_TRUE(group("train").paused_by_stage());
  expect_intact(b, rollout);
  report(b, false, true);
  report(a, true, false);
  ASSERT_TRUE(eventually([&] { return turn("train").what == "waits"; }));
  report(b, false, false);
  ASSERT_TRUE(eventually([&] { return group("train").state() == kRunning; }));
  expect_intact(a, train);
}

TEST_F(BrokerTurnsTest, AnOperatorsPauseWinsOverACallThatWaits) {
  make_member(b, rollout);
  pause_for_stage("rollout");
  make_member(a, train);
  ASSERT_TRUE(needs_are_known("train"));
  report(b, true, false);
  report(a, false, false);
  std::this_thread::sleep_for(milliseconds(600));
  settle();
  expect_states(kRunning, kPaused);
  EXPECT_EQ(turn("rollout").what, "paused");
  ASSERT_TRUE(pause("train").ok());
  settle();
  expect_states(kPaused, kPaused);
}

TEST_F(BrokerTurnsTest, AnOperatorMayPauseWhatItsStageHasPaused) {
  ASSERT_NO_FATAL_FAILURE(begin_with_train());
  ASSERT_TRUE(group("rollout").paused_by_stage());
  const Status paused = pause("rollout");
  EXPECT_TRUE(paused.ok()) << paused.text();
  EXPECT_FALSE(group("rollout").paused_by_stage());
  EXPECT_EQ(turn("rollout").what, "paused");
}

TEST_F(BrokerTurnsTest, AGroupThatLeavesTheStageReportsNoMore) {
  make_member(a, train);
  settle();
  EXPECT_EQ(a.received[kReports], 1);
  Stages::Change change;
  change.stage = "";
  ASSERT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "train", change); }).ok());
  settle();
  EXPECT_EQ(a.received[kReports], 2);
  EXPECT_EQ(turn("train").what, "none");
  report(a, true, false);  // one that was on its way
  settle();
  EXPECT_EQ(group("train").state(), kRunning);
}

TEST_F(BrokerTurnsTest, ALaterRankThatNamesTheStageDoesNotBringBackWhatWasTakenOut) {
  make_member(a, train);
  Stages::Change change;
  change.stage = kNoStage;
  ASSERT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "train", change); }).ok());
  std::optional<LogHeard> log;
  on_loop([&] { log.emplace(); });
  b.origin.stage = "night";
  join(b, "train", 1);
  on_loop([&] {
    EXPECT_TRUE(log->has("names the stage 'night', but the group was taken out of its stage"))
        << log->text();
    log.reset();
  });
  EXPECT_EQ(turn("train").what, "none");
}

TEST_F(BrokerTurnsTest, WhatAnOperatorHasSetHoldsAgainstAllWhateverElseTheOwnerSets) {
  make_member(a, train);
  Stages::Change change;
  change.longest_wait = seconds(1);
  ASSERT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "train", change); }).ok());
  const auto caller = [&](uid_t uid) {
    Caller one;
    one.operates = false;
    one.account = broker->accounts().of(Owner{uid, ""});
    return one;
  };
  Stages::Change of_owner;
  of_owner.leave_first = {"scratch"};
  const Status set =
      on_loop([&] { return broker->set_turn(caller(::getuid()), "train", of_owner); });
  ASSERT_TRUE(set.ok()) << set.text();
  EXPECT_EQ(on_loop([&] { return broker->stages().may_begin(caller(4711), "job", "night"); })
                .status()
                .code(),
            Code::kFailedPrecondition)
      << "it may keep its turn without limit";
}

TEST_F(BrokerTurnsTest, AnotherOwnersTurnsAreNotToBeSet) {
  make_member(a, train);
  Caller other;
  other.operates = false;
  other.account = on_loop([&] { return broker->accounts().of(Owner{4711, ""}); });
  Stages::Change change;
  change.priority = 7;
  EXPECT_EQ(on_loop([&] { return broker->set_turn(other, "train", change); }).code(),
            Code::kPermissionDenied);
  other.sees_all = false;
  EXPECT_EQ(on_loop([&] { return broker->set_turn(other, "train", change); }).code(),
            Code::kNotFound);
  change.priority = 1000;
  EXPECT_EQ(on_loop([&] { return broker->set_turn(Caller{}, "train", change); }).code(),
            Code::kInvalidArgument);
}

TEST_F(BrokerTurnsTest, TagsThatLeaveFirstAreNamesEachOnce) {
  make_member(a, train);
  const auto set = [&](std::vector<std::string> tags) {
    Stages::Change change;
    change.leave_first = std::move(tags);
    return on_loop([&] { return broker->set_turn(Caller{}, "train", change); });
  };
  EXPECT_TRUE(set({"kv", std::string(sizeof(amem_v1_Create::tag) - 1, 't')}).ok());
  for (const std::string& wrong : {std::string(), std::string(sizeof(amem_v1_Create::tag), 't'),
                                   std::string(2 * sizeof(amem_v1_Create::tag), 't')})
    EXPECT_EQ(set({wrong}).code(), Code::kInvalidArgument) << wrong;
  EXPECT_EQ(set({"kv", "kv"}).text(), "tag 'kv' is named twice");
  EXPECT_EQ(set(std::vector<std::string>(1000, "kv")).code(), Code::kInvalidArgument);
}

TEST_F(BrokerTurnsTest, LeasesAreForStagesOfLeases) {
  make_member(a, train);
  make(b, rollout, 8 * kMiB, 2);
  EXPECT_NE(refusal_of_lease("rollout").find("group 'rollout' is in no stage. Start it with"),
            std::string::npos);
  const std::string text = "stage 'night' has the policy demand. Leases require the policy lease";
  EXPECT_EQ(refusal_of_lease("train"), text);
  EXPECT_EQ(on_loop([&] { return broker->yield(Caller{}, "train"); }).text(), text);
  EXPECT_NE(on_loop([&] { return broker->yield(Caller{}, "rollout"); })
                .text()
                .find("group 'rollout' is in no stage"),
            std::string::npos);
}

TEST_F(SwapTest, WhereThereIsNoStageARefusalSaysHowToGetOne) {
  make(a, train, 8 * kMiB, 2);
  std::string lease;
  on_loop([&] {
    return broker->lease(Caller{}, "train", {}, [&](const Status& is) { lease = is.text(); });
  });
  const std::string names = "This node has no stages. Configure [stage.NAME] in amemd.toml";
  EXPECT_NE(lease.find(names), std::string::npos) << lease;
  EXPECT_EQ(on_loop([&] { return broker->yield(Caller{}, "train"); }).text(),
            "group 'train' is in no stage. " + names);
  Stages::Change change;
  change.stage = "night";
  EXPECT_EQ(on_loop([&] { return broker->set_turn(Caller{}, "train", change); }).text(),
            "there is no stage 'night'. " + names);
}

TEST_F(BrokerTurnsTest, AStageThatIsNotThereIsRefusedWithThoseThatAre) {
  make(a, train, 8 * kMiB, 2);
  Stages::Change change;
  change.stage = "day";
  const Status refused = on_loop([&] { return broker->set_turn(Caller{}, "train", change); });
  EXPECT_EQ(refused.code(), Code::kNotFound);
  EXPECT_EQ(refused.text(), "there is no stage 'day'. This node's stages are 'night'");
}

TEST_F(BrokerTurnsTest, AGroupThatTakesNoTurnsIsTroubleAndOneThatTakesThemAgainIsNews) {
  const auto errors = std::make_shared<TextsHeard>("error");
  const auto news = std::make_shared<TextsHeard>("turn");
  on_loop([&] {
    broker->events().subscribe(Caller{}, "train", errors);
    broker->events().subscribe(Caller{}, "train", news);
  });
  make_member(a, train);
  const std::uint64_t elsewhere = a.create(gpu(1), 2 * kMiB);
  ASSERT_TRUE(eventually([&] { return turn("train").what == "apart"; }));
  on_loop([&] {
    EXPECT_EQ(errors->text.rfind("takes no turns in stage 'night': group 'train' uses GPU ", 0), 0U)
        << errors->text;
    EXPECT_NE(errors->text.find(". It stays as it is\n"), std::string::npos) << errors->text;
    EXPECT_EQ(news->text, "");
    errors->text.clear();
  });
  a.free(elsewhere);
  ASSERT_TRUE(eventually([&] { return turn("train").what != "apart"; }));
  on_loop([&] {
    EXPECT_EQ(errors->text, "");
    EXPECT_EQ(news->text, "takes turns in stage 'night' again\n");
  });
}

TEST_F(BrokerTurnsTest, AStageResumesNoGroupThatTakesNoTurns) {
  make_member(a, train);
  ASSERT_NE(a.create(gpu(1), 2 * kMiB), 0U);
  ASSERT_TRUE(eventually([&] { return turn("train").what == "apart"; }));
  ASSERT_TRUE(pause("train").ok());
  make(b, rollout, 80 * kMiB, 3);
  expect_trims();
  const Status status = resume("train");
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.text();
  EXPECT_EQ(status.text().find("Stage 'night'"), std::string::npos) << status.text();
}

TEST_F(BrokerTurnsTest, AnOperatorsCommandWaitsForTheSwitchOfItsGroup) {
  ASSERT_NO_FATAL_FAILURE(begin_with_train());
  a.moods[kSave] = Mood::kLate;
  report(b, true, false);
  report(a, false, false);
  ASSERT_TRUE(eventually([&] { return a.received[kSave] > 0; }));
  const auto command = [&](Duration timeout) {
    auto watcher = std::make_shared<Watcher>();
    on_loop([&] {
      broker->start_operation(Caller{}, Task(Operation::kPause), {"rollout"}, timeout, watcher);
    });
    return watcher;
  };
  const Status late = complete(command(milliseconds(50)));
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(late.text(),
            "stage 'night' has been switching group 'rollout' for all of 50ms, and the operation "
            "waited for the end of that. Nothing else has happened");
  const auto waiting = command({});
  settle();
  EXPECT_FALSE(waiting->done());
  EXPECT_TRUE(stage().switching());
  EXPECT_EQ(stage().last().us(), 0U);
  EXPECT_EQ(turn("train").what, "leaves");
  Stages::Change change;
  change.stage = kNoStage;
  EXPECT_EQ(on_loop([&] { return broker->set_turn(Caller{}, "rollout", change); }).text(),
            "stage 'night' switches group 'rollout' now. Try again");
  a.moods.clear();
  a.catch_up();
  EXPECT_TRUE(complete(waiting).ok());
  EXPECT_EQ(group("rollout").state(), kPaused);
  EXPECT_FALSE(group("rollout").paused_by_stage());
}

class BrokerStageUsersTest : public BrokerTurnsTest {
 protected:
  void configure(Config& with) const override {
    BrokerTurnsTest::configure(with);
    with.stages[0].users = {1001, 1003};
    with.stages[0].groups = {2001, 2003};
    with.stages.push_back(with.stages[0]);
    with.stages[1].name = "users";
    with.stages[1].devices = {"1"};
    with.stages[1].groups.clear();
  }
  /// Whether this owner's group may begin there.
  Status may_begin(const Owner& owner, const std::vector<gid_t>& groups,
                   const std::string& stage = "night", bool operates = false) {
    return on_loop([&] {
      Caller caller;
      caller.account = broker->accounts().of(owner);
      caller.groups = groups;
      caller.operates = operates;
      return broker->stages().may_begin(caller, "job", stage).status();
    });
  }
};

TEST_F(BrokerStageUsersTest, OnlyThoseThatItNamesMayJoin) {
  const Status refused = may_begin({1002, ""}, {2002, 2004});
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_EQ(refused.text(),
            "stage 'night' is not for uid 1002. The settings stage.night.users and "
            "stage.night.groups say whose groups it takes");
  for (const uid_t user : {1001U, 1003U}) EXPECT_TRUE(may_begin({user, ""}, {2002}).ok()) << user;
  for (const gid_t group : {2001U, 2003U})
    EXPECT_TRUE(may_begin({1002, ""}, {2002, group}).ok()) << group;
  EXPECT_TRUE(may_begin({1002, ""}, {}, "night", true).ok()) << "an operator starts it";
}

TEST_F(BrokerStageUsersTest, WhereItNamesUsersOnlyNoUnixGroupIsAmongThem) {
  EXPECT_TRUE(may_begin({1001, ""}, {}, "users").ok());
  EXPECT_EQ(may_begin({1002, ""}, {2001}, "users").code(), Code::kPermissionDenied);
}

TEST_F(BrokerStageUsersTest, WhoIsInACompartmentIsNobodyThatItNames) {
  EXPECT_EQ(may_begin({1001, "pod"}, {2001}).code(), Code::kPermissionDenied);
}

class BrokerStartsTest : public BrokerTurnsTest {
 protected:
  /// A process asks to start group `name`.
  std::shared_ptr<std::optional<Status>> ask(const std::string& name, Duration timeout = {}) {
    auto answer = std::make_shared<std::optional<Status>>();
    number = on_loop([&] {
      Caller caller;
      caller.account = broker->accounts().of(Owner{::getuid(), ""});
      return broker->start_group(caller, name, "night", {}, timeout,
                                 [this, answer](const Status& is) {
                                   const std::lock_guard lock(mutex);
                                   *answer = is;
                                 });
    });
    return answer;
  }
  bool told(const std::shared_ptr<std::optional<Status>>& answer, Code code = Code::kOk) {
    return eventually([&] {
      const std::lock_guard lock(mutex);
      return answer->has_value() && (*answer)->code() == code;
    });
  }

  /// Of this user's descriptors, a start that waits has one.
  std::uint64_t descriptors() {
    return on_loop([&] {
      return broker->accounts().of(Owner{::getuid(), ""})->used(Resource::kDescriptors);
    });
  }

  Stages::WaitId number = 0;
  std::mutex mutex;
};

TEST_F(BrokerStartsTest, AGroupHasItsTurnBeforeItsFirstRank) {
  const auto heard = std::make_shared<TextsHeard>("turn");
  on_loop([&] { broker->events().subscribe(Caller{}, "train", heard); });
  ASSERT_TRUE(told(ask("train")));
  EXPECT_EQ(turn("train").what, "starts");
  const auto second = ask("rollout");
  ASSERT_TRUE(eventually([&] { return turn("rollout").what == "waits"; }));
  EXPECT_EQ(turn("rollout").call, "its start");
  EXPECT_EQ(turn("rollout").needs, 0U) << "it has no memory yet";
  const auto late = ask("third", milliseconds(20));
  EXPECT_TRUE(told(late, Code::kDeadlineExceeded));
  EXPECT_EQ((*late)->text(),
            "group 'third' has not got its first turn in stage 'night' within 20ms. `amemctl "
            "turns` shows who runs");
  const auto unnamed = ask(".third");
  ASSERT_TRUE(told(unnamed, Code::kInvalidArgument));
  EXPECT_EQ((*unnamed)->text(),
            "\".third\" is not a valid group name. Use 1 to 63 of the characters A-Z a-z 0-9 . _ "
            "-, and do not begin with . or -");
  EXPECT_EQ(turn("third").what, "none");
  const std::uint64_t before = descriptors();
  const auto gone = ask("third");
  EXPECT_EQ(descriptors(), before + 1);
  on_loop([&] { broker->stages().forget(number); });
  EXPECT_TRUE(told(gone, Code::kCancelled));
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(turn("third").what, "none");
  // Its first rank takes its place, and it runs.
  make(a, train, 80 * kMiB, 2);
  EXPECT_EQ(turn("train").what, "starts");
  EXPECT_EQ(group("train").state(), kRunning);
  settle();
  EXPECT_EQ(a.received[kReports], 1);
  EXPECT_TRUE(told(ask("train"))) << "its other ranks do not wait";
  ASSERT_TRUE(needs_are_known("train"));
  on_loop([&] {
    EXPECT_TRUE(broker->yield(Caller{}, "train").ok());
    EXPECT_EQ(broker->yield(Caller{}, "train").text(),
              "stage 'night' has the policy demand. Leases require the policy lease")
        << "it has no first turn any more";
  });
  report(a, false, false);
  ASSERT_TRUE(told(second)) << "train has started";
  on_loop([&] {
    EXPECT_EQ(heard->text,
              "it gets its turn in stage 'night'\nits first turn in stage 'night' has ended\nits "
              "turn in stage 'night' ends\n");
  });
  EXPECT_EQ(group("train").state(), kPaused);
  make(b, rollout, 80 * kMiB, 2);
  EXPECT_EQ(group("rollout").state(), kRunning);
}

TEST_F(BrokerStartsTest, ARankTakesThePlaceThatItsJobHasAskedForWithoutItsLaunchersPart) {
  ASSERT_TRUE(told(ask("train:5")));
  join(a, "train:6");
  EXPECT_EQ(turn("train:5").what, "starts") << "another job";
  join(b, "train:5.0");
  EXPECT_EQ(turn("train:5.0").what, "starts");
  EXPECT_EQ(turn("train:5").what, "none");
  EXPECT_EQ(group("train:5.0").state(), kRunning);
}

TEST_F(BrokerStartsTest, AFirstTurnThatNoRankHasUsedIsDueAgainWhenACallWaits) {
  const auto heard = std::make_shared<TextsHeard>("turn");
  on_loop([&] { broker->events().subscribe(Caller{}, "train", heard); });
  ASSERT_TRUE(told(ask("train")));
  ASSERT_TRUE(on_loop([&] { return broker->yield(Caller{}, "train"); }).ok());
  ASSERT_TRUE(eventually([&] { return group("train").state() == kPaused; }));
  join(a, "train");
  report(a, true, false);
  ASSERT_TRUE(eventually([&] { return group("train").state() == kRunning; }));
  settle();
  on_loop([&] {
    EXPECT_EQ(heard->text,
              "it gets its turn in stage 'night'\n"
              "its first turn in stage 'night' has ended: no rank has come. It waits for another "
              "one when a call of its first rank waits\n"
              "its turn in stage 'night' ends\n"
              "it gets its turn in stage 'night'\n");
  });
}

TEST_F(BrokerStartsTest, WhoseFirstRankNamesTheStageWaitsForItsTurn) {
  make_member(a, train);
  report(a, false, true);
  settle();
  b.origin.stage = "night";
  join(b, "rollout");
  EXPECT_TRUE(b.gate_shut());
  EXPECT_EQ(group("rollout").state(), kPaused);
  EXPECT_EQ(turn("rollout").what, "waits");
}

TEST_F(BrokerStartsTest, OneThatAnOperatorCouldNotResumeWaitsForItsStartAgain) {
  make(c, third, 80 * kMiB, 2);
  ASSERT_TRUE(pause("third").ok());
  ASSERT_TRUE(told(ask("train")));
  const auto second = ask("rollout");
  ASSERT_TRUE(eventually([&] { return turn("rollout").what == "waits"; }));
  ASSERT_TRUE(pause("rollout").ok());
  ASSERT_TRUE(eventually([&] { return turn("rollout").what == "paused"; }));
  join(d, "other");
  ASSERT_NE(d.create(gpu(0), 100 * kMiB), 0U);
  expect_trims();
  const Status resumed =
      complete(begin(Operation::kResume, std::vector<std::string>{"rollout", "third"}));
  EXPECT_EQ(resumed.code(), Code::kResourceExhausted) << resumed.text();
  EXPECT_TRUE(eventually([&] { return turn("rollout").what == "waits"; })) << turn("rollout").what;
  EXPECT_EQ(turn("rollout").call, "its start");
}

TEST_F(BrokerStartsTest, OneThatIsTakenOutOfItsStageMayStart) {
  ASSERT_TRUE(told(ask("train")));
  const auto second = ask("rollout");
  ASSERT_TRUE(eventually([&] { return turn("rollout").what == "waits"; }));
  Stages::Change change;
  change.stage = kNoStage;
  ASSERT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "rollout", change); }).ok());
  EXPECT_TRUE(told(second));
  make(b, rollout, 80 * kMiB, 2);
  EXPECT_EQ(group("rollout").state(), kRunning);
}

class BrokerStartsByLeaseTest : public BrokerStartsTest {
 protected:
  TurnPolicy policy() const override { return TurnPolicy::kLease; }
};

TEST_F(BrokerStartsByLeaseTest, AFirstTurnNeedsNoLease) {
  ASSERT_TRUE(told(ask("train")));
  EXPECT_EQ(refusal_of_lease("train"),
            "group 'train' has no rank yet, and its first turn needs no lease");
}

class BrokerLeasesTest : public BrokerTurnsTest {
 protected:
  TurnPolicy policy() const override { return TurnPolicy::kLease; }
  Status lease(const std::string& name, Duration timeout = seconds(5),
               const std::function<void()>& meanwhile = {}) {
    auto answer = std::make_shared<std::optional<Status>>();
    const auto mutex = std::make_shared<std::mutex>();
    on_loop([&] {
      return broker->lease(Caller{}, name, timeout, [answer, mutex](const Status& is) {
        const std::lock_guard lock(*mutex);
        *answer = is;
      });
    });
    if (meanwhile) meanwhile();
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(*mutex);
      return answer->has_value();
    }));
    return answer->value_or(Status(Code::kUnknown, "no answer"));
  }
};

TEST_F(BrokerLeasesTest, AGroupRunsFromItsLeaseToItsYield) {
  ASSERT_NO_FATAL_FAILURE(begin_with_train());
  EXPECT_TRUE(lease("rollout").ok());
  expect_states(kPaused, kRunning);
  expect_intact(b, rollout);
  const Status late = lease("train", milliseconds(300));
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(late.text(),
            "the group has not got its turn within 300ms. `amemctl turns` shows who runs");
  EXPECT_TRUE(on_loop([&] { return broker->yield(Caller{}, "rollout"); }).ok());
  a.moods[kLoad] = Mood::kFailing;
  EXPECT_EQ(lease("train", milliseconds(300)).code(), Code::kDeadlineExceeded);
  a.moods.clear();
  EXPECT_TRUE(lease("train").ok());
  expect_intact(a, train);
  settle();
  const v1::StageInfo is = stage();
  EXPECT_GE(is.failed_switches(), 1U);
  EXPECT_GE(is.switches(), is.failed_switches() + 2);
  EXPECT_NE(is.last().why(), "");
}

TEST_F(BrokerLeasesTest, AStageReportsItsGroupsAndItsLastSwitch) {
  ASSERT_NO_FATAL_FAILURE(begin_with_train());
  EXPECT_FALSE(stage().has_last());
  Stages::Change change;
  change.weight = 3;
  change.priority = -2;
  change.leave_first = {"scratch"};
  change.return_order = {"kv", "heap"};
  ASSERT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "rollout", change); }).ok());
  ASSERT_TRUE(lease("rollout").ok());
  settle();
  const v1::StageInfo is = stage();
  EXPECT_EQ(is.name(), "night");
  EXPECT_EQ(is.policy(), "lease");
  ASSERT_EQ(is.devices_size(), 1);
  EXPECT_EQ(is.devices(0).uuid(), to_string(gpu(0)));
  EXPECT_EQ(is.devices(0).ordinal(), 0);
  EXPECT_EQ(is.devices(0).total_bytes(), kDeviceMemory);
  EXPECT_EQ(is.devices(0).margin_bytes(), 2 * kMiB);
  ASSERT_EQ(is.groups_size(), 2);
  std::map<std::string, v1::TurnInfo> groups;
  for (const v1::TurnInfo& each : is.groups()) groups[each.group()] = each;
  const v1::TurnInfo& rollouts = groups["rollout"];
  EXPECT_EQ(rollouts.turn(), "runs");
  EXPECT_TRUE(rollouts.leased());
  EXPECT_EQ(rollouts.weight(), 3U);
  EXPECT_EQ(rollouts.priority(), -2);
  EXPECT_EQ(rollouts.longest_wait_ms(), 0U);
  EXPECT_EQ(rollouts.leave_first_size(), 1);
  EXPECT_EQ(rollouts.leave_first(0), "scratch");
  ASSERT_EQ(rollouts.return_order_size(), 2);
  EXPECT_EQ(rollouts.return_order(1), "heap");
  EXPECT_EQ(groups["train"].turn(), "idle");
  EXPECT_FALSE(groups["train"].leased());
  EXPECT_EQ(groups["train"].weight(), 1U);
  EXPECT_EQ(groups["train"].stays_bytes(), 0U);
  EXPECT_EQ(is.switches(), 1U);
  EXPECT_EQ(is.failed_switches(), 0U);
  EXPECT_FALSE(is.switching());
  ASSERT_EQ(is.last().out_groups_size(), 1);
  EXPECT_EQ(is.last().out_groups(0), "train");
  ASSERT_EQ(is.last().in_groups_size(), 1);
  EXPECT_EQ(is.last().in_groups(0), "rollout");
  EXPECT_GT(is.last().us(), 0U);
  EXPECT_EQ(is.last().us(), is.switching_us());
  EXPECT_EQ(is.last().code(), 0U);
  v1::ListHistoryResponse past;
  ASSERT_TRUE(on_loop([&] { return broker->reports().history(Caller{}, {}, past); }).ok());
  EXPECT_EQ(past.operations().rbegin()->stage(), "night");
  EXPECT_EQ(past.operations().rbegin()->why(), is.last().why());
  // To whom another owner's groups are not shown.
  Caller other;
  other.operates = other.sees_all = false;
  other.account = on_loop([&] { return broker->accounts().of(Owner{4711, ""}); });
  v1::TurnsResponse turns;
  EXPECT_TRUE(on_loop([&] { return broker->stages().report(other, "", turns); }).ok());
  EXPECT_EQ(turns.stages(0).groups_size(), 0);
  EXPECT_FALSE(turns.stages(0).has_last());
  EXPECT_EQ(on_loop([&] { return broker->stages().report(other, "day", turns); }).text(),
            "there is no stage 'day'. This node's stages are 'night'");
}

TEST_F(BrokerLeasesTest, WhoWaitsForALeaseOfAGroupThatIsTakenOutIsTold) {
  ASSERT_NO_FATAL_FAILURE(begin_with_train());
  ASSERT_TRUE(lease("train").ok());
  Stages::Change change;
  change.stage = kNoStage;
  const Status left = lease("rollout", seconds(5), [&] {
    EXPECT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "rollout", change); }).ok());
  });
  EXPECT_EQ(left.code(), Code::kAborted);
  EXPECT_EQ(left.text(), "group 'rollout' has left its stage");
  EXPECT_EQ(turn("train").what, "runs");
  EXPECT_TRUE(stage().groups(0).leased());
  for (const char* name : {kNoStage.data(), "night"}) {
    change.stage = name;
    EXPECT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "train", change); }).ok());
  }
  ASSERT_EQ(stage().groups_size(), 1);
  EXPECT_FALSE(stage().groups(0).leased()) << "its lease was of before";
}

TEST_F(BrokerLeasesTest, AnAmemdThatEndsGivesNoLease) {
  ASSERT_NO_FATAL_FAILURE(begin_with_train());
  ASSERT_TRUE(lease("train").ok());
  const Status waited = lease("rollout", seconds(5), [&] {
    on_loop([&] { broker->stages().close({Code::kUnavailable, "amemd is ending"}); });
  });
  EXPECT_EQ(waited.text(), "amemd is ending");
  const Status refused = lease("rollout");
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_EQ(refused.text(), "amemd is ending. Ask the next amemd");
}

TEST_F(BrokerLeasesTest, WhoWaitsForALeaseKeepsNoGroupThatHasEnded) {
  ASSERT_NO_FATAL_FAILURE(begin_with_train());
  ASSERT_TRUE(lease("train").ok());
  const Status ended = lease("rollout", seconds(5), [&] { b.die(); });
  EXPECT_EQ(ended.code(), Code::kAborted);
  EXPECT_EQ(ended.text(), "group 'rollout' has ended. Ask again when it is there");
  EXPECT_EQ(status().groups_size(), 1);
}

TEST_F(BrokerLeasesTest, AGroupThatTakesNoTurnsGetsNoLeaseAndIsToldWhy) {
  make_member(a, train);
  ASSERT_NE(a.create(gpu(1), 2 * kMiB), 0U);
  ASSERT_TRUE(eventually([&] { return turn("train").what == "apart"; }));
  const Status status = lease("train");
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.text().rfind("group 'train' takes no turns: group 'train' uses GPU ", 0), 0U)
      << status.text();
}

class BrokerSlicesTest : public BrokerTurnsTest {
 protected:
  TurnPolicy policy() const override { return TurnPolicy::kSlice; }
};

TEST_F(BrokerSlicesTest, WhatAPartOfAGroupCostsIsNotWhatTheGroupCosts) {
  ASSERT_NO_FATAL_FAILURE(begin_with_train());
  ASSERT_TRUE(pause("train").ok());
  ASSERT_TRUE(resume("train").ok());
  Stages::Change change;
  change.leave_first = {"scratch"};
  ASSERT_TRUE(on_loop([&] { return broker->set_turn(Caller{}, "train", change); }).ok());
  a.received.clear();
  a.moods[kRelease] = Mood::kLate;
  report(a, false, false);
  report(b, true, false);
  ASSERT_TRUE(eventually([&] { return a.received[kRelease] == 1; }));
  std::this_thread::sleep_for(seconds(3));
  a.catch_up();
  ASSERT_TRUE(eventually([&] { return turn("rollout").what == "runs"; }));
  EXPECT_EQ(group("train").resident_bytes(), 4 * kMiB) << "the rest has not left";
  // Rollout's part of that switch counts three times, because it has waited.
  change.longest_wait = seconds(12);
  const Status promised = on_loop([&] { return broker->set_turn(Caller{}, "train", change); });
  EXPECT_TRUE(promised.ok()) << promised.text();
  EXPECT_TRUE(group("train").paused_by_stage());
  ASSERT_TRUE(pause("train").ok());
  EXPECT_EQ(group("train").resident_bytes(), 0U) << "an operator wants all of it to leave";
  EXPECT_FALSE(group("train").paused_by_stage());
}

TEST_F(BrokerSlicesTest, ThreeGroupsGoAround) {
  make_member(c, third);
  pause_for_stage("third");
  make_member(b, rollout);
  pause_for_stage("rollout");
  make_member(a, train);
  let_go("third");
  let_go("rollout");
  for (const char* name : {"train", "rollout", "third"}) ASSERT_TRUE(needs_are_known(name));
  std::map<std::string, int> came;
  std::string running = "train";
  // Each always has work: while it is paused a call waits.
  const std::map<std::string, ScriptedRank*> rank = {{"train", &a}, {"rollout", &b}, {"third", &c}};
  for (int i = 0; i < 6; ++i) {
    for (const auto& [name, its] : rank) report(*its, name != running, name == running);
    std::string next;
    ASSERT_TRUE(eventually([&] {
      for (const auto& [name, its] : rank)
        if (name != running && turn(name).what == "runs") next = name;
      return !next.empty();
    })) << running
        << " stays";
    running = next;
    ++came[running];
  }
  EXPECT_EQ(came["train"], 2);
  EXPECT_EQ(came["rollout"], 2);
  EXPECT_EQ(came["third"], 2);
  expect_intact(*rank.at(running), running == "train"     ? train
                                   : running == "rollout" ? rollout
                                                          : third);
}

}  // namespace
}  // namespace amem
