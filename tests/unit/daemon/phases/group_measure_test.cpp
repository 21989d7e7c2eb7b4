// A pause for which the pool has no space as it is: what is zero is measured before anything is
// sent.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

class GroupMeasureTest : public GroupTest {
 protected:
  void to_measure() {
    to_quiesce();
    quiet(1);
    quiet(2);
    drain();
    ASSERT_EQ(group.phase(), Phase::kSave);
    group.no_space(now);
    drain();
    ASSERT_EQ(group.phase(), Phase::kMeasure);
    const auto* measure = find<action::Measure>();
    ASSERT_NE(measure, nullptr);
    EXPECT_EQ(measure->epoch, group.epoch());
    EXPECT_EQ(measure->ranks, (std::vector<RankId>{1, 2}));
    EXPECT_EQ(find<action::Leaves>(), nullptr) << "nothing is on its way out";
  }
  void to_second_save() {
    to_measure();
    now += milliseconds(7);
    both(RankPhase::kMeasure);
    drain();
    ASSERT_EQ(group.phase(), Phase::kSave);
    ASSERT_NE(find<action::Save>(), nullptr);
    EXPECT_EQ(find<action::Save>()->epoch, group.epoch());
  }
};

TEST_F(GroupMeasureTest, TheSaveFollowsTheMeasurement) {
  to_second_save();
  group.save_sent(kOk, {1}, now);
  expect<action::Leaves>("Leaves");
  done(1, RankPhase::kSave);
  drain();
  ASSERT_EQ(group.phase(), Phase::kRelease);
  both(RankPhase::kRelease);
  group.dropped("", now);
  drain();
  expect_finished(Code::kOk, GroupState::kPaused);
  const std::vector<PhaseTime>& times = find<action::Finished>()->outcome.times;
  ASSERT_EQ(times.size(), 5U) << "quiesce, save, measure, release, drop";
  EXPECT_EQ(times[2].phase, Phase::kMeasure);
  EXPECT_EQ(times[2].time, milliseconds(7));
  EXPECT_EQ(times[2].ranks.size(), 2U);
}

TEST_F(GroupMeasureTest, TheNextPauseBeginsAnew) {
  to_second_save();
  group.save_sent({Code::kResourceExhausted, "still too small"}, {}, now);
  expect_called_off(Code::kResourceExhausted, "save: still too small");
  to_release();
}

TEST_F(GroupMeasureTest, EveryRankIsWaitedFor) {
  to_measure();
  done(1, RankPhase::kMeasure);
  done(1, RankPhase::kSave);
  EXPECT_EQ(group.phase(), Phase::kMeasure);
  EXPECT_EQ(group.waiting_for(2), "measure");
  done(2, RankPhase::kMeasure);
  EXPECT_EQ(group.phase(), Phase::kSave);
}

TEST_F(GroupMeasureTest, AFailureCallsThePauseOff) {
  to_measure();
  done(2, RankPhase::kMeasure, {Code::kInternal, "no luck"});
  expect_called_off(Code::kAborted, "measure: rank 1 (pid 22) failed: no luck");
}

TEST_F(GroupMeasureTest, ADeathCallsThePauseOff) {
  to_measure();
  group.leave(2, false, now);
  expect_called_off(Code::kAborted, "ended during measure");
}

TEST_F(GroupMeasureTest, ALostSessionCallsThePauseOff) {
  to_measure();
  group.lose(2, now);
  expect_called_off(Code::kAborted, "lost its session during measure");
}

TEST_F(GroupMeasureTest, TheDeadlineIsThatOfTheSave) {
  to_measure();
  done(1, RankPhase::kMeasure);
  now += Deadlines().save;
  group.tick(now);
  expect_called_off(Code::kDeadlineExceeded, "rank 1 (pid 22) did not answer");
}

}  // namespace
}  // namespace amem
