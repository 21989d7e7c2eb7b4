// Memory of one group that ranks of another have open: what a pause and a resume of either do with
// it.
#include "tests/unit/fixtures/all_allocations.h"
#include "tests/unit/fixtures/guests_fixture.h"

namespace amem {
namespace {

TEST_F(BrokerGuestsTest, AGuestMapsTheMemoryAndCountsForNothingElse) {
  open();
  EXPECT_TRUE(c.memory[of_a].guest);
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  const v1::GroupInfo train = group("train"), rollout = group("rollout");
  EXPECT_EQ(train.allocated_bytes(), 4 * kMiB);
  EXPECT_EQ(rollout.allocated_bytes(), 0U);
  EXPECT_EQ(rollout.resident_bytes(), 0U);
  ASSERT_EQ(train.guests_size(), 1);
  const v1::GuestUsage& guest = train.guests(0);
  EXPECT_EQ(guest.owner(), "train");
  EXPECT_EQ(guest.guest(), "rollout");
  EXPECT_EQ(guest.rank_id(), c.id());
  EXPECT_EQ(guest.pid(), c.pid());
  EXPECT_EQ(guest.tag(), "weights");
  EXPECT_EQ(guest.bytes(), 4 * kMiB);
  EXPECT_FALSE(guest.paused());
  ASSERT_EQ(rollout.opened_size(), 1);
  EXPECT_EQ(rollout.opened(0).SerializeAsString(), guest.SerializeAsString());
  c.free(of_a);
  EXPECT_TRUE(eventually([&] { return group("train").guests_size() == 0; }));
  EXPECT_TRUE(pause().ok());
  EXPECT_EQ(used(0), 0U);
}

TEST_F(PatientBrokerTest, APauseWaitsUntilTheGuestHasClosed) {
  open();
  const auto paused = begin(Operation::kPause);
  expect_phase("guests");
  EXPECT_EQ(a.received[amem_v1_SessionMessage_quiesce_tag], 0) << "the group runs on";
  EXPECT_NE(a.create(gpu(0), 2 * kMiB), 0U);
  c.free(of_a);
  ASSERT_TRUE(complete(paused).ok());
  EXPECT_EQ(used(0), 0U);
  EXPECT_EQ(last(paused).guests_size(), 0);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_a, 0xaa));
}

TEST_F(BrokerGuestsTest, AtTheDeadlineItStaysAndTheGuestIsNamed) {
  open();
  const std::uint64_t other = a.create(gpu(0), 2 * kMiB);
  const auto paused = begin(Operation::kPause);
  ASSERT_TRUE(complete(paused).ok());
  ASSERT_EQ(last(paused).guests_size(), 1);
  EXPECT_EQ(last(paused).guests(0).guest(), "rollout");
  EXPECT_EQ(last(paused).guests(0).bytes(), 4 * kMiB);
  EXPECT_GE(milliseconds(last(paused).elapsed_us() / 1000), kWait);
  EXPECT_EQ(group().state(), kPaused);
  EXPECT_EQ(used(0), 4 * kMiB) << "the rest has left";
  EXPECT_EQ(status().pool().used_bytes(), 2 * kMiB) << "a chunk, for the rest";
  EXPECT_FALSE(a.memory[of_a].fd) << "its own ranks have let go of it";
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  c.write(of_a, 0xcc);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_a, 0xcc)) << "one memory, not an old copy of it";
  EXPECT_TRUE(a.memory[other].fd);
  c.free(of_a);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0), 0U);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_a, 0xcc));
}

TEST_F(BrokerGuestsTest, AGuestThatClosesWhileTheOwnerIsPausedLosesNothing) {
  open();
  ASSERT_TRUE(pause().ok());
  c.free(of_a);
  EXPECT_TRUE(eventually([&] { return group("train").guests_size() == 0; }));
  EXPECT_EQ(used(0), 4 * kMiB) << "its bytes are nowhere else";
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(of_a, 0xaa));
}

TEST_F(BrokerGuestsTest, AGuestThatClosesBetweenSaveAndDropLosesNothing) {
  for (const bool dies : {false, true}) {
    open();
    a.moods[amem_v1_SessionMessage_release_tag] = Mood::kLate;
    const auto paused = begin(Operation::kPause);
    expect_phase("release");
    if (dies)
      end(c);
    else
      c.free(of_a);
    EXPECT_TRUE(eventually([&] { return group("train").guests_size() == 0; }));
    a.catch_up();
    ASSERT_TRUE(complete(paused).ok());
    EXPECT_EQ(used(0), 4 * kMiB);
    ASSERT_TRUE(resume().ok());
    EXPECT_TRUE(a.holds(of_a, 0xaa));
    for (ScriptedRank* rank : {&a, &c}) end(*rank);
    EXPECT_TRUE(eventually([&] { return status().groups_size() == 0; }));
    ranks.clear();
  }
}

