// Memory that a rank pauses and resumes by itself, and that another one opens meanwhile.
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

using BrokerLateSharerTest = BrokerTest;

TEST_F(BrokerLateSharerTest, WhatARankResumesIsSharedOnceItIsBack) {
  two_sharing();
  const std::uint64_t cache = a.create(gpu(0), 8 * kMiB, "cache");
  a.write(cache, 0x11);
  a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"cache"});
  ASSERT_TRUE(eventually([&] { return a.replies.size() == 1; }));
  ASSERT_EQ(ScriptedRank::code(a.replies[0]), Code::kOk);

  const int asked = a.received[amem_v1_SessionMessage_ask_tag];
  a.moods[amem_v1_SessionMessage_ask_tag] = ScriptedRank::Mood::kLate;
  a.request(amem_v1_GroupOp_GROUP_OP_RESUME, 0, {"cache"});
  ASSERT_TRUE(eventually([&] { return a.received[amem_v1_SessionMessage_ask_tag] == asked + 1; }));
  const Packet refused = b.try_redeem(cache, a.token(cache));
  EXPECT_EQ(ScriptedRank::code(refused), Code::kFailedPrecondition)
      << "it would be of no operation, and stay paused";
  a.moods.clear();
  a.catch_up();
  ASSERT_TRUE(eventually([&] { return a.replies.size() == 2; }));
  ASSERT_EQ(ScriptedRank::code(a.replies[1]), Code::kOk);
  EXPECT_EQ(status().pool().used_bytes(), 0U);

  b.share(a, cache);
  a.write(cache, 0x22);
  ASSERT_TRUE(pause().ok());
  ASSERT_TRUE(resume().ok());
  EXPECT_TRUE(b.holds(cache, 0x22));
}

TEST_F(BrokerLateSharerTest, WhatIsSharedWhileItsRankBecomesQuietStays) {
  constexpr pb_size_t kQuiesce = amem_v1_SessionMessage_quiesce_tag;
  two_sharing();
  const std::uint64_t cache = a.create(gpu(0), 8 * kMiB, "cache");
  a.write(cache, 0x11);
  a.moods[kQuiesce] = ScriptedRank::Mood::kLate;
  a.request(amem_v1_GroupOp_GROUP_OP_PAUSE, 0, {"cache"});
  ASSERT_TRUE(eventually([&] { return a.received[kQuiesce] == 1; }));
  b.share(a, cache);
  a.catch_up();
  ASSERT_TRUE(eventually([&] { return a.replies.size() == 1; }));
  EXPECT_EQ(ScriptedRank::code(a.replies[0]), Code::kAborted);
  const std::string text = a.replies[0].message.body.reply.text;
  EXPECT_NE(text.find("memory of tag 'cache' of rank 0 (pid "), std::string::npos) << text;
  EXPECT_NE(text.find("is shared with another rank since the pause began. Pause again"),
            std::string::npos)
      << text;
  EXPECT_TRUE(b.holds(cache, 0x11));
  EXPECT_EQ(status().pool().used_bytes(), 0U);
}

}  // namespace
}  // namespace amem
