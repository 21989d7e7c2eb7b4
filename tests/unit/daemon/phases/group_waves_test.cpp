// A pause in waves: save, release and drop again and again, as one pause.
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

class GroupWavesTest : public GroupTest {
 protected:
  /// The first part has been dropped, and the second is being saved by both ranks.
  void to_second_save() {
    to_quiesce();
    quiet(1);
    quiet(2);
    drain();
    EXPECT_EQ(find<action::Save>()->epoch.wave, 0U);
    group.save_sent(kOk, {1, 2}, now, true);
    now += milliseconds(10);
    both(RankPhase::kSave);
    to_drop();
    group.dropped("", now);
    drain();
    ASSERT_EQ(group.phase(), Phase::kSaveMore);
    ASSERT_NE(find<action::Save>(), nullptr);
    EXPECT_EQ(find<action::Save>()->epoch.wave, 1U);
    EXPECT_EQ(find<action::Finished>(), nullptr);
    group.save_sent(kOk, {1, 2}, now, false);
  }
  void to_drop() {
    drain();
    ASSERT_EQ(group.phase(), Phase::kRelease);
    both(RankPhase::kRelease);
    drain();
    ASSERT_NE(find<action::Drop>(), nullptr);
  }
};

TEST_F(GroupWavesTest, AFurtherPartFollowsTheDropOfTheOneBefore) {
  to_second_save();
  now += milliseconds(5);
  both(RankPhase::kSave);
  to_drop();
  group.dropped("", now);
  drain();
  expect_finished(Code::kOk, GroupState::kPaused);
  const std::vector<PhaseTime>& times = find<action::Finished>()->outcome.times;
  ASSERT_EQ(times.size(), 4U) << "quiesce, save, release, drop";
  EXPECT_EQ(times[1].phase, Phase::kSave);
  EXPECT_EQ(times[1].time, milliseconds(15));
  ASSERT_EQ(times[1].ranks.size(), 2U);
  EXPECT_EQ(times[1].ranks[0].time, milliseconds(15));
}

TEST_F(GroupWavesTest, ALateAnswerOfOneWaveDoesNotCountForTheNext) {
  to_quiesce();
  quiet(1);
  quiet(2);
  drain();
  group.save_sent(kOk, {1, 2}, now, true);
  const Epoch first = group.epoch();
  done(1, RankPhase::kSave);
  done(2, RankPhase::kSave);
  done(1, RankPhase::kRelease);
  now += Deadlines().release;
  group.tick(now);  // without rank 1's
  group.dropped("", now);
  drain();
  ASSERT_EQ(group.phase(), Phase::kSaveMore);
  EXPECT_EQ(find<action::Save>()->epoch, group.epoch());
  group.save_sent(kOk, {1}, now, false);
  done(1, RankPhase::kSave);
  done(1, RankPhase::kRelease);
  ASSERT_EQ(group.phase(), Phase::kRelease);
  group.phase_done(2, first, RankPhase::kRelease, kOk, 0, now);
  EXPECT_EQ(group.phase(), Phase::kRelease) << "that was the first wave";
  done(2, RankPhase::kRelease);
  EXPECT_EQ(group.phase(), Phase::kDrop);
}

TEST_F(GroupWavesTest, AFailureAfterTheFirstReleaseEndsPaused) {
  to_second_save();
  done(1, RankPhase::kSave, {Code::kInternal, "no luck"});
  EXPECT_EQ(group.phase(), Phase::kSaveMore) << "the other rank's part may leave";
  done(2, RankPhase::kSave);
  to_drop();
  group.dropped("", now);
  drain();
  EXPECT_EQ(find<action::Ask>(), nullptr);
  expect_finished(Code::kAborted, GroupState::kPaused, "save: rank 0 (pid 11) failed: no luck");
}

TEST_F(GroupWavesTest, ADeadlineAfterTheFirstReleaseEndsPaused) {
  to_second_save();
  done(1, RankPhase::kSave);
  now += Deadlines().save;
  group.tick(now);
  to_drop();
  group.dropped("", now);
  drain();
  expect_finished(Code::kDeadlineExceeded, GroupState::kPaused, "rank 1 (pid 22) did not answer");
}

TEST_F(GroupWavesTest, ADeathAfterTheFirstReleaseCallsNothingOff) {
  to_second_save();
  done(1, RankPhase::kSave);
  group.leave(2, true, now);
  drain();
  ASSERT_EQ(group.phase(), Phase::kRelease);
  done(1, RankPhase::kRelease);
  drain();
  group.dropped("", now);
  drain();
  ASSERT_NE(find<action::Finished>(), nullptr);
  EXPECT_TRUE(find<action::Finished>()->outcome.status.ok());
  EXPECT_EQ(group.state(), GroupState::kPaused);
}

TEST_F(GroupWavesTest, AFailureBeforeTheFirstReleaseIsCalledOff) {
  to_quiesce();
  quiet(1);
  quiet(2);
  drain();
  group.save_sent(kOk, {1, 2}, now, true);
  done(1, RankPhase::kSave, {Code::kInternal, "no luck"});
  expect_called_off(Code::kAborted, "no luck");
  // And the next pause has no further part.
  to_release();
  both(RankPhase::kRelease);
  group.dropped("", now);
  drain();
  EXPECT_EQ(group.state(), GroupState::kPaused);
}

}  // namespace
}  // namespace amem