TEST_F(BrokerGuestsTest, RefusedTheGroupRunsOn) {
  open();
  const auto refused = begin_refused();
  const Status result = complete(refused);
  EXPECT_EQ(result.code(), Code::kFailedPrecondition);
  for (const std::string& text :
       {"rank 0 (pid " + std::to_string(c.pid()) + ") of group 'rollout'",
        std::string("4 MiB of tag 'weights' open"), std::string("the group is running")})
    EXPECT_NE(result.text().find(text), std::string::npos) << result.text();
  EXPECT_EQ(group().state(), kRunning);
  EXPECT_EQ(a.received[amem_v1_SessionMessage_quiesce_tag], 0);
}

TEST_F(BrokerGuestsTest, AGuestThatComesWhileRanksBecomeQuietIsRefusedToo) {
  join(a, "train", 0);
  join(c, "rollout", 0);
  of_a = a.create(gpu(0), 4 * kMiB);
  a.moods[amem_v1_SessionMessage_quiesce_tag] = Mood::kLate;
  const auto refused = begin_refused();
  expect_phase("quiesce");
  c.share(a, of_a);
  a.catch_up();
  EXPECT_EQ(complete(refused).code(), Code::kFailedPrecondition);
  EXPECT_EQ(group().state(), kRunning);
  EXPECT_FALSE(a.gate_shut());
  EXPECT_EQ(status().pool().used_bytes(), 0U);
}

TEST_F(BrokerGuestsTest, NobodyNewComesInOnceBytesAreSaved) {
  join(a, "train", 0);
  join(c, "rollout", 0);
  of_a = a.create(gpu(0), 4 * kMiB, "weights");
  const std::uint64_t stays = a.create(gpu(0), 2 * kMiB, "kv_cache");
  a.write(of_a, 0xaa);
  a.moods[amem_v1_SessionMessage_save_tag] = Mood::kLate;
  const auto paused = begin({Operation::kPause, {{"weights"}}});
  expect_phase("save");
  const Packet late = c.try_redeem(of_a, a.token(of_a));
  EXPECT_EQ(ScriptedRank::code(late), Code::kFailedPrecondition);
  EXPECT_NE(std::string(late.message.body.reply.text).find("is being paused"), std::string::npos);
  c.share(a, stays);
  a.catch_up();
  ASSERT_TRUE(complete(paused).ok());
  EXPECT_EQ(used(0), 2 * kMiB);
  EXPECT_EQ(ScriptedRank::code(c.try_redeem(of_a, a.token(of_a))), Code::kFailedPrecondition);
  ASSERT_TRUE(resume().ok());
  c.share(a, of_a);
  EXPECT_TRUE(c.holds(of_a, 0xaa));
}

TEST_F(BrokerGuestsTest, AGuestIsPausedAndResumed) {
  open();
  const std::uint64_t own = c.create(gpu(0), 2 * kMiB, "weights");
  c.write(own, 0xc1);
  ASSERT_TRUE(pause("rollout").ok());
  EXPECT_FALSE(c.memory[of_a].fd);
  EXPECT_EQ(used(0), 4 * kMiB) << "only its own memory has left";
  EXPECT_EQ(status().pool().used_bytes(), 2 * kMiB);
  EXPECT_TRUE(group("rollout").opened(0).paused());
  a.write(of_a, 0xa2);
  ASSERT_TRUE(resume("rollout").ok());
  EXPECT_TRUE(c.holds(of_a, 0xa2));
  EXPECT_TRUE(c.holds(own, 0xc1));
  EXPECT_FALSE(group("rollout").opened(0).paused());
}

TEST_F(PatientBrokerTest, APausedGuestIsNotWaitedFor) {
  open();
  ASSERT_TRUE(pause("rollout").ok());
  const auto paused = begin(Operation::kPause);
  ASSERT_TRUE(complete(paused).ok());
  EXPECT_LT(milliseconds(last(paused).elapsed_us() / 1000), kLongWait);
  EXPECT_TRUE(last(paused).guests(0).paused());
  EXPECT_EQ(used(0), 4 * kMiB);
  ASSERT_TRUE(resume("rollout").ok()) << "the memory is there though its owner is paused";
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  ASSERT_TRUE(pause("rollout").ok());
  ASSERT_TRUE(resume("train").ok());
  const auto refused = begin_refused();
  EXPECT_NE(complete(refused).text().find("(that group is paused)"), std::string::npos)
      << refused->status().text();
}

TEST_F(PatientBrokerTest, AGuestThatIsPausedMeanwhileIsWaitedForNoLonger) {
  open();
  const auto paused = begin(Operation::kPause);
  expect_phase("guests");
  ASSERT_TRUE(pause("rollout").ok());
  EXPECT_TRUE(complete(paused).ok());
  EXPECT_EQ(used(0), 4 * kMiB);
}

