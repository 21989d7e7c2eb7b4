// The program itself: how it starts, what it refuses, how it ends, and its control socket.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <thread>

#include "amem/v1/broker.grpc.pb.h"
#include "common/version.h"
#include "tests/unit/fixtures/scripted_rank.h"

extern char** environ;

namespace amem {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// amemd as a child process; what it prints goes to a file.
class Process {
 public:
  Process(
      const std::string& output, std::vector<std::string> arguments, void (*prepare)() = [] {})
      : output_(output) {
    arguments.insert(arguments.begin(), AMEMD);
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int fd = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(fd, 1);
      ::dup2(fd, 2);
      prepare();
      ::execv(AMEMD, argv.data());
      ::_exit(127);
    }
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  void signal(int number) const { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }
  /// The exit status; -1: killed, or still running after 20 s.
  int wait() {
    const auto until = std::chrono::steady_clock::now() + seconds(20);
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) return -1;
      std::this_thread::sleep_for(milliseconds(5));
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string output() const {
    std::ifstream file(output_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  /// Its holder, which logs to the same place, says of itself that it serves something else.
  bool serves() const { return says("amemd " + std::string(kVersion) + " serves"); }
  bool says(const std::string& text) const {
    const auto until = std::chrono::steady_clock::now() + seconds(20);
    while (output().find(text) == std::string::npos) {
      siginfo_t ended{};
      if (std::chrono::steady_clock::now() > until ||
          (::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           ended.si_pid == pid_))
        return output().find(text) != std::string::npos;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

 private:
  std::string output_;
  pid_t pid_ = 0;
};

class AmemdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir = (fs::temp_directory_path() / "amemd-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    fs::create_directory(dir + "/sim");
    ::setenv("AMEM_SIM_DIR", (dir + "/sim").c_str(), 1);
    ::setenv("AMEM_SIM_DEVICES", "1", 1);
    ::setenv("AMEM_SIM_MEMORY", "67108864", 1);
    run_dir = dir + "/run";
  }
  /// Beside a holder that is ending, and removes its socket.
  void TearDown() override {
    const auto until = std::chrono::steady_clock::now() + seconds(20);
    std::error_code error;
    while (fs::remove_all(dir, error), error && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(milliseconds(5));
    EXPECT_FALSE(error) << error.message();
  }

  std::unique_ptr<Process> run(std::vector<std::string> arguments, const std::string& name = "a") {
    return std::make_unique<Process>(dir + "/" + name + ".out", std::move(arguments));
  }
  std::unique_ptr<Process> serve(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"--runtime-dir", run_dir, "--pool-size", "16MiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments, "serve" + std::to_string(++served));
  }
  std::unique_ptr<v1::Broker::Stub> stub() {
    return v1::Broker::NewStub(grpc::CreateChannel("unix:" + run_dir + "/control.sock",
                                                   grpc::InsecureChannelCredentials()));
  }

  std::string dir, run_dir;
  int served = 0;
};

TEST_F(AmemdTest, ServesAndEndsCleanly) {
  auto amemd = serve();
  ASSERT_TRUE(amemd->says("16 MiB of 16 MiB ready") && amemd->serves()) << amemd->output();
  struct stat st {};
  ASSERT_EQ(::stat((run_dir + "/session.sock").c_str(), &st), 0);
  ASSERT_EQ(::stat((run_dir + "/control.sock").c_str(), &st), 0);
  ScriptedRank rank;
  rank.connect(run_dir + "/session.sock");
  ASSERT_EQ(ScriptedRank::code(rank.hello("train")), Code::kOk);

  grpc::ClientContext context;
  v1::NodeStatus status;
  ASSERT_TRUE(stub()->GetStatus(&context, {}, &status).ok());
  EXPECT_EQ(status.pid(), amemd->pid());
  EXPECT_EQ(status.groups_size(), 1);
  EXPECT_TRUE(status.devices(0).usage_known());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow counts too
  EXPECT_LT(status.rss_bytes(), 60ULL << 20);
#endif

  // A watcher does not keep it from ending.
  grpc::ClientContext watching;
  auto watch = stub()->Watch(&watching, {});
  watch->WaitForInitialMetadata();  // it is watching now
  amemd->signal(SIGTERM);
  EXPECT_EQ(amemd->wait(), 0) << amemd->output();
  v1::Event event;
  while (watch->Read(&event)) {
  }
  const grpc::Status watched = watch->Finish();
  EXPECT_EQ(watched.error_code(), grpc::StatusCode::UNAVAILABLE) << watched.error_message() << "\n"
                                                                 << amemd->output();
  rank.pump(seconds(5));
  EXPECT_FALSE(rank.alive());
  EXPECT_FALSE(fs::exists(run_dir + "/session.sock"));
  EXPECT_FALSE(fs::exists(run_dir + "/control.sock"));
}

TEST_F(AmemdTest, ControlCallsOverTheSocket) {
  auto amemd = serve();
  ASSERT_TRUE(amemd->says("16 MiB of 16 MiB ready") && amemd->serves()) << amemd->output();
  ScriptedRank rank;
  rank.connect(run_dir + "/session.sock");
  ASSERT_EQ(ScriptedRank::code(rank.hello("train")), Code::kOk);
  auto control = stub();
  grpc::ClientContext watching;
  auto watch = control->Watch(&watching, {});
  watch->WaitForInitialMetadata();  // it is watching now
  v1::Event event;

  v1::PauseRequest request;
  request.set_group("train");
  auto pause = [&](std::vector<v1::Progress>& seen) {
    grpc::ClientContext context;
    auto stream = control->Pause(&context, request);
    std::atomic<bool> over{false};
    std::thread answering([&] {
      while (!over && rank.alive()) rank.pump(milliseconds(10));
    });
    v1::Progress progress;
    while (stream->Read(&progress)) seen.push_back(progress);
    const grpc::Status status = stream->Finish();
    over = true;
    answering.join();
    return status;
  };
  std::vector<v1::Progress> seen;
  const grpc::Status paused = pause(seen);
  ASSERT_TRUE(paused.ok()) << paused.error_message();
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(seen.back().done());
  EXPECT_EQ(seen.back().times_size(), 4);
  EXPECT_EQ(pause(seen).error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  request.set_group("nobody");
  EXPECT_EQ(pause(seen).error_code(), grpc::StatusCode::NOT_FOUND);

  ASSERT_TRUE(watch->Read(&event));
  EXPECT_EQ(event.kind(), "state");
  watching.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);

  grpc::ClientContext c1;
  v1::ListRanksRequest unknown;
  unknown.set_group("nobody");
  v1::ListRanksResponse ranks;
  EXPECT_EQ(control->ListRanks(&c1, unknown, &ranks).error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext c2;
  v1::SetPolicyRequest policy;
  policy.set_group("train");
  policy.set_tag("nccl");
  policy.set_policy(v1::POLICY_DISCARD);
  v1::SetPolicyResponse response;
  EXPECT_EQ(control->SetPolicy(&c2, policy, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AmemdTest, ACallerThatLeavesStopsNothing) {
  auto amemd = serve();
  ASSERT_TRUE(amemd->says("16 MiB of 16 MiB ready") && amemd->serves()) << amemd->output();
  ScriptedRank rank;
  rank.connect(run_dir + "/session.sock");
  ASSERT_EQ(ScriptedRank::code(rank.hello("train")), Code::kOk);
  auto control = stub();
  {
    grpc::ClientContext context;
    v1::PauseRequest request;
    request.set_group("train");
    auto stream = control->Pause(&context, request);
    v1::Progress progress;
    ASSERT_TRUE(stream->Read(&progress));  // it has begun
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  v1::GroupState state = v1::GROUP_STATE_UNSPECIFIED;
  while (state != v1::GROUP_STATE_PAUSED && std::chrono::steady_clock::now() < until) {
    rank.pump(milliseconds(10));
    grpc::ClientContext context;
    v1::ListGroupsResponse groups;
    ASSERT_TRUE(control->ListGroups(&context, {}, &groups).ok());
    ASSERT_EQ(groups.groups_size(), 1);
    state = groups.groups(0).state();
  }
  EXPECT_EQ(state, v1::GROUP_STATE_PAUSED);
}

TEST_F(AmemdTest, ASecondOneIsRefusedAndAKilledOneReplaced) {
  auto first = serve();
  ASSERT_TRUE(first->serves()) << first->output();
  auto second = run({"--runtime-dir", run_dir});
  EXPECT_EQ(second->wait(), 1);
  EXPECT_NE(second->output().find("another amemd (pid " + std::to_string(first->pid()) + ")"),
            std::string::npos)
      << second->output();
  first->signal(SIGKILL);
  EXPECT_EQ(first->wait(), -1);
  ASSERT_TRUE(fs::exists(run_dir + "/control.sock")) << "left behind";
  auto third = serve();
  ASSERT_TRUE(third->serves()) << third->output();
  grpc::ClientContext context;
  v1::NodeStatus status;
  EXPECT_TRUE(stub()->GetStatus(&context, {}, &status).ok());
}

TEST_F(AmemdTest, EndsPromptlyWhileThePoolIsBeingMade) {
  auto amemd = serve({"--pool-size", "4GiB", "--pool-segment", "64MiB"});
  ASSERT_TRUE(amemd->serves()) << amemd->output();
  amemd->signal(SIGINT);
  EXPECT_EQ(amemd->wait(), 0);
  EXPECT_EQ(amemd->output().find("4 GiB of 4 GiB ready"), std::string::npos)
      << "it made all of the pool";
}

TEST_F(AmemdTest, CheckConfig) {
  std::ofstream(dir + "/good.toml") << "[pool]\nsize = \"2GiB\"\n";
  auto good = run({"--check-config", "--config", dir + "/good.toml", "--log-level", "debug"});
  EXPECT_EQ(good->wait(), 0);
  EXPECT_NE(good->output().find("size = \"2GiB\""), std::string::npos) << good->output();
  EXPECT_NE(good->output().find("level = \"debug\""), std::string::npos);

  std::ofstream(dir + "/bad.toml") << "[pool]\nsize = \"2GiB\"\ntypo = 1\n";
  auto bad = run({"--check-config", "--config", dir + "/bad.toml"});
  EXPECT_EQ(bad->wait(), 2);
  EXPECT_NE(bad->output().find("/bad.toml:3: pool.typo: this setting does not exist"),
            std::string::npos)
      << bad->output();
  auto serving = run({"--config", dir + "/bad.toml", "--runtime-dir", run_dir});
  EXPECT_EQ(serving->wait(), 2) << "nor does it serve with it";
}

TEST_F(AmemdTest, ADeviceWithoutANodeKeepsItFromServingWhereNodesAreAskedFor) {
  fs::create_directory(dir + "/dev");
  auto amemd = serve({"--isolation-device-nodes", dir + "/dev"});
  EXPECT_EQ(amemd->wait(), 1);
  EXPECT_NE(amemd->output().find("isolation.device_nodes: device 0"), std::string::npos)
      << amemd->output();
  EXPECT_NE(amemd->output().find(dir + "/dev/nvidia0: No such file"), std::string::npos);
}

/// As of a kernel that has no such call.
void refuse_pidfds() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) ::_exit(126);
}

TEST_F(AmemdTest, AKernelThatCannotTellWhenAProcessHasEndedIsNamed) {
  const std::vector<std::string> arguments = {"--runtime-dir", run_dir, "--pool-size", "16MiB"};
  {
    Process amemd(dir + "/old.out", arguments, refuse_pidfds);
    ASSERT_TRUE(amemd.says("this kernel has no pidfd")) << amemd.output();
    EXPECT_TRUE(amemd.serves()) << amemd.output();
  }
  Process amemd(dir + "/new.out", arguments);
  ASSERT_TRUE(amemd.serves()) << amemd.output();
  EXPECT_EQ(amemd.output().find("pidfd"), std::string::npos);
}

TEST_F(AmemdTest, WithoutADriverItSaysSo) {
  ::setenv("AMEM_SIM_DEVICES", "0", 1);
  auto amemd = serve();
  EXPECT_EQ(amemd->wait(), 1);
  EXPECT_NE(amemd->output().find("finds no device"), std::string::npos) << amemd->output();
}

TEST_F(AmemdTest, TheLogFileIsReopened) {
  auto amemd = serve({"--log-file", dir + "/log", "--log-format", "json"});
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (!fs::exists(run_dir + "/control.sock") && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(milliseconds(5));
  fs::rename(dir + "/log", dir + "/log.1");
  amemd->signal(SIGHUP);
  while (!fs::exists(dir + "/log") && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(fs::exists(dir + "/log"));
  amemd->signal(SIGTERM);
  EXPECT_EQ(amemd->wait(), 0);
}

}  // namespace
}  // namespace amem
