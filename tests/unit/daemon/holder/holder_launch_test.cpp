// The program itself, started as amemd starts it: what it inherits, what it outlives, how it ends.
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "daemon/holder/launch.h"
#include "tests/unit/fixtures/holder_fixture.h"

namespace amem {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

class HolderLaunchTest : public HolderFixture {
 protected:
  void TearDown() override {
    if (holder_pid > 0) ::kill(holder_pid, SIGKILL);
    HolderFixture::TearDown();
  }

  HolderLaunch launch() const {
    HolderLaunch with;
    with.path = path;
    with.log_file = dir + "/log";
    with.limit = seconds(20);
    return with;
  }
  std::shared_ptr<HolderClient> ensure() {
    Result<std::unique_ptr<HolderClient>> holder = ensure_holder(launch());
    EXPECT_TRUE(holder.ok()) << holder.status().text() << "\n" << log();
    if (!holder.ok()) return nullptr;
    ucred peer{};
    socklen_t size = sizeof peer;
    ::getsockopt(holder.value()->fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
    holder_pid = peer.pid;
    return std::move(holder).value();
  }
  /// In a process of its own, which kills itself if `then` returns: its wait status.
  int in_child(const std::function<void()>& then) {
    const pid_t child = ::fork();
    if (child == 0) {
      then();
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
  Fd self() const { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))); }
  std::string log() const {
    std::ifstream file(dir + "/log");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  bool ends() const {
    const Time until = Clock::now() + kLong;
    while (Clock::now() < until) {
      // An orphan that nobody has waited for yet has ended too.
      std::ifstream file("/proc/" + std::to_string(holder_pid) + "/stat");
      std::string line;
      std::getline(file, line);
      const std::size_t name = line.rfind(')');
      if (name == std::string::npos || line.compare(name, 3, ") Z") == 0) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }

  pid_t holder_pid = 0;
};

TEST_F(HolderLaunchTest, OutlivesAKilledAmemdWithAllThatWasFlushed) {
  const Fd rank = self();
  const int status = in_child([&] {
    Result<std::unique_ptr<HolderClient>> holder = ensure_holder(launch());
    if (!holder.ok()) ::_exit(1);
    HolderClient& its = *holder.value();
    its.put(holder_key(HolderKind::kProcess, 1), rank.get());
    for (std::uint64_t id = 0; id < 300; ++id)
      its.put(memory_key(id), std::make_shared<const Fd>(some_file(std::to_string(id))));
    if (!its.flush().ok()) ::_exit(2);
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status) << "\n" << log();
  const auto holder = ensure();
  ASSERT_NE(holder, nullptr);
  const auto all = texts(*holder);
  ASSERT_EQ(all.size(), 301U);
  EXPECT_EQ(all.at(memory_key(299)), "299");
  EXPECT_EQ(log().find("serves /"), log().rfind("serves /")) << "one was started\n" << log();
}

TEST_F(HolderLaunchTest, IsInASessionOfItsOwnWithNothingOfOurs) {
  const Fd ours(::open("/dev/null", O_RDONLY));  // not close-on-exec
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  const auto holder = ensure();
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  ASSERT_NE(holder, nullptr);
  EXPECT_NE(::getsid(holder_pid), ::getsid(0));
  const std::string proc = "/proc/" + std::to_string(holder_pid);
  EXPECT_EQ(fs::read_symlink(proc + "/cwd"), "/");
  EXPECT_EQ(fs::read_symlink(proc + "/fd/2"), dir + "/log");
  std::size_t nulls = 0;
  for (const auto& fd : fs::directory_iterator(proc + "/fd"))
    nulls += fs::read_symlink(fd.path()) == "/dev/null" ? 1U : 0U;
  EXPECT_EQ(nulls, 1U) << "stdin alone";
  std::ifstream status(proc + "/status");
  std::string line;
  while (std::getline(status, line) && line.rfind("SigBlk:", 0) != 0) {
  }
  ASSERT_GT(line.size(), 8U);
  EXPECT_EQ(std::stoull(line.substr(8), nullptr, 16) >> (SIGUSR1 - 1) & 1U, 0U) << line;
}

TEST_F(HolderLaunchTest, EndsWithTheLastProcessAndRemovesItsSocket) {
  const pid_t rank = ::fork();
  if (rank == 0)
    while (true) ::pause();
  auto holder = ensure();
  ASSERT_NE(holder, nullptr);
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, rank, 0)));
  holder->put(holder_key(HolderKind::kProcess, 1), process.get());
  holder->put(memory_key(1), std::make_shared<const Fd>(some_file("memory")));
  ASSERT_TRUE(holder->flush().ok());
  holder.reset();
  holder = ensure();
  ASSERT_NE(holder, nullptr);
  EXPECT_EQ(texts(*holder).size(), 2U);
  holder.reset();
  ::kill(rank, SIGKILL);
  ::waitpid(rank, nullptr, 0);
  EXPECT_TRUE(ends()) << log();
  EXPECT_FALSE(fs::exists(path));
  EXPECT_NE(log().find("ends with 2 descriptors, which nobody needs"), std::string::npos) << log();
}

TEST_F(HolderLaunchTest, ASignalEndsItAtOnce) {
  const auto holder = ensure();
  ASSERT_NE(holder, nullptr);
  holder->put(memory_key(1), std::make_shared<const Fd>(some_file("memory")));
  ASSERT_TRUE(await_closed(*holder, kLong).ok());
  ::kill(holder_pid, SIGTERM);
  EXPECT_TRUE(ends()) << log();
  EXPECT_EQ(holder->check().code(), Code::kUnavailable);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_NE(log().find("has ended with 1 descriptor"), std::string::npos) << log();
}

TEST_F(HolderLaunchTest, DescriptorsThatItHasNoSpaceForAreNamedNotLostSilently) {
  constexpr std::uint64_t kAll = 200;
  const Fd rank = self();
  const int status = in_child([&] {
    const rlimit few{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &few);
    Result<std::unique_ptr<HolderClient>> holder = ensure_holder(launch());
    if (!holder.ok()) ::_exit(1);
    holder.value()->put(holder_key(HolderKind::kProcess, 1), rank.get());
    if (!holder.value()->flush().ok()) ::_exit(2);
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status) << "\n" << log();
  const auto holder = ensure();
  ASSERT_NE(holder, nullptr);
  for (std::uint64_t id = 0; id < kAll; ++id)
    holder->put(memory_key(id), std::make_shared<const Fd>(some_file(std::to_string(id))));
  const Status flushed = holder->flush();
  const Status closed = await_closed(*holder, kLong);
  const Status& said = flushed.ok() ? closed : flushed;
  EXPECT_EQ(said.code(), Code::kResourceExhausted) << said.text();
  const auto all = texts(*holder);
  EXPECT_GT(all.size(), 20U);
  EXPECT_LT(all.size(), 64U);
  EXPECT_NE(said.text().find("no space for " + std::to_string(kAll + 1 - all.size()) + " "),
            std::string::npos)
      << said.text();
  for (const auto& [key, text] : all) {
    if (kind_of(key) == HolderKind::kMemory) {
      EXPECT_EQ(text, std::to_string(id_of(key)));
    }
  }

  // And one that takes them back without space for all of them does not believe that it has.
  EXPECT_EQ(in_child([&] {
              const rlimit few{20, 20};
              ::setrlimit(RLIMIT_NOFILE, &few);
              const Result<std::map<HolderKey, Fd>> some = holder->list();
              ::_exit(static_cast<int>(some.status().code()));
            }),
            static_cast<int>(Code::kResourceExhausted) << 8);
}

TEST_F(HolderLaunchTest, WithoutTheProgramItSaysWhichOne) {
  HolderLaunch with = launch();
  with.program = dir + "/amem-holder";
  const Result<std::unique_ptr<HolderClient>> holder = ensure_holder(with);
  EXPECT_EQ(holder.status().code(), Code::kNotFound);
  EXPECT_NE(holder.status().text().find(with.program + ": No such file"), std::string::npos)
      << holder.status().text();
}

TEST_F(HolderLaunchTest, OneThatDoesNotServeInTimeIsGivenUp) {
  HolderLaunch with = launch();
  with.program = "/bin/true";
  with.limit = milliseconds(300);
  const Result<std::unique_ptr<HolderClient>> holder = ensure_holder(with);
  EXPECT_EQ(holder.status().code(), Code::kDeadlineExceeded) << holder.status().text();
}

TEST_F(HolderLaunchTest, SomebodyElsesIsWaitedForAndNeverStarted) {
  HolderLaunch with = launch();
  with.start = false;
  with.limit = milliseconds(100);
  const Result<std::unique_ptr<HolderClient>> none = ensure_holder(with);
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_NE(none.status().text().find("no amem-holder serves " + path), std::string::npos)
      << none.status().text();
  EXPECT_FALSE(fs::exists(dir + "/log")) << "none was started";

  with.limit = kLong;
  std::thread somebody([&] {
    std::this_thread::sleep_for(milliseconds(200));
    serve();
  });
  const Result<std::unique_ptr<HolderClient>> holder = ensure_holder(with);
  somebody.join();
  EXPECT_TRUE(holder.ok()) << holder.status().text();
}

TEST_F(HolderLaunchTest, OneInTheFormerPlaceIsUsedUntilThereIsAnother) {
  serve();
  HolderLaunch with = launch();
  with.former = path;
  with.path = dir + "/own/holder.sock";
  {
    const Result<std::unique_ptr<HolderClient>> holder = ensure_holder(with);
    ASSERT_TRUE(holder.ok()) << holder.status().text();
    EXPECT_EQ(holder.value()->path(), with.former);
    // Another amemd waits for that one, and starts none beside it.
    HolderLaunch other = with;
    other.limit = milliseconds(100);
    EXPECT_EQ(ensure_holder(other).status().code(), Code::kFailedPrecondition);
    EXPECT_FALSE(fs::exists(dir + "/log")) << "one was started";
  }
  end();
  const Result<std::unique_ptr<HolderClient>> holder = ensure_holder(with);
  ASSERT_TRUE(holder.ok()) << holder.status().text();
  EXPECT_EQ(holder.value()->path(), with.path);
}

TEST_F(HolderLaunchTest, OneThatStillServesAnEndingAmemdIsWaitedFor) {
  auto first = ensure();
  ASSERT_NE(first, nullptr);
  const Fd rank = self();
  first->put(holder_key(HolderKind::kProcess, 1), rank.get());
  ASSERT_TRUE(first->flush().ok());
  std::thread ending([&] {
    std::this_thread::sleep_for(milliseconds(300));
    first.reset();
  });
  const auto second = ensure();
  ending.join();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(texts(*second).size(), 1U);
}

}  // namespace
}  // namespace amem
