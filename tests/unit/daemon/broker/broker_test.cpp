// The broker's sessions and what ranks ask of it.
#include "tests/unit/fixtures/broker_fixture.h"

namespace amem {
namespace {

// ---- joining ------------------------------------------------------------------------------------

TEST_F(BrokerTest, ARankIsWelcomed) {
  join(a, "train", 3);
  EXPECT_GT(a.id(), 0U);
  EXPECT_FALSE(a.gate_shut());
  const v1::NodeStatus s = status();
  ASSERT_EQ(s.groups_size(), 1);
  EXPECT_EQ(s.groups(0).name(), "train");
  EXPECT_EQ(s.groups(0).state(), v1::GROUP_STATE_RUNNING);
  EXPECT_EQ(s.groups(0).uid(), ::geteuid());
  EXPECT_EQ(s.pool().place(), "memfd");
  const auto infos = on_loop([&] { return broker->reports().ranks(Caller{}, ""); });
  ASSERT_EQ(infos.value().size(), 1U);
  EXPECT_EQ(infos.value()[0].rank(), 3);
  EXPECT_EQ(infos.value()[0].pid(), a.pid());
  EXPECT_EQ(infos.value()[0].program(), "a program");
}

TEST_F(BrokerTest, AGroupGoesWithItsLastRank) {
  join(a);
  ASSERT_NE(a.create(gpu(0), 2 * kMiB), 0U);
  EXPECT_EQ(used(0), 2 * kMiB);
  a.memory.clear();
  a.die();
  EXPECT_TRUE(eventually([&] { return status().groups_size() == 0; }));
  EXPECT_TRUE(eventually([&] { return used(0) == 0; })) << "the broker keeps nothing";
}

TEST_F(BrokerTest, AWrongHelloIsRefused) {
  a.connect(simulated_node->dir() + "/session.sock");
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_hello_tag;
  message.body.hello.protocol = kProtocolVersion + 1;
  set_text(message.body.hello.group, "train");
  Packet reply = a.ask(message);
  EXPECT_EQ(ScriptedRank::code(reply), Code::kFailedPrecondition);
  EXPECT_NE(std::string(reply.message.body.reply.text).find("protocol"), std::string::npos);

  for (const char* name : {"", "../x", "a b"}) {
    ScriptedRank rank;
    rank.connect(simulated_node->dir() + "/session.sock");
    EXPECT_EQ(ScriptedRank::code(rank.hello(name)), Code::kInvalidArgument) << name;
    rank.pump(seconds(5));
    EXPECT_FALSE(rank.alive()) << "the broker ends such a session";
  }
  EXPECT_EQ(status().groups_size(), 0);
}

// ---- wrong messages -----------------------------------------------------------------------------

TEST_F(BrokerTest, WrongMessagesDisconnectOnlyTheirSender) {
  join(a);
  const std::uint64_t id = a.create(gpu(0), 2 * kMiB);
  auto expect_disconnected = [&](const char* what,
                                 const std::function<void(ScriptedRank&)>& wrong) {
    ScriptedRank rank;
    join(rank, "other");
    wrong(rank);
    EXPECT_TRUE(eventually([&] { return !rank.alive(); })) << what;
    std::erase(ranks, &rank);
    EXPECT_TRUE(eventually([&] { return status().groups_size() == 1; })) << what;
  };
  expect_disconnected(
      "junk", [](ScriptedRank& r) { ASSERT_GT(::send(r.socket(), "\xff\xff\xff", 3, 0), 0); });
  expect_disconnected("oversized", [](ScriptedRank& r) {
    const std::string large(static_cast<std::size_t>(amem_v1_SessionMessage_size) + 1, 'x');
    ASSERT_GT(::send(r.socket(), large.data(), large.size(), 0), 0);
  });
  expect_disconnected("second Hello", [](ScriptedRank& r) { (void)r.hello("other"); });
  expect_disconnected("a broker's message", [](ScriptedRank& r) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_ask_tag;
    r.send(message);
  });
  expect_disconnected("empty message", [](ScriptedRank& r) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.seq = 1;
    r.send(message);
  });
  expect_disconnected("answer to a phase of the broker's",
                      [](ScriptedRank& r) { r.done(static_cast<RankPhase>(99), 1); });
  expect_disconnected("quiet by the wrong message",
                      [](ScriptedRank& r) { r.done(RankPhase::kQuiet, 1); });
  ScriptedRank silent;
  silent.connect(simulated_node->dir() + "/session.sock");
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_free_tag;
  silent.send(message);
  ranks.push_back(&silent);
  EXPECT_TRUE(eventually([&] { return !silent.alive(); })) << "nothing before Hello";
  ranks.pop_back();

