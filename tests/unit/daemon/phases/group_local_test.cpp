// Pauses and resumes of tags that ranks ask for: each is of the ranks that share the memory, or are
// of one set. The others run on.
#include <string>

#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

const Task kPause{Operation::kPause, {{"kv"}}};
const Task kResume{Operation::kResume, {{"kv"}}};

struct Piece {
  std::string tag;
  std::set<RankId> sharers;
  bool paused = false;
};

/// Ranks 1 to 4; the test says which memory they have.
class GroupLocalTest : public GroupTest {
 protected:
  GroupLocalTest()
      : GroupTest({.can_leave = [this](const Selection& what) { return any(what, false); },
                   .paused = [this](const Selection& what) { return any(what, true); },
                   .sharers =
                       [this](RankId rank, const Selection& what) {
                         std::set<RankId> ranks;
                         for (const Piece& piece : memory)
                           if (what.takes(piece.tag) && piece.sharers.contains(rank))
                             ranks.insert(piece.sharers.begin(), piece.sharers.end());
                         return ranks;
                       }}) {
    EXPECT_FALSE(group.join(3, "rank 2 (pid 33)"));
    EXPECT_FALSE(group.join(4, "rank 3 (pid 44)"));
  }

  bool any(const Selection& what, bool is_paused) const {
    return std::any_of(memory.begin(), memory.end(), [&](const Piece& piece) {
      return what.takes(piece.tag, piece.sharers) && piece.paused == is_paused;
    });
  }
  void set_paused(const Selection& what, bool is_paused) {
    for (Piece& piece : memory)
      if (what.takes(piece.tag, piece.sharers)) piece.paused = is_paused;
  }
  /// From its quiesce to its end.
  void finish_pause(const std::set<RankId>& ranks) {
    ASSERT_EQ(group.phase(), Phase::kQuiesce);
    for (const RankId rank : ranks) quiet(rank);
    ASSERT_EQ(group.phase(), Phase::kSave);
    group.save_sent(kOk, {}, now);
    for (const RankId rank : ranks) done(rank, RankPhase::kRelease);
    set_paused(kPause.of(ranks).selection, true);
    group.dropped("", now);
    for (const RankId rank : ranks) done(rank, RankPhase::kOpen);
  }
  /// From its admit to its end.
  void finish_resume(const std::set<RankId>& ranks) {
    ASSERT_EQ(group.phase(), Phase::kAdmit);
    group.admitted(kOk, now);
    group.created(kOk, now);
    for (const RankId rank : ranks) done(rank, RankPhase::kMap);
    for (const RankId rank : ranks) done(rank, RankPhase::kLoad);
    set_paused(kResume.of(ranks).selection, false);
    for (const RankId rank : ranks) done(rank, RankPhase::kOpen);
  }
  std::map<std::uint64_t, Status> answers() {
    drain();
    std::map<std::uint64_t, Status> found;
    for (const action::Answer& answer : all<action::Answer>()) found[answer.seq] = answer.status;
    return found;
  }

  std::vector<Piece> memory = {{"kv", {1}}, {"kv", {2}}, {"kv", {3, 4}}, {"nccl", {1, 2, 3, 4}}};
};

TEST_F(GroupLocalTest, OneRankPausesAloneAndTheOthersRunOn) {
  group.request(1, 11, kPause, {}, now);
  drain();
  ASSERT_NE(find<action::Quiesce>(), nullptr);
  EXPECT_EQ(find<action::Quiesce>()->ranks, (std::vector<RankId>{1}));
  EXPECT_EQ(find<action::StateChanged>(), nullptr);
  EXPECT_EQ(group.state(), GroupState::kRunning);
  EXPECT_FALSE(group.join(5, "rank 4 (pid 55)")) << "its gate need not be shut";
  quiet(1);
  group.save_sent(kOk, {}, now);
  EXPECT_FALSE(group.may_allocate(1));
  EXPECT_TRUE(group.may_allocate(2));
  EXPECT_TRUE(group.may_allocate(5));
  drain();
  EXPECT_EQ(find<action::Release>()->ranks, (std::vector<RankId>{1}));
  done(1, RankPhase::kRelease);
  set_paused(kPause.of({1}).selection, true);
  group.dropped("", now);
  drain();
  EXPECT_EQ(find<action::Ask>()->ranks, (std::vector<RankId>{1}));
  done(1, RankPhase::kOpen);
  EXPECT_TRUE(answers().at(11).ok());
  EXPECT_FALSE(memory[1].paused);
  group.request(1, 12, kPause, {}, now);
  EXPECT_TRUE(answers().at(12).ok()) << "it is so already";
  group.request(1, 13, kResume, {}, now);
  finish_resume({1});
  EXPECT_TRUE(answers().at(13).ok());
}

