// Where the time of an operation goes, as group and broker note it.
#include <time.h>

#include <thread>

#include "daemon/memory/in_driver.h"
#include "daemon/operations/costs.h"
#include "tests/unit/fixtures/group_fixture.h"

namespace amem {
namespace {

using std::chrono::microseconds;

TEST_F(GroupTest, HowFarCopiesAreIsToldButNotTooOften) {
  to_quiesce();
  quiet(1);
  quiet(2);
  drain();
  group.save_sent(kOk, {1, 2}, now);
  drain();
  const auto copied = [&](RankId rank, Epoch of, std::uint64_t bytes, std::uint64_t all) {
    group.tell(event::Copied{rank, of, bytes, all}, now);
    drain();
    const auto* progress = find<action::Progress>();
    return progress != nullptr ? std::pair(progress->copied, progress->to_copy)
                               : std::pair<std::uint64_t, std::uint64_t>();
  };
  using Pair = std::pair<std::uint64_t, std::uint64_t>;
  const Epoch epoch = group.epoch();
  EXPECT_EQ(copied(1, epoch, 30, 100), Pair(30, 100));
  now += milliseconds(10);
  EXPECT_EQ(copied(1, epoch, 40, 100), Pair(0, 0)) << "too soon";
  now += milliseconds(200);
  EXPECT_EQ(copied(2, epoch, 10, 50), Pair(50, 150));
  now += milliseconds(200);
  EXPECT_EQ(copied(2, epoch, 51, 50), Pair(0, 0)) << "more than there is";
  EXPECT_EQ(copied(2, epoch.attempt - 1, 20, 50), Pair(0, 0)) << "of another operation";
  EXPECT_EQ(copied(77, epoch, 20, 50), Pair(0, 0)) << "of no rank";
  done(1, RankPhase::kSave, {}, 90);
  drain();
  const auto* progress = find<action::Progress>();
  ASSERT_NE(progress, nullptr);
  EXPECT_EQ(Pair(progress->copied, progress->to_copy), Pair(100, 140));
  EXPECT_EQ(copied(1, epoch, 95, 100), Pair(0, 0)) << "it has answered";
  done(2, RankPhase::kSave, {}, 50);
  drain();
  for (const auto& each : all<action::Progress>()) EXPECT_EQ(each.to_copy, 0U);
}

TEST_F(GroupTest, AnOutcomeSaysWhatEachRankDidInEachPhase) {
  to_load();
  now += milliseconds(3);
  CommandTimes mapping;
  mapping.busy = milliseconds(2);
  mapping.import = milliseconds(1);
  mapping.handles = 7;
  group.phase_done(2, group.epoch(), RankPhase::kMap, kOk, 4096, now, mapping);
  now += milliseconds(5);
  CommandTimes copying;
  copying.busy = milliseconds(5);
  copying.copy = milliseconds(4);
  group.phase_done(2, group.epoch(), RankPhase::kLoad, kOk, 100, now, copying);
  both(RankPhase::kMap);
  done(1, RankPhase::kLoad);
  drain();
  both(RankPhase::kOpen);
  drain();
  const auto* finished = find<action::Finished>();
  ASSERT_NE(finished, nullptr);
  const std::vector<PhaseTime>& times = finished->outcome.times;
  const auto load = std::find_if(times.begin(), times.end(),
                                 [](const PhaseTime& t) { return t.phase == Phase::kLoad; });
  ASSERT_NE(load, times.end());
  ASSERT_EQ(load->ranks.size(), 2U);
  const RankTime& rank = load->ranks.back();
  EXPECT_EQ(rank.rank, 2U);
  EXPECT_EQ(rank.time, milliseconds(8)) << "to its last answer";
  EXPECT_EQ(rank.copied, 100U) << "what was mapped is not copied";
  EXPECT_EQ(rank.spent.busy, milliseconds(7));
  EXPECT_EQ(rank.spent.import, milliseconds(1));
  EXPECT_EQ(rank.spent.copy, milliseconds(4));
  EXPECT_EQ(rank.spent.handles, 7U);
  EXPECT_TRUE(times.front().ranks.empty()) << "admit is the broker's own";
}

TEST_F(GroupTest, AnOutcomeSaysWhenEachThingWas) {
  to_load();
  now += milliseconds(3);
  CommandTimes mapping;
  mapping.busy = milliseconds(2);
  mapping.map = milliseconds(1);
  mapping.when_map = {microseconds(500), milliseconds(2)};
  group.phase_done(2, group.epoch(), RankPhase::kMap, kOk, 4096, now, mapping);
  done(1, RankPhase::kMap);
  now += milliseconds(5);
  both(RankPhase::kLoad);
  drain();
  both(RankPhase::kOpen);
  drain();
  const auto* finished = find<action::Finished>();
  ASSERT_NE(finished, nullptr);
  const std::vector<PhaseSpan>& spans = finished->outcome.spans;
  ASSERT_FALSE(spans.empty());
  EXPECT_EQ(spans.front().phase, Phase::kAdmit);
  for (std::size_t i = 1; i < spans.size(); ++i)
    EXPECT_EQ(spans[i].begin, spans[i - 1].end) << "one follows the other";
  EXPECT_EQ(spans.back().end, finished->outcome.total);
  const auto load = std::find_if(spans.begin(), spans.end(),
                                 [](const PhaseSpan& s) { return s.phase == Phase::kLoad; });
  ASSERT_NE(load, spans.end());
  EXPECT_EQ(load->end - load->begin, milliseconds(8));
  ASSERT_EQ(load->ranks.size(), 4U) << "both have mapped, both have loaded";
  const RankSpan& first = load->ranks.front();
  EXPECT_EQ(first.rank, 2U);
  EXPECT_EQ(first.what, RankPhase::kMap);
  EXPECT_EQ(first.answered - load->begin, milliseconds(3));
  EXPECT_EQ(first.bytes, 4096U);
  EXPECT_EQ(first.spent.when_map.from, microseconds(500));
  EXPECT_EQ(load->ranks.back().what, RankPhase::kLoad);
}

TEST_F(GroupTest, AnOutcomeSaysWhenEachRankWasQuiet) {
  to_quiesce();
  now += milliseconds(2);
  quiet(2);
  now += milliseconds(3);
  quiet(1);
  drain();
  group.save_sent(kOk, {1}, now);
  done(1, RankPhase::kSave);
  drain();
  both(RankPhase::kRelease);
  drain();
  group.dropped("", now);
  drain();
  const auto* finished = find<action::Finished>();
  ASSERT_NE(finished, nullptr);
  const PhaseSpan& quiesce = finished->outcome.spans.front();
  EXPECT_EQ(quiesce.phase, Phase::kQuiesce);
  ASSERT_EQ(quiesce.ranks.size(), 2U);
  EXPECT_EQ(quiesce.ranks[0].rank, 2U);
  EXPECT_EQ(quiesce.ranks[0].answered, milliseconds(2));
  EXPECT_EQ(quiesce.ranks[1].answered, milliseconds(5));
  EXPECT_EQ(quiesce.ranks[1].spent.busy, milliseconds(5));
}

Duration cpu() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

void burn(milliseconds time) {
  for (const auto until = cpu() + time; cpu() < until;) {
  }
}

TEST(CostMeterTest, ChargesWhatIsUnderWay) {
  CostMeter meter;
  const Duration before_save = cpu();
  meter.enter(1, Phase::kSave);
  burn(milliseconds(20));
  const Duration before_drop = cpu();
  meter.enter(1, Phase::kDrop);
  const Duration in_drop = cpu();
  const Time before_driver = Clock::now();
  Duration driver{};
  {
    const InDriver timed;
    const Time began = Clock::now();
    std::this_thread::sleep_for(milliseconds(10));  // time that passes and is not worked
    driver = Clock::now() - began;
  }
  const Duration most_driver = Clock::now() - before_driver;
  meter.enter(1, Phase::kNone);
  const Duration after_drop = cpu();
  burn(milliseconds(20));  // nobody's
  std::vector<PhaseTime> times = {{Phase::kSave, {}}, {Phase::kDrop, {}}};
  meter.take(1, times);
  EXPECT_GE(times[0].broker, milliseconds(20));
  EXPECT_LE(times[0].broker, in_drop - before_save);
  EXPECT_EQ(times[0].driver, Duration::zero());
  EXPECT_LE(times[1].broker, after_drop - before_drop)
      << "waiting is no work, nor is what followed";
  EXPECT_GE(times[1].driver, driver);
  EXPECT_LE(times[1].driver, most_driver);

  std::vector<PhaseTime> again = {{Phase::kSave, {}}};
  meter.take(1, again);
  EXPECT_EQ(again[0].broker, Duration::zero()) << "counted once";
}

TEST(CostMeterTest, ChargesTheGroupThatTheThreadWorksForNow) {
  CostMeter meter;
  for (const GroupId group : {2U, 1U, 3U}) {
    meter.enter(group, Phase::kSave);
    burn(milliseconds(5));
  }
  meter.enter(3, Phase::kNone);
  for (const GroupId group : {1U, 2U, 3U}) {
    std::vector<PhaseTime> times = {{Phase::kSave, {}}};
    meter.take(group, times);
    EXPECT_GE(times[0].broker, milliseconds(5)) << group;
  }
}

TEST(CostMeterTest, ChargesTheLastOfTwoEntriesOfAPhase) {
  CostMeter meter;
  meter.enter(1, Phase::kSave);
  burn(milliseconds(5));
  meter.enter(1, Phase::kNone);
  std::vector<PhaseTime> times = {{Phase::kSave, {}}, {Phase::kSave, {}}};
  meter.take(1, times);
  EXPECT_EQ(times[0].broker, Duration::zero());
  EXPECT_GE(times[1].broker, milliseconds(5));
}

}  // namespace
}  // namespace amem
