#include "daemon/phases/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "tests/unit/fixtures/some_device.h"

namespace amem {
namespace {

using std::chrono::milliseconds;

constexpr Duration kStall = milliseconds(20);

CutReport one(bool busy, std::uint32_t waiting, std::uint32_t steps = 0,
              std::uint32_t captures = 0) {
  return {steps, captures, {{some_device(0), busy, waiting}}};
}

using Permits = std::vector<Cut::Permit>;

TEST(Cut, TakenWhenAllAreQuiet) {
  const Time t;
  Cut cut({1, 2}, kStall, t);
  EXPECT_FALSE(cut.taken());
  cut.report(1, one(false, 0), t);
  EXPECT_FALSE(cut.taken()) << "rank 2 has not answered";
  EXPECT_EQ(cut.quiet_ranks(), 1U);
  cut.report(2, one(false, 3), t);
  EXPECT_TRUE(cut.taken()) << "callers may wait at the gates";
  EXPECT_TRUE(cut.decide(t).empty());
}

TEST(Cut, APermitThatAnotherNodeHasDecidedOnIsWaitedForToo) {
  const Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(false, 1), t);
  cut.report(2, one(false, 0), t);
  ASSERT_TRUE(cut.taken());
  cut.sent(1);
  cut.sent(99);  // it has ended
  EXPECT_FALSE(cut.taken()) << "the rank may have let a call pass since its report";
  cut.report(1, one(false, 0, 1), t);
  EXPECT_TRUE(cut.taken());
}

TEST(Cut, NoRanksNoWork) { EXPECT_TRUE(Cut({}, kStall, Time()).taken()); }

TEST(Cut, ARankWithoutDevicesIsQuiet) {
  Cut cut({1}, kStall, Time());
  cut.report(1, {}, Time());
  EXPECT_TRUE(cut.taken());
}

TEST(Cut, WaitersAreSteppedWhileAnotherIsBusy) {
  const Time t;
  Cut cut({1, 2, 3}, kStall, t);
  cut.report(1, one(true, 0), t);
  cut.report(2, one(false, 1), t);
  cut.report(3, one(false, 0), t);
  EXPECT_EQ(cut.decide(t), (Permits{{2, some_device(0)}})) << "rank 3 has nobody to let pass";
  EXPECT_TRUE(cut.decide(t).empty()) << "one outstanding Step at a time";
  cut.report(2, one(false, 1, 0), t);
  EXPECT_TRUE(cut.decide(t).empty()) << "that status is of before the Permit";
  cut.report(2, one(true, 0, 1), t);
  EXPECT_TRUE(cut.decide(t).empty()) << "now both run";
  cut.report(1, one(false, 1), t);
  EXPECT_FALSE(cut.taken());
  cut.report(2, one(false, 0, 1), t);
  EXPECT_TRUE(cut.taken());
}

TEST(Cut, AQuietReportOfBeforeTheStepDoesNotCount) {
  const Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(true, 0), t);
  cut.report(2, one(false, 1), t);
  ASSERT_EQ(cut.decide(t).size(), 1U);
  cut.report(1, one(false, 0), t);
  EXPECT_FALSE(cut.taken()) << "rank 2 is about to launch";
  cut.report(2, one(false, 0, 1), t);
  EXPECT_TRUE(cut.taken());
}

TEST(Cut, TheCutMovesNoFurtherThanItMust) {
  const Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(2, one(false, 1), t);
  EXPECT_TRUE(cut.decide(t + milliseconds(100)).empty()) << "rank 1 may well be quiet";
  cut.report(1, one(true, 1), t);
  EXPECT_EQ(cut.decide(t), (Permits{{2, some_device(0)}})) << "the busy rank keeps its gate shut";
}

TEST(Cut, ADeviceThatWasIdleIsGivenAMoment) {
  const Time t;
  Cut cut({1, 2, 3}, kStall, t);
  cut.report(1, one(false, 0), t);
  cut.report(2, one(false, 1), t);
  cut.report(1, one(true, 0), t);
  EXPECT_TRUE(cut.decide(t).empty());
  EXPECT_EQ(cut.decide(t + 10 * kStall), (Permits{{2, some_device(0)}}));
}

