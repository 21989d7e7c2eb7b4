// A session whose broker dies: it comes back to the next one, or is lost.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "shim/session/session.h"
#include "tests/unit/fixtures/for_good.h"
#include "tests/unit/fixtures/session_broker.h"

namespace amem::shim {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::for_good;
using test::some_key;

Message await_closed() {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_await_closed_tag;
  return message;
}

Message free_of(std::uint64_t id) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_free_tag;
  message.body.free.id = id;
  return message;
}

Message created(std::uint64_t id) {
  Message reply = amem_v1_SessionMessage_init_zero;
  reply.body.reply.which_result = amem_v1_Reply_created_tag;
  reply.body.reply.result.created.id = id;
  return reply;
}

Token key_in(const amem_v1_Hello& hello) {
  Token key;
  std::copy(std::begin(hello.session), std::end(hello.session), key.begin());
  return key;
}

/// Kept for the session's threads, which may use them until the process ends.
class ShimComeback : public testing::Test {
 protected:
  void start(std::chrono::milliseconds reconnect = 20s, const Token& key = some_key(1)) {
    std::thread serving([&] {
      broker.accept();
      broker.welcome(key);
    });
    const Status connected = session.connect(broker.path(), {"train", 3, "test"}, reconnect);
    serving.join();
    ASSERT_TRUE(connected.ok()) << connected.text();
    ASSERT_TRUE(session.start(listener).ok());
  }
  void TearDown() override { session.stop(Session::Clock::now()); }
  /// The next broker's beginning.
  void serve_again(const Token& key = some_key(2)) {
    broker.accept();
    broker.items();
    broker.welcome(key);
  }
  /// A call in a thread of its own, whose result is to be had by join().
  std::thread calls(Status& result, Message request = await_closed(),
                    std::chrono::milliseconds deadline = 1h) {
    return std::thread([this, &result, request, deadline]() mutable {
      result = session.call(request, deadline).status();
    });
  }

  /// A session goes on trying when its test has ended, and must not come to the next one's broker.
  static std::string path() {
    static int tests = 0;
    return testing::TempDir() + "amem-comeback-" + std::to_string(::getpid()) + "-" +
           std::to_string(++tests);
  }

  test::SessionBroker broker{path()};
  Session& session = for_good<Session>(10s);
  test::SessionListener& listener = for_good<test::SessionListener>();
};

TEST_F(ShimComeback, SaysWhoItIsAndWhatItHolds) {
  for (std::uint64_t id = 1; id <= 600; ++id)
    listener.items.push_back(
        {id, id == 600 ? 1U << amem_v1_PinReason_PIN_REASON_NIC : 0U, id == 1});
  listener.gate_shut = true;
  start();
  broker.hang_up();
  const amem_v1_Hello hello = broker.accept();
  EXPECT_EQ(key_in(hello), some_key(1));
  EXPECT_TRUE(hello.gate_shut);
  EXPECT_STREQ(hello.group, "train");
  EXPECT_EQ(hello.rank, 3);
  EXPECT_EQ(hello.pid, ::getpid());
  const auto items = broker.items();
  ASSERT_EQ(items.size(), 600U);
  EXPECT_TRUE(items[0].paused);
  EXPECT_FALSE(items[1].paused);
  EXPECT_EQ(items[599].id, 600U);
  EXPECT_EQ(items[599].pins, 1U << amem_v1_PinReason_PIN_REASON_NIC);
  broker.welcome(some_key(2));
  ASSERT_TRUE(eventually([&] { return listener.returns == 1; }));
  EXPECT_TRUE(session.alive());
  broker.command(amem_v1_SessionMessage_ask_tag);
  EXPECT_TRUE(eventually([&] { return listener.commands == 1; }));
  EXPECT_EQ(listener.disconnections, 1);
  EXPECT_FALSE(listener.is_lost);
  // The next one knows the key of that one.
  broker.die();
  broker.listen();
  EXPECT_EQ(key_in(broker.accept()), some_key(2));
}

TEST_F(ShimComeback, ItHoldsNothing) {
  start();
  broker.hang_up();
  broker.accept();
  EXPECT_TRUE(broker.items().empty());
}

