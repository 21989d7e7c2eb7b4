// A rank's session with a broker that a test plays.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "common/packet.h"
#include "shim/session/session.h"
#include "tests/unit/fixtures/eventually.h"
#include "tests/unit/fixtures/for_good.h"

namespace amem::shim {
namespace {

using namespace std::chrono_literals;
using test::for_good;
using test::note_end_of_thread;

/// Answers one Hello; then it is up to the test.
class Broker {
 public:
  explicit Broker(Code answer = Code::kOk) {
    ::unlink(path_.c_str());
    listening_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    EXPECT_EQ(::listen(listening_.get(), 1), 0);
    thread_ = std::thread([this, answer] { welcome(answer); });
  }
  ~Broker() {
    if (thread_.joinable()) thread_.join();
    ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  /// REQUIRES: the rank's connect() has returned.
  int socket() {
    if (thread_.joinable()) thread_.join();
    return socket_.get();
  }
  void hang_up() {
    socket();
    socket_.reset();
  }

 private:
  void welcome(Code answer) {
    socket_.reset(::accept(listening_.get(), nullptr, nullptr));
    Packet hello;
    EXPECT_TRUE(receive(socket_.get(), 0, hello).ok());
    Message reply = amem_v1_SessionMessage_init_zero;
    reply.seq = hello.message.seq;
    reply.which_body = amem_v1_SessionMessage_reply_tag;
    reply.body.reply.code = static_cast<std::uint32_t>(answer);
    if (answer == Code::kOk) {
      reply.body.reply.which_result = amem_v1_Reply_welcome_tag;
      reply.body.reply.result.welcome.rank_id = 7;
    } else {
      set_text(reply.body.reply.text, "another user's group");
    }
    EXPECT_TRUE(send_message(socket_.get(), reply).ok());
  }

  const std::string path_ = testing::TempDir() + "amem-session-" + std::to_string(::getpid());
  Fd listening_;
  Fd socket_;
  std::thread thread_;
};

struct Listener : Session::Handler {
  void command(Packet&) override {
    note_end_of_thread(thread_ended);
    ++commands;
    while (held) std::this_thread::sleep_for(1ms);
    ++done;
  }
  void unclaimed(const Packet&) override {}
  void disconnected() override {}
  Comeback comes_back(const Session::Mark&) override { return {}; }
  void returned() override {}
  bool waits_for_broker(const Status&, bool) override { return false; }
  void lost() override { is_lost = true; }
  std::atomic<bool> thread_ended{false};  // that of the first command
  std::atomic<int> commands{0};
  std::atomic<int> done{0};
  std::atomic<bool> held{false};
  std::atomic<bool> is_lost{false};
};

using test::eventually;

Message free_message(std::uint64_t id) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_free_tag;
  message.body.free.id = id;
  return message;
}

class ShimSession : public testing::Test {
 protected:
  Session& session = for_good<Session>(std::chrono::milliseconds(200));
  Listener& listener = for_good<Listener>();
  const Session::Identity identity{"train", 0, "test"};
};

TEST_F(ShimSession, EndsWithTheBroker) {
  Broker broker;
  ASSERT_TRUE(session.connect(broker.path(), identity).ok());
  EXPECT_EQ(session.rank_id(), 7U);
  ASSERT_TRUE(session.start(listener).ok());
  Message command = amem_v1_SessionMessage_init_zero;
  command.which_body = amem_v1_SessionMessage_ask_tag;
  ASSERT_TRUE(send_message(broker.socket(), command).ok());
  EXPECT_TRUE(eventually([&] { return listener.commands == 1; }));
  EXPECT_TRUE(session.alive());
  broker.hang_up();
  EXPECT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  EXPECT_FALSE(session.alive());
  Message request = free_message(1);
  EXPECT_EQ(session.call(request, 1s).status().code(), Code::kUnavailable);
}

struct Failing : Listener {
  void command(Packet&) override { throw std::bad_alloc(); }
};

TEST_F(ShimSession, AFailureOfTheShimEndsTheSessionAndNotTheProgram) {
  Broker broker;
  auto& failing = for_good<Failing>();
  ASSERT_TRUE(session.connect(broker.path(), identity).ok());
  ASSERT_TRUE(session.start(failing).ok());
  Message command = amem_v1_SessionMessage_init_zero;
  command.which_body = amem_v1_SessionMessage_ask_tag;
  testing::internal::CaptureStderr();
  ASSERT_TRUE(send_message(broker.socket(), command).ok());
  EXPECT_TRUE(eventually([&] { return failing.is_lost.load(); }));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the session with the broker ends: the shim has failed"), std::string::npos)
      << said;
  Packet packet;
  EXPECT_EQ(receive(broker.socket(), 0, packet).code(), Code::kUnavailable) << "the broker sees it";
  const auto begin = std::chrono::steady_clock::now();
  session.stop(begin + 5s);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s) << "nothing is under way any more";
}

TEST_F(ShimSession, ARefusalIsTheBrokers) {
  Broker broker(Code::kPermissionDenied);
  const Status refused = session.connect(broker.path(), identity);
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_EQ(refused.text(), "another user's group");
}

TEST_F(ShimSession, NobodyWaitsLongForTheBrokerWhenTheProcessEnds) {
  Broker broker;
  ASSERT_TRUE(session.connect(broker.path(), identity).ok());
  ASSERT_TRUE(session.start(listener).ok());
  std::thread caller([&] {
    Message request = free_message(1);
    const Status s = session.call(request, 1h).status();
    EXPECT_EQ(s.code(), Code::kUnavailable);
    EXPECT_NE(s.text().find("ending"), std::string::npos);
  });
  Packet asked;
  ASSERT_TRUE(receive(broker.socket(), 0, asked).ok());
  session.end();
  caller.join();
  Message late = free_message(2);
  EXPECT_EQ(session.call(late, 1h).status().code(), Code::kUnavailable);
  EXPECT_TRUE(session.alive());
}

TEST_F(ShimSession, NoCommandBeginsWhenTheDriverEndsAndTheOneUnderWayIsWaitedFor) {
  Broker broker;
  ASSERT_TRUE(session.connect(broker.path(), identity).ok());
  ASSERT_TRUE(session.start(listener).ok());
  listener.held = true;
  Message command = amem_v1_SessionMessage_init_zero;
  command.which_body = amem_v1_SessionMessage_ask_tag;
  ASSERT_TRUE(send_message(broker.socket(), command).ok());
  ASSERT_TRUE(eventually([&] { return listener.commands == 1; }));
  session.stop(Session::Clock::now());  // not for ever
  EXPECT_EQ(listener.done, 0);
  std::thread release([&] { listener.held = false; });
  session.stop(Session::Clock::now() + 20s);
  EXPECT_EQ(listener.done, 1);
  release.join();
  ASSERT_TRUE(send_message(broker.socket(), command).ok());
  broker.hang_up();
  EXPECT_TRUE(eventually([&] { return listener.thread_ended.load(); }));
  EXPECT_EQ(listener.commands, 1);
  EXPECT_FALSE(listener.is_lost) << "what becomes of the memory takes the driver, too";
}

TEST_F(ShimSession, SomebodyElsesBrokerIsToldNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  const std::string path = testing::TempDir() + "amem-false-" + std::to_string(::getpid());
  // The kernel notes whose socket it is when it begins to listen.
  const Fd false_broker(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ::unlink(path.c_str());
  ASSERT_EQ(::bind(false_broker.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(::setresuid(12345, 12345, 12345) == 0 && ::listen(false_broker.get(), 1) == 0 ? 0 : 1);
  int ended = 1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  ASSERT_EQ(ended, 0);

  std::atomic<bool> told{false};
  std::thread serving([&] {
    const Fd client(::accept(false_broker.get(), nullptr, nullptr));
    Packet packet;
    told = receive(client.get(), 0, packet).ok();
  });
  const Status refused = session.connect(path, identity);
  serving.join();
  EXPECT_EQ(refused.code(), Code::kPermissionDenied) << refused.text();
  EXPECT_NE(refused.text().find("uid 12345 serves " + path), std::string::npos) << refused.text();
  EXPECT_FALSE(told) << "no Hello";
  ::unlink(path.c_str());
}

TEST_F(ShimSession, ABrokerThatReadsNothingIsGivenUp) {
  Broker broker;
  ASSERT_TRUE(session.connect(broker.path(), identity).ok());
  ASSERT_TRUE(session.start(listener).ok());
  std::uint64_t sent = 0;
  for (; session.alive() && sent < 1'000'000; ++sent) session.post(free_message(sent));
  EXPECT_GT(sent, 10U) << "as many as the socket holds";
  EXPECT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  Message request = free_message(1);
  EXPECT_EQ(session.call(request, 1s).status().code(), Code::kUnavailable);
}

// The program posts under locks that its other threads and the broker's commands need.
TEST_F(ShimSession, NobodyWaitsForABrokerThatDoesNotRead) {
  constexpr std::uint64_t kFrees = 5000;  // far more than the socket holds
  auto& patient = for_good<Session>(std::chrono::milliseconds(10'000));
  Broker broker;
  ASSERT_TRUE(patient.connect(broker.path(), identity).ok());
  ASSERT_TRUE(patient.start(listener).ok());
  for (std::uint64_t i = 0; i < kFrees; ++i) patient.post(free_message(i));
  ASSERT_TRUE(patient.alive());
  Message command = amem_v1_SessionMessage_init_zero;
  command.which_body = amem_v1_SessionMessage_ask_tag;
  ASSERT_TRUE(send_message(broker.socket(), command).ok());
  EXPECT_TRUE(eventually([&] { return listener.commands == 1; }));

  Result<ReplyPacket> answer(Status(Code::kInternal, "none yet"));
  std::thread caller([&] {
    Message request = free_message(kFrees);
    answer = patient.call(request, 20s);
  });
  Packet packet;
  bool in_order = true;
  for (std::uint64_t i = 0; in_order && i <= kFrees; ++i)
    in_order = receive(broker.socket(), 0, packet).ok() && packet.message.body.free.id == i;
  EXPECT_TRUE(in_order);
  Message reply = amem_v1_SessionMessage_init_zero;
  reply.seq = packet.message.seq;
  reply.which_body = amem_v1_SessionMessage_reply_tag;
  EXPECT_TRUE(send_message(broker.socket(), reply).ok());
  caller.join();
  EXPECT_TRUE(answer.ok()) << answer.status().text();
}

}  // namespace
}  // namespace amem::shim
