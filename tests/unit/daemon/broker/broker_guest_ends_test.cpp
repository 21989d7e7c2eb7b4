// Memory of one group that ranks of another have open: ranks that die or lose their session, what
// is asked for while a pause waits, and memory that is freed while its owners open.
#include "tests/unit/fixtures/guests_fixture.h"

namespace amem {
namespace {

TEST_F(PatientBrokerTest, ADeadGuestLetsGoAndTheWaitEnds) {
  open();
  const auto paused = begin(Operation::kPause);
  expect_phase("guests");
  end(c);
  ASSERT_TRUE(complete(paused).ok());
  EXPECT_EQ(used(0), 0U);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_a, 0xaa));
}

TEST_F(PatientBrokerTest, AGuestThatLosesItsSessionIsAGuestUntilItsProcessEnds) {
  open();
  c.lose_session();
  EXPECT_TRUE(eventually(
      [&] { return group("rollout").note().find("continues to run") != std::string::npos; }));
  const auto paused = begin_refused();
  expect_phase("guests");
  end(c);
  ASSERT_TRUE(complete(paused).ok()) << "its process was about to end";
  EXPECT_EQ(used(0), 0U);
}

TEST_F(BrokerGuestsTest, AProcessThatLivesOnWithoutItsSessionHoldsAPauseUpToTheDeadline) {
  open();
  c.lose_session();
  EXPECT_TRUE(eventually(
      [&] { return group("rollout").note().find("continues to run") != std::string::npos; }));
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0), 4 * kMiB) << "its process may write to it";
  ASSERT_TRUE(resume().ok());
  EXPECT_EQ(complete(begin_refused()).code(), Code::kFailedPrecondition);
}

TEST_F(PatientBrokerTest, APolicyMayBeSetWhileAPauseWaitsForGuests) {
  open();
  const auto paused = begin(Operation::kPause);
  expect_phase("guests");
  EXPECT_TRUE(set_policy("weights", v1::POLICY_DISCARD).ok());
  c.free(of_a);
  ASSERT_TRUE(complete(paused).ok());
  EXPECT_EQ(status().pool().used_bytes(), 0U) << "it holds for this pause";
}

class OpeningTest : public BrokerGuestsTest {
 protected:
  /// of_a is back, and opened by c; b's gate is not open yet.
  void come_back() {
    join(a, "train", 0);
    join(b, "train", 1);
    join(c, "rollout", 0);
    of_a = a.create(gpu(0), 4 * kMiB, "weights");
    a.write(of_a, 0xaa);
    ASSERT_TRUE(pause().ok());
    ASSERT_EQ(status().pool().used_bytes(), 4 * kMiB);
    b.moods[amem_v1_SessionMessage_ask_tag] = ScriptedRank::Mood::kLate;
    resumed = begin(Operation::kResume);
    expect_phase("open");
    c.share(a, of_a);
  }
  void expect_space_is_free() {
    EXPECT_TRUE(eventually([&] { return status().pool().used_bytes() == 0; }))
        << "nobody brings it back any more";
    EXPECT_TRUE(c.holds(of_a, 0xaa));
  }
  std::shared_ptr<Watcher> resumed;
};

TEST_F(OpeningTest, WhatIsFreedMeanwhileLeavesThePoolThoughAGuestHasIt) {
  come_back();
  a.free(of_a);
  expect_space_is_free();
  b.catch_up();
  EXPECT_TRUE(complete(resumed).ok());
}

TEST_F(OpeningTest, WhatAnOwnerThatDiesMeanwhileHadLeavesThePoolThoughAGuestHasIt) {
  come_back();
  end(a);
  EXPECT_TRUE(eventually([&] { return group("rollout").opened(0).owner().empty(); }));
  expect_space_is_free();
}

}  // namespace
}  // namespace amem