  a.write(id, 7);
  EXPECT_TRUE(pause().ok()) << "the others have noticed nothing";
  EXPECT_TRUE(resume().ok());
  EXPECT_TRUE(a.holds(id, 7));
}

TEST_F(BrokerTest, MemoryThatARankKeepsOrIsJustFreeingGoesToTheOneThatFindsNone) {
  join(a);
  join(b, "train", 1);
  const std::uint64_t kept = a.create(gpu(0), kDeviceMemory - 2 * kMiB);
  const pb_size_t trim = amem_v1_SessionMessage_trim_tag;
  a.moods[trim] = Mood::kSilent;
  const std::uint64_t asked = b.ask_to_create(gpu(0), 4 * kMiB, "nccl");
  while (a.received[trim] == 0) ASSERT_TRUE(a.pump(seconds(10)));
  a.free(kept);
  EXPECT_EQ(ScriptedRank::code(b.await_reply(asked)), Code::kOk);
}

TEST_F(BrokerTest, AnAwaitClosedIsAnsweredWhenWhatWasFreedIsFree) {
  join(a);
  const std::uint64_t freed = a.create(gpu(0), 64 * kMiB);
  EXPECT_EQ(used(0), 64 * kMiB);
  a.free(freed);
  EXPECT_EQ(ScriptedRank::code(a.await_reply(a.ask_to_await_closed())), Code::kOk);
  EXPECT_EQ(used(0), 0U);
}

TEST_F(BrokerTest, WrongRequestsAreAnsweredWithAnError) {
  join(a);
  auto create = [&](const DeviceUuid& device, std::uint64_t size) {
    return a.try_create(device, size, "nccl");
  };
  EXPECT_EQ(ScriptedRank::code(create(gpu(0), 0)), Code::kInvalidArgument);
  EXPECT_EQ(ScriptedRank::code(create(gpu(0), 4096)), Code::kInvalidArgument);
  EXPECT_EQ(ScriptedRank::code(create(DeviceUuid(), 2 * kMiB)), Code::kInvalidArgument);
  const Packet full = create(gpu(0), 2 * kDeviceMemory);
  EXPECT_EQ(ScriptedRank::code(full), Code::kResourceExhausted);
  EXPECT_NE(std::string(full.message.body.reply.text).find("256 MiB on device 0 (GPU-"),
            std::string::npos)
      << full.message.body.reply.text;
  a.free(4711);
  Message bad_op = amem_v1_SessionMessage_init_zero;
  bad_op.which_body = amem_v1_SessionMessage_group_request_tag;
  EXPECT_EQ(ScriptedRank::code(a.ask(bad_op)), Code::kInvalidArgument);
  EXPECT_NE(a.create(gpu(0), 2 * kMiB), 0U) << "and it is still served";
}

TEST_F(BrokerTest, TicketsNeedTheirToken) {
  join(a, "train");
  join(b, "rollout");
  join(c, "train", 1);
  const std::uint64_t id = a.create(gpu(0), 2 * kMiB);
  const Token token = a.token(id);
  EXPECT_EQ(ScriptedRank::code(b.try_redeem(id, Token{})), Code::kPermissionDenied);
  EXPECT_EQ(ScriptedRank::code(b.try_redeem(id + 100, token)), Code::kNotFound);
  EXPECT_EQ(ScriptedRank::code(c.try_redeem(id, Token{})), Code::kPermissionDenied);
  EXPECT_EQ(ScriptedRank::code(c.try_redeem(id + 100, token)), Code::kNotFound);
  c.share(a, id);
  a.write(id, 9);
  EXPECT_TRUE(c.holds(id, 9));
}

}  // namespace
}  // namespace amem