TEST_F(BrokerGuestsTest, PausesOfTagsLeaveWhatAGuestHasOpen) {
  open();
  const std::uint64_t own = c.create(gpu(0), 2 * kMiB, "weights");
  const std::uint64_t other = c.create(gpu(0), 2 * kMiB, "kv_cache");
  ASSERT_TRUE(complete(begin({Operation::kPause, {{"weights"}}}, "rollout")).ok());
  EXPECT_FALSE(c.memory[own].fd);
  EXPECT_TRUE(c.holds(of_a, 0xaa)) << "its tag is the other group's";
  ASSERT_TRUE(complete(begin({Operation::kPause, {{"weights"}, true}}, "rollout")).ok());
  EXPECT_FALSE(c.memory[other].fd);
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  // Everything goes with a whole pause, and is back whenever the group runs.
  ASSERT_TRUE(pause("rollout").ok());
  EXPECT_FALSE(c.memory[of_a].fd);
  ASSERT_TRUE(complete(begin({Operation::kResume, {{"kv_cache"}}}, "rollout")).ok());
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  EXPECT_FALSE(c.memory[own].fd);
  ASSERT_TRUE(resume("rollout").ok());
  EXPECT_TRUE(c.memory[own].fd);
}

TEST_F(BrokerGuestsTest, AFailedResumeOfAGuestTakesItAwayAgain) {
  open();
  c.create(gpu(1), 2 * kMiB);
  ASSERT_TRUE(pause("rollout").ok());
  c.moods[amem_v1_SessionMessage_load_tag] = Mood::kFailing;
  EXPECT_FALSE(resume("rollout").ok());
  EXPECT_FALSE(c.memory[of_a].fd);
  EXPECT_TRUE(group("rollout").opened(0).paused());
  c.moods.clear();
  ASSERT_TRUE(resume("rollout").ok());
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  EXPECT_TRUE(a.holds(of_a, 0xaa));
}

TEST_F(BrokerGuestsTest, TheOwnerEndsWhileAGuestHasItOpen) {
  open();
  const std::uint64_t own = c.create(gpu(0), 2 * kMiB);
  end(a);
  EXPECT_TRUE(eventually([&] { return status().groups_size() == 1; }));
  EXPECT_EQ(used(0), 6 * kMiB);
  EXPECT_EQ(group("rollout").opened(0).owner(), "") << "it is nobody's now";
  EXPECT_EQ(group("rollout").opened(0).bytes(), 4 * kMiB);
  on_loop([&] {
    EXPECT_TRUE(broker->reports().ranks(Caller{}, "").ok());
    EXPECT_TRUE(all_allocations(*broker, Caller{}, "").ok());
  });
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pause("rollout").ok());
    EXPECT_EQ(used(0), 4 * kMiB);
    ASSERT_TRUE(resume("rollout").ok());
    EXPECT_TRUE(c.holds(of_a, 0xaa));
  }
  // A group of that name that begins again is another one.
  join(d, "train", 0);
  EXPECT_EQ(ScriptedRank::code(d.try_redeem(of_a, c.token(of_a))), Code::kNotFound);
  c.free(of_a);
  c.free(own);
  EXPECT_TRUE(eventually([&] { return used(0) == 0; }));
}

TEST_F(BrokerGuestsTest, TheOwnerFreesWhatAGuestHasOpen) {
  open();
  join(b, "train", 1);
  b.share(a, of_a);
  a.free(of_a);
  b.free(of_a);
  EXPECT_TRUE(eventually([&] { return group("train").allocation_count() == 0; }));
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  c.free(of_a);
  EXPECT_TRUE(eventually([&] { return used(0) == 0; }));
}

TEST_F(BrokerGuestsTest, TheOwnerOfWhatStayedEndsWhilePaused) {
  open();
  ASSERT_TRUE(pause("rollout").ok());
  ASSERT_TRUE(pause("train").ok());
  end(a);
  EXPECT_TRUE(eventually([&] { return status().groups_size() == 1; }));
  ASSERT_TRUE(resume("rollout").ok());
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  end(c);
  EXPECT_TRUE(eventually([&] { return used(0) == 0; }));
}

TEST_F(PatientBrokerTest, APauseThatMayBeRefusedWaitsFirst) {
  open();
  const auto waits = begin_refused();
  expect_phase("guests");
  c.free(of_a);
  EXPECT_TRUE(complete(waits).ok()) << waits->status().text();
  EXPECT_EQ(used(0), 0U);
}