TEST_F(GroupLocalTest, RanksThatShareTheMemoryMustAllAsk) {
  group.request(3, 31, kPause, seconds(90), now);
  EXPECT_EQ(group.phase(), Phase::kNone);
  group.request(1, 11, kPause, {}, now);
  finish_pause({1});
  EXPECT_EQ(answers().size(), 1U) << "who waits is in nobody's way";
  now += seconds(30);
  group.tick(now);
  drain();
  ASSERT_EQ(all<action::Waits>().size(), 1U);
  EXPECT_NE(find<action::Waits>()->text.find("rank 3 (pid 44)"), std::string::npos)
      << find<action::Waits>()->text;
  group.request(4, 41, kPause, {}, now);
  finish_pause({3, 4});
  const auto all = answers();
  EXPECT_TRUE(all.at(31).ok());
  EXPECT_TRUE(all.at(41).ok());
  EXPECT_EQ(group.wakeup(), kNever);
}

TEST_F(GroupLocalTest, WhoNeverAsksIsNamedInTheEnd) {
  group.request(3, 31, kPause, seconds(5), now);
  EXPECT_EQ(group.wakeup(), now + seconds(5));
  now += seconds(5);
  group.tick(now);
  const Status status = answers().at(31);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.text().find(
                "missing, because they share this memory or are of one set: rank 3 (pid 44)"),
            std::string::npos)
      << status.text();
  EXPECT_EQ(group.wakeup(), kNever);
}

TEST_F(GroupLocalTest, ASetIsAllOrNone) {
  const RankSet engine{"engine 0", 2};
  group.request(1, 11, kPause, {}, now, engine);
  EXPECT_EQ(group.phase(), Phase::kNone);
  now += seconds(30);
  group.tick(now);
  drain();
  EXPECT_NE(find<action::Waits>()->text.find("1 of the 2 ranks of 'engine 0'"), std::string::npos)
      << find<action::Waits>()->text;
  group.request(2, 21, kPause, {}, now, engine);
  drain();
  EXPECT_EQ(find<action::Quiesce>()->ranks, (std::vector<RankId>{1, 2}));
  quiet(1);
  quiet(2);
  group.save_sent({Code::kResourceExhausted, "the pool is full"}, {}, now);
  const auto all = answers();
  EXPECT_EQ(all.at(11).code(), Code::kResourceExhausted);
  EXPECT_EQ(all.at(21).code(), Code::kResourceExhausted);
  EXPECT_EQ(find<action::Ask>()->ranks, (std::vector<RankId>{1, 2}));
  EXPECT_FALSE(any(kPause.selection, true));
}

TEST_F(GroupLocalTest, WhatIsGivenUpHoldsNobodyUp) {
  group.request(1, 11, kPause, seconds(3), now, {"engine", 2});
  group.request(1, 12, kPause, seconds(60), now);
  EXPECT_EQ(group.phase(), Phase::kNone) << "the set would be in two states";
  now += seconds(3);
  group.tick(now);
  EXPECT_EQ(answers().at(11).code(), Code::kDeadlineExceeded);
  finish_pause({1});
  EXPECT_TRUE(answers().at(12).ok());
}

TEST_F(GroupLocalTest, ARankOfASetWithoutSuchMemoryIsAskedAllTheSame) {
  memory[1].tag = "weights";
  group.request(2, 21, kPause, {}, now, {"engine", 2});
  EXPECT_TRUE(answers().empty()) << "rank 1 counts on it";
  group.request(1, 11, kPause, {}, now, {"engine", 2});
  finish_pause({1, 2});
  EXPECT_EQ(answers().size(), 2U);
}