TEST(Cut, ACaptureIsWork) {
  const Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(false, 0, 0, 1), t);
  cut.report(2, one(false, 1), t);
  EXPECT_FALSE(cut.taken());
  EXPECT_EQ(cut.decide(t), (Permits{{2, some_device(0)}}));
}

TEST(Cut, DevicesOfOneProcessStepOneAnother) {
  const Time t;
  Cut cut({1}, kStall, t);
  cut.report(
      1,
      {0, 0, {{some_device(0), true, 0}, {some_device(1), false, 1}, {some_device(2), false, 1}}},
      t);
  EXPECT_EQ(cut.decide(t), (Permits{{1, some_device(1)}, {1, some_device(2)}}));
  cut.report(
      1, {1, 0, {{some_device(0), true, 0}, {some_device(1), true, 0}, {some_device(2), false, 1}}},
      t);
  EXPECT_TRUE(cut.decide(t).empty()) << "one Permit is still to be used up";
  cut.report(
      1, {2, 0, {{some_device(0), true, 0}, {some_device(1), true, 0}, {some_device(2), true, 0}}},
      t);
  cut.report(
      1,
      {2, 0, {{some_device(0), false, 0}, {some_device(1), false, 0}, {some_device(2), false, 0}}},
      t);
  EXPECT_TRUE(cut.taken());
}

TEST(Cut, AStallPermitsBusyDevicesToo) {
  Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(true, 2), t);
  cut.report(2, one(true, 0), t);
  EXPECT_TRUE(cut.decide(t).empty());
  EXPECT_EQ(cut.next_decision(), t + kStall);
  EXPECT_TRUE(cut.decide(t + kStall - milliseconds(1)).empty());
  t += kStall;
  EXPECT_EQ(cut.decide(t), (Permits{{1, some_device(0), true}}));
  EXPECT_EQ(cut.next_decision(), t + kStall) << "rank 2 is still busy";
  EXPECT_TRUE(cut.decide(t + kStall).empty()) << "that Permit is outstanding";
  cut.report(1, one(true, 1, 1), t + kStall);
  EXPECT_TRUE(cut.decide(t + kStall).empty()) << "something has changed just now";
  EXPECT_EQ(cut.decide(t + 2 * kStall), (Permits{{1, some_device(0), true}}));
}

TEST(Cut, BesideOneThatIsIdleAStallPermitsBusyDevicesAboutEverySecondTime) {
  Time t;
  Cut cut({1, 2}, kStall, t);
  std::uint32_t idle_permits = 0;
  std::uint32_t busy_permits = 0;
  for (int round = 0; round < 200; ++round) {
    cut.report(1, one(false, 1, idle_permits), t);
    cut.report(2, one(true, 1, busy_permits), t);
    t += 6 * kStall;
    for (const Cut::Permit& permit : cut.decide(t)) {
      EXPECT_EQ(permit.in_turn, permit.rank == 2);
      ++(permit.rank == 1 ? idle_permits : busy_permits);
    }
  }
  EXPECT_EQ(idle_permits, 200U);
  EXPECT_GT(busy_permits, 50U);
  EXPECT_LT(busy_permits, 150U);
}

TEST(Cut, WorkOfAStepIsGivenTimeToEnd) {
  Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(true, 0), t);
  cut.report(2, one(false, 1), t);
  ASSERT_EQ(cut.decide(t), (Permits{{2, some_device(0)}})) << "rank 1 was busy from the beginning";
  cut.report(2, one(true, 1, 1), t);
  cut.report(1, one(false, 1), t);
  EXPECT_TRUE(cut.decide(t).empty()) << "rank 2 is about to say that it is idle, too";
  EXPECT_EQ(cut.next_decision(), t + milliseconds(1));
  EXPECT_EQ(cut.decide(t + milliseconds(1)), (Permits{{1, some_device(0)}})) << "it did not";
  t += milliseconds(1);
  cut.report(1, one(true, 1, 1), t);
  cut.report(2, one(false, 1, 1), t);
  EXPECT_TRUE(cut.decide(t + milliseconds(1)).empty()) << "the second time it has longer";
  EXPECT_EQ(cut.next_decision(), t + milliseconds(2));
  cut.report(1, one(false, 1, 1), t + milliseconds(1));
  EXPECT_TRUE(cut.taken());
}