TEST_F(ShimComeback, CallsKeepWaitingAndAreAskedAgainInOrder) {
  Result<std::string> first = encode(free_of(99));
  listener.first.push_back({first.value(), {}});
  listener.after_mark = [&] { session.post(free_of(100)); };
  start();
  Status results[3];
  std::thread threads[3];
  std::uint64_t seqs[3];
  for (int i = 0; i < 3; ++i) {
    threads[i] = calls(results[i]);
    seqs[i] = broker.next().seq;
  }
  broker.die();
  broker.listen();
  serve_again();
  EXPECT_EQ(broker.next().body.free.id, 99U) << "what the rank has to tell first";
  for (const std::uint64_t seq : seqs) {
    const Message again = broker.next();
    EXPECT_EQ(again.which_body, amem_v1_SessionMessage_await_closed_tag);
    EXPECT_EQ(again.seq, seq);
  }
  EXPECT_EQ(broker.next().body.free.id, 100U) << "then what was posted since";
  for (int i = 2; i >= 0; --i) broker.answer(seqs[i]);
  for (int i = 0; i < 3; ++i) {
    threads[i].join();
    EXPECT_TRUE(results[i].ok()) << results[i].text();
  }
}

TEST_F(ShimComeback, TheDescriptorOfARequestGoesWithItEachTime) {
  start();
  const Fd memory(::memfd_create("memory", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), 4321), 0);
  Status result;
  std::thread caller([&] {
    Message request = await_closed();
    result = session.call(request, 1h, {}, &memory).status();
  });
  const auto same = [](const Fd& fd) { return ::lseek(fd.get(), 0, SEEK_END) == 4321; };
  Packet first;
  ASSERT_TRUE(receive(broker.socket(), 0, first).ok());
  ASSERT_EQ(first.fds.size(), 1U);
  EXPECT_TRUE(same(first.fds.front()));
  broker.hang_up();
  serve_again();
  Packet again;
  ASSERT_TRUE(receive(broker.socket(), 0, again).ok());
  EXPECT_EQ(again.message.seq, first.message.seq);
  ASSERT_EQ(again.fds.size(), 1U);
  EXPECT_TRUE(same(again.fds.front()));
  broker.answer(again.message.seq);
  caller.join();
  EXPECT_TRUE(result.ok());
}

TEST_F(ShimComeback, WhatIsAskedMeanwhileWaits) {
  start();
  broker.die();
  ASSERT_TRUE(eventually([&] { return listener.disconnections == 1; }));
  Status result(Code::kUnknown, "");
  Status late;
  std::thread caller = calls(result);
  std::thread hasty = calls(late, await_closed(), 50ms);
  hasty.join();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded) << "its own deadline counts";
  EXPECT_NE(late.text().find("no other has started"), std::string::npos) << late.text();
  broker.listen();
  serve_again();
  broker.answer(broker.next().seq);
  caller.join();
  EXPECT_TRUE(result.ok()) << result.text();
  EXPECT_TRUE(broker.nothing_comes(50));
}

TEST_F(ShimComeback, WhatIsAskedBetweenListAndWelcomeIsSentOnce) {
  start();
  Status first;
  Status second;
  std::thread callers[2] = {calls(first), {}};
  broker.next();
  broker.die();
  broker.listen();
  broker.accept();
  broker.items();
  callers[1] = calls(second);
  std::this_thread::sleep_for(50ms);
  broker.welcome(some_key(2));
  const std::uint64_t seqs[2] = {broker.next().seq, broker.next().seq};
  EXPECT_LT(seqs[0], seqs[1]);
  EXPECT_TRUE(broker.nothing_comes(50));
  for (const std::uint64_t seq : seqs) broker.answer(seq);
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(first.ok() && second.ok());
}

TEST_F(ShimComeback, WhatIsPostedBeforeTheListIsDropped) {
  start();
  broker.die();
  ASSERT_TRUE(eventually([&] { return listener.disconnections == 1; }));
  session.post(free_of(1));
  broker.listen();
  serve_again();
  session.post(free_of(2));
  EXPECT_EQ(broker.next().body.free.id, 2U);
}

TEST_F(ShimComeback, WhatARefusedListWasToBeFollowedByIsDropped) {
  int lists = 0;
  listener.after_mark = [&] { session.post(free_of(static_cast<std::uint64_t>(++lists))); };
  start();
  broker.hang_up();
  broker.accept();
  broker.items();
  broker.refuse(Code::kUnavailable, "still busy");
  serve_again();
  EXPECT_EQ(broker.next().body.free.id, 2U) << "the first is in the second list";
  EXPECT_TRUE(broker.nothing_comes(50));
}

