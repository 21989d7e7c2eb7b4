// Programs that stand for amem-checkpoint, as scripts: answers, and everything else that a program
// may do. At the end the program itself, on the simulated driver.
#include "addons/checkpoint/checkpointer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "common/driver.h"

namespace amem {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLong = seconds(20);
/// How long the kernel may take to start a script where others use the machine too.
constexpr Duration kShort = milliseconds(300);

std::size_t open_files() {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

class CheckpointerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir = (fs::temp_directory_path() / "amem-checkpointer-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    files = open_files();
  }
  void TearDown() override {
    checkpointer.reset();
    loop.reset();
    EXPECT_EQ(open_files(), files);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    fs::remove_all(dir);
  }

  /// $1 is the action, $2 the pid; answer RESULT NAME STATE writes a line.
  std::string script(const std::string& text) const {
    const std::string path = dir + "/program";
    std::ofstream(path) << "#!/bin/sh\naction=$1 pid=$2\nanswer() {\n  printf "
                           "'{\"action\":\"%s\",\"pid\":%s,\"result\":%s,\"name\":\"%s\",\"us\":7,"
                           "\"state\":\"%s\"}\\n' $action $pid $1 $2 $3\n}\ncd "
                        << dir << "\n"
                        << text << "\n";
    ::chmod(path.c_str(), 0700);
    return path;
  }
  /// With a loop of its own: one that has been stopped does not run again.
  void start(const std::string& program) {
    checkpointer.reset();
    loop.emplace();
    ASSERT_TRUE(loop->open().ok());
    checkpointer.emplace(*loop, program);
    results.clear();
  }
  void use(const std::string& text) { start(script(text)); }

  void call(pid_t pid, CheckpointAction action, Duration limit = kLong) {
    ++waiting;
    checkpointer->call(pid, action, Clock::now() + limit, [this, pid](const CheckpointResult& it) {
      results.emplace(pid, it);
      if (--waiting == 0) loop->stop();
    });
  }
  /// Until all have been reported.
  void run() {
    loop->at(Clock::now() + kLong + kLong, [this] { loop->stop(); });
    loop->run();
    EXPECT_EQ(waiting, 0) << "some are not reported";
  }
  CheckpointResult result_of(CheckpointAction action, Duration limit = kLong, pid_t pid = 4711) {
    call(pid, action, limit);
    run();
    EXPECT_EQ(results.size(), 1U);
    return results.empty() ? CheckpointResult{} : results.begin()->second;
  }
  std::string file(const std::string& name) const {
    std::ifstream from(dir + "/" + name);
    return {std::istreambuf_iterator<char>(from), std::istreambuf_iterator<char>()};
  }
  /// Waits until a script has written it.
  std::string file_soon(const std::string& name) const {
    for (const Time until = Clock::now() + kLong; Clock::now() < until;) {
      if (std::string text = file(name); !text.empty() && text.back() == '\n') return text;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return {};
  }

  std::string dir;
  std::optional<EventLoop> loop;
  std::size_t files = 0;
  std::optional<Checkpointer> checkpointer;
  std::multimap<pid_t, CheckpointResult> results;
  int waiting = 0;
};

TEST_F(CheckpointerTest, AnAnswerHasTheTimeAndTheState) {
  use("answer 0 CUDA_SUCCESS checkpointed; echo $* > words");
  const CheckpointResult result = result_of(CheckpointAction::kCheckpoint);
  EXPECT_TRUE(result.status.ok()) << result.status.text();
  EXPECT_EQ(result.us, 7U);
  EXPECT_EQ(result.state, ProcessState::kCheckpointed);
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(file("words"), "checkpoint 4711 --with-parent " + std::to_string(::getpid()) + "\n");
}

TEST_F(CheckpointerTest, ALockGivesUpBeforeItsDeadline) {
  use("answer 0 CUDA_SUCCESS locked; echo $* > words");
  const CheckpointResult result = result_of(CheckpointAction::kLock, seconds(20));
  EXPECT_EQ(result.state, ProcessState::kLocked);
  int timeout = 0;
  ASSERT_EQ(
      std::sscanf(file("words").c_str(), "lock 4711 --with-parent %*d --timeout-ms %d", &timeout),
      1)
      << file("words");
  EXPECT_GT(timeout, 10000);
  EXPECT_LE(timeout, 15000);
}

TEST_F(CheckpointerTest, ARefusalHasTheDriversName) {
  use("answer 401 CUDA_ERROR_ILLEGAL_STATE running; exit 1");
  const CheckpointResult result = result_of(CheckpointAction::kUnlock);
  EXPECT_EQ(result.status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(result.error, "CUDA_ERROR_ILLEGAL_STATE");
  EXPECT_EQ(result.state, ProcessState::kRunning);
  EXPECT_EQ(result.status.text(),
            "program unlock 4711: CUDA_ERROR_ILLEGAL_STATE (401); state running");
}

TEST_F(CheckpointerTest, ARefusalSaysWhatToDo) {
  CheckpointAnswer answer{.action = CheckpointAction::kLock, .name = "CUDA_ERROR_OPERATING_SYSTEM"};
  EXPECT_NE(advice_on(answer).find("SYS_PTRACE and DAC_OVERRIDE"), std::string_view::npos);
  EXPECT_EQ(advice_on(answer).find("CUDA_VISIBLE_DEVICES"), std::string_view::npos);
  answer.action = CheckpointAction::kRestore;
  for (const char* const what :
       {"does not see", "CUDA_VISIBLE_DEVICES", "without = [\"host_numa\"]", "SYS_PTRACE"})
    EXPECT_NE(advice_on(answer).find(what), std::string_view::npos) << what;
  answer.action = CheckpointAction::kLock;
  answer.name = "CUDA_ERROR_NOT_SUPPORTED";
  EXPECT_NE(advice_on(answer).find("profiler"), std::string_view::npos);
  answer.action = CheckpointAction::kRestore;
  EXPECT_EQ(advice_on(answer), "");
}

TEST_F(CheckpointerTest, AnAnswerIsFoundAmongOtherOutput) {
  use("echo a library says something >&2; head -c 300000 /dev/zero; echo; "
      "answer 0 CUDA_SUCCESS locked; echo '{\"action\":'");
  const CheckpointResult result = result_of(CheckpointAction::kRestore);
  EXPECT_TRUE(result.status.ok()) << result.status.text();
  EXPECT_EQ(result.state, ProcessState::kLocked);
}

TEST_F(CheckpointerTest, GarbageIsNoAnswer) {
  for (const char* const text :
       {"echo hello", "pid=4712; answer 0 CUDA_SUCCESS running",
        "action=lock; answer 0 CUDA_SUCCESS running", "answer x CUDA_SUCCESS running",
        "answer 0 CUDA_SUCCESS running | head -c 40", "answer 0 CUDA_SUCCESS '' | tr 0 ' '",
        "echo '{}'; exit 1", "exit 2", ":"}) {
    use(text);
    const CheckpointResult result = result_of(CheckpointAction::kState);
    EXPECT_EQ(result.status.code(), Code::kInternal) << text;
    EXPECT_NE(result.status.text().find("ended without an answer (exit status "), std::string::npos)
        << result.status.text();
    EXPECT_EQ(result.state, ProcessState::kUnknown);
  }
  EXPECT_EQ(checkpointer->running(), 0U);
}

TEST_F(CheckpointerTest, WithoutADriverTheProgramSaysWhy) {
  use("echo 'no driver. Install one' >&2; exit 3");
  const CheckpointResult result = result_of(CheckpointAction::kState);
  EXPECT_EQ(result.status.code(), Code::kUnavailable);
  EXPECT_EQ(result.status.text(), "no driver. Install one");
}

TEST_F(CheckpointerTest, DyingByASignalIsNoAnswer) {
  use("echo hello; kill -SEGV $$");
  const CheckpointResult result = result_of(CheckpointAction::kRestore);
  EXPECT_EQ(result.status.code(), Code::kInternal);
  EXPECT_EQ(result.status.text(),
            "program restore 4711 ended without an answer (signal 11): hello");
}

TEST_F(CheckpointerTest, OneThatHangsIsKilledAtItsDeadline) {
  use("echo $$ > pid; echo so far; exec sleep 1000");
  const Time began = Clock::now();
  const CheckpointResult result = result_of(CheckpointAction::kCheckpoint, kShort);
  EXPECT_GE(Clock::now(), began + kShort);
  EXPECT_LT(Clock::now(), began + kLong);
  EXPECT_EQ(result.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(
      result.status.text().rfind("program checkpoint 4711: no answer within 300 ms, killed", 0), 0U)
      << result.status.text();
  EXPECT_EQ(checkpointer->running(), 0U);
  // On a busy machine it may not have got so far.
  if (const std::string pid = file("pid"); !pid.empty()) {
    EXPECT_EQ(::kill(std::stoi(pid), 0), -1) << "it lives";
  }
}

TEST_F(CheckpointerTest, AnAnswerCountsThoughTheProgramDoesNotEnd) {
  use("answer 0 CUDA_SUCCESS running; exec sleep 1000");
  const CheckpointResult result = result_of(CheckpointAction::kUnlock, seconds(1));
  EXPECT_TRUE(result.status.ok()) << result.status.text();
}

TEST_F(CheckpointerTest, WhoKeepsTheOutputOpenIsNotWaitedFor) {
  use("sleep 1000 & echo $! > pid; answer 0 CUDA_SUCCESS running");
  const Time began = Clock::now();
  const CheckpointResult result = result_of(CheckpointAction::kUnlock);
  EXPECT_TRUE(result.status.ok()) << result.status.text();
  EXPECT_LT(Clock::now(), began + seconds(15));
  ::kill(std::stoi(file("pid")), SIGKILL);
}

TEST_F(CheckpointerTest, OneThatClosesItsOutputAndHangsIsKilled) {
  use("exec sleep 1000 >&- 2>&-");
  EXPECT_EQ(result_of(CheckpointAction::kUnlock, kShort).status.code(), Code::kDeadlineExceeded);
}

TEST_F(CheckpointerTest, OneThatWritesWithoutEndKeepsNobodyWaiting) {
  use("yes");
  bool other = false;
  loop->at(Clock::now() + milliseconds(50), [&] { other = true; });
  EXPECT_EQ(result_of(CheckpointAction::kUnlock, kShort).status.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(other);
}

TEST_F(CheckpointerTest, WhatCannotBeStartedIsReportedLater) {
  start(dir + "/missing");
  call(1, CheckpointAction::kState);
  EXPECT_EQ(waiting, 1) << "not within the call";
  EXPECT_EQ(checkpointer->running(), 0U);
  run();
  EXPECT_EQ(results.begin()->second.status.code(), Code::kNotFound);
  EXPECT_EQ(results.begin()->second.status.text(),
            "start " + dir + "/missing: No such file or directory");
}

TEST_F(CheckpointerTest, NothingIsStartedAfterTheDeadline) {
  use("touch started; answer 0 CUDA_SUCCESS running");
  EXPECT_EQ(result_of(CheckpointAction::kState, Duration::zero()).status.code(),
            Code::kDeadlineExceeded);
  EXPECT_FALSE(fs::exists(dir + "/started"));
}

TEST_F(CheckpointerTest, ManyAtOnceEachWithItsOwnEnd) {
  use("case $((pid % 4)) in\n"
      "0) answer 0 CUDA_SUCCESS locked ;;\n"
      "1) answer 401 CUDA_ERROR_ILLEGAL_STATE failed; exit 1 ;;\n"
      "2) echo garbage ;;\n"
      "3) exec sleep 1000 ;;\n"
      "esac");
  constexpr int kCalls = 40;
  // All are started before one is killed.
  for (int pid = 0; pid < kCalls; ++pid)
    call(1000 + pid, CheckpointAction::kRestore, pid % 4 == 3 ? seconds(2) : kLong);
  EXPECT_EQ(checkpointer->running(), static_cast<std::size_t>(kCalls));
  run();
  EXPECT_EQ(checkpointer->running(), 0U);
  ASSERT_EQ(results.size(), static_cast<std::size_t>(kCalls));
  const Code wanted[] = {Code::kOk, Code::kFailedPrecondition, Code::kInternal,
                         Code::kDeadlineExceeded};
  for (const auto& [pid, result] : results)
    EXPECT_EQ(result.status.code(), wanted[pid % 4]) << pid << ": " << result.status.text();
}

TEST_F(CheckpointerTest, ItsEndKillsWhatRunsAndReportsNothing) {
  use("trap '' TERM; echo $$ > pid$pid; exec sleep 1000");
  for (const int pid : {1, 2, 3}) call(pid, CheckpointAction::kState);
  std::vector<int> pids;
  for (const char* const name : {"pid1", "pid2", "pid3"})
    pids.push_back(std::stoi(file_soon(name)));
  const Time began = Clock::now();
  checkpointer.reset();
  EXPECT_LT(Clock::now(), began + seconds(10));
  for (const int pid : pids) EXPECT_EQ(::kill(pid, 0), -1) << "it lives";
  loop->at(Clock::now() + milliseconds(20), [this] { loop->stop(); });
  loop->run();
  EXPECT_TRUE(results.empty());
}

TEST_F(CheckpointerTest, WhoIsReportedToMayEndIt) {
  for (const std::string text : {"answer 0 CUDA_SUCCESS running", "exec sleep 1000", ""}) {
    start(text.empty() ? dir + "/missing" : script(text));
    int calls = 0;
    for (const pid_t pid : {1, 2})
      checkpointer->call(pid, CheckpointAction::kState, Clock::now() + seconds(1),
                         [&](const CheckpointResult&) {
                           ++calls;
                           checkpointer.reset();
                           loop->stop();
                         });
    loop->run();
    EXPECT_EQ(calls, 1) << "the other is not reported: " << text;
  }
}

TEST_F(CheckpointerTest, TheProgramGetsNothingOfOurs) {
  const Fd ours(::open("/dev/null", O_RDONLY));  // not close-on-exec
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  use("ls -l /proc/$$/fd > fds; grep ^Sig /proc/self/status > signals; "
      "cut -d' ' -f5 /proc/$$/stat > group; echo $$ > pid; answer 0 CUDA_SUCCESS running");
  const CheckpointResult result = result_of(CheckpointAction::kState);
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  EXPECT_TRUE(result.status.ok()) << result.status.text();
  const std::string fds = file("fds");
  EXPECT_NE(fds.find(" 0 -> /dev/null"), std::string::npos) << fds;
  EXPECT_EQ(fds.find("/dev/null"), fds.rfind("/dev/null")) << fds;
  EXPECT_EQ(fds.find("anon_inode"), std::string::npos) << fds;
  const std::string signals = file("signals");
  EXPECT_NE(signals.find("SigBlk:\t0000000000000000"), std::string::npos) << signals;
  const std::size_t ignored = signals.find("SigIgn:");
  ASSERT_NE(ignored, std::string::npos) << signals;
  EXPECT_EQ(std::stoull(signals.substr(ignored + 8), nullptr, 16) >> (SIGPIPE - 1) & 1U, 0U)
      << signals;
  EXPECT_EQ(file("group"), file("pid")) << "a process group of its own";
}

TEST_F(CheckpointerTest, ALineIsReadAsItIsWritten) {
  for (std::size_t action = 0; action < kCheckpointActions.size(); ++action) {
    const CheckpointAnswer written{static_cast<CheckpointAction>(action),
                                   99,
                                   600,
                                   "CUDA_ERROR_NOT_READY",
                                   1ULL << 40,
                                   ProcessState::kFailed};
    const auto read = answer_of(line_of(written));
    ASSERT_TRUE(read) << line_of(written);
    EXPECT_EQ(line_of(*read), line_of(written));
  }
  EXPECT_TRUE(
      answer_of(R"({"action":"lock","pid":1,"result":0,"name":"A","us":1,"state":"new","more":1})"))
      << "of a newer program";
  EXPECT_FALSE(answer_of(R"({"action":"look","pid":1,"result":0,"name":"A","us":1,"state":"x"})"));
  EXPECT_FALSE(answer_of(""));
}

/// The program itself, on the simulated driver.
class CheckpointerProgramTest : public CheckpointerTest {
 protected:
  void SetUp() override {
    CheckpointerTest::SetUp();
    ::setenv("AMEM_SIM_DIR", (dir + "/sim").c_str(), 1);
    Driver driver;
    ASSERT_TRUE(driver.load().ok());
    files = open_files();
    lacks = driver.cuCheckpointProcessLock_ == nullptr;
  }
  void TearDown() override {
    if (child > 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    CheckpointerTest::TearDown();
    for (const char* const name : {"AMEM_SIM_DIR", "AMEM_SIM_CHECKPOINT"}) ::unsetenv(name);
  }
  /// A process with memory and a byte in it, which it looks at when it gets SIGUSR1: it ends with 0
  /// if the byte is the same.
  void start_target() {
    ::setenv("AMEM_SIM_CHECKPOINT", "lose", 1);
    child = ::fork();
    if (child == 0) ::_exit(target());
    ASSERT_EQ(file_soon("ready"), "ready\n");
  }
  int target() const {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    Driver driver;
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    unsigned char byte = 0;
    if (!driver.load().ok() || driver.cuInit_(0) != CUDA_SUCCESS ||
        driver.cuDevicePrimaryCtxRetain_(&context, 0) != CUDA_SUCCESS ||
        driver.cuCtxSetCurrent_(context) != CUDA_SUCCESS ||
        driver.cuMemAlloc_(&memory, 1 << 20) != CUDA_SUCCESS ||
        driver.cuMemsetD8Async_(memory, 42, 1 << 20, nullptr) != CUDA_SUCCESS ||
        driver.cuCtxSynchronize_() != CUDA_SUCCESS)
      return 1;
    std::ofstream(dir + "/ready") << "ready" << std::endl;
    int signal = 0;
    ::sigwait(&signals, &signal);
    return driver.cuMemcpyDtoHAsync_(&byte, memory + 12345, 1, nullptr) == CUDA_SUCCESS &&
                   driver.cuCtxSynchronize_() == CUDA_SUCCESS && byte == 42
               ? 0
               : 2;
  }
  CheckpointResult step(CheckpointAction action) {
    start(AMEM_CHECKPOINT);
    return result_of(action, kLong, child);
  }

  bool lacks = false;
  pid_t child = 0;
};

TEST_F(CheckpointerProgramTest, ADriverWithoutTheCallsIsNamed) {
  if (!lacks) GTEST_SKIP() << "this simulated driver has them";
  child = ::fork();
  if (child == 0)
    while (true) ::pause();
  const CheckpointResult result = step(CheckpointAction::kLock);
  EXPECT_EQ(result.status.code(), Code::kUnavailable);
  EXPECT_NE(result.status.text().find(
                " lacks cuCheckpointProcessGetState. Checkpoints require NVIDIA's driver 570"),
            std::string::npos)
      << result.status.text();
}

TEST_F(CheckpointerProgramTest, TakesAProcessOffTheDeviceAndBack) {
  if (lacks) GTEST_SKIP() << "this simulated driver lacks them";
  start_target();
  EXPECT_EQ(step(CheckpointAction::kState).state, ProcessState::kRunning);
  EXPECT_EQ(step(CheckpointAction::kRestore).error, "CUDA_ERROR_ILLEGAL_STATE");
  const std::pair<CheckpointAction, ProcessState> steps[] = {
      {CheckpointAction::kLock, ProcessState::kLocked},
      {CheckpointAction::kCheckpoint, ProcessState::kCheckpointed},
      {CheckpointAction::kRestore, ProcessState::kLocked},
      {CheckpointAction::kUnlock, ProcessState::kRunning}};
  for (const auto& [action, state] : steps) {
    const CheckpointResult result = step(action);
    EXPECT_TRUE(result.status.ok()) << result.status.text();
    EXPECT_EQ(word_of(result.state), std::string(word_of(state))) << word_of(action);
  }
  ::kill(child, SIGUSR1);
  int status = 0;
  ASSERT_EQ(::waitpid(std::exchange(child, 0), &status, 0) > 0, true);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(CheckpointerProgramTest, AProcessThatDoesNotUseCudaIsRefused) {
  if (lacks) GTEST_SKIP() << "this simulated driver lacks them";
  child = ::fork();
  if (child == 0)
    while (true) ::pause();
  const CheckpointResult result = step(CheckpointAction::kLock);
  EXPECT_EQ(result.status.code(), Code::kFailedPrecondition) << result.status.text();
  EXPECT_EQ(result.state, ProcessState::kUnknown);
}

TEST_F(CheckpointerProgramTest, WrongUsageIsNoAnswer) {
  child = 0;  // no process has this pid
  const CheckpointResult result = step(CheckpointAction::kLock);
  EXPECT_EQ(result.status.code(), Code::kInternal);
  EXPECT_NE(result.status.text().find("exit status 2"), std::string::npos) << result.status.text();
}

}  // namespace
}  // namespace amem
