// Tags and policies in a whole broker: what leaves, what stays, what comes back.
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

class BrokerTagsTest : public BrokerTest {
 protected:
  /// Two ranks that share memory of two tags, and have some of NCCL's.
  void two_with_tags() {
    two_sharing();
    weights = a.create(gpu(0), 8 * kMiB, "weights");
    b.share(a, weights);
    cache = b.create(gpu(1), 10 * kMiB, "kv_cache", amem_v1_RegionPolicy_REGION_POLICY_DISCARD);
    a.share(b, cache);
    a.write(weights, 0x11);
    b.write(cache, 0x22);
  }
  Status pause_tags(std::set<std::string> tags) {
    return complete(begin({Operation::kPause, {std::move(tags)}}));
  }
  Status resume_tags(std::set<std::string> tags) {
    return complete(begin({Operation::kResume, {std::move(tags)}}));
  }
  v1::TagUsage tag(const std::string& name) {
    const v1::GroupInfo info = group();
    for (const v1::TagUsage& usage : info.tags())
      if (usage.tag() == name) return usage;
    return {};
  }

  std::uint64_t weights = 0, cache = 0;
};

TEST_F(BrokerTagsTest, OnlyTheChosenTagLeaves) {
  two_with_tags();
  ASSERT_TRUE(pause_tags({"weights"}).ok());
  EXPECT_FALSE(a.memory[weights].fd);
  EXPECT_FALSE(b.memory[weights].fd);
  EXPECT_FALSE(a.gate_shut());
  expect_intact();
  EXPECT_TRUE(b.holds(cache, 0x22));
  EXPECT_EQ(used(0), 4 * kMiB);
  EXPECT_EQ(group().state(), v1::GROUP_STATE_RUNNING);
  EXPECT_EQ(tag("weights").resident_bytes(), 0U);
  EXPECT_EQ(tag("weights").saved_bytes(), 8 * kMiB);
  EXPECT_EQ(tag("kv_cache").resident_bytes(), 10 * kMiB);
  EXPECT_EQ(tag("kv_cache").discard_bytes(), 10 * kMiB);
  EXPECT_EQ(status().pool().used_bytes(), 8 * kMiB);

  ASSERT_TRUE(resume_tags({"weights"}).ok());
  EXPECT_TRUE(a.holds(weights, 0x11));
  EXPECT_TRUE(b.holds(weights, 0x11));
  EXPECT_EQ(status().pool().used_bytes(), 0U);
  EXPECT_EQ(a.received[amem_v1_SessionMessage_quiesce_tag], 1) << "the resume shut no gate";
}

TEST_F(BrokerTagsTest, WeightsComeBackBeforeTheCache) {
  two_with_tags();
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(used(0) + used(1), 0U);
  EXPECT_EQ(status().pool().used_bytes(), 18 * kMiB) << "the cache's bytes are dropped";
  ASSERT_TRUE(resume_tags({"weights", "nccl"}).ok());
  expect_intact();
  EXPECT_TRUE(b.holds(weights, 0x11));
  EXPECT_FALSE(b.memory[cache].fd);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(cache, 0)) << "zeroed";
  EXPECT_TRUE(b.holds(cache, 0));
}

TEST_F(BrokerTagsTest, APauseOfAllTakesWhatIsLeft) {
  two_with_tags();
  ASSERT_TRUE(pause_tags({"weights"}).ok());
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(group().state(), v1::GROUP_STATE_PAUSED);
  EXPECT_EQ(used(0) + used(1), 0U);
  ASSERT_TRUE(resume().ok());
  expect_intact();
  EXPECT_TRUE(b.holds(weights, 0x11));
}