// A rank that was permitted into a collective waits for one that is many launches behind: each of
// those must not cost a whole patience, or the quiesce ends before the cut is reached.
TEST(Cut, AStuckDeviceMovesOthersWithoutTheWholePatience) {
  Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(false, 1), t);
  cut.report(2, one(true, 0), t);  // old work: rank 1 is permitted into the collective at once
  ASSERT_EQ(cut.decide(t), (Permits{{1, some_device(0)}}));
  cut.report(2, one(false, 1), t);
  cut.report(1, one(true, 0, 1), t);
  const Time began = t;
  for (std::uint32_t launch = 0; launch < 200; ++launch) {
    t = cut.next_decision();
    ASSERT_NE(t, kNever);
    ASSERT_EQ(cut.decide(t), (Permits{{2, some_device(0)}})) << launch;
    cut.report(2, one(false, 1, launch + 1), t);
  }
  EXPECT_LT(t - began, milliseconds(500));
  cut.report(1, one(false, 0, 1), t);
  EXPECT_TRUE(cut.taken());
}

TEST(Cut, WhereAllAreBusyOneIsPushedAsFarAsItGoes) {
  Time t;
  Cut cut({1, 2}, kStall, t);
  const auto both_busy = [](std::uint32_t ready, std::uint32_t steps) {
    return CutReport{steps, 0, {{some_device(0), true, 2, ready}}};
  };
  cut.report(1, both_busy(0, 0), t);
  cut.report(2, both_busy(2, 0), t);
  for (std::uint32_t step = 0; step < 2; ++step) {
    EXPECT_TRUE(cut.decide(t).empty()) << "it may just be about to end";
    t = cut.next_decision();
    ASSERT_EQ(cut.decide(t), (Permits{{2, some_device(0)}})) << "of rank 1 nothing could begin";
    cut.report(2, both_busy(1 - step, step + 1), t);
  }
  EXPECT_EQ(cut.next_decision(), t + kStall) << "nothing more can begin";
  cut.report(1, one(false, 2), t);
  t = cut.next_decision();
  EXPECT_EQ(cut.decide(t), (Permits{{1, some_device(0)}})) << "it has all that it waited for";
}

TEST(Cut, OldWorkNeedsAnyNumberOfStepsWithoutDelay) {
  Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(true, 0), t);  // has launched many collectives ahead
  for (std::uint32_t steps = 0; steps < 100; ++steps) {
    cut.report(2, one(false, 1, steps), t);
    ASSERT_EQ(cut.decide(t), (Permits{{2, some_device(0)}}));
    cut.report(2, one(true, 1, steps + 1), t);
    ASSERT_TRUE(cut.decide(t).empty());
  }
}

/// Ranks that run collectives without end and report each change only after a while. Each of a
/// rank's threads has a communicator and a stream of its own, and waits for its work after every
/// `depth` launches; a rank's gate lets the thread through that has waited longest, first among
/// those whose stream is idle.
class Loop {
 public:
  Loop(int ranks, int threads, unsigned depth, unsigned seed)
      : depth_(depth), random_(seed), ranks_(static_cast<std::size_t>(ranks)) {
    std::vector<RankId> ids;
    for (RankId id = 0; id < ranks_.size(); ++id) ids.push_back(id);
    cut_.emplace(ids, kStall, Time());
    for (Rank& rank : ranks_) {
      for (int t = 0; t < threads; ++t) {
        rank.launched.push_back(random_() % std::min(depth, 4U));
        rank.queue.push_back(static_cast<std::size_t>(t));
      }
      std::shuffle(rank.queue.begin(), rank.queue.end(), random_);
    }
    ++ranks_[0].launched[0];  // inside a collective that others have not launched
    tell(Time());
  }

  /// This thread's work waits for nobody.
  void alone(std::size_t thread) {
    alone_ = thread;
    tell(Time());
  }

