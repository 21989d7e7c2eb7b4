// What `amemctl pause --dry-run` makes of the broker's answers.
#include "addons/tools/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace amem::ctl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kGiga = 1ULL << 30U;

class ForecastTest : public testing::Test {
 protected:
  ForecastTest() {
    options.groups = {"train"};
    known.node.set_version("9.8.7");
    pool.set_ready_bytes(64 * kGiga);
    pool.set_unowned_bytes(32 * kGiga);
    pool.set_segment_bytes(kGiga);
    share("uid 1000", 32 * kGiga, 8 * kGiga, 40 * kGiga);
    add("train");
  }

  v1::PoolShare& share(const std::string& owner, std::uint64_t segments, std::uint64_t free,
                       std::uint64_t available) {
    v1::PoolShare& share = *pool.add_shares();
    share.set_owner(owner);
    share.set_segment_bytes(segments);
    share.set_free_bytes(free);
    share.set_available_bytes(available);
    return share;
  }

  v1::GroupInfo& add(const std::string& name) {
    v1::GroupInfo& group = *known.node.add_groups();
    group.set_name(name);
    group.set_owner("uid 1000");
    group.set_state(v1::GROUP_STATE_RUNNING);
    return group;
  }
  v1::GroupInfo& group(int number = 0) { return *known.node.mutable_groups(number); }
  v1::TagUsage& tag(const std::string& name, std::uint64_t bytes, int of = 0) {
    v1::TagUsage& usage = *group(of).add_tags();
    usage.set_tag(name);
    usage.set_allocated_bytes(bytes);
    usage.set_resident_bytes(bytes);
    return usage;
  }
  v1::PastOperation& paused(const std::string& name, std::uint64_t us, std::uint64_t save_us,
                            std::uint64_t bytes) {
    v1::PastOperation& pause = *known.history.add_operations();
    pause.set_group(name);
    pause.set_operation("pause");
    pause.set_us(us);
    pause.set_bytes(bytes);
    v1::PhaseTime& time = *pause.add_times();
    time.set_phase("save");
    time.set_us(save_us);
    return pause;
  }

  Forecast forecast() const {
    auto made = forecast_pause(options, known);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return made.ok() ? made.value() : Forecast();
  }
  Status refused() const { return forecast_pause(options, known).status(); }

  CommandLine options;
  Known known;
  v1::PoolStatus& pool = *known.node.mutable_pool();
};

TEST_F(ForecastTest, WhatLeavesAndWhatStays) {
  tag("weights", 10 * kGiga).set_pinned_bytes(kGiga);
  tag("kv_cache", 20 * kGiga).set_discard_bytes(20 * kGiga);
  tag("nccl", 2 * kGiga);
  group().set_unbrokered_bytes(3 * kGiga);
  v1::GuestUsage& guest = *group().add_guests();
  guest.set_owner("train");
  guest.set_tag("weights");
  guest.set_bytes(4 * kGiga);
  const GroupForecast f = forecast().groups.at(0);
  EXPECT_EQ(f.copied_bytes, 7 * kGiga) << "5 GiB of weights, and NCCL's";
  EXPECT_EQ(f.dropped_bytes, 20 * kGiga);
  EXPECT_EQ(f.pinned_bytes, kGiga);
  EXPECT_EQ(f.guest_bytes, 4 * kGiga);
  EXPECT_EQ(f.unbrokered_bytes, 3 * kGiga);
  EXPECT_THAT(
      forecast_view(forecast()),
      AllOf(HasSubstr(
                "train: a pause would free 27.0 GiB of GPU memory: it would copy at most 7.00 GiB"),
            HasSubstr("3.00 GiB that is not brokered, 1.00 GiB registered with a NIC, 4.00 GiB "
                      "that other groups have open")));
}

TEST_F(ForecastTest, WhatAPausePinsFirst) {
  tag("weights", 60 * kGiga);
  pool.set_configured_bytes(128 * kGiga);
  EXPECT_EQ(forecast().to_pin_bytes, 0U) << "all of the pool stays pinned, what is missing comes";
  pool.set_elastic_bytes(64 * kGiga);
  pool.mutable_shares(0)->set_available_bytes(104 * kGiga);
  const Forecast elastic = forecast();
  EXPECT_EQ(elastic.fit, Fit::kCertain);
  EXPECT_EQ(elastic.to_pin_bytes, 20 * kGiga) << "8 GiB are free, and 32 GiB are nobody's";
  EXPECT_THAT(forecast_view(elastic), HasSubstr("amemd would first pin 20.0 GiB of host memory"));
  EXPECT_THAT(to_json(elastic), HasSubstr("\"to_pin_bytes\":21474836480"));
}