TEST_F(BrokerTagsTest, AFailedResumeTakesNothingElseAway) {
  two_with_tags();
  ASSERT_TRUE(pause_tags({"weights"}).ok());
  const std::uint64_t more = a.create(gpu(0), 2 * kMiB, "weights");
  a.write(more, 0x33);
  a.moods[amem_v1_SessionMessage_load_tag] = Mood::kFailing;
  const Status failed = resume_tags({"weights"});
  EXPECT_EQ(failed.code(), Code::kAborted) << failed.text();
  EXPECT_TRUE(a.holds(more, 0x33)) << "it was there all the time";
  expect_intact();
  EXPECT_FALSE(a.memory[weights].fd);
  EXPECT_EQ(group().state(), v1::GROUP_STATE_RUNNING);
  a.moods.clear();
  ASSERT_TRUE(resume_tags({"weights"}).ok());
  EXPECT_TRUE(b.holds(weights, 0x11));
}

// The Save that it has not answered is of a later pause, which was called off.
TEST_F(BrokerTagsTest, ARankThatDiesWhileATagComesBackTakesNothingWithItThatWasSaved) {
  two_with_tags();
  ASSERT_TRUE(pause_tags({"weights"}).ok());
  for (const int what : {amem_v1_SessionMessage_save_tag, amem_v1_SessionMessage_ask_tag,
                         amem_v1_SessionMessage_map_tag, amem_v1_SessionMessage_load_tag})
    a.moods[static_cast<pb_size_t>(what)] = Mood::kLate;
  b.moods[amem_v1_SessionMessage_save_tag] = Mood::kFailing;
  EXPECT_EQ(pause().code(), Code::kAborted);
  b.moods.clear();
  auto resumed = begin({Operation::kResume, {{"weights"}}});
  ASSERT_TRUE(eventually([&] { return group().phase() == "map+load"; }));
  a.die();
  EXPECT_EQ(complete(resumed).code(), Code::kAborted) << "its peer has not loaded them";
  EXPECT_EQ(tag("weights").saved_bytes(), 8 * kMiB);
  ASSERT_TRUE(resume_tags({"weights"}).ok());
  EXPECT_TRUE(b.holds(weights, 0x11));
}

TEST_F(BrokerTagsTest, PinnedMemoryOfATagStaysAndIsSharedAgain) {
  two_with_tags();
  a.pin(weights);
  settle();
  ASSERT_TRUE(pause_tags({"weights", "kv_cache"}).ok());
  EXPECT_TRUE(a.holds(weights, 0x11));
  EXPECT_FALSE(b.memory[weights].fd) << "its peer let go";
  ASSERT_TRUE(resume_tags({"kv_cache"}).ok());
  EXPECT_FALSE(b.memory[weights].fd);
  ASSERT_TRUE(resume_tags({"weights"}).ok());
  EXPECT_TRUE(b.holds(weights, 0x11));
}

TEST_F(BrokerTagsTest, MemoryThatIsUnpinnedWhileItsTagIsPausedKeepsItsBytes) {
  two_with_tags();
  a.pin(weights);
  settle();
  ASSERT_TRUE(pause_tags({"weights", "kv_cache"}).ok());
  a.unpin(weights);
  settle();
  ASSERT_TRUE(pause().ok());
  EXPECT_FALSE(a.memory[weights].fd) << "a pause of everything takes it from its rank";
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(weights, 0x11));
  EXPECT_TRUE(b.holds(weights, 0x11));
}

TEST_F(BrokerTagsTest, ATagOfPinnedMemoryAloneCannotLeave) {
  two_with_tags();
  a.pin(weights);
  b.pin(weights);
  settle();
  const Status refused = pause_tags({"weights"});
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.text().find("all of its memory is pinned"), std::string::npos)
      << refused.text();
}

TEST_F(BrokerTagsTest, WhatIsFreedWhilePausedGivesItsBytesBack) {
  two_with_tags();
  ASSERT_TRUE(pause_tags({"weights"}).ok());
  a.free(weights);
  b.free(weights);
  settle();
  EXPECT_EQ(status().pool().used_bytes(), 0U);
  EXPECT_EQ(resume_tags({"weights"}).code(), Code::kNotFound);
}