TEST_F(GroupLocalTest, ThoseThatWaitTogetherGoTogetherAndFailAlone) {
  group.request(1, 11, kPause, {}, now);
  quiet(1);
  group.request(2, 21, kPause, {}, now);
  group.request(3, 31, kPause, {}, now);
  group.request(4, 41, kPause, {}, now);
  group.save_sent(kOk, {}, now);
  done(1, RankPhase::kRelease);
  set_paused(kPause.of({1}).selection, true);
  group.dropped("", now);
  drain();
  done(1, RankPhase::kOpen);
  drain();
  EXPECT_EQ(find<action::Quiesce>()->ranks, (std::vector<RankId>{2, 3, 4}));
  for (const RankId rank : {2U, 3U, 4U}) quiet(rank);
  group.save_sent({Code::kResourceExhausted, "the pool is full"}, {}, now);
  EXPECT_TRUE(answers().empty()) << "each is tried alone first";
  EXPECT_EQ(find<action::Quiesce>()->ranks, (std::vector<RankId>{2}));
  finish_pause({2});
  EXPECT_TRUE(answers().at(21).ok());
  for (const RankId rank : {3U, 4U}) quiet(rank);
  group.save_sent({Code::kResourceExhausted, "the pool is full"}, {}, now);
  const auto all = answers();
  EXPECT_EQ(all.at(31).code(), Code::kResourceExhausted);
  EXPECT_EQ(all.at(41).code(), Code::kResourceExhausted);
}

TEST_F(GroupLocalTest, WhatHasLeftThoughARankFailedEndsWithItsError) {
  group.request(3, 31, kPause, {}, now);
  group.request(1, 11, kPause, {}, now);
  group.request(2, 21, kPause, {}, now);
  group.request(4, 41, kPause, {}, now);
  finish_pause({1});
  EXPECT_TRUE(answers().at(11).ok());
  ASSERT_EQ(group.phase(), Phase::kQuiesce);
  for (const RankId rank : {2U, 3U, 4U}) quiet(rank);
  group.save_sent(kOk, {}, now);
  for (const RankId rank : {2U, 3U}) done(rank, RankPhase::kRelease);
  done(4, RankPhase::kRelease, {Code::kInternal, "unmap refused"});
  set_paused(kPause.of({2, 3, 4}).selection, true);
  group.dropped("", now);
  for (const RankId rank : {2U, 3U, 4U}) done(rank, RankPhase::kOpen);
  const auto all = answers();
  for (const std::uint64_t seq : {21U, 31U, 41U}) EXPECT_EQ(all.at(seq).code(), Code::kAborted);
  EXPECT_EQ(group.phase(), Phase::kNone) << "there is nothing to try again";
}

TEST_F(GroupLocalTest, WhoseDeviceIsBusyLetsOthersGoFirst) {
  const auto busy = [this] {
    group.cut_status(1, group.epoch(), {.devices = {{.device = {}, .busy = true}}}, now);
  };
  group.request(1, 11, kPause, seconds(60), now);
  busy();
  group.request(2, 21, kPause, seconds(60), now);
  now += seconds(1);
  group.tick(now);  // its turn is over: the cut is called off
  drain();
  EXPECT_EQ(group.note(), "");
  EXPECT_TRUE(find<action::Finished>()->outcome.again);
  EXPECT_EQ(all<action::Quiesce>().back().ranks, (std::vector<RankId>{1, 2}));
  quiet(2);
  busy();
  now += seconds(1);
  group.tick(now);
  // An operator's pause of everything waits for no device of one that has asked.
  ASSERT_EQ(group.phase(), Phase::kQuiesce);
  EXPECT_TRUE(group.local());
  group.set_aside(now);
  EXPECT_FALSE(group.local());
  EXPECT_TRUE(group.start(Operation::kPause, {}, now).ok());
  drain();
  EXPECT_EQ(all<action::Quiesce>().back().ranks, (std::vector<RankId>{1, 2, 3, 4}));
  EXPECT_EQ(group.state(), GroupState::kPausing);
  EXPECT_TRUE(all<action::Answer>().empty());
}

TEST_F(GroupLocalTest, ADeadlineSaysThatTheDeviceWasBusy) {
  group.request(1, 11, kPause, seconds(3), now);
  for (int i = 0; i < 4 && group.phase() == Phase::kQuiesce; ++i) {
    group.cut_status(1, group.epoch(), {.devices = {{.device = {}, .busy = true}}}, now);
    now += seconds(1);
    group.tick(now);
  }
  const Status status = answers()[11];
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.text().find("has work running on"), std::string::npos) << status.text();
  EXPECT_EQ(group.phase(), Phase::kNone);
}

TEST_F(GroupLocalTest, ADeadlineDoesNotSayWhatAnotherWaitsFor) {
  group.request(1, 11, kPause, seconds(60), now);
  group.cut_status(1, group.epoch(), {.devices = {{.device = {}, .busy = true}}}, now);
  now += seconds(1);
  group.tick(now);  // its device was busy, and it is tried again
  group.request(2, 21, kPause, milliseconds(100), now);
  now += milliseconds(200);
  group.tick(now);
  const Status status = answers()[21];
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.text().find("has work running on"), std::string::npos) << status.text();
}

