// Drives a Group by hand: events in, actions out, time in between.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/phases/group.h"

namespace amem {
using std::chrono::milliseconds;
using std::chrono::seconds;

inline const Status kOk;

/// A Group that is told events by calls of their names.
class ToldGroup : public Group {
 public:
  using Group::Group;

  void cut_status(RankId rank, Epoch of, CutReport report, Time now) {
    tell(event::CutStatus{rank, of, std::move(report)}, now);
  }
  void phase_done(RankId rank, Epoch of, Work work, const Status& status, std::uint64_t bytes,
                  Time now, const RankWork& spent = {}) {
    tell(event::PhaseDone{rank, of, work, status, bytes, spent}, now);
  }
  void freed_unloaded(RankId rank, Time now) { tell(event::FreedUnloaded{rank}, now); }
  void save_sent(const Status& status, const std::vector<RankId>& ranks, Time now,
                 bool more = false) {
    tell(event::SaveSent{status, ranks, more}, now);
  }
  void dropped(const std::string& note, Time now) { tell(event::Dropped{note}, now); }
  void admitted(const Status& status, Time now) { tell(event::Admitted{status}, now); }
  void created(const Status& status, Time now) { tell(event::Created{status}, now); }
  void go_on(Time now) { tell(event::GoOn{}, now); }
  void give_up(const Status& why, Time now) { tell(event::GiveUp{why}, now); }
};

class GroupTest : public ::testing::Test {
 protected:
  explicit GroupTest(MemoryView memory = {}) : group("train", Deadlines(), now, std::move(memory)) {
    EXPECT_FALSE(group.join(1, "rank 0 (pid 11)"));
    EXPECT_FALSE(group.join(2, "rank 1 (pid 22)"));
  }

  /// Carries out nothing, remembers everything.
  void drain() {
    actions.clear();
    while (auto action = group.next_action()) actions.push_back(std::move(*action));
  }
  template <class T>
  const T* find() const {
    for (const Action& action : actions)
      if (const T* found = std::get_if<T>(&action)) return found;
    return nullptr;
  }
  template <class T>
  std::vector<T> all() const {
    std::vector<T> found;
    for (const Action& action : actions)
      if (const T* one = std::get_if<T>(&action)) found.push_back(*one);
    return found;
  }
  template <class T>
  void expect(const char* what) {
    drain();
    EXPECT_NE(find<T>(), nullptr) << "no " << what;
  }
  void expect_finished(Code code, GroupState state, const std::string& text = "") {
    const auto* finished = find<action::Finished>();
    ASSERT_NE(finished, nullptr);
    EXPECT_EQ(finished->outcome.status.code(), code) << finished->outcome.status.text();
    EXPECT_NE(finished->outcome.status.text().find(text), std::string::npos)
        << finished->outcome.status.text();
    EXPECT_EQ(group.state(), state);
    EXPECT_EQ(group.phase(), Phase::kNone);
    EXPECT_EQ(group.note(), finished->outcome.status.text());
  }

  void quiet(RankId rank) { group.cut_status(rank, group.epoch(), {}, now); }
  void done(RankId rank, Work work, Status status = {}, std::uint64_t bytes = 0) {
    group.phase_done(rank, group.epoch(), work, status, bytes, now);
  }
  void both(Work work) {
    done(1, work);
    done(2, work);
  }

  // Each leads up to the phase of its name, whose first actions are then in `actions`.
  void to_quiesce() {
    ASSERT_TRUE(group.start(Operation::kPause, {}, now).ok());
    drain();
    ASSERT_EQ(group.phase(), Phase::kQuiesce);
  }
  void to_save() {
    to_quiesce();
    quiet(1);
    quiet(2);
    drain();
    ASSERT_EQ(group.phase(), Phase::kSave);
    group.save_sent(kOk, {1}, now);
  }
  void to_release() {
    to_save();
    done(1, Work::kSave);
    drain();
    ASSERT_EQ(group.phase(), Phase::kRelease);
  }
  void to_paused() {
    to_release();
    both(Work::kRelease);
    drain();
    group.dropped("", now);
    drain();
    ASSERT_EQ(group.state(), GroupState::kPaused);
  }
  void to_admit() {
    to_paused();
    ASSERT_TRUE(group.start(Operation::kResume, {}, now).ok());
    drain();
    ASSERT_EQ(group.phase(), Phase::kAdmit);
  }
  void to_create() {
    to_admit();
    group.admitted(kOk, now);
    drain();
    ASSERT_EQ(group.phase(), Phase::kCreate);
  }
  void to_load() {
    to_create();
    group.created(kOk, now);
    drain();
    ASSERT_EQ(group.phase(), Phase::kLoad);
  }
  void to_open() {
    to_load();
    both(Work::kMap);
    both(Work::kLoad);
    drain();
    ASSERT_EQ(group.phase(), Phase::kOpen);
  }
  void expect_rollback_to_paused(Code code, const std::string& text) {
    ASSERT_EQ(group.phase(), Phase::kRollback);
    drain();
    const auto* release = find<action::Release>();
    ASSERT_NE(release, nullptr);
    EXPECT_EQ(release->epoch, group.epoch());
    for (RankId rank : release->ranks) done(rank, Work::kRelease);
    expect<action::Drop>("Drop");
    group.dropped("", now);
    drain();
    EXPECT_EQ(find<action::Arrived>(), nullptr) << "the bytes stay in the pool";
    expect_finished(code, GroupState::kPaused, text);
  }
  void expect_called_off(Code code, const std::string& text) {
    drain();
    const auto* open = find<action::Open>();
    ASSERT_NE(open, nullptr);
    EXPECT_EQ(open->epoch, group.epoch());
    EXPECT_EQ(open->ranks, group.members().ids());
    EXPECT_NE(find<action::Arrived>(), nullptr);
    EXPECT_EQ(find<action::Release>(), nullptr);
    expect_finished(code, GroupState::kRunning, text);
  }

  Time now{seconds(1000)};
  ToldGroup group;
  std::vector<Action> actions;
};

}  // namespace amem