TEST_F(BrokerTagsTest, ATicketForPausedMemoryIsRefused) {
  two_with_tags();
  join(c, "train", 2);
  ASSERT_TRUE(pause_tags({"weights"}).ok());
  const Packet refused = c.try_redeem(weights, a.token(weights));
  EXPECT_EQ(ScriptedRank::code(refused), Code::kFailedPrecondition);
  EXPECT_NE(std::string(refused.message.body.reply.text).find("paused with its tag 'weights'"),
            std::string::npos);
}

TEST_F(BrokerTagsTest, UnknownTagsAreNamed) {
  two_with_tags();
  const Status unknown = pause_tags({"wieghts"});
  EXPECT_EQ(unknown.code(), Code::kNotFound);
  EXPECT_EQ(
      unknown.text(),
      "the group has no memory of tag 'wieghts'; it has memory of tags kv_cache, nccl, weights");
  const Packet reply = a.await_reply(a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"wieghts"}));
  EXPECT_EQ(ScriptedRank::code(reply), Code::kNotFound);
}

TEST_F(BrokerTagsTest, FromInsideWhenAllAskForTheSameTags) {
  two_with_tags();
  const auto of_a_seq = a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"kv_cache"});
  settle();
  EXPECT_EQ(group().state(), v1::GROUP_STATE_RUNNING);
  EXPECT_TRUE(a.memory[cache].fd);
  b.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"kv_cache"});
  ASSERT_TRUE(eventually([&] { return !a.replies.empty() && !b.replies.empty(); }));
  EXPECT_EQ(a.replies.front().message.seq, of_a_seq);
  EXPECT_EQ(ScriptedRank::code(a.replies.front()), Code::kOk);
  EXPECT_FALSE(a.memory[cache].fd);
  expect_intact();
}

TEST_F(BrokerTagsTest, TheOperatorsPolicyGoesBeforeTheRegions) {
  two_with_tags();
  ASSERT_TRUE(set_policy("kv_cache", v1::POLICY_KEEP).ok());
  ASSERT_TRUE(set_policy("weights", v1::POLICY_DISCARD).ok());
  ASSERT_TRUE(pause_tags({"weights", "kv_cache"}).ok());
  const Status late = set_policy("weights", v1::POLICY_KEEP);
  EXPECT_EQ(late.code(), Code::kFailedPrecondition);
  EXPECT_NE(late.text().find("is paused"), std::string::npos);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(cache, 0x22));
  EXPECT_TRUE(a.holds(weights, 0));
  EXPECT_TRUE(set_policy("weights", v1::POLICY_KEEP).ok());
}

TEST_F(BrokerTagsTest, APauseDropsWhatItIsToldToWhateverThePolicy) {
  two_with_tags();
  ASSERT_TRUE(set_policy("kv_cache", v1::POLICY_KEEP).ok());
  auto watcher = begin({Operation::kPause, {}, {"weights"}});
  const Status paused = complete(watcher);
  ASSERT_TRUE(paused.ok()) << paused.text();
  EXPECT_EQ(watcher->all().back().dropped_bytes(), 8 * kMiB);
  EXPECT_EQ(tag("weights").saved_bytes(), 0U);
  EXPECT_EQ(tag("weights").dropped_bytes(), 8 * kMiB);
  EXPECT_EQ(tag("weights").discard_bytes(), 0U) << "of the policies";
  EXPECT_EQ(tag("kv_cache").dropped_bytes(), 0U);
  EXPECT_EQ(tag("kv_cache").saved_bytes(), 10 * kMiB);
  EXPECT_EQ(group().dropped_bytes(), 8 * kMiB);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(weights, 0));
  EXPECT_TRUE(b.holds(weights, 0));
  EXPECT_TRUE(a.holds(cache, 0x22)) << "the policy stands";
  expect_intact();
  EXPECT_EQ(group().dropped_bytes(), 0U);

  a.write(weights, 0x11);
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(weights, 0x11)) << "it was of that pause alone";
}

