// What silence, failure and death in each phase do to a whole broker.
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

// ---- silence, failure and death in each phase ---------------------------------------------------

struct Trouble {
  const char* name;
  Operation op;
  pb_size_t at;  // the command that rank b takes badly
  // Where the group is afterwards, and with what status, when b is silent, fails and dies.
  v1::GroupState silent_state;
  v1::GroupState failing_state;
  v1::GroupState dying_state;
  Code dying_code;
};

void PrintTo(const Trouble& trouble, std::ostream* out) { *out << trouble.name; }

const Trouble kTroubles[] = {
    {"quiesce", Operation::kPause, amem_v1_SessionMessage_quiesce_tag, kRunning, kRunning, kRunning,
     Code::kAborted},
    {"save", Operation::kPause, amem_v1_SessionMessage_save_tag, kRunning, kRunning, kRunning,
     Code::kAborted},
    {"release", Operation::kPause, amem_v1_SessionMessage_release_tag, kPaused, kPaused, kPaused,
     Code::kOk},
    {"map", Operation::kResume, amem_v1_SessionMessage_map_tag, kPaused, kPaused, kPaused,
     Code::kAborted},
    {"load", Operation::kResume, amem_v1_SessionMessage_load_tag, kPaused, kPaused, kPaused,
     Code::kAborted},
    {"open", Operation::kResume, amem_v1_SessionMessage_ask_tag, kRunning, kRunning, kRunning,
     Code::kOk},
};

/// For tests that wait for a deadline to pass.
class ImpatientTest : public BrokerTest {
 protected:
  Duration patience() const override { return seconds(2); }
};

class TroubleTest : public ImpatientTest, public ::testing::WithParamInterface<Trouble> {
 protected:
  /// Runs the operation with rank b in that mood from the phase on.
  Status run(Mood mood) {
    two_sharing();
    if (GetParam().op == Operation::kResume) {
      EXPECT_TRUE(pause().ok());
    }
    b.moods[GetParam().at] = mood;
    const Status result = complete(begin(GetParam().op));
    b.moods.clear();
    return result;
  }
  /// From wherever the group is: everything still works.
  void expect_usable() {
    settle();
    if (group().state() == kPaused) {
      const Status resumed = resume();
      ASSERT_TRUE(resumed.ok()) << resumed.text();
    }
    EXPECT_EQ(status().pool().used_bytes(), 0U);
    Status paused = pause();
    ASSERT_TRUE(paused.ok()) << paused.text();
    EXPECT_EQ(used(0) + used(1), 0U);
    const Status resumed = resume();
    ASSERT_TRUE(resumed.ok()) << resumed.text();
  }
};

class FailingTest : public TroubleTest {};

TEST_P(TroubleTest, ASilentRankIsNamed) {
  const Status result = run(Mood::kSilent);
  EXPECT_EQ(result.code(), Code::kDeadlineExceeded) << result.text();
  EXPECT_NE(result.text().find("rank 1 (pid "), std::string::npos) << result.text();
  EXPECT_EQ(result.text().find("rank 0"), std::string::npos) << result.text();
  EXPECT_EQ(group().state(), GetParam().silent_state);
  EXPECT_EQ(group().note(), result.text());
}

TEST_P(FailingTest, AFailingRankIsNamed) {
  const Status result = run(Mood::kFailing);
  EXPECT_EQ(result.code(), Code::kAborted) << result.text();
  EXPECT_NE(result.text().find("rank 1 (pid "), std::string::npos) << result.text();
  EXPECT_NE(result.text().find("scripted failure"), std::string::npos) << result.text();
  EXPECT_EQ(group().state(), GetParam().failing_state);
  expect_usable();
  expect_intact();
}

TEST_P(TroubleTest, ADeadRankDoesNotTakeTheOthersAlong) {
  const Status result = run(Mood::kDying);
  b.memory.clear();
  EXPECT_EQ(result.code(), GetParam().dying_code) << result.text();
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  EXPECT_EQ(group().state(), GetParam().dying_state);
  settle();
  if (group().state() == kPaused) {
    const Status resumed = resume();
    ASSERT_TRUE(resumed.ok()) << resumed.text();
  }
  EXPECT_TRUE(a.holds(of_a, 0xaa));
  EXPECT_TRUE(a.holds(of_b, 0xbb)) << "what the dead rank shared lives on";
  const Status paused = pause();
  ASSERT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(used(0) + used(1), 0U);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_b, 0xbb));
}

std::string trouble_name(const ::testing::TestParamInfo<Trouble>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Phases, TroubleTest, ::testing::ValuesIn(kTroubles), trouble_name);
INSTANTIATE_TEST_SUITE_P(Phases, FailingTest, ::testing::ValuesIn(kTroubles), trouble_name);

TEST_F(ImpatientTest, ChunksOfACalledOffSaveAreNotReusedWhileItMayRun) {
  two_sharing();
  b.moods[amem_v1_SessionMessage_save_tag] = Mood::kSilent;
  EXPECT_EQ(pause().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(group().state(), kRunning);
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }))
      << "b has answered Open, so its Save has ended";

  b.moods[amem_v1_SessionMessage_ask_tag] = Mood::kSilent;
  EXPECT_EQ(pause().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status().pool().used_bytes(), 6 * kMiB) << "b may still be copying";
  b.done(RankPhase::kSave, 2);
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }));
}

// A rank handles packets in order: once it has answered a Save, it writes for none before.
TEST_F(ImpatientTest, WhatIsSavedOutlivesASaverThatHasNeverAnsweredTheSaveBefore) {
  two_sharing();
  b.moods = {{amem_v1_SessionMessage_save_tag, Mood::kSilent},
             {amem_v1_SessionMessage_ask_tag, Mood::kSilent}};
  EXPECT_EQ(pause().code(), Code::kDeadlineExceeded);
  b.moods = {{amem_v1_SessionMessage_release_tag, Mood::kDying}};
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_b, 0xbb));
}