  /// How long it took; kNever: longer than the limit.
  Time run(Duration limit) {
    for (Time now; now < Time() + limit; now += std::chrono::microseconds(100)) {
      for (const Cut::Permit& permit : cut_->decide(now)) {
        let_through(ranks_[permit.rank], permit.in_turn);
        tell(now);
      }
      while (!mail_.empty() && mail_.begin()->first <= now) {
        cut_->report(mail_.begin()->second.first, mail_.begin()->second.second, now);
        mail_.erase(mail_.begin());
      }
      if (cut_->taken()) return now;
    }
    return kNever;
  }

 private:
  struct Rank {
    std::vector<std::uint64_t> launched;  // by thread
    std::vector<std::size_t> queue;       // threads, the one that has waited longest first
    std::uint32_t steps = 0;
  };

  std::uint64_t finished(std::size_t thread) const {
    std::uint64_t least = ranks_[0].launched[thread];
    for (const Rank& rank : ranks_) least = std::min(least, rank.launched[thread]);
    return least;
  }
  bool stream_idle(const Rank& rank, std::size_t thread) const {
    return thread == alone_ || rank.launched[thread] == finished(thread);
  }
  bool at_gate(const Rank& rank, std::size_t thread) const {
    return rank.launched[thread] % depth_ != 0 || stream_idle(rank, thread);
  }

  void let_through(Rank& rank, bool in_turn) {
    ++rank.steps;
    auto chosen = rank.queue.end();
    for (auto it = rank.queue.begin(); it != rank.queue.end(); ++it) {
      if (!at_gate(rank, *it)) continue;
      if (chosen == rank.queue.end()) chosen = it;
      if (!in_turn && !stream_idle(rank, *it)) continue;
      chosen = it;
      break;
    }
    if (chosen == rank.queue.end()) return;
    ++rank.launched[*chosen];
    std::rotate(chosen, chosen + 1, rank.queue.end());
  }

  void tell(Time now) {
    for (RankId id = 0; id < ranks_.size(); ++id) {
      const Rank& rank = ranks_[id];
      CutReport report = one(false, 0, rank.steps);
      CutReport::Device& device = report.devices.front();
      for (std::size_t thread = 0; thread < rank.queue.size(); ++thread) {
        const bool idle = stream_idle(rank, thread);
        device.busy = device.busy || !idle;
        if (!at_gate(rank, thread)) continue;
        ++device.waiting;
        if (idle) ++device.ready;
      }
      // Rank 3 takes 2.3 ms to say what rank 0 says in 0.2 ms.
      const Duration delay = std::chrono::microseconds(200 + 700 * static_cast<int>(id));
      mail_.emplace(now + delay, std::pair(id, std::move(report)));
    }
  }

  unsigned depth_;
  std::size_t alone_ = SIZE_MAX;
  std::minstd_rand random_;
  std::vector<Rank> ranks_;
  std::optional<Cut> cut_;
  std::multimap<Time, std::pair<RankId, CutReport>> mail_;
};

TEST(Cut, IsTakenThoughReportsAreLate) {
  for (const int ranks : {2, 3, 4}) {
    Loop loop(ranks, 1, 1000, 1);
    EXPECT_LT(loop.run(std::chrono::seconds(5)), Time() + milliseconds(200)) << ranks;
  }
}

// Which of its threads a rank lets through is not known to those who wait.
TEST(Cut, IsTakenWhereThreadsLaunchOnStreamsOfTheirOwn) {
  for (const int ranks : {2, 4})
    for (const int threads : {2, 3, 4})
      for (const unsigned depth : {1U, 4U, 32U})
        for (const bool alone : {false, true})
          for (unsigned seed = 1; seed <= 10; ++seed) {
            Loop loop(ranks, threads, depth, seed);
            if (alone) loop.alone(1);
            EXPECT_LT(loop.run(std::chrono::seconds(5)), Time() + std::chrono::seconds(3))
                << ranks << " ranks, " << threads << " threads, depth " << depth << ", seed "
                << seed << (alone ? ", one alone" : "");
          }
}