TEST_F(BrokerTagsTest, WhatIsDroppedByTagStaysDroppedThroughAWholePause) {
  two_with_tags();
  ASSERT_TRUE(set_policy("kv_cache", v1::POLICY_KEEP).ok());
  ASSERT_TRUE(complete(begin({Operation::kPause, {{"kv_cache"}}, {"kv_cache"}})).ok());
  EXPECT_EQ(status().pool().used_bytes(), 0U);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(group().dropped_bytes(), 10 * kMiB);
  const Task rest{Operation::kResume, {{"kv_cache"}, true}};
  const Status resumed = complete(begin(rest));
  ASSERT_TRUE(resumed.ok()) << resumed.text();
  EXPECT_TRUE(b.holds(weights, 0x11));
  expect_intact();
  EXPECT_FALSE(b.memory[cache].fd);
  EXPECT_EQ(group().dropped_bytes(), 10 * kMiB);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(cache, 0));
  EXPECT_TRUE(b.holds(weights, 0x11));
}

TEST_F(BrokerTagsTest, AFailedResumeOfDroppedBytesIsTriedAgain) {
  two_with_tags();
  ASSERT_TRUE(complete(begin({Operation::kPause, {}, {"weights"}})).ok());
  a.moods[amem_v1_SessionMessage_load_tag] = Mood::kFailing;
  EXPECT_EQ(resume().code(), Code::kAborted);
  EXPECT_EQ(tag("weights").dropped_bytes(), 8 * kMiB);
  a.moods.clear();
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(weights, 0));
  expect_intact();
}

TEST_F(BrokerTagsTest, AllButATagLeavesAndComesBack) {
  two_with_tags();
  ASSERT_TRUE(set_policy("kv_cache", v1::POLICY_KEEP).ok());
  const Selection rest{{"weights"}, true};
  ASSERT_TRUE(complete(begin({Operation::kPause, rest})).ok());
  EXPECT_TRUE(a.holds(weights, 0x11)) << "it never left";
  EXPECT_TRUE(b.memory[weights].fd);
  EXPECT_FALSE(a.memory[cache].fd);
  EXPECT_FALSE(b.memory[cache].fd);
  EXPECT_FALSE(a.gate_shut());
  EXPECT_EQ(tag("nccl").resident_bytes(), 0U);
  EXPECT_EQ(tag("weights").resident_bytes(), 8 * kMiB);
  EXPECT_EQ(a.received[amem_v1_SessionMessage_release_tag], 1);
  ASSERT_TRUE(complete(begin({Operation::kResume, rest})).ok());
  expect_intact();
  EXPECT_TRUE(a.holds(cache, 0x22));
  EXPECT_EQ(status().pool().used_bytes(), 0U);
}

TEST_F(BrokerTagsTest, PinnedMemoryOfADroppedTagKeepsItsBytes) {
  two_with_tags();
  const std::uint64_t more = b.create(gpu(1), 2 * kMiB, "weights");
  b.write(more, 0x33);
  a.pin(weights);
  settle();
  ASSERT_TRUE(complete(begin({Operation::kPause, {}, {"weights"}})).ok());
  EXPECT_EQ(tag("weights").dropped_bytes(), 2 * kMiB);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(weights, 0x11)) << "it stayed where it was";
  EXPECT_TRUE(b.holds(weights, 0x11));
  EXPECT_TRUE(b.holds(more, 0));
  expect_intact();
}