TEST_F(GroupLocalTest, APauseOfEverythingFromInsideWaitsForAllRanks) {
  group.request(1, 11, Operation::kPause, {}, now);
  EXPECT_EQ(group.phase(), Phase::kNone);
  group.request(2, 21, kPause, {}, now);
  finish_pause({2});
  for (const RankId rank : {2U, 3U, 4U}) group.request(rank, rank, Operation::kPause, {}, now);
  drain();
  EXPECT_EQ(all<action::Quiesce>().back().ranks, (std::vector<RankId>{1, 2, 3, 4}));
}

TEST_F(GroupLocalTest, ARankThatEndsInItsOwnPauseDisturbsNobody) {
  group.request(1, 11, kPause, {}, now);
  quiet(1);
  group.save_sent(kOk, {1}, now);
  group.leave(1, false, now);
  drain();
  EXPECT_EQ(group.phase(), Phase::kNone);
  EXPECT_EQ(group.state(), GroupState::kRunning);
  EXPECT_TRUE(group.may_allocate(2));
}

TEST_F(GroupLocalTest, WhatNobodyWaitsForAnyMoreDoesNotBegin) {
  group.request(3, 31, kPause, {}, now);
  group.request(3, 32, kPause, {}, now);
  group.withdraw(4, 31, now);
  group.withdraw(3, 99, now);
  EXPECT_EQ(answers().size(), 0U) << "of another rank, and none";
  group.withdraw(3, 31, now);
  EXPECT_EQ(answers().at(31).code(), Code::kCancelled);
  group.withdraw(3, 32, now);
  group.request(4, 41, kPause, {}, now);
  drain();
  EXPECT_EQ(group.phase(), Phase::kNone) << "rank 4 waits for rank 3, which has changed its mind";
  group.request(3, 33, kPause, {}, now);
  group.withdraw(3, 33, now);
  finish_pause({3, 4});
  const auto both = answers();
  EXPECT_TRUE(both.at(33).ok()) << "it had begun";
  EXPECT_TRUE(both.at(41).ok());

  group.request(1, 11, Operation::kPause, {}, now);
  group.withdraw(1, 11, now);
  EXPECT_EQ(answers().at(11).code(), Code::kCancelled);
}

TEST_F(GroupLocalTest, WhatIsWithdrawnWhileItsDeviceIsBusyIsNotTriedAgain) {
  group.request(1, 11, kPause, {}, now);
  ASSERT_EQ(group.phase(), Phase::kQuiesce);
  group.withdraw(1, 11, now);
  EXPECT_TRUE(answers().empty()) << "it is under way";
  now += seconds(2);
  group.tick(now);
  EXPECT_EQ(group.phase(), Phase::kNone);
  EXPECT_EQ(answers().at(11).code(), Code::kCancelled);
}

TEST(TaskTest, PeopleReadHowManyRanksTakePart) {
  const Task pause(Operation::kPause);
  EXPECT_EQ(describe(pause.of({1}), "train"), "pause of 1 rank of group 'train'");
  EXPECT_EQ(describe(pause.of({1, 2}), "train"), "pause of 2 ranks of group 'train'");
}

TEST_F(GroupLocalTest, TheNextAmemdGoesOnWithTheSameRanks) {
  group.request(1, 11, kPause, {}, now);
  quiet(1);
  group.save_sent(kOk, {}, now);
  ASSERT_EQ(group.phase(), Phase::kRelease);
  ToldGroup next("train", Deadlines(), now, {}, restart_state_of(group), group.members(),
                 seconds(1));
  EXPECT_EQ(next.state(), GroupState::kRunning);
  EXPECT_TRUE(next.join(1, "rank 0 (pid 11)")) << "its gate is shut";
  for (const RankId rank : {2U, 3U, 4U}) EXPECT_FALSE(next.join(rank, "a rank"));
  EXPECT_FALSE(next.may_allocate(1));
  EXPECT_TRUE(next.may_allocate(2));
  next.tick(now);
  std::vector<RankId> released;
  while (auto action = next.next_action())
    if (const auto* release = std::get_if<action::Release>(&*action)) released = release->ranks;
  EXPECT_EQ(released, (std::vector<RankId>{1}));
}

}  // namespace
}  // namespace amem