// Its memory must be in the list, though its caller has not entered it yet.
TEST_F(ShimComeback, WhatAReplyHasGivenIsListedUntilItIsTaken) {
  start();
  Status result(Code::kUnknown, "");
  std::thread caller = calls(result);
  const std::uint64_t seq = broker.next().seq;
  session.post(free_of(1));  // unread, so the kernel says first that the connection was reset
  ASSERT_TRUE(eventually([&] { return !broker.nothing_comes(0); }));
  broker.answer(seq, created(5));
  broker.hang_up();
  caller.join();
  EXPECT_TRUE(result.ok()) << result.text();
  serve_again();
  ASSERT_TRUE(eventually([&] { return listener.returns == 1; }));
  EXPECT_EQ(listener.given, std::vector<std::uint64_t>{5});
  EXPECT_TRUE(broker.nothing_comes(50)) << "it is not asked again";
  session.taken(5);
  broker.hang_up();
  serve_again();
  ASSERT_TRUE(eventually([&] { return listener.returns == 2; }));
  EXPECT_EQ(listener.given, std::vector<std::uint64_t>{});
}

TEST_F(ShimComeback, ACommandUnderWayEndsFirstAndItsAnswerIsDropped) {
  listener.on_command = [&](Packet&) { session.post(free_of(1)); };
  start();
  listener.held = true;
  broker.command(amem_v1_SessionMessage_ask_tag);
  ASSERT_TRUE(eventually([&] { return listener.commands == 1; }));
  broker.die();
  broker.listen();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(listener.comebacks, 0);
  listener.held = false;
  serve_again();
  EXPECT_TRUE(broker.nothing_comes(50));
  EXPECT_EQ(listener.done, 1);
}

TEST_F(ShimComeback, TasksRunMeanwhile) {
  start();
  broker.die();
  ASSERT_TRUE(eventually([&] { return listener.disconnections == 1; }));
  std::atomic<bool> ran{false};
  session.run([&] { ran = true; });
  EXPECT_TRUE(eventually([&] { return ran.load(); }));
}

// It closes its end with what the rank holds unread.
TEST_F(ShimComeback, ARefusalIsFinal) {
  for (std::uint64_t id = 1; id <= 600; ++id) listener.items.push_back({id, 0, false});
  start();
  Status result;
  std::thread caller = calls(result);
  broker.next();
  broker.hang_up();
  broker.accept();
  broker.refuse(Code::kNotFound, "no such session");
  broker.hang_up();
  ASSERT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  caller.join();
  EXPECT_EQ(result.code(), Code::kUnavailable);
  EXPECT_TRUE(listener.asked_without);
  EXPECT_EQ(listener.said_why, "no such session");
  EXPECT_FALSE(session.alive());
  EXPECT_TRUE(session.ended());
}

TEST_F(ShimComeback, GivesUpInTime) {
  start(300ms);
  Status result;
  std::thread caller = calls(result);
  broker.next();
  const auto begin = std::chrono::steady_clock::now();
  broker.die();
  caller.join();
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 290ms);
  EXPECT_LT(took, 10s);
  EXPECT_EQ(result.code(), Code::kUnavailable);
  ASSERT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  EXPECT_TRUE(listener.asked_with_hope);
  EXPECT_FALSE(listener.asked_without);
}

TEST_F(ShimComeback, ABrokerThatDiesAgainGivesAllTheTimeAgain) {
  start(1500ms);
  broker.die();
  std::this_thread::sleep_for(1s);
  broker.listen();
  broker.accept();
  broker.die();
  std::this_thread::sleep_for(1s);
  EXPECT_FALSE(listener.is_lost);
  broker.listen();
  serve_again();
  EXPECT_TRUE(eventually([&] { return listener.returns == 1; }));
}

TEST_F(ShimComeback, OneThatHoldsOutGoesOnTryingWhileCallsFail) {
  listener.stays = true;
  start(100ms);
  broker.die();
  ASSERT_TRUE(eventually([&] { return listener.asked_with_hope.load(); }));
  EXPECT_FALSE(session.alive());
  EXPECT_FALSE(session.ended());
  Message request = await_closed();
  EXPECT_EQ(session.call(request, 1h).status().code(), Code::kUnavailable);
  std::this_thread::sleep_for(1500ms);  // longer than between two attempts
  EXPECT_FALSE(listener.is_lost);
  broker.listen();
  serve_again();
  ASSERT_TRUE(eventually([&] { return listener.returns == 1; }));
  EXPECT_TRUE(session.alive());
  Status result(Code::kUnknown, "");
  std::thread caller = calls(result);
  broker.answer(broker.next().seq);
  caller.join();
  EXPECT_TRUE(result.ok()) << result.text();
}

TEST_F(ShimComeback, OneThatHoldsOutEndsWithARefusal) {
  listener.stays = true;
  start(100ms);
  broker.die();
  ASSERT_TRUE(eventually([&] { return listener.asked_with_hope.load(); }));
  broker.listen();
  broker.accept();
  broker.refuse(Code::kFailedPrecondition, "another protocol");
  EXPECT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  EXPECT_TRUE(listener.asked_without);
}