TEST_F(BrokerTagsTest, WhatCannotBeMeantIsRefusedAndChangesNothing) {
  two_with_tags();
  const auto refused = [&](const Task& task, Code code, const std::string& text) {
    const Status status = complete(begin(task));
    EXPECT_EQ(status.code(), code) << status.text();
    EXPECT_NE(status.text().find(text), std::string::npos) << status.text();
  };
  refused({Operation::kPause, {}, {"nccl"}}, Code::kInvalidArgument,
          "always keeps the bytes of tag 'nccl'");
  refused({Operation::kPause, {}, {"cash"}}, Code::kNotFound,
          "no memory of tag 'cash'; it has memory of tags kv_cache, nccl, weights");
  refused({Operation::kPause, {{"cash"}, true}}, Code::kNotFound,
          "no memory of tag 'cash'; it has");
  refused({Operation::kPause, {{"kv_cache", "nccl", "weights"}, true}}, Code::kNotFound,
          "no memory of other tags; it has memory of tags kv_cache, nccl, weights");
  refused({Operation::kPause, {{"kv_cache"}}, {"weights"}}, Code::kInvalidArgument,
          "tag 'weights' cannot be dropped, because the pause is of tag kv_cache");
  refused({Operation::kPause, {{"weights"}, true}, {"weights"}}, Code::kInvalidArgument,
          "the pause is of all but tag weights");
  refused({Operation::kResume, {}, {"weights"}}, Code::kInvalidArgument, "cannot drop");
  EXPECT_EQ(group().state(), kRunning);

  ASSERT_TRUE(pause_tags({"weights"}).ok());
  refused({Operation::kPause, {}, {"weights"}}, Code::kFailedPrecondition,
          "it is paused, and the pause has saved its bytes");
  ASSERT_TRUE(resume_tags({"weights"}).ok());
  EXPECT_TRUE(b.holds(weights, 0x11));
  EXPECT_TRUE(complete(begin({Operation::kPause, {{"heap", "nccl"}, true}})).ok())
      << "NCCL's and the heap's may be excepted without being there";
  EXPECT_TRUE(complete(begin({Operation::kResume, {{"heap", "nccl"}, true}})).ok());
  expect_intact();
}

TEST_F(BrokerTagsTest, FromInsideARankDropsAndExcepts) {
  two_with_tags();
  constexpr auto kPause = amem_v1_GroupOp_GROUP_OP_PAUSE;
  constexpr auto kResume = amem_v1_GroupOp_GROUP_OP_RESUME;
  Packet reply = a.await_reply(a.request(kPause, 0, {}, true));
  EXPECT_EQ(ScriptedRank::code(reply), Code::kInvalidArgument) << "all but nothing";
  reply = a.await_reply(a.request(kPause, 0, {}, false, {"nccl"}));
  EXPECT_EQ(ScriptedRank::code(reply), Code::kInvalidArgument);
  reply = a.await_reply(a.request(kPause, 0, {"cash"}, true));
  EXPECT_EQ(ScriptedRank::code(reply), Code::kNotFound);

  const auto both_ask = [&](amem_v1_GroupOp op, bool except, std::vector<std::string> discard) {
    std::vector<std::string> tags;
    if (except) tags = {"nccl", "kv_cache"};
    a.replies.clear();
    b.replies.clear();
    a.request(op, 0, tags, except, discard);
    b.request(op, 0, tags, except, discard);
    ASSERT_TRUE(eventually([&] { return !a.replies.empty() && !b.replies.empty(); }));
    EXPECT_EQ(ScriptedRank::code(a.replies.front()), Code::kOk);
    EXPECT_EQ(ScriptedRank::code(b.replies.front()), Code::kOk);
  };
  both_ask(kPause, false, {"weights"});
  EXPECT_EQ(group().state(), kPaused);
  EXPECT_EQ(tag("weights").dropped_bytes(), 8 * kMiB);
  both_ask(kResume, true, {});
  EXPECT_TRUE(b.holds(weights, 0));
  EXPECT_FALSE(b.memory[cache].fd);
  ASSERT_TRUE(resume().ok());
  expect_intact();
}

