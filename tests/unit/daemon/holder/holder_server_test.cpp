#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>

#include "daemon/holder/server.h"
#include "tests/unit/fixtures/holder_fixture.h"

namespace amem {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Texts = std::map<HolderKey, std::string>;

/// A process that does nothing until it is killed.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ == 0)
      while (true) ::pause();
  }
  ~Sleeper() { kill(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  Fd process() const { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

class HolderServerTest : public HolderFixture {
 protected:
  static int mode_of(const std::string& folder) {
    return static_cast<int>(fs::status(folder).permissions());
  }
  /// One that has put a file and a process, and has gone.
  void put_and_go(const Sleeper& sleeper) {
    const auto holder = connect();
    ASSERT_NE(holder, nullptr);
    holder->put(memory_key(1), std::make_shared<const Fd>(some_file("memory")));
    holder->put(holder_key(HolderKind::kProcess, 1), std::make_shared<const Fd>(sleeper.process()));
    const Status flushed = holder->flush();
    ASSERT_TRUE(flushed.ok()) << flushed.text();
  }
};

TEST_F(HolderServerTest, ASecondAmemdIsRefusedByTheFirstsPidUntilThatHasGone) {
  serve();
  Sleeper rank;
  put_and_go(rank);
  auto first = connect();
  const Result<std::unique_ptr<HolderClient>> second = HolderClient::connect(path);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(second.status().text().find("another amemd (pid " + std::to_string(::getpid()) + ")"),
            std::string::npos)
      << second.status().text();
  EXPECT_EQ(texts(*first).size(), 2U) << "the first notices nothing";
  // The next is there before the first's end has been looked at.
  loop.post([] { std::this_thread::sleep_for(milliseconds(100)); });
  const RawClient next(path);
  first.reset();
  next.greet();
}

TEST_F(HolderServerTest, AnotherVersionIsToldWhichOneItMeets) {
  serve();
  const RawClient newer(path);
  newer.send(HolderMessage::kHello, kHolderVersion + 1);
  const std::optional<HolderHeader> answer = newer.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->message, HolderMessage::kRefused);
  EXPECT_EQ(answer->detail, static_cast<std::uint32_t>(HolderRefusal::kOtherVersion));
  EXPECT_EQ(answer->number, kHolderVersion);
  EXPECT_FALSE(newer.receive());
}

TEST_F(HolderServerTest, TornPacketsEndTheConnectionAndLoseNothing) {
  serve();
  Sleeper rank;
  put_and_go(rank);
  const Fd file = some_file("more");
  const int fd = file.get();
  HolderPacket packet;
  packet.header.message = HolderMessage::kPut;
  packet.header.count = 2;
  packet.keys[0] = memory_key(7);
  packet.keys[1] = memory_key(8);
  HolderPacket unknown;
  unknown.header.message = static_cast<HolderMessage>(99);
  HolderPacket many = packet;
  many.header.count = kMaxHeldPerPacket + 1;
  struct {
    const char* what;
    std::function<void(const RawClient&)> say;
  } const kCases[] = {
      {"half a header", [&](const RawClient& c) { c.send(&packet, 7); }},
      {"a key missing",
       [&](const RawClient& c) {
         c.send(&packet, 24, {fd, fd});
       }},
      {"bytes behind it",
       [&](const RawClient& c) {
         c.send(&packet, 40, {fd, fd});
       }},
      {"a descriptor missing", [&](const RawClient& c) { c.send(&packet, 32, {fd}); }},
      {"none at all", [&](const RawClient& c) { c.send(&packet, 32); }},
      {"one too many",
       [&](const RawClient& c) {
         c.send(&packet, 32, {fd, fd, fd});
       }},
      {"too many keys", [&](const RawClient& c) { c.send(&many, sizeof many, {fd}); }},
      {"larger than all packets",
       [&](const RawClient& c) { c.send(std::string(9000, 'x').data(), 9000); }},
      {"no such message", [&](const RawClient& c) { c.send(&unknown, 16); }},
      {"a drop with a descriptor",
       [&](const RawClient& c) { c.send(HolderMessage::kDrop, 0, {memory_key(1)}, {fd}); }},
      {"a list with keys",
       [&](const RawClient& c) { c.send(HolderMessage::kList, 0, {memory_key(1)}); }},
      {"what only the holder says",
       [&](const RawClient& c) { c.send(HolderMessage::kAllClosed, 1); }},
      {"hello again", [&](const RawClient& c) { c.send(HolderMessage::kHello, kHolderVersion); }},
  };
  for (const auto& [what, say] : kCases) {
    const RawClient client(path);
    client.greet();
    say(client);
    const std::optional<HolderHeader> answer = client.receive();
    ASSERT_TRUE(answer) << what;
    EXPECT_EQ(answer->message, HolderMessage::kRefused) << what;
    EXPECT_EQ(answer->detail, static_cast<std::uint32_t>(HolderRefusal::kMalformed)) << what;
    EXPECT_FALSE(client.receive()) << what;
  }
  const RawClient rude(path);
  rude.send(HolderMessage::kList, 1);  // before the hello
  EXPECT_EQ(rude.receive()->message, HolderMessage::kRefused);
  const auto holder = connect();
  ASSERT_NE(holder, nullptr);
  EXPECT_EQ(texts(*holder).at(memory_key(1)), "memory");
  EXPECT_EQ(size(), 2U);
}

TEST_F(HolderServerTest, WhatCameBeforeAnEndCountsThoughItsAnswersWereNotRead) {
  serve();
  Sleeper rank;
  put_and_go(rank);
  {
    const RawClient client(path);
    client.greet();
    client.send(HolderMessage::kList, 1);
    client.send(HolderMessage::kList, 2);
    ASSERT_EQ(size(), 2U);  // the answers are in its socket now, and stay there
    const Fd file = some_file("the last");
    loop.post([] { std::this_thread::sleep_for(milliseconds(50)); });  // reads them after its end
    for (std::uint64_t id = 10; id < 30; ++id)
      client.send(HolderMessage::kPut, 0, {memory_key(id)}, {file.get()});
  }
  EXPECT_TRUE(becomes_size(22)) << size();
  const auto holder = connect();
  EXPECT_EQ(texts(*holder).at(memory_key(29)), "the last");
}

TEST_F(HolderServerTest, EndsWithTheLastProcessOnceNoAmemdIsConnected) {
  serve();
  Sleeper first, second;
  auto holder = connect();
  holder->put(memory_key(1), std::make_shared<const Fd>(some_file("memory")));
  for (const Sleeper* rank : {&first, &second})
    holder->put(holder_key(HolderKind::kProcess, rank == &first ? 1 : 2),
                std::make_shared<const Fd>(rank->process()));
  ASSERT_TRUE(holder->flush().ok());
  holder.reset();
  EXPECT_FALSE(is_over(milliseconds(100)));
  first.kill();
  EXPECT_FALSE(is_over(milliseconds(100)));
  second.kill();
  EXPECT_TRUE(is_over(kLong));
}

TEST_F(HolderServerTest, WithoutProcessesItServesAConnectedAmemdAndEndsAfterIt) {
  serve();
  auto holder = connect();
  {
    Sleeper rank;
    holder->put(holder_key(HolderKind::kProcess, 1), std::make_shared<const Fd>(rank.process()));
    // What is no process lives as little as one that has ended.
    holder->put(holder_key(HolderKind::kProcess, 2), std::make_shared<const Fd>(some_file("x")));
    ASSERT_TRUE(await_closed(*holder, kLong).ok());
  }
  EXPECT_FALSE(is_over(milliseconds(100)));
  EXPECT_EQ(size(), 2U);
  holder.reset();
  EXPECT_TRUE(is_over(kLong));
}

TEST_F(HolderServerTest, WaitsOnlySoLongForItsFirstClient) {
  serve(milliseconds(300));
  EXPECT_FALSE(is_over(milliseconds(100)));
  EXPECT_TRUE(is_over(kLong));
}

TEST_F(HolderServerTest, OneThatStaysClosesWhatIsWorthNothingAndServesOn) {
  serve(milliseconds(10), true);
  Sleeper rank;
  put_and_go(rank);
  EXPECT_TRUE(becomes_size(2)) << "the process lives";
  rank.kill();
  EXPECT_TRUE(becomes_size(0)) << size();
  {
    const Sleeper next;
    put_and_go(next);
    EXPECT_TRUE(becomes_size(2));
    const auto holder = connect();
    ASSERT_NE(holder, nullptr);
    EXPECT_EQ(texts(*holder).at(memory_key(1)), "memory");
  }
  EXPECT_TRUE(becomes_size(0)) << size();
  EXPECT_FALSE(is_over(milliseconds(100)));
  EXPECT_NE(connect(), nullptr);
}

TEST_F(HolderServerTest, MakesItsFolderAndNoMore) {
  path = dir + "/run/holder.sock";
  serve();
  EXPECT_EQ(mode_of(dir + "/run"), 0700);
  EXPECT_NE(connect(), nullptr);
  HolderSettings deep;
  deep.path = dir + "/no/such/holder.sock";
  HolderServer other(loop, std::move(deep), [] {});
  const Status status = other.start();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status.text();
  EXPECT_NE(status.text().find(dir + "/no/such"), std::string::npos) << status.text();
}

TEST_F(HolderServerTest, AFolderThatOthersSeeIsClosedToThemIfItIsTheHoldersOwn) {
  const std::string folder = dir + "/run";
  path = folder + "/holder.sock";
  fs::create_directory(folder);
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);  // as a kubelet makes it
  std::ofstream(path + ".lock") << 1;           // of the one before
  serve();
  EXPECT_EQ(mode_of(folder), 0700);
  EXPECT_NE(connect(), nullptr);
}

TEST_F(HolderServerTest, AFolderWithSomethingElseInItStaysOpen) {
  const std::string folder = dir + "/run";
  path = folder + "/holder.sock";
  fs::create_directory(folder);
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  std::ofstream(folder + "/session.sock") << 1;
  serve();
  EXPECT_EQ(mode_of(folder), 0755) << "ranks have to reach the other socket";
  EXPECT_NE(connect(), nullptr);
}

TEST_F(HolderServerTest, AFolderThatOthersCouldPutASocketIntoIsRefused) {
  const std::string folder = dir + "/run";
  fs::create_directory(folder);
  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  fs::create_directory_symlink(dir, dir + "/link");
  for (const std::string& each : {folder, dir + "/link"}) {
    HolderServer other(loop, HolderSettings{each + "/holder.sock"}, [] {});
    const Status status = other.start();
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << each;
    EXPECT_NE(status.text().find(each), std::string::npos) << status.text();
  }
}

TEST_F(HolderServerTest, WhoSaysNothingKeepsNobodyOut) {
  serve();
  const RawClient silent(path);
  loop.post([] { std::this_thread::sleep_for(milliseconds(50)); });
  EXPECT_NE(connect(), nullptr);
}

TEST_F(HolderServerTest, ASecondHolderIsRefusedByNameAndALeftSocketReplaced) {
  serve();
  HolderServer second(loop, HolderSettings{path}, [] {});
  const Status status = second.start();
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_NE(status.text().find("(pid " + std::to_string(::getpid()) + ")"), std::string::npos)
      << status.text();
  EXPECT_NE(connect(), nullptr) << "the first has its socket still";
  end();
  EXPECT_FALSE(std::filesystem::exists(path));
  // As one leaves it that is killed.
  const Fd dead(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(path);
  ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EventLoop other;
  ASSERT_TRUE(other.open().ok());
  HolderServer third(other, HolderSettings{path}, [] {});
  EXPECT_TRUE(third.start().ok());
}

TEST_F(HolderServerTest, OtherUsersAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  serve();
  ASSERT_EQ(::chmod(dir.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);  // as if nobody had taken care
  const sockaddr_un address = address_of(path);
  const pid_t child = ::fork();
  if (child == 0) {
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    HolderHeader answer;
    if (::setresuid(12345, 12345, 12345) != 0 ||
        ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::recv(socket, &answer, sizeof answer, 0) != sizeof answer ||
        answer.message != HolderMessage::kRefused || answer.number != 0)
      ::_exit(100);
    ::_exit(static_cast<int>(answer.detail));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(HolderRefusal::kOtherUser));
  EXPECT_NE(connect(), nullptr);
}

/// A process of this user in namespaces of its own, as a container of a job has it.
class HolderContainerTest : public HolderServerTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int kNone = 100;
  /// What the holder says to it: a HolderRefusal, 0 for a welcome, kNone for nothing at all.
  /// Nothing: this machine does not allow such namespaces.
  std::optional<int> answer() const {
    const sockaddr_un address = address_of(path);
    const uid_t uid = ::geteuid();
    const pid_t child = ::fork();
    if (child == 0) {
      if (::unshare(GetParam() | (uid == 0 ? 0 : CLONE_NEWUSER)) != 0) ::_exit(kNone + 1);
      const std::string map = std::to_string(uid) + " " + std::to_string(uid) + " 1";
      const Fd maps(::open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC));
      if ((GetParam() & CLONE_NEWUSER) != 0 || uid != 0)
        if (::write(maps.get(), map.data(), map.size()) < 0) ::_exit(kNone + 1);
      const pid_t inner = ::fork();  // the first in the PID namespace
      if (inner == 0) {
        const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
        HolderHeader said{HolderMessage::kHello, 0, 0, kHolderVersion};
        if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
          ::_exit(kNone);
        ::send(socket, &said, sizeof said, MSG_NOSIGNAL);
        ssize_t n = -1;
        do n = ::recv(socket, &said, sizeof said, 0);
        while (n < 0 &&
               errno == ECONNRESET);  // it did not read our message; its own is still there
        if (n != sizeof said) ::_exit(kNone);
        ::_exit(said.message == HolderMessage::kRefused ? static_cast<int>(said.detail) : 0);
      }
      int status = 0;
      ::waitpid(inner, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : kNone);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) > kNone) return std::nullopt;
    return WEXITSTATUS(status);
  }
};

TEST_P(HolderContainerTest, IsRefusedAndTheNextAmemdGetsWhatIsThere) {
  serve();
  Sleeper rank;
  put_and_go(rank);
  const std::optional<int> said = answer();
  if (!said) GTEST_SKIP() << "no namespaces here: " << std::strerror(EPERM);
  EXPECT_EQ(*said, static_cast<int>(HolderRefusal::kContainer));
  const auto next = connect();
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(texts(*next).size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Namespaces, HolderContainerTest,
                         ::testing::Values(CLONE_NEWPID, CLONE_NEWUSER,
                                           CLONE_NEWPID | CLONE_NEWUSER));

}  // namespace
}  // namespace amem