// ---- one that dies before its Welcome -----------------------------------------------------------

TEST_F(ShimComeback, ABrokerThatDiesBeforeItsWelcomeIsFollowedByTheNext) {
  std::thread serving([&] {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(key_in(broker.accept()), Token());
      broker.die();
      std::this_thread::sleep_for(50ms);  // nobody is there
      broker.listen();
    }
    EXPECT_EQ(key_in(broker.accept()), Token());
    broker.welcome(some_key(1));
  });
  const Status connected = session.connect(broker.path(), {"train", 3, "test"}, 20s);
  serving.join();
  ASSERT_TRUE(connected.ok()) << connected.text();
  ASSERT_TRUE(session.start(listener).ok());
  EXPECT_EQ(session.rank_id(), 7U);
}

TEST_F(ShimComeback, NobodyFollowsTheBrokerThatDiesBeforeItsWelcome) {
  for (const std::chrono::milliseconds reconnect : {0ms, 300ms}) {
    std::thread serving([&] {
      broker.accept();
      broker.die();
    });
    const Status connected = session.connect(broker.path(), {"train", 3, "test"}, reconnect);
    serving.join();
    EXPECT_EQ(connected.code(), reconnect == 0ms ? Code::kAborted : Code::kUnavailable);
    broker.listen();
  }
}

TEST_F(ShimComeback, TheNextOneRefusesWhoWasNotWelcomed) {
  std::thread serving([&] {
    broker.accept();
    broker.hang_up();
    broker.accept();
    broker.refuse(Code::kPermissionDenied, "another user's group");
  });
  const Status connected = session.connect(broker.path(), {"train", 3, "test"}, 20s);
  serving.join();
  EXPECT_EQ(connected.text(), "another user's group");
}

TEST_F(ShimComeback, TheEndOfTheProcessDoesNotWaitForAWelcome) {
  std::thread serving([&] {
    broker.accept();
    broker.die();
    session.end();
  });
  EXPECT_EQ(session.connect(broker.path(), {"train", 3, "test"}, 1h).code(), Code::kAborted);
  serving.join();
}

TEST_F(ShimComeback, WithoutAKeyThereIsNoWayBack) {
  start(20s, Token());
  broker.hang_up();
  EXPECT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  EXPECT_TRUE(listener.asked_without);
  EXPECT_EQ(listener.comebacks, 0);
}

TEST_F(ShimComeback, NotAskedForThereIsNoWayBack) {
  start(0s);
  broker.hang_up();
  EXPECT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  EXPECT_EQ(listener.comebacks, 0);
}

TEST_F(ShimComeback, WhatMakesNoSenseEndsTheSession) {
  start();
  ASSERT_EQ(::send(broker.socket(), "\xff\xff\xff\xff", 4, 0), 4);
  EXPECT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  EXPECT_EQ(listener.comebacks, 0);
}

TEST_F(ShimComeback, TheEndOfTheProcessIsNotHeldUp) {
  listener.stays = true;
  start(400ms);
  broker.die();
  ASSERT_TRUE(eventually([&] { return listener.disconnections == 1; }));
  Status result;
  std::thread caller = calls(result);
  const auto begin = std::chrono::steady_clock::now();
  session.end();
  session.stop(Session::Clock::now() + 10s);
  caller.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_EQ(result.code(), Code::kUnavailable);
  EXPECT_TRUE(eventually([&] { return listener.thread_ended.load(); }));
  EXPECT_FALSE(listener.asked_with_hope) << "nobody decides any more what becomes of the memory";
  EXPECT_FALSE(listener.is_lost) << "nor does anything about it";
}

TEST_F(ShimComeback, AForkedChildLeavesTheNewSocketToItsParent) {
  start();
  broker.hang_up();
  broker.accept();  // the rank waits for the Welcome
  const pid_t child = ::fork();
  if (child == 0) {
    session.abandon_after_fork();
    ::pause();
    ::_exit(0);
  }
  broker.items();
  broker.welcome(some_key(2));
  EXPECT_TRUE(eventually([&] { return listener.returns == 1; }));
  // What the broker sees is the end of the parent's socket, though the child lives.
  ASSERT_EQ(::send(broker.socket(), "\xff\xff\xff\xff", 4, 0), 4);
  ASSERT_TRUE(eventually([&] { return listener.is_lost.load(); }));
  Packet packet;
  EXPECT_EQ(receive(broker.socket(), 0, packet).code(), Code::kUnavailable);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace amem::shim