TEST_F(PatientBrokerTest, SeveralGuestsAreAllWaitedFor) {
  open();
  join(d, "rollout", 1);
  d.share(a, of_a);
  d.share(a, of_a);
  const auto paused = begin(Operation::kPause);
  expect_phase("guests");
  c.free(of_a);
  EXPECT_TRUE(eventually([&] { return group("train").guests_size() == 1; }));
  settle();
  EXPECT_EQ(group().phase(), "guests");
  d.free(of_a);
  ASSERT_TRUE(complete(paused).ok());
  EXPECT_EQ(used(0), 0U);
}

TEST_F(BrokerGuestsTest, ASwapOfOwnerAndGuest) {
  open();
  const std::uint64_t own = c.create(gpu(0), 6 * kMiB);
  c.write(own, 0xc1);
  ASSERT_TRUE(pause("rollout").ok());
  const auto swap = [&](const std::string& out, const std::string& in) {
    auto watcher = std::make_shared<Watcher>();
    on_loop([&] { broker->swap(Caller{}, {out}, {in}, Operation::kPause, {}, watcher); });
    return complete(watcher);
  };
  for (int i = 0; i < 3; ++i) {
    const Status there = swap("train", "rollout");
    ASSERT_TRUE(there.ok()) << there.text();
    EXPECT_TRUE(c.holds(of_a, 0xaa));
    EXPECT_TRUE(c.holds(own, 0xc1));
    const Status back = swap("rollout", "train");
    ASSERT_TRUE(back.ok()) << back.text();
    EXPECT_TRUE(a.holds(of_a, 0xaa));
  }
}

TEST_F(BrokerGuestsTest, WavesLeaveWhatGuestsHaveOpen) {
  open();
  // No space for both: 128 MiB in all.
  const std::uint64_t much =
      a.create(gpu(0), 70 * kMiB, "kv_cache", amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
  const std::uint64_t more = a.create(gpu(0), 6 * kMiB, "kv_cache");
  a.write(more, 0xa3);
  ASSERT_TRUE(pause("train").ok());
  const std::uint64_t own =
      c.create(gpu(0), 80 * kMiB, "kv_cache", amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
  const std::uint64_t kept = c.create(gpu(0), 6 * kMiB);
  c.write(kept, 0xc1);
  const auto swap = [&](const std::string& out, const std::string& in) {
    auto watcher = std::make_shared<Watcher>();
    on_loop([&] { broker->swap(Caller{}, {out}, {in}, Operation::kPause, {}, watcher); });
    return complete(watcher);
  };
  Status swapped = swap("rollout", "train");
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  EXPECT_FALSE(c.memory[of_a].fd) << "a guest's mapping goes with a wave, too";
  EXPECT_TRUE(a.holds(more, 0xa3));
  EXPECT_TRUE(a.holds(of_a, 0xaa));
  swapped = swap("train", "rollout");
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  EXPECT_TRUE(c.holds(of_a, 0xaa));
  EXPECT_TRUE(c.holds(kept, 0xc1));
  EXPECT_TRUE(c.memory[own].fd);
  EXPECT_FALSE(a.memory[of_a].fd);
  EXPECT_FALSE(a.memory[much].fd);
  swapped = swap("rollout", "train");
  ASSERT_TRUE(swapped.ok()) << swapped.text();
  EXPECT_TRUE(a.holds(of_a, 0xaa));
}

TEST_F(BrokerGuestsTest, APinOfAGuestChangesNothing) {
  open();
  c.pin(of_a);
  ASSERT_TRUE(pause("rollout").ok());
  EXPECT_TRUE(c.memory[of_a].fd) << "a NIC knows it";
  c.memory[of_a].fd.reset();  // the script maps what it is sent; the shim passes it over
  ASSERT_TRUE(resume("rollout").ok());
  EXPECT_TRUE(c.holds(of_a, 0xaa));
}

TEST_F(BrokerGuestsTest, FromInsideRanksChooseToo) {
  open();
  const std::uint64_t seq = a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {}, false, {},
                                      amem_v1_GuestRule_GUEST_RULE_REFUSE);
  ASSERT_TRUE(eventually([&] { return !a.replies.empty(); }));
  EXPECT_EQ(a.replies.front().message.seq, seq);
  EXPECT_EQ(ScriptedRank::code(a.replies.front()), Code::kFailedPrecondition);
}

class RefusingBrokerTest : public BrokerGuestsTest {
 protected:
  void configure(Config& settings) const override {
    BrokerGuestsTest::configure(settings);
    settings.guests = GuestPolicy::kRefuse;
  }
};

TEST_F(RefusingBrokerTest, TheSettingHoldsUnlessAPauseSaysOtherwise) {
  open();
  EXPECT_EQ(pause().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(complete(begin({Operation::kPause, {}, {}, GuestPolicy::kPin})).ok());
  EXPECT_EQ(used(0), 4 * kMiB);
}

}  // namespace
}  // namespace amem