TEST_F(ForecastTest, ADeepPause) {
  tag("weights", 10 * kGiga);
  group().set_unbrokered_bytes(3 * kGiga);
  options.deep = true;
  EXPECT_THAT(
      forecast_view(forecast()),
      AllOf(HasSubstr("graphs and 3.00 GiB that is not brokered"), Not(HasSubstr("stays"))));
  group().set_state(v1::GROUP_STATE_PAUSED);
  EXPECT_TRUE(forecast_pause(options, known).ok()) << "it can be made deep";
  group().set_deep(true);
  EXPECT_EQ(refused().code(), Code::kFailedPrecondition) << "it is";
  group().set_deep(false);
  group().mutable_tags(0)->set_pinned_bytes(kGiga);
  EXPECT_THAT(forecast_view(forecast()), HasSubstr("would not become deep"));
}

TEST_F(ForecastTest, TheTimeOfACheckpointIsNotThatOfAPause) {
  tag("weights", 10 * kGiga);
  paused("train", 5'000'000, 400'000, 10 * kGiga).set_deep(true);
  EXPECT_EQ(forecast().groups.at(0).us, 0U);
}

TEST_F(ForecastTest, ChosenTags) {
  tag("weights", 10 * kGiga);
  tag("kv_cache", 20 * kGiga);
  group().set_unbrokered_bytes(3 * kGiga);
  options.tags = {"kv_cache"};
  EXPECT_EQ(forecast().groups.at(0).copied_bytes, 20 * kGiga);
  EXPECT_EQ(forecast().groups.at(0).unbrokered_bytes, 0U) << "the group runs on with it";
  options.discard = {"kv_cache"};
  EXPECT_EQ(forecast().groups.at(0).copied_bytes, 0U);
  EXPECT_EQ(forecast().groups.at(0).dropped_bytes, 20 * kGiga);
  options.tags = {};
  options.except = {"kv_cache"};
  EXPECT_EQ(refused().code(), Code::kInvalidArgument) << "dropped, and not paused";
  options.discard = {};
  EXPECT_EQ(forecast().groups.at(0).copied_bytes, 10 * kGiga);
}

TEST_F(ForecastTest, WhatAnEarlierPauseOfTagsHasTakenIsNotCountedAgain) {
  v1::TagUsage& cache = tag("kv_cache", 20 * kGiga);
  cache.set_discard_bytes(20 * kGiga);
  cache.set_dropped_bytes(15 * kGiga);
  cache.set_resident_bytes(5 * kGiga);
  EXPECT_EQ(forecast().groups.at(0).dropped_bytes, 5 * kGiga);
  EXPECT_EQ(forecast().groups.at(0).copied_bytes, 0U);
}

TEST_F(ForecastTest, WhatThePauseWouldEndWith) {
  tag("nccl", kGiga);
  options.groups = {"train", "other"};
  EXPECT_EQ(refused().code(), Code::kNotFound);
  options.groups = {"train"};
  options.tags = {"weights"};
  EXPECT_EQ(refused().code(), Code::kNotFound);
  EXPECT_THAT(refused().text(),
              HasSubstr("group train has no memory of tag weights; its tags are nccl"));
  options.tags = {};
  options.discard = {"nccl"};
  EXPECT_EQ(refused().code(), Code::kInvalidArgument);
  tag("heap", kGiga);
  options.discard = {"heap"};
  EXPECT_EQ(refused().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused().text(), HasSubstr("would lose the bytes of tag heap"));
  options.force = true;
  EXPECT_EQ(forecast().groups.at(0).dropped_bytes, kGiga);
  options.discard = {};
  group().set_state(v1::GROUP_STATE_PAUSED);
  EXPECT_EQ(refused().code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused().text(), HasSubstr("group train is paused"));
}

TEST_F(ForecastTest, GuestsThatAreRefused) {
  tag("weights", kGiga);
  v1::GuestUsage& guest = *group().add_guests();
  guest.set_owner("train");
  guest.set_tag("weights");
  guest.set_bytes(kGiga);
  EXPECT_TRUE(refused().ok());
  options.guests = v1::GUEST_POLICY_REFUSE;
  EXPECT_EQ(refused().code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused().text(), HasSubstr("other groups have 1.00 GiB of it open"));
}

TEST_F(ForecastTest, ALibraryThatKeepsItFromPausing) {
  v1::RankInfo& rank = *known.ranks.add_ranks();
  rank.set_group("train");
  v1::UnknownCall& call = *rank.add_unknown_calls();
  call.set_name("cuNewCall");
  call.set_fate("hidden");
  EXPECT_TRUE(refused().ok());
  call.set_fate("linked");
  call.set_library("libnew.so");
  EXPECT_EQ(refused().code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused().text(), HasSubstr("libnew.so. This library is linked to cuNewCall"));
}

TEST_F(ForecastTest, FitsForCertain) {
  tag("heap", 40 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kCertain);
  EXPECT_THAT(
      forecast_view(forecast()),
      HasSubstr("fits: the pool has 40.0 GiB free, and the pause needs at most 40.0 GiB\n"));
  EXPECT_THAT(forecast_view(forecast()), Not(HasSubstr("stays")));
}

TEST_F(ForecastTest, FitsAsTheLastPauseDid) {
  tag("heap", 41 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kUnsure) << "nothing says how much of it is zeros";
  EXPECT_THAT(forecast_view(forecast()), HasSubstr("may not fit: the pool has 40.0 GiB free"));
  paused("train", 500'000, 400'000, 20 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kLikely);
  EXPECT_THAT(forecast_view(forecast()), HasSubstr(", and the last pause needed 20.0 GiB"));
  paused("train", 500'000, 400'000, 41 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kUnsure) << "the last one counts";
}

TEST_F(ForecastTest, WhatThePoolHasAlready) {
  v1::TagUsage& heap = tag("heap", 41 * kGiga);
  heap.set_retained_bytes(32 * kGiga);
  v1::PastOperation& last = paused("train", 100'000, 60'000, 2 * kGiga);
  v1::TagSave& save = *last.add_saves();
  save.set_tag("heap");
  save.set_compared_bytes(32 * kGiga);
  save.set_unchanged_bytes(24 * kGiga);
  GroupForecast f = forecast().groups.at(0);
  EXPECT_EQ(f.copied_bytes, 41 * kGiga) << "at most";
  EXPECT_EQ(f.unchanged_bytes, 24 * kGiga);
  EXPECT_EQ(f.us, 100'000U);
  EXPECT_EQ(forecast().last_bytes, 26 * kGiga) << "in the pool, whoever put it there";
  EXPECT_EQ(forecast().fit, Fit::kLikely);
  EXPECT_THAT(forecast_view(forecast()), HasSubstr("train: needs no copy of about 24.0 GiB, if"));
  EXPECT_THAT(to_json(forecast()), HasSubstr("\"unchanged_bytes\":25769803776"));

  // Others have got the space since: then the last pause says nothing of the time.
  heap.set_retained_bytes(4 * kGiga);
  f = forecast().groups.at(0);
  EXPECT_EQ(f.unchanged_bytes, 3 * kGiga);
  EXPECT_EQ(f.us, 0U);
  EXPECT_THAT(forecast_view(forecast()), HasSubstr("the duration is unknown"));
  paused("other", 500'000, 400'000, 19 * kGiga);
  f = forecast().groups.at(0);
  EXPECT_EQ(f.us, 900'000U) << "38 GiB at what the other copied, and the rest of its time";
  EXPECT_THAT(f.rests_on, HasSubstr("1 pause on this node"));
}

TEST_F(ForecastTest, SeveralGroupsShareThePool) {
  add("rollout");
  tag("heap", 30 * kGiga);
  tag("heap", 30 * kGiga, 1);
  options.groups = {"train", "rollout"};
  EXPECT_EQ(forecast().copied_bytes, 60 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kUnsure);
  EXPECT_THAT(to_json(forecast()),
              AllOf(HasSubstr(R"("fits":"unsure")"), HasSubstr(R"("group":"rollout")")));
}

TEST_F(ForecastTest, AQuotaMayBeNarrowerThanThePool) {
  tag("heap", 10 * kGiga);
  pool.mutable_shares(0)->set_available_bytes(9 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kUnsure);
  EXPECT_THAT(forecast_view(forecast()),
              AllOf(HasSubstr("the quota of uid 1000 has 9.00 GiB free"), Not(HasSubstr("keep"))));
  pool.mutable_shares(0)->set_available_bytes(10 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kCertain);
}

TEST_F(ForecastTest, SegmentsOfOtherOwnersAreNotFree) {
  tag("heap", 10 * kGiga);
  pool.set_unowned_bytes(0);
  pool.mutable_shares(0)->set_segment_bytes(8 * kGiga);
  pool.mutable_shares(0)->set_available_bytes(8 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kUnsure);
  EXPECT_THAT(forecast_view(forecast()),
              AllOf(HasSubstr("may not fit: the pool has 8.00 GiB free"),
                    HasSubstr("Of the pool, other owners keep 56.0 GiB. An owner keeps")));
  share("uid 1001", 16 * kGiga, 16 * kGiga, 16 * kGiga);
  EXPECT_THAT(forecast_view(forecast()),
              HasSubstr("uid 1001 keeps 16.0 GiB, other owners keep 40.0 GiB"));
  EXPECT_THAT(to_json(forecast()), HasSubstr(R"("keepers":"uid 1001 keeps 16.0 GiB, )"));
}

TEST_F(ForecastTest, OwnersTakeWholeSegments) {
  add("rollout").set_owner("uid 1001");
  share("uid 1001", 0, 0, 8 * kGiga);
  tag("heap", 12 * kGiga);
  tag("heap", kGiga, 1);
  options.groups = {"train", "rollout"};
  pool.set_unowned_bytes(8 * kGiga);
  pool.mutable_shares(0)->set_available_bytes(16 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kCertain);
  pool.set_segment_bytes(8 * kGiga);
  EXPECT_EQ(forecast().fit, Fit::kUnsure) << "one of them gets the only segment";
  options.groups = {"rollout"};
  EXPECT_EQ(forecast().fit, Fit::kCertain);
}

TEST_F(ForecastTest, AnOlderAmemdSaysTooLittle) {
  tag("heap", kGiga);
  pool.clear_shares();
  EXPECT_EQ(refused().code(), Code::kUnimplemented);
  EXPECT_THAT(refused().text(), HasSubstr("amemd 9.8.7 is older"));
}

TEST_F(ForecastTest, TheTimeRestsOnTheGroupsLastPause) {
  tag("heap", 10 * kGiga);
  paused("train", 500'000, 400'000, 20 * kGiga);
  EXPECT_EQ(forecast().groups.at(0).us, 300'000U) << "half as much to copy";
  EXPECT_THAT(forecast_view(forecast()), HasSubstr("train: takes about 300 ms: its last pause took "
                                                   "500 ms and copied 20.0 GiB\n"));
  paused("train", 700'000, 600'000, 5 * kGiga);
  EXPECT_EQ(forecast().groups.at(0).us, 700'000U) << "the rest was zeros, and may be again";
  paused("train", 9'000'000, 1, kGiga).set_swap(true);
  paused("train", 9'000'000, 1, kGiga).set_code(4);
  paused("train", 9'000'000, 1, kGiga).set_tags("tag heap");
  EXPECT_EQ(forecast().groups.at(0).us, 700'000U) << "these say little of a plain pause";
}

TEST_F(ForecastTest, TheTimeRestsOnOthersWhereTheGroupWasNeverPaused) {
  tag("heap", 10'000'000'000);
  EXPECT_EQ(forecast().groups.at(0).us, 0U);
  EXPECT_THAT(forecast_view(forecast()), HasSubstr("train: the duration is unknown"));
  paused("rollout", 500'000, 400'000, 20'000'000'000);
  EXPECT_EQ(forecast().groups.at(0).us, 300'000U);
  EXPECT_THAT(forecast_view(forecast()), HasSubstr("1 pause on this node copied at 50 GB/s"));
}

}  // namespace
}  // namespace amem::ctl
