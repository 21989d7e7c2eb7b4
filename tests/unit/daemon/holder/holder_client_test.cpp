#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "daemon/holder/client.h"
#include "tests/unit/fixtures/holder_fixture.h"

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Texts = std::map<HolderKey, std::string>;

SharedFd shared_file(const std::string& text) {
  return std::make_shared<const Fd>(some_file(text));
}

/// A descriptor whose closing takes as long as `linger` says: a connection that has not sent all.
class SlowToClose {
 public:
  explicit SlowToClose(int linger_s) {
    const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    peer_.reset(::accept(listener.get(), nullptr, nullptr));
    const linger lingers{1, linger_s};
    EXPECT_EQ(::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &lingers, sizeof lingers), 0);
    const std::string much(1 << 20, 'x');
    while (::send(fd_.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
  }
  const Fd& fd() const { return fd_; }
  void forget() { fd_.reset(); }  // others have it still

 private:
  Fd fd_;
  Fd peer_;
};

class HolderClientTest : public HolderFixture {};

TEST_F(HolderClientTest, WhatWasPutComesBackToTheNextOne) {
  serve();
  auto holder = connect();
  // This process stands for a rank that lives.
  const Fd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  holder->put(holder_key(HolderKind::kProcess, 1), self.get());
  holder->put(holder_key(HolderKind::kRecord, 0), shared_file("record"));
  holder->put(memory_key(kMaxHolderId), shared_file("memory"));
  ASSERT_TRUE(holder->flush().ok());
  holder.reset();
  holder = connect();
  const Texts all = texts(*holder);
  EXPECT_EQ(all.size(), 3U);
  EXPECT_EQ(all.at(holder_key(HolderKind::kRecord, 0)), "record");
  EXPECT_EQ(all.at(memory_key(kMaxHolderId)), "memory");
  EXPECT_EQ(texts(*holder), all) << "listing takes nothing away";
}

TEST_F(HolderClientTest, PutsAndDropsKeepTheirOrder) {
  serve();
  const auto holder = connect();
  holder->put(memory_key(1), shared_file("first"));
  holder->put(memory_key(1), shared_file("second"));
  holder->drop(memory_key(2));  // not there: nothing
  holder->put(memory_key(2), shared_file("third"));
  holder->put(memory_key(3), shared_file("fourth"));
  holder->drop(memory_key(3));
  EXPECT_EQ(texts(*holder), (Texts{{memory_key(1), "second"}, {memory_key(2), "third"}}));
  holder->drop(memory_key(1));
  holder->put(memory_key(1), shared_file("fifth"));
  EXPECT_EQ(texts(*holder), (Texts{{memory_key(1), "fifth"}, {memory_key(2), "third"}}));
}

TEST_F(HolderClientTest, ThousandsOfDescriptors) {
  constexpr std::uint64_t kMany = 2500;
  if (!raise_descriptor_limit()) GTEST_SKIP() << "the limit of open files stays as it is";
  serve();
  const auto holder = connect();
  for (std::uint64_t id = 0; id < kMany; ++id)
    holder->put(memory_key(id), shared_file(std::to_string(id)));
  ASSERT_TRUE(holder->flush().ok());
  Result<std::map<HolderKey, Fd>> all = holder->list();
  ASSERT_TRUE(all.ok()) << all.status().text();
  ASSERT_EQ(all.value().size(), kMany);
  for (const auto& [key, fd] : all.value()) ASSERT_EQ(text_of(fd), std::to_string(id_of(key)));
  for (std::uint64_t id = 0; id < kMany; id += 2) holder->drop(memory_key(id));
  ASSERT_TRUE(await_closed(*holder, kLong).ok());
  EXPECT_EQ(size(), kMany / 2);
}

TEST_F(HolderClientTest, AwaitClosedWaitsUntilWhatWasDroppedIsClosed) {
  serve();
  const auto holder = connect();
  SlowToClose slow(2);
  holder->put(memory_key(1), slow.fd().get());
  holder->put(memory_key(2), shared_file("other"));
  ASSERT_TRUE(holder->flush().ok());
  ASSERT_EQ(size(), 2U);
  slow.forget();
  holder->drop(memory_key(1));
  const Time began = Clock::now();
  const Status early = await_closed(*holder, milliseconds(200));
  EXPECT_EQ(early.code(), Code::kDeadlineExceeded) << early.text();
  EXPECT_EQ(texts(*holder), (Texts{{memory_key(2), "other"}})) << "it answers while it closes";
  EXPECT_LT(Clock::now() - began, milliseconds(1500));
  const Status status = await_closed(*holder, kLong);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_GT(Clock::now() - began, milliseconds(1500));
}

TEST_F(HolderClientTest, ASlowCloseHoldsUpItsOwnLaneOnly) {
  serve();
  const auto holder = connect();
  SlowToClose slow(2);
  const SharedFd other = shared_file("other");
  holder->put(memory_key(1), std::make_shared<const Fd>(slow.fd().duplicate()), 1);
  holder->put(memory_key(2), other, 2);
  ASSERT_TRUE(holder->flush().ok());
  ASSERT_EQ(size(), 2U);
  slow.forget();
  holder->drop(memory_key(1));
  holder->drop(memory_key(2));
  const Time began = Clock::now();
  EXPECT_TRUE(await_closed(*holder, kLong, 2).ok());
  EXPECT_LT(Clock::now() - began, milliseconds(1000));
  EXPECT_TRUE(await_closed(*holder, kLong, 1).ok());
  EXPECT_GT(Clock::now() - began, milliseconds(1500));
}

TEST_F(HolderClientTest, TheLastReferenceDrops) {
  serve();
  const auto holder = connect();
  SharedFd kept = held(holder, memory_key(1), some_file("kept"));
  holder->put(memory_key(1), kept);
  ASSERT_TRUE(holder->flush().ok());
  SharedFd other = kept;
  kept.reset();
  EXPECT_EQ(texts(*holder).size(), 1U);
  other.reset();
  EXPECT_EQ(texts(*holder).size(), 0U);

  // One that goes before it was sent does not stay there either.
  SharedFd brief = held(holder, memory_key(2), some_file("brief"));
  holder->put(memory_key(2), brief);
  brief.reset();
  ASSERT_TRUE(holder->flush().ok());
  EXPECT_EQ(size(), 0U);
  EXPECT_EQ(text_of(*held(nullptr, memory_key(3), some_file("alone"))), "alone");
}

TEST_F(HolderClientTest, WhoDetachesLeavesAllBehind) {
  serve();
  auto holder = connect();
  const Fd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  holder->put(holder_key(HolderKind::kProcess, 1), self.get());
  SharedFd kept = held(holder, memory_key(1), some_file("kept"));
  holder->put(memory_key(1), kept);
  ASSERT_TRUE(holder->flush().ok());
  holder->put(memory_key(2), shared_file("too late"));
  holder->detach();
  kept.reset();
  EXPECT_EQ(holder->flush().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(holder->lost());
  holder.reset();
  holder = connect();
  const Texts all = texts(*holder);
  EXPECT_EQ(all.size(), 2U);
  EXPECT_EQ(all.at(memory_key(1)), "kept");
}

TEST_F(HolderClientTest, AHolderThatEndsIsLostAndNothingBlocks) {
  serve();
  const auto holder = connect();
  SharedFd kept = held(holder, memory_key(1), some_file("kept"));
  holder->put(memory_key(1), kept);
  end();
  pollfd look{holder->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&look, 1, 20'000), 1);
  EXPECT_NE(look.revents & POLLHUP, 0);
  EXPECT_EQ(holder->check().code(), Code::kUnavailable);
  EXPECT_TRUE(holder->lost());
  holder->put(memory_key(2), shared_file("none"));
  EXPECT_EQ(holder->flush().code(), Code::kUnavailable);
  EXPECT_EQ(holder->list().status().code(), Code::kUnavailable);
  EXPECT_EQ(await_closed(*holder, kLong).code(), Code::kUnavailable);
  EXPECT_NE(holder->flush().text().find(path), std::string::npos);
  EXPECT_EQ(text_of(*kept), "kept");
}

TEST_F(HolderClientTest, NobodyThereIsSaidSo) {
  EXPECT_EQ(HolderClient::connect(path).status().code(), Code::kUnavailable);
  EXPECT_EQ(HolderClient::connect(dir + "/" + std::string(200, 'x')).status().code(),
            Code::kInvalidArgument);
}

TEST_F(HolderClientTest, WhatTheHolderDoesNotTakeStaysBufferedInOrder) {
  DeafHolder deaf(path);
  const auto holder = connect();
  deaf.join();
  const Fd file = some_file("one");
  constexpr std::uint64_t kMany = 4000;
  for (std::uint64_t id = 0; id < kMany; ++id) {  // a packet each
    holder->put(memory_key(id), file.get());
    holder->drop(memory_key(id));
  }
  const Time began = Clock::now();
  const Status full = holder->flush();
  EXPECT_EQ(full.code(), Code::kDeadlineExceeded) << full.text();
  EXPECT_GE(Clock::now() - began, HolderClient::kFlushLimit);
  EXPECT_LT(Clock::now() - began, HolderClient::kFlushLimit + seconds(5));
  EXPECT_FALSE(holder->lost());
  EXPECT_TRUE(holder->behind());
  EXPECT_NE(holder->has_everything().text().find("has not taken"), std::string::npos);
  const Time again = Clock::now();
  EXPECT_EQ(holder->flush(Duration::zero()).code(), Code::kDeadlineExceeded);
  EXPECT_LT(Clock::now() - again, HolderClient::kFlushLimit / 2) << "nothing is waited for";
  std::uint64_t out_of_order = 0;
  std::thread reading([&] {
    for (std::uint64_t i = 0; i < 2 * kMany; ++i) {
      const HolderPacket packet = deaf.read();
      const HolderMessage expected = i % 2 == 0 ? HolderMessage::kPut : HolderMessage::kDrop;
      if (packet.header.message != expected || packet.header.count != 1 ||
          packet.keys[0] != memory_key(i / 2))
        ++out_of_order;
    }
  });
  const Status status = holder->flush();
  reading.join();
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_TRUE(holder->has_everything().ok());
  EXPECT_EQ(out_of_order, 0U);
}

TEST_F(HolderClientTest, TornPacketsOfAHolderEndTheConnection) {
  DeafHolder deaf(path);
  const auto holder = connect();
  deaf.join();
  HolderPacket late;  // an answer to what nobody waits for any more
  late.header.message = HolderMessage::kAllClosed;
  deaf.say(late);
  EXPECT_TRUE(holder->check().ok());
  HolderPacket lost;
  lost.header.message = HolderMessage::kLost;
  lost.header.count = 3;
  for (std::uint64_t id = 0; id < 3; ++id) lost.keys[id] = memory_key(id);
  deaf.say(lost);
  const Status status = holder->flush();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.text().find("no space for 3 descriptors"), std::string::npos) << status.text();
  EXPECT_TRUE(holder->flush().ok()) << "it is said once";
  EXPECT_NE(holder->has_everything().text().find("no space for 3 descriptors"), std::string::npos);
  for (std::uint64_t id = 0; id < 3; ++id) holder->drop(memory_key(id));
  ASSERT_TRUE(holder->flush().ok());
  EXPECT_TRUE(holder->has_everything().ok()) << "nothing of it is there any more";
  HolderPacket torn;
  torn.header.message = HolderMessage::kListed;
  torn.header.count = 2;  // without descriptors
  deaf.say(torn);
  EXPECT_EQ(holder->check().code(), Code::kUnavailable);
  EXPECT_TRUE(holder->lost());
}

TEST_F(HolderClientTest, AnotherUsersHolderIsNotTrusted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  ASSERT_EQ(::chmod(dir.c_str(), 0777), 0);
  const sockaddr_un address = address_of(path);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const bool serves =
        ::setresuid(12345, 12345, 12345) == 0 &&
        ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        ::listen(socket, 1) == 0 && ::write(ready[1], "x", 1) == 1;
    while (serves) ::pause();
    ::_exit(1);
  }
  ::close(ready[1]);
  char said = 0;
  const bool serves = ::read(ready[0], &said, 1) == 1;
  ::close(ready[0]);
  const Result<std::unique_ptr<HolderClient>> holder = HolderClient::connect(path);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(serves);
  EXPECT_EQ(holder.status().code(), Code::kPermissionDenied) << holder.status().text();
  EXPECT_NE(holder.status().text().find("uid 12345"), std::string::npos);
}

}  // namespace
}  // namespace amem