TEST(Cut, NothingToDecideWhenNobodyIsBusy) {
  Cut cut({1, 2}, kStall, Time());
  EXPECT_EQ(cut.next_decision(), kNever);
  cut.report(1, one(false, 1), Time());
  EXPECT_EQ(cut.next_decision(), kNever);
}

// Whatever ranks say, honest or not: who asks again at the time that is named finds something done.
TEST(Cut, TheNextDecisionIsNeverOneThatChangesNothing) {
  std::minstd_rand random(1);
  for (int round = 0; round < 300; ++round) {
    Time now;
    Cut cut({1, 2, 3}, kStall, now);
    std::map<RankId, std::uint32_t> sent;
    for (int step = 0; step < 60; ++step) {
      if (random() % 3 == 0) {
        const RankId rank = 1 + static_cast<RankId>(random() % 3);
        CutReport report{sent[rank] - (sent[rank] > 0 && random() % 4 == 0 ? 1 : 0), 0, {}};
        for (std::size_t device = 0; device < 2; ++device)
          report.devices.push_back({some_device(device), random() % 4 != 0,
                                    static_cast<std::uint32_t>(random() % 3),
                                    static_cast<std::uint32_t>(random() % 3)});
        cut.report(rank, std::move(report), now);
      }
      const Time next = cut.next_decision();
      if (next == kNever) continue;
      now = std::max(now, next);
      for (const Cut::Permit& s : cut.decide(now)) ++sent[s.rank];
      ASSERT_GT(cut.next_decision(), now) << "round " << round << ", step " << step;
    }
  }
}

TEST(Cut, AForgottenRankIsNotWaitedFor) {
  const Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(false, 0), t);
  cut.report(2, one(true, 0), t);
  cut.forget(2);
  EXPECT_TRUE(cut.taken());
  cut.report(2, one(true, 0), t);
  EXPECT_TRUE(cut.taken()) << "not part of the cut";
}

TEST(Cut, LaggardsSayWhy) {
  const Time t;
  Cut cut({1, 2, 3, 4, 5}, kStall, t);
  cut.report(2, one(false, 0, 0, 1), t);
  cut.report(3, one(true, 0), t);
  cut.report(4, one(false, 1), t);
  cut.report(5, one(false, 0), t);
  ASSERT_EQ(cut.decide(t).size(), 1U);
  const auto late = cut.laggards();
  ASSERT_EQ(late.size(), 4U);
  EXPECT_EQ(late.at(1), "has not answered");
  EXPECT_EQ(late.at(2), "is capturing a stream");
  EXPECT_EQ(late.at(3), "has work running on " + to_string(some_device(0)));
  EXPECT_EQ(late.at(4), "has not used its step");
}

TEST(Cut, ALaggardThatCannotBeWaitedForSaysWhyAndWhatToDo) {
  const Time t;
  Cut cut({1, 2}, kStall, t);
  for (const RankId rank : {1U, 2U}) {
    CutReport report = one(true, 0);
    report.devices[0].error =
        rank == 1 ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)" : "CUDA_ERROR_OUT_OF_MEMORY (2)";
    cut.report(rank, std::move(report), t);
  }
  const std::string device = "has work running on " + to_string(some_device(0));
  EXPECT_EQ(cut.laggards().at(1),
            device +
                " (its driver refuses to wait for it: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "
                "(900); end the stream capture that amem does not see, and pause again)");
  EXPECT_EQ(cut.laggards().at(2),
            device +
                " (its driver refuses to wait for it: CUDA_ERROR_OUT_OF_MEMORY (2); pause again; "
                "if that fails too, restart the process)");
}

TEST(Cut, WhatARankReportsNoMoreIsForgotten) {
  const Time t;
  Cut cut({1, 2}, kStall, t);
  cut.report(1, one(false, 0), t);
  cut.report(1, {0, 0, {{some_device(1), false, 0}}}, t);
  cut.report(1, one(true, 0), t);
  cut.report(2, one(false, 1), t);
  EXPECT_EQ(cut.decide(t), (Permits{{2, some_device(0)}})) << "busy as if ever since";
}

}  // namespace
}  // namespace amem
