// What amemctl shows people for the messages of the control API.
#include "client/ctl/views/views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "client/ctl/output.h"
#include "client/ctl/views/progress_view.h"
#include "client/ctl/views/top_view.h"
#include "tests/unit/fixtures/fake_broker.h"

namespace amem::ctl {
namespace {

using test::make_done;
using test::make_group;
using test::make_progress;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kGiB = 1ULL << 30;
constexpr Style kPlainStyle{};

v1::NodeStatus make_status() {
  v1::NodeStatus status;
  status.set_version("0.1.0");
  status.set_pid(4242);
  status.set_uptime_ms(65'000);
  status.set_rss_bytes(12ULL << 20);
  v1::DeviceStatus* device = status.add_devices();
  device->set_uuid("GPU-01234567-89ab-cdef-0123-456789abcdef");
  device->set_name("NVIDIA H200");
  device->set_total_bytes(140 * kGiB);
  device->set_used_bytes(70 * kGiB);
  device->set_brokered_bytes(35 * kGiB);
  device->set_usage_known(true);
  status.mutable_pool()->set_configured_bytes(64 * kGiB);
  status.mutable_pool()->set_ready_bytes(64 * kGiB);
  status.mutable_pool()->set_used_bytes(3 * kGiB);
  status.mutable_pool()->set_place("host_numa");
  v1::GroupInfo group = make_group("train", v1::GROUP_STATE_PAUSING);
  group.set_phase("save");
  group.set_allocation_count(840);
  group.set_allocated_bytes(4 * kGiB);
  group.set_resident_bytes(2 * kGiB);
  group.set_saved_bytes(kGiB);
  group.set_last_pause_us(143'000);
  *status.add_groups() = group;
  return status;
}

TEST(StatusView, WholePage) {
  EXPECT_EQ(status_view(make_status(), kPlainStyle),
            "amemd 0.1.0  pid 4242  up 1 min 5 s  memory 12.0 MiB\n"
            "pool  3.00 GiB used of 64.0 GiB  host_numa\n"
            "\n"
            "DEVICE  NAME           TOTAL      USED  BROKERED  UUID\n"
            "     0  NVIDIA H200  140 GiB  70.0 GiB  35.0 GiB  GPU-01234567\n"
            "\n"
            "GROUP  STATE           RANKS  RESIDENT     SAVED   PAUSE  RESUME\n"
            "train  pausing (save)      2  2.00 GiB  1.00 GiB  143 ms       -\n");
}

TEST(StatusView, EightyColumns) {
  v1::NodeStatus status = make_status();
  status.mutable_devices(0)->set_name("NVIDIA H100 80GB HBM3");
  v1::GroupInfo& group = *status.mutable_groups(0);
  group.set_name("rollout-engine0");
  group.set_state(v1::GROUP_STATE_RESUMING);
  group.set_phase("map+load");
  group.set_last_resume_us(12'340);
  group.set_note("rank 3 died in save");
  std::istringstream text(status_view(status, kPlainStyle));
  std::string last;
  for (std::string line; std::getline(text, line); last = line) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_EQ(last, "rollout-engine0: rank 3 died in save");
}

TEST(StatusView, UnknownUsagePoolErrorAndEmptyLists) {
  v1::NodeStatus status = make_status();
  status.clear_groups();
  status.mutable_devices(0)->set_usage_known(false);
  status.mutable_pool()->set_ready_bytes(kGiB);
  status.mutable_pool()->set_error("out of memory");
  const std::string text = status_view(status, kPlainStyle);
  EXPECT_THAT(text, HasSubstr("3.00 GiB used of 1.00 GiB ready, 64.0 GiB configured"));
  v1::NodeStatus elastic = status;
  elastic.mutable_pool()->set_elastic_bytes(60 * kGiB);
  EXPECT_THAT(status_view(elastic, Style()),
              HasSubstr("of 1.00 GiB pinned, at most 64.0 GiB, at least 4.00 GiB"));
  EXPECT_THAT(text, HasSubstr("out of memory"));
  EXPECT_THAT(text, HasSubstr("NVIDIA H200      ?     ?  35.0 GiB"));
  EXPECT_THAT(text, HasSubstr("no groups\n"));
  status.clear_devices();
  EXPECT_THAT(status_view(status, kPlainStyle), HasSubstr("no devices\n"));
}

TEST(GroupsView, DevicesAndPolicies) {
  v1::ListGroupsResponse groups;
  v1::GroupInfo group = make_group("train", v1::GROUP_STATE_RUNNING);
  v1::GroupDeviceUsage* usage = group.add_devices();
  usage->set_uuid("GPU-01234567-89ab-cdef-0123-456789abcdef");
  usage->set_allocated_bytes(kGiB);
  v1::TagPolicy* policy = group.add_policies();
  policy->set_tag("nccl");
  policy->set_policy(v1::POLICY_DISCARD);
  policy->set_form(v1::FORM_DENSE);
  *groups.add_groups() = group;
  v1::TagUsage* tag = group.add_tags();
  tag->set_tag("weights");
  tag->set_allocation_count(7);
  tag->set_allocated_bytes(2 * kGiB);
  tag->set_saved_bytes(kGiB);
  tag->set_discard_bytes(kGiB);
  tag->set_dropped_bytes(kGiB / 2);
  *groups.mutable_groups(0) = group;
  const std::string text = groups_view(groups, kPlainStyle);
  EXPECT_THAT(text, HasSubstr("train  GPU-01234567   1.00 GiB       0 B\n"));
  EXPECT_THAT(text, HasSubstr("train  nccl  discard  dense\n"));
  EXPECT_THAT(text, HasSubstr("GROUP  TAG      ALLOCS  ALLOCATED  RESIDENT     SAVED  DROPPED  "
                              "PINNED  DISCARDED  RETAINED\n"
                              "train  weights       7   2.00 GiB       0 B  1.00 GiB  512 MiB     "
                              "0 B   1.00 GiB       0 B\n"));
}

TEST(RanksView, UnbrokeredMemoryByKind) {
  v1::ListRanksResponse ranks;
  v1::RankInfo* rank = ranks.add_ranks();
  rank->set_id(3);
  rank->set_group("train");
  EXPECT_THAT(ranks_view(ranks, kPlainStyle), Not(HasSubstr("DEVICE")));
  for (const char* kind : {"pool", "graph"}) {
    v1::UnbrokeredUsage* usage = rank->add_unbrokered();
    usage->set_uuid("GPU-01234567-89ab-cdef-0123-456789abcdef");
    usage->set_kind(kind);
    usage->set_bytes(kGiB);
    usage->set_count(2);
  }
  const std::string text = ranks_view(ranks, kPlainStyle);
  EXPECT_THAT(text, HasSubstr("   2.00 GiB"));
  EXPECT_THAT(text, HasSubstr("ID  GROUP  DEVICE        UNBROKERED  ALLOCS      SIZE\n"
                              " 3  train  GPU-01234567  pool             2  1.00 GiB\n"
                              " 3  train  GPU-01234567  graph            2  1.00 GiB\n"));
}

TEST(RanksView, DriverCallsThatShimsDoNotKnow) {
  v1::ListRanksResponse ranks;
  v1::RankInfo* rank = ranks.add_ranks();
  rank->set_id(3);
  rank->set_group("train");
  EXPECT_THAT(ranks_view(ranks, kPlainStyle), Not(HasSubstr("DRIVER CALL")));
  v1::UnknownCall* call = rank->add_unknown_calls();
  call->set_name("cuTeleportAsync");
  call->set_fate("linked");
  call->set_library("libfoo.so");
  EXPECT_THAT(ranks_view(ranks, kPlainStyle),
              HasSubstr("ID  GROUP  UNKNOWN DRIVER CALL  FATE    LIBRARY\n"
                        " 3  train  cuTeleportAsync      linked  libfoo.so\n"));
}

TEST(RanksView, UnknownRankNumberAndWaiting) {
  v1::ListRanksResponse ranks;
  EXPECT_EQ(ranks_view(ranks, kPlainStyle), "no ranks\n");
  v1::RankInfo* rank = ranks.add_ranks();
  rank->set_id(3);
  rank->set_group("train");
  rank->set_rank(-1);
  rank->set_pid(99);
  rank->set_program("python\x1b[2J");
  rank->set_phase("quiesce");
  const std::string text = ranks_view(ranks, kPlainStyle);
  EXPECT_THAT(text, HasSubstr(" 3  train     -   99    0  python?[2J"));
  EXPECT_THAT(text, HasSubstr("quiesce\n"));
}

std::vector<v1::AllocationInfo> make_allocations() {
  std::vector<v1::AllocationInfo> list(3);
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].set_id(i + 1);
    list[i].set_group("train");
    list[i].set_device("GPU-01234567-0000");
    list[i].set_size(kGiB);
    list[i].set_tag("nccl");
    list[i].set_policy(v1::POLICY_KEEP);
  }
  list[0].set_resident(true);
  list[0].add_peers(2);
  list[0].add_peers(4);
  list[1].set_resident(true);
  list[1].set_pinned(true);
  for (const auto& [rank, reason] : {std::pair{3U, "NIC"}, std::pair{4U, "dma-buf"}}) {
    list[1].add_pinners()->set_rank(rank);
    list[1].mutable_pinners()->rbegin()->set_reason(reason);
  }
  return list;
}

TEST(AllocationsView, WhereEachIs) {
  const std::string text = allocations_view(make_allocations(), kPlainStyle);
  EXPECT_THAT(text, HasSubstr(" 1  train  GPU-01234567  1.00 GiB  nccl  keep    device"));
  EXPECT_THAT(text, HasSubstr("device, pinned (NIC of 3, dma-buf of 4)"));
  EXPECT_THAT(text, HasSubstr("released"));
  EXPECT_THAT(text, HasSubstr("2,4\n"));
}

TEST(AllocationsView, DevicesWithOneBeginningKeepTheirWholeNames) {
  auto list = make_allocations();
  list[1].set_device("GPU-01234567-0001");
  const std::string text = allocations_view(list, kPlainStyle);
  EXPECT_THAT(text, HasSubstr("GPU-01234567-0000"));
  EXPECT_THAT(text, HasSubstr("GPU-01234567-0001"));
}

TEST(Summary, TotalsByTagDeviceAndPolicy) {
  Summary summary;
  for (const auto& allocation : make_allocations()) summary.add(allocation);
  v1::AllocationInfo other = make_allocations()[2];
  other.set_policy(v1::POLICY_DISCARD);
  summary.add(other);
  const auto rows = summary.rows();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(to_json(rows[0]),
            R"({"group":"train","tag":"nccl","device":"GPU-01234567-0000","policy":"POLICY_KEEP",)"
            R"("count":3,"bytes":3221225472,"resident_bytes":2147483648,)"
            R"("pinned_bytes":1073741824})");
  EXPECT_EQ(summary_view(rows, kPlainStyle),
            "GROUP  TAG   DEVICE        POLICY   ALLOCS      SIZE  RESIDENT    PINNED\n"
            "train  nccl  GPU-01234567  keep          3  3.00 GiB  2.00 GiB  1.00 GiB\n"
            "train  nccl  GPU-01234567  discard       1  1.00 GiB       0 B       0 B\n");
}

TEST(EventLine, StatesErrorsAndLoss) {
  v1::Event event;
  event.set_group("train");
  event.set_kind("state");
  event.set_state(v1::GROUP_STATE_PAUSED);
  EXPECT_THAT(event_line(event, kPlainStyle), HasSubstr("  train  paused\n"));
  event.set_text("paused");  // says nothing new
  EXPECT_THAT(event_line(event, kPlainStyle), HasSubstr("  train  paused\n"));
  event.set_kind("error");
  event.set_text("rank 3 died\n");
  event.set_lost(true);
  event.set_missed(12);
  EXPECT_THAT(event_line(event, kPlainStyle),
              HasSubstr("  (12 events before this one were lost)  train  error  rank 3 died?\n"));
}

TEST(ProgressView, OneLineThatIsRedrawnOnATerminal) {
  ProgressView view({}, 120);
  v1::Progress progress = make_progress("train", "save", 1, 2);
  progress.set_bytes(kGiB);
  progress.set_elapsed_us(140'000);
  EXPECT_EQ(view.update(progress),
            "\rtrain  save     [############            ] 1/2 ranks  1.00 GiB  140 ms\x1b[K");
  EXPECT_EQ(view.update(make_done("train", 1)), "\r\x1b[K");
  EXPECT_EQ(view.clear(), "");
}

TEST(ProgressView, WhileRanksCopyItHasBytesRateAndTimeLeft) {
  ProgressView view({}, 160);
  v1::Progress progress = make_progress("train", "save", 0, 1);
  progress.set_elapsed_us(1'000'000);
  view.update(progress);
  progress.set_elapsed_us(2'000'000);
  progress.set_copied_bytes(25 * kGiB);
  progress.set_to_copy_bytes(100 * kGiB);
  EXPECT_EQ(
      view.update(progress),
      "\rtrain  save     [######                  ] 0/1 ranks  25.0 GiB of 100 GiB, 26.8 GB/s, "
      "3.00 s left  2.00 s\x1b[K");
  v1::Progress load = make_progress("train", "map+load", 0, 1);
  load.set_elapsed_us(5'000'000);
  load.set_to_copy_bytes(kGiB);
  EXPECT_THAT(view.update(load), HasSubstr("0 B of 1.00 GiB  5.00 s")) << "no rate yet";
}

TEST(ProgressView, APhaseOfTheBrokerAloneHasNoRanks) {
  ProgressView view({}, 120);
  EXPECT_EQ(view.update(make_progress("train", "drop", 0, 0)),
            "\rtrain  drop     [                        ]  0 us\x1b[K");
}

TEST(ProgressView, NeverWiderThanTheTerminal) {
  ProgressView view({}, 20);
  const std::string text = view.update(make_progress("train", "quiesce", 0, 2));
  EXPECT_EQ(text, "\rtrain  quiesce  [  \x1b[K");
}

TEST(ProgressView, ALinePerPhaseElsewhere) {
  ProgressView view({}, 0);
  EXPECT_EQ(view.update(make_progress("train", "quiesce", 0, 2)), "train: quiesce, 2 ranks\n");
  EXPECT_EQ(view.update(make_progress("train", "quiesce", 1, 2)), "");
  EXPECT_EQ(view.update(make_progress("train", "save", 0, 1)), "train: save, 1 rank\n");
  EXPECT_EQ(view.update(make_progress("train", "drop", 0, 0)), "train: drop\n");
  EXPECT_EQ(view.update(make_progress("train", "save", 0, 1)), "") << "of the next wave";
  EXPECT_EQ(view.update(make_done("train", 1)), "");
  EXPECT_EQ(view.clear(), "");
}

TEST(ProgressView, ALineEveryFiveSecondsOfALongCopyElsewhere) {
  ProgressView view({}, 0);
  const auto update = [&](std::uint64_t seconds, std::uint64_t copied) {
    v1::Progress progress = make_progress("train", "save", 0, 2);
    progress.set_elapsed_us(seconds * 1'000'000);
    progress.set_copied_bytes(copied * kGiB);
    progress.set_to_copy_bytes(400 * kGiB);
    return view.update(progress);
  };
  EXPECT_EQ(update(1, 0), "train: save, 2 ranks\n");
  EXPECT_EQ(update(5, 100), "");
  EXPECT_EQ(update(6, 125), "train: save, 125 GiB of 400 GiB, 26.8 GB/s, 11.0 s left\n");
  EXPECT_EQ(update(10, 225), "");
  EXPECT_EQ(update(11, 250), "train: save, 250 GiB of 400 GiB, 26.8 GB/s, 6.00 s left\n");
}

TEST(ProgressView, ALinePerPhaseOfEachGroupOfASwap) {
  ProgressView view({}, 0);
  EXPECT_EQ(view.update(make_progress("train", "save", 0, 1)), "train: save, 1 rank\n");
  EXPECT_EQ(view.update(make_progress("rollout", "create", 0, 0)), "rollout: create\n");
  EXPECT_EQ(view.update(make_progress("train", "save", 1, 1)), "") << "told already";
  EXPECT_EQ(view.update(make_progress("rollout", "turn", 0, 0)), "rollout: turn\n");
}

TEST(ResultLine, OfASwapsSecondGroupSaysHowLongAllOfItTook) {
  v1::Progress progress = make_done("rollout", 143'000);
  progress.set_swap_us(150'000);
  EXPECT_EQ(result_line(progress, "resumed", {}),
            "rollout: resumed in 143 ms\nswapped in 150 ms\n");
}

TEST(ResultLine, SaysWhereTheTimeWent) {
  v1::Progress progress = make_done("train", 143'000);
  EXPECT_EQ(result_line(progress, "paused", {}), "train: paused in 143 ms\n");
  for (const auto& [phase, us] : {std::pair{"quiesce", 12'000}, std::pair{"save", 88'000}}) {
    v1::PhaseTime* time = progress.add_times();
    time->set_phase(phase);
    time->set_us(static_cast<std::uint64_t>(us));
  }
  EXPECT_EQ(result_line(progress, "paused", {}),
            "train: paused in 143 ms (quiesce 12.0 ms, save 88.0 ms)\n");
}

TEST(ResultLine, SaysWhatAPauseHasDropped) {
  v1::Progress progress = make_done("train", 143'000);
  progress.set_dropped_bytes(2 << 20);
  EXPECT_EQ(result_line(progress, "paused", {}),
            "train: paused in 143 ms\n  dropped: 2.00 MiB; a resume provides zeros\n");
}

TEST(ResultLine, SaysWhatAPauseHasLeft) {
  v1::Progress progress = make_done("train", 143'000);
  progress.set_pinned_bytes(2 << 20);
  EXPECT_EQ(
      result_line(progress, "paused", {}),
      "train: paused in 143 ms\n  still on the devices: 2.00 MiB pinned, registered with a NIC\n");
  progress.set_unbrokered_bytes(512 << 20);
  EXPECT_EQ(result_line(progress, "paused", {}),
            "train: paused in 143 ms\n  still on the devices: 2.00 MiB pinned, registered with a "
            "NIC, 512 MiB not brokered (amemctl ranks train)\n");
}

TEST(ResultLine, SaysHowManyDriverCallsAreUnknown) {
  v1::Progress progress = make_done("train", 143'000);
  progress.set_unknown_calls(2);
  EXPECT_EQ(result_line(progress, "paused", {}),
            "train: paused in 143 ms\n"
            "  driver calls that amem does not know: 2 (amemctl ranks train)\n");
}

v1::GuestUsage make_guest(const std::string& owner) {
  v1::GuestUsage guest;
  guest.set_owner(owner);
  guest.set_guest("rollout");
  guest.set_rank_id(9);
  guest.set_rank(3);
  guest.set_pid(77);
  guest.set_tag("weights");
  guest.set_allocation_count(2);
  guest.set_bytes(2 << 20);
  return guest;
}

TEST(ResultLine, SaysForWhomMemoryHasStayed) {
  v1::Progress progress = make_done("train", 143'000);
  progress.set_pinned_bytes(2 << 20);
  *progress.add_guests() = make_guest("train");
  EXPECT_EQ(result_line(progress, "paused", {}),
            "train: paused in 143 ms\n  still on the devices: 2.00 MiB pinned, registered with a "
            "NIC, 2.00 MiB open in group 'rollout' (rank 3, pid 77, tag weights)\n");
}

TEST(Views, GuestsAreShownOnce) {
  v1::ListGroupsResponse groups;
  *groups.add_groups() = make_group("train", v1::GROUP_STATE_PAUSED);
  *groups.add_groups() = make_group("rollout", v1::GROUP_STATE_RUNNING);
  EXPECT_THAT(groups_view(groups, kPlainStyle), Not(HasSubstr("HAS OPENED OF")));
  *groups.mutable_groups(0)->add_guests() = make_guest("train");
  *groups.mutable_groups(1)->add_opened() = make_guest("train");
  *groups.mutable_groups(1)->add_opened() = make_guest("");
  EXPECT_THAT(
      groups_view(groups, kPlainStyle),
      testing::EndsWith(
          "\nGUEST    RANK  PID  HAS OPENED OF         TAG      ALLOCS      SIZE  GUEST IS\n"
          "rollout     3   77  train                 weights       2  2.00 MiB  running\n"
          "rollout     3   77  (freed by its group)  weights       2  2.00 MiB  running\n"));
}

TEST(Explain, ByPhaseByRankAndInTheRank) {
  v1::Progress progress = make_done("train", 400'000);
  v1::PhaseTime* create = progress.add_times();
  create->set_phase("create");
  create->set_us(82'000);
  create->set_broker_us(81'000);
  create->set_driver_us(80'500);
  v1::PhaseTime* load = progress.add_times();
  load->set_phase("map+load");
  load->set_us(310'000);
  v1::RankTime* rank = load->add_ranks();
  rank->set_rank(1);
  rank->set_us(308'000);
  rank->set_busy_us(306'000);
  rank->set_bytes(15'670'000'000);
  rank->set_copy_us(282'000);
  rank->set_import_us(12'000);
  rank->set_map_us(9000);
  rank->set_access_us(14'000);
  rank->set_handles(840);
  v1::RankTime* other = load->add_ranks();
  other->set_id(7);
  other->set_rank(-1);
  other->set_us(500);
  EXPECT_EQ(
      explain(progress),
      "  create 82.0 ms: broker's CPU 81.0 ms, in the driver 80.5 ms\n"
      "  map+load 310 ms\n"
      "    rank 1: 308 ms: import 12.0 ms, map 9.00 ms, access 14.0 ms, 840 handles; copy 282 "
      "ms (15.67 GB, 55.6 GB/s); waited 2.00 ms\n"
      "    rank #7: 500 us\n");
}

TEST(TopView, BarsAndNotes) {
  v1::NodeStatus status = make_status();
  status.mutable_groups(0)->set_note("rank 3 died in save");
  const std::string text = top_view(status, 100, kPlainStyle);
  // A quarter brokered, a quarter somebody else's.
  EXPECT_THAT(text, HasSubstr("[############============                        ]"));
  EXPECT_THAT(text, HasSubstr("[##########=====     ]"));
  EXPECT_THAT(text, HasSubstr("143 ms"));
  EXPECT_THAT(text, HasSubstr("train: rank 3 died in save\n"));
}

TEST(TopView, FitsRows) {
  EXPECT_EQ(fit_rows("a\nb\nc\n", 3), "a\nb\nc\n");
  EXPECT_EQ(fit_rows("a\nb\nc\nd\n", 3), "a\nb\n2 more lines\n");
  EXPECT_EQ(fit_rows("a\nb\n", 1), "2 more lines\n");
}

TEST(ErrorLine, TextAndJson) {
  const Status status(Code::kNotFound, "no group \"x\"");
  EXPECT_EQ(error_line(status, false), "amemctl: no group \"x\"\n");
  EXPECT_EQ(error_line(status, true),
            "{\"error\":{\"code\":\"NOT_FOUND\",\"text\":\"no group \\\"x\\\"\"}}\n");
}

}  // namespace
}  // namespace amem::ctl