TEST_F(BrokerTest, ChunksOfADisconnectedRankWaitForItsProcess) {
  join(a, "train", 0);
  join(b, "train", 1);
  b.create(gpu(1), 6 * kMiB);
  b.moods[amem_v1_SessionMessage_save_tag] = Mood::kSilent;
  const auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return group().phase() == "save"; }));
  b.report();  // that it is quiet says nothing of the save, which comes after that
  settle();
  b.lose_session();
  EXPECT_EQ(complete(watcher).code(), Code::kAborted);
  EXPECT_EQ(group().rank_count(), 1U) << "nobody else has what it has";
  EXPECT_EQ(status().pool().used_bytes(), 6 * kMiB);
  b.die();
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }));
}

// ---- the end ------------------------------------------------------------------------------------

TEST_F(BrokerTest, ShuttingTellsWhoeverWaits) {
  two_sharing();
  b.moods[amem_v1_SessionMessage_quiesce_tag] = Mood::kSilent;
  auto watcher = begin(Operation::kPause);
  on_loop([&] { broker->shut(); });
  EXPECT_EQ(watcher->status().code(), Code::kUnavailable);
  EXPECT_TRUE(eventually([&] { return !a.alive() && !b.alive(); }));
}

class Sink final : public EventSink {
 public:
  void event(const v1::Event& e) override {
    // That the pool is ready may be told late.
    if (e.kind() != "pool") text += e.kind() + ":" + e.text() + "\n";
  }
  void ended() override { text += "ended\n"; }
  std::string text;
};

TEST_F(BrokerTest, WatchersAreTold) {
  auto sink = std::make_shared<Sink>();
  on_loop([&] { broker->events().subscribe(Caller{}, "train", sink); });
  join(c, "other");
  join(a, "train");
  ASSERT_TRUE(pause("train").ok());
  ASSERT_TRUE(resume("train").ok());
  const std::string pid = std::to_string(a.pid());
  a.die();
  ASSERT_TRUE(eventually([&] { return status().groups_size() == 1; }));
  on_loop([&] { broker->shut(); });
  EXPECT_EQ(sink->text, "state:running\nrank_joined:rank 0 (pid " + pid +
                            ") a program\nstate:pausing\nstate:paused\nstate:resuming\n"
                            "state:running\nrank_left:rank 0 (pid " +
                            pid + "): its session ended\nended\n");
}

// As of a framework that ends workers which do nothing.
TEST_F(BrokerTest, ARankThatEndsWhileItsGroupIsPausedIsNamed) {
  auto sink = std::make_shared<Sink>();
  on_loop([&] { broker->events().subscribe(Caller{}, "train", sink); });
  two_sharing();
  ASSERT_TRUE(pause("train").ok());
  const std::string pid = std::to_string(a.pid());
  a.die();
  ASSERT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  on_loop([&] { broker->shut(); });
  EXPECT_NE(sink->text.find("rank_left:rank 0 (pid " + pid +
                            "): its session ended, while the group was paused\n"),
            std::string::npos)
      << sink->text;
}

TEST_F(BrokerTest, ARankThatLostItsSessionAndLivesHoldsUpThePause) {
  two_sharing();
  a.lose_session();
  ASSERT_TRUE(
      eventually([&] { return group().note().find("lost its session") != std::string::npos; }));
  const Status refused = complete(begin(Operation::kPause, "train", milliseconds(300)));
  EXPECT_EQ(refused.code(), Code::kDeadlineExceeded) << refused.text();
  EXPECT_NE(refused.text().find("pid " + std::to_string(a.pid()) +
                                ") whose session has ended (end that process)"),
            std::string::npos)
      << refused.text();
  EXPECT_EQ(group().state(), kRunning);
  EXPECT_EQ(status().pool().used_bytes(), 0U);

  a.die();
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(of_a, 0xaa));
  EXPECT_TRUE(b.holds(of_b, 0xbb));
}

TEST_F(BrokerTest, ARankThatLostItsSessionInThePauseCallsItOff) {
  two_sharing();
  b.moods[amem_v1_SessionMessage_save_tag] = Mood::kSilent;
  const auto watcher = begin(Operation::kPause);
  ASSERT_TRUE(eventually([&] { return group().phase() == "save"; }));
  b.lose_session();
  const Status called_off = complete(watcher);
  EXPECT_EQ(called_off.code(), Code::kAborted);
  EXPECT_NE(called_off.text().find("lost its session during save"), std::string::npos)
      << called_off.text();
  EXPECT_EQ(group().state(), kRunning);
  EXPECT_GT(status().pool().used_bytes(), 0U) << "it may still be writing there";
  b.die();
  EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }));
}

TEST_F(BrokerTest, ALostRankIsForgottenOnceItSharesNothing) {
  two_sharing();
  join(c, "train", 2);
  ASSERT_NE(c.create(gpu(0), 2 * kMiB), 0U);
  c.lose_session();
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 2; })) << "nobody has what it has";
  a.lose_session();
  ASSERT_TRUE(
      eventually([&] { return group().note().find("lost its session") != std::string::npos; }));
  b.free(of_b);
  EXPECT_EQ(group().rank_count(), 2U);
  b.free(of_a);
  EXPECT_TRUE(eventually([&] { return group().rank_count() == 1; }));
  EXPECT_TRUE(pause().ok());
}

}  // namespace
}  // namespace amem
