// What `amemctl advise` says of a group.
#include "addons/tools/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace amem::ctl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kGibibyte = 1ULL << 30U;

class AdviceTest : public testing::Test {
 protected:
  AdviceTest() {
    group.set_name("train");
    group.set_state(v1::GROUP_STATE_RUNNING);
  }

  v1::TagUsage& tag(const std::string& name, std::uint64_t bytes, std::uint64_t count = 1) {
    v1::TagUsage& usage = *group.add_tags();
    usage.set_tag(name);
    usage.set_allocated_bytes(bytes);
    usage.set_allocation_count(count);
    return usage;
  }
  /// Of rank 0 on the first GPU, or of another one.
  void unbrokered(const std::string& kind, std::uint64_t bytes, bool host = false, int rank = 0,
                  const std::string& uuid = "GPU-00000000-1") {
    while (ranks.ranks_size() <= rank) {
      v1::RankInfo& info = *ranks.add_ranks();
      info.set_group("train");
      info.set_rank(ranks.ranks_size() - 1);
      info.set_pid(100 + ranks.ranks_size());
    }
    v1::UnbrokeredUsage& usage = *ranks.mutable_ranks(rank)->add_unbrokered();
    usage.set_uuid(uuid);
    usage.set_kind(kind);
    usage.set_bytes(bytes);
    usage.set_host(host);
  }
  /// A pause of a second.
  v1::PastOperation& pause_with_quiesce(std::uint64_t us) {
    v1::PastOperation& pause = *history.add_operations();
    pause.set_operation("pause");
    pause.set_us(1'000'000);
    v1::PhaseTime& time = *pause.add_times();
    time.set_phase("quiesce");
    time.set_us(us);
    return pause;
  }

  std::vector<std::string> checks() const {
    std::vector<std::string> names;
    for (const Advice& each : advice_for(group, ranks, history)) names.push_back(each.check);
    return names;
  }
  std::string text() const { return advice_view(group, advice_for(group, ranks, history)); }

  v1::GroupInfo group;
  v1::ListRanksResponse ranks;
  v1::ListHistoryResponse history;
};

TEST_F(AdviceTest, NothingToAdvise) {
  group.set_allocated_bytes(2 * kGibibyte);
  tag("nccl", kGibibyte / 2);
  tag("weights", 2 * kGibibyte);
  unbrokered("device", 1 << 20);
  EXPECT_THAT(checks(), ElementsAre());
  EXPECT_THAT(text(), HasSubstr("train: nothing to advise: no large part of its 2.00 GiB"));
  EXPECT_EQ(to_json(group, {}), R"({"group":"train","advice":[]})");
}

TEST_F(AdviceTest, AScopeThatLeavesMuchOut) {
  unbrokered("device", 3 * kGibibyte);
  unbrokered("vmm", kGibibyte, false, 1, "GPU-11111111-1");
  unbrokered("host", 9 * kGibibyte, true);
  EXPECT_EQ(text(),
            "train: 4.00 GiB of memory stays on the GPU: rank 0 (pid 101) on GPU-00000000 3.00 GiB "
            "(device), rank 1 (pid 102) on GPU-11111111 1.00 GiB (vmm), because the scope does not "
            "include it. Start the job with `amemctl run --scope heap`\n");
  EXPECT_THAT(checks(), ElementsAre("scope"));
}

TEST_F(AdviceTest, WhatTheScopeHasAndTheProgramKeepsFromAmem) {
  unbrokered("device", 3 * kGibibyte);
  ranks.mutable_ranks(0)->add_tags()->set_tag("heap");
  EXPECT_THAT(checks(), ElementsAre("unbrokered"));
  EXPECT_THAT(text(), AllOf(HasSubstr("3.00 GiB of memory of cudaMalloc stays on the GPU: rank 0"),
                            HasSubstr("amem.unbrokered")));
}

TEST_F(AdviceTest, MemoryThatIsNeverBrokered) {
  unbrokered("pool", 2 * kGibibyte);
  unbrokered("managed", kGibibyte);
  unbrokered("graph", kGibibyte / 2);
  unbrokered("array", kGibibyte / 4);
  EXPECT_THAT(checks(), ElementsAre("stream-ordered", "managed", "graph", "array"));
  EXPECT_THAT(
      text(),
      AllOf(HasSubstr("2.00 GiB of the driver's stream-ordered pools stays on the GPU: rank "
                      "0 (pid 101) on GPU-00000000 2.00 GiB, because"),
            HasSubstr("other processes may import"), HasSubstr("without handle types")));
}

TEST_F(AdviceTest, EachRankAndDeviceWithMemoryThatStays) {
  for (int rank = 0; rank < 10; ++rank)
    unbrokered("pool", (10 - static_cast<unsigned>(rank)) * (kGibibyte / 16), false, rank,
               "GPU-" + std::to_string(rank) + "0000000-1");
  ranks.mutable_ranks(1)->set_rank(-1);
  ranks.mutable_ranks(1)->set_id(7);
  EXPECT_THAT(text(),
              AllOf(HasSubstr("3.44 GiB of the driver's"),
                    HasSubstr("rank 0 (pid 101) on GPU-00000000 640 MiB, rank #7 (pid 102) on "
                              "GPU-10000000 576 MiB, rank 2"),
                    HasSubstr("rank 7 (pid 108) on GPU-70000000 192 MiB, and 2 more (amemctl ranks "
                              "train), because")));
  EXPECT_THAT(to_json(group, advice_for(group, ranks, history)),
              HasSubstr(R"-({"rank":"rank 9 (pid 110)","pid":110,"uuid":"GPU-90000000-1",)-"
                        R"-("kind":"pool","bytes":67108864})-"));
}