TEST_F(BrokerTagsTest, ARankSetsAPolicyAndTheOperatorsGoesBeforeIt) {
  two_with_tags();
  const auto rank_sets = [&](const std::string& name, amem_v1_RegionPolicy policy) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_set_policy_tag;
    set_text(message.body.set_policy.tag, name);
    message.body.set_policy.policy = policy;
    return ScriptedRank::code(a.ask(message));
  };
  constexpr auto kKeep = amem_v1_RegionPolicy_REGION_POLICY_KEEP;
  constexpr auto kDiscard = amem_v1_RegionPolicy_REGION_POLICY_DISCARD;
  EXPECT_EQ(rank_sets("nccl", kDiscard), Code::kInvalidArgument);
  EXPECT_EQ(rank_sets("", kKeep), Code::kInvalidArgument);
  EXPECT_EQ(rank_sets("weights", amem_v1_RegionPolicy_REGION_POLICY_UNSPECIFIED),
            Code::kInvalidArgument);
  EXPECT_EQ(rank_sets("weights", kDiscard), Code::kOk);
  EXPECT_EQ(rank_sets("kv_cache", kKeep), Code::kOk) << "before its region's";
  EXPECT_EQ(group().policies_size(), 2);
  ASSERT_TRUE(pause().ok());
  EXPECT_EQ(rank_sets("weights", kKeep), Code::kFailedPrecondition) << "paused";
  EXPECT_EQ(group().dropped_bytes(), 8 * kMiB);
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(weights, 0));
  EXPECT_TRUE(a.holds(cache, 0x22));

  a.write(weights, 0x11);
  ASSERT_TRUE(set_policy("weights", v1::POLICY_KEEP).ok());
  EXPECT_EQ(rank_sets("weights", kDiscard), Code::kOk);
  EXPECT_EQ(group().policies(1).policy(), v1::POLICY_KEEP) << "the operator's";
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(weights, 0x11));
}

TEST_F(BrokerTagsTest, RanksDropTheHeapOnlyByForce) {
  join(a);
  join(b);
  const std::uint64_t heap = a.create(gpu(0), 4 * kMiB, "heap");
  a.write(heap, 0x33);
  const auto asks = [&](ScriptedRank& rank, bool force) {
    return rank.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {}, false, {"heap"}, {}, force);
  };
  const Packet refused = a.await_reply(asks(a, false));
  EXPECT_EQ(ScriptedRank::code(refused), Code::kInvalidArgument);
  EXPECT_NE(std::string(refused.message.body.reply.text).find("would lose 4 MiB"),
            std::string::npos);
  EXPECT_EQ(group().state(), v1::GROUP_STATE_RUNNING);
  a.replies.clear();
  b.replies.clear();
  asks(a, true);
  asks(b, true);
  ASSERT_TRUE(eventually([&] { return !a.replies.empty() && !b.replies.empty(); }));
  EXPECT_EQ(ScriptedRank::code(a.replies.front()), Code::kOk);
  EXPECT_EQ(ScriptedRank::code(b.replies.front()), Code::kOk);
  EXPECT_EQ(group().dropped_bytes(), 4 * kMiB);
}

TEST_F(BrokerTagsTest, UnbrokeredMemoryIsReported) {
  join(a);
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_unbrokered_tag;
  amem_v1_Unbrokered& u = message.body.unbrokered;
  u.kinds_count = 1;
  std::memcpy(u.kinds[0].device, gpu(1).bytes.data(), sizeof u.kinds[0].device);
  set_text(u.kinds[0].kind, "pool");
  u.kinds[0].bytes = 32 * kMiB;
  u.kinds[0].count = 1;
  a.send(message);
  ASSERT_TRUE(eventually([&] { return group().unbrokered_bytes() == 32 * kMiB; }));
  const auto infos = on_loop([&] { return broker->reports().ranks(Caller{}, ""); });
  ASSERT_EQ(infos.value()[0].unbrokered_size(), 1);
  EXPECT_EQ(infos.value()[0].unbrokered(0).kind(), "pool");
  EXPECT_EQ(infos.value()[0].unbrokered(0).uuid(), to_string(gpu(1)));
}

}  // namespace
}  // namespace amem
