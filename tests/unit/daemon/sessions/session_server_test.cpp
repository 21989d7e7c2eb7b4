#include "daemon/sessions/session_server.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <filesystem>

#include "common/form.h"

namespace amem {
namespace {

using std::chrono::seconds;

class SessionServerTest : public ::testing::Test, protected SessionHandler {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::off);
    dir = (std::filesystem::temp_directory_path() / "amem-session-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    path = dir + "/session.sock";
    ASSERT_TRUE(loop.open().ok());
    const Status listening = server.listen({path, 0600, {}});
    ASSERT_TRUE(listening.ok()) << listening.text();
  }
  void TearDown() override {
    server.shut();
    std::filesystem::remove_all(dir);
  }

  Fd connect() {
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  /// Runs the loop until a session's packet or end has made the condition true, and what was posted
  /// by then has run; once in each test.
  void run_until(std::function<bool()> condition) {
    enough = std::move(condition);
    loop.at(Clock::now() + seconds(60), [this] {
      ADD_FAILURE() << "not within 60 s";
      loop.stop();
    });
    loop.run();
  }
  void look() {
    if (enough && enough()) loop.post([this] { loop.stop(); });
  }
  /// A client that reads: what comes on the socket from now on goes to `take`.
  void read(const Fd& socket, std::function<void(Packet&)> take) {
    loop.watch(socket.get(), EPOLLIN, [this, fd = socket.get(), take](std::uint32_t) {
      Packet packet;
      while (receive(fd, MSG_DONTWAIT, packet).ok()) take(packet);
      look();
    });
  }

  void session_opened(SessionId session, const PeerCredentials& who) override {
    peer = who;
    if (on_open) on_open(session);
  }
  void session_packet(SessionId, Packet& packet) override {
    seqs.push_back(packet.message.seq);
    if (on_packet) on_packet();
    look();
  }
  void session_closed(SessionId session, const std::string& why) override {
    closed.emplace_back(session, why);
    look();
  }

  std::string dir, path;
  EventLoop loop;
  Accounts accounts{loop, Quotas{}};
  SessionServer server{loop, *this, accounts, Isolation::kUid};
  std::function<void(SessionId)> on_open;
  std::function<bool()> enough;
  std::function<void()> on_packet;
  PeerCredentials peer;
  std::vector<std::uint64_t> seqs;
  std::vector<std::pair<SessionId, std::string>> closed;
};

Message numbered(std::uint64_t seq) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.seq = seq;
  message.which_body = amem_v1_SessionMessage_save_tag;
  message.body.save.copies_count = 256;
  for (auto& copy : message.body.save.copies)
    copy = {~0ULL, ~0ULL, ~0ULL, 1, ~0ULL, number_of(Form::kDense), 0, 0, false, 0, false};
  return message;
}

TEST_F(SessionServerTest, PeersAreKnownByTheKernelsWord) {
  const Fd socket = connect();
  ASSERT_TRUE(send_message(socket.get(), numbered(1)).ok());
  ASSERT_TRUE(send_message(socket.get(), numbered(2)).ok());
  run_until([&] { return seqs.size() == 2; });
  EXPECT_EQ(peer.pid, ::getpid());
  EXPECT_EQ(peer.uid, ::geteuid());
  EXPECT_EQ(seqs, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_TRUE(closed.empty());
}

TEST_F(SessionServerTest, WhatASocketDoesNotTakeIsQueuedInOrder) {
  const Fd socket = connect();
  constexpr std::uint64_t kCount = 500;  // several MiB
  on_open = [&](SessionId id) {
    for (std::uint64_t i = 1; i <= kCount; ++i) server.send(id, numbered(i));
    read(socket, [&](Packet& packet) { seqs.push_back(packet.message.seq); });
  };
  run_until([&] { return seqs.size() == kCount; });
  ASSERT_EQ(seqs.size(), kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(seqs[i], i + 1);
}

TEST_F(SessionServerTest, ARankThatDoesNotReadIsDisconnected) {
  const Fd stuck = connect();
  const Fd good = connect();
  on_open = [&](SessionId id) {
    if (id != 1) return;
    for (std::uint64_t i = 0; i < 2 * SessionServer::kMaxQueue / 10000; ++i)
      server.send(id, numbered(i));
  };
  run_until([&] { return !closed.empty(); });
  ASSERT_EQ(closed.size(), 1U);
  EXPECT_EQ(closed[0].first, 1U);
  EXPECT_NE(closed[0].second.find("does not read"), std::string::npos) << closed[0].second;
}

TEST_F(SessionServerTest, AFloodOfConnectionsKeepsNobodyWaiting) {
  const Fd rank = connect();
  std::vector<Fd> flood;
  std::size_t opened = 0;
  on_open = [&](SessionId id) {
    ++opened;
    if (id != 1) return;
    // Now it is served; what it asks next comes while all of these do.
    for (int i = 0; i < 500; ++i) flood.push_back(connect());
    EXPECT_TRUE(send_message(rank.get(), numbered(7)).ok());
  };
  std::size_t opened_before_it = 0;
  on_packet = [&] {
    opened_before_it = opened;
    loop.stop();
  };
  loop.run();
  EXPECT_EQ(seqs, std::vector<std::uint64_t>{7});
  EXPECT_LT(opened_before_it, 100U);
}

TEST_F(SessionServerTest, ARankThatAsksAndDoesNotReadIsDisconnected) {
  const Fd deaf = connect();
  const Fd told = connect();
  constexpr std::uint64_t kSocket = 4096;  // more than the kernel takes
  on_open = [&](SessionId id) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body =
        id == 1 ? amem_v1_SessionMessage_reply_tag : amem_v1_SessionMessage_ask_tag;
    for (std::uint64_t i = 0; i < SessionServer::kMaxAnswers + kSocket; ++i)
      server.send(id, message);
    if (id == 2) loop.post([this] { loop.stop(); });
  };
  loop.run();
  ASSERT_EQ(closed.size(), 1U) << "commands may be as many as there are bytes for";
  EXPECT_EQ(closed[0].first, 1U);
  EXPECT_NE(closed[0].second.find("4096 answers"), std::string::npos) << closed[0].second;
}

TEST_F(SessionServerTest, DescriptorsAreSharedWithTheQueue) {
  const Fd socket = connect();
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const Fd reader(pipe_ends[0]);
  Packet packet;
  on_open = [&](SessionId id) {
    for (std::uint64_t i = 0; i < 200; ++i) server.send(id, numbered(i));
    // Queued behind them; the last reference of ours is the queue's.
    server.send(id, numbered(1000), {std::make_shared<const Fd>(pipe_ends[1])});
    read(socket, [&](Packet& each) { packet = std::move(each); });
  };
  run_until([&] { return packet.message.seq == 1000; });
  ASSERT_EQ(packet.message.seq, 1000U);
  ASSERT_EQ(packet.fds.size(), 1U);
  ASSERT_EQ(::write(packet.fds[0].get(), "x", 1), 1);
  packet.fds.clear();
  char c = 0;
  EXPECT_EQ(::read(reader.get(), &c, 1), 1);
  EXPECT_EQ(::read(reader.get(), &c, 1), 0) << "nobody else has it open";
}

TEST_F(SessionServerTest, ClosingFromWithinSendIsToldLater) {
  const Fd socket = connect();
  on_open = [&](SessionId id) {
    server.close(id, "for a reason");
    server.close(id, "once is enough");
    server.send(id, numbered(1));
    EXPECT_TRUE(closed.empty());
  };
  run_until([&] { return !closed.empty(); });
  ASSERT_EQ(closed.size(), 1U);
  EXPECT_EQ(closed[0].second, "for a reason");
}

TEST_F(SessionServerTest, AStaleSocketIsReplacedAndModesAreExact) {
  SessionServer second(loop, *this, accounts, Isolation::kUid);
  ASSERT_TRUE(second.listen({path, 0660, {}}).ok());
  struct stat st {};
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777U, 0660U);
  second.shut();
  EXPECT_NE(::stat(path.c_str(), &st), 0) << "removed at the end";
}

TEST_F(SessionServerTest, APathThatIsTooLongIsNamed) {
  SessionServer second(loop, *this, accounts, Isolation::kUid);
  const Status status = second.listen({"/" + std::string(200, 'x'), 0600, {}});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.text().find("xxx"), std::string::npos);
}

}  // namespace
}  // namespace amem