TEST_F(AdviceTest, GroupsOfOneNameAreTheirOwners) {
  unbrokered("pool", kGibibyte);
  unbrokered("pool", kGibibyte, false, 1);
  ranks.mutable_ranks(1)->set_uid(1000);
  const std::vector<Staying> stays = what_stays(ranks);
  ASSERT_EQ(stays.size(), 2U);
  EXPECT_EQ(stays[0].group, "train@0");
  EXPECT_EQ(stays[1].group, "train@1000");
}

TEST_F(AdviceTest, AKindOfANewerShimIsNamed) {
  unbrokered("texture", kGibibyte);
  EXPECT_THAT(text(), HasSubstr("1.00 GiB of other memory stays on the GPU"));
}

TEST_F(AdviceTest, ACacheThatIsCopied) {
  tag("kv_cache", 20 * kGibibyte);
  EXPECT_THAT(text(), AllOf(HasSubstr("20.0 GiB of tag kv_cache"),
                            HasSubstr("`amem.region(TAG, keep=False)`")));
  group.mutable_tags(0)->set_discard_bytes(20 * kGibibyte);
  EXPECT_THAT(checks(), ElementsAre()) << "it is dropped already";
}

TEST_F(AdviceTest, AHeapWithoutTags) {
  tag("heap", 30 * kGibibyte);
  tag("nccl", 1 << 20);
  EXPECT_THAT(checks(), ElementsAre("tags"));
  EXPECT_THAT(text(), HasSubstr("amem.region(TAG, keep=False)"));
  tag("weights", 1 << 20);
  EXPECT_THAT(checks(), ElementsAre()) << "somebody has begun to mark memory";
}

TEST_F(AdviceTest, AHeapInSmallPieces) {
  tag("heap", 20 * kGibibyte, 1024);
  tag("weights", 1 << 20);
  EXPECT_THAT(checks(), ElementsAre("pieces"));
  EXPECT_THAT(text(), AllOf(HasSubstr("1024 pieces"), HasSubstr("expandable_segments")));
  group.mutable_tags(0)->set_allocation_count(200);
  EXPECT_THAT(checks(), ElementsAre());
}

TEST_F(AdviceTest, ScratchOfNccl) {
  tag("nccl", 2 * kGibibyte);
  EXPECT_THAT(text(), AllOf(HasSubstr("up to 2.00 GiB"), HasSubstr("AMEM_NCCL_SCRATCH=drop")));
  group.set_state(v1::GROUP_STATE_PAUSED);
  group.mutable_tags(0)->set_saved_bytes(1 << 20);
  EXPECT_THAT(checks(), ElementsAre()) << "the rest was zeros";
  group.mutable_tags(0)->set_saved_bytes(kGibibyte / 2);
  EXPECT_THAT(text(), HasSubstr("train: 512 MiB of NCCL's buffers is copied"));
}

TEST_F(AdviceTest, MemoryThatANicKnows) {
  group.set_pinned_bytes(kGibibyte);
  EXPECT_THAT(text(), AllOf(HasSubstr("1.00 GiB is registered with a NIC"),
                            HasSubstr("deregister it before a pause")));
}

TEST_F(AdviceTest, GuestsThatHaveMemoryOpen) {
  v1::GuestUsage& guest = *group.add_guests();
  guest.set_guest("rollout");
  guest.set_bytes(kGibibyte);
  EXPECT_THAT(text(), HasSubstr("1.00 GiB is open in rollout and stays on the GPU"));
}

TEST_F(AdviceTest, APauseThatMostlyWaitedForTheProgram) {
  pause_with_quiesce(900'000);
  EXPECT_THAT(text(), HasSubstr("took 1.00 s and waited 900 ms of it until the ranks were quiet"));
  pause_with_quiesce(100'000);
  EXPECT_THAT(checks(), ElementsAre()) << "the last one counts";
  pause_with_quiesce(900'000).set_code(4);
  EXPECT_THAT(checks(), ElementsAre()) << "of those that ended well";
}

TEST_F(AdviceTest, FiveLinesAtMostThatMatterMost) {
  unbrokered("device", 10 * kGibibyte);
  unbrokered("pool", 9 * kGibibyte);
  unbrokered("managed", 8 * kGibibyte);
  tag("kv_cache", 7 * kGibibyte);
  tag("nccl", 6 * kGibibyte);
  group.set_pinned_bytes(5 * kGibibyte);
  EXPECT_THAT(checks(),
              ElementsAre("scope", "stream-ordered", "managed", "discard", "nccl-scratch"));
}

}  // namespace
}  // namespace amem::ctl
