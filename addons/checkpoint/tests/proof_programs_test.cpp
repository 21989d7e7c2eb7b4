// Scripts that stand for amem-checkpoint target, and at the end the program itself.
#include "addons/checkpoint/proof_programs.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace amem {
namespace {

namespace fs = std::filesystem;

class ProofProgramsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir = (fs::temp_directory_path() / "amem-proof-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    ASSERT_TRUE(loop.open().ok());
  }
  void TearDown() override {
    target.reset();
    programs.reset();
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    fs::remove_all(dir);
  }
  void start(const std::string& program, ProofPool pool = {}) {
    programs.emplace(loop, program);
    Result<std::unique_ptr<ProofTarget>> started = programs->start({DeviceUuid{}}, std::move(pool));
    ASSERT_TRUE(started.ok()) << started.status().text();
    target = std::move(started).value();
  }
  void use(const std::string& text) {
    const std::string path = dir + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    ::chmod(path.c_str(), 0700);
    start(path);
  }
  /// Of so many checks, the last.
  Status result_of(int checks = 1) {
    Status result(Code::kUnknown, "no answer");
    std::function<void()> check = [&] {
      target->check([&](const Status& status) {
        result = status;
        if (--checks == 0 || !status.ok()) return loop.stop();
        check();
      });
    };
    check();
    loop.at(Clock::now() + std::chrono::seconds(20), [this] { loop.stop(); });
    loop.run();
    return result;
  }

  std::string dir;
  EventLoop loop;
  std::optional<ProofPrograms> programs;
  std::unique_ptr<ProofTarget> target;
};

TEST_F(ProofProgramsTest, EachLineIsAnswered) {
  use("echo ready; while read line; do test $line = check && echo right; done");
  EXPECT_TRUE(result_of(3).ok());
  EXPECT_TRUE(target->end().ok());
}

TEST_F(ProofProgramsTest, AFailureHasItsCode) {
  use("echo something else; echo failed 15 the pool has other bytes; exec sleep 1000");
  const Status status = result_of();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.text(), "the pool has other bytes");
}

TEST_F(ProofProgramsTest, AnEndHasItsLastLine) {
  use("echo no library >&2; exit 7");
  const Status status = result_of();
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(status.text(), "it has ended: exit status 7: no library");
  EXPECT_EQ(target->end().text(), status.text());
  EXPECT_EQ(::kill(target->pid(), 0), 0) << "the pid stays taken";
}

TEST_F(ProofProgramsTest, OneThatIsKilledIsToldApart) {
  use("kill -9 $$");
  EXPECT_EQ(result_of().code(), Code::kCancelled);
}

TEST_F(ProofProgramsTest, AReleasedProcessIsKilledAndReaped) {
  use("exec sleep 1000");
  const pid_t pid = target->pid();
  target.reset();
  std::function<void()> look = [&] {
    if (programs->running() == 0) return loop.stop();
    loop.at(Clock::now() + std::chrono::milliseconds(2), look);
  };
  loop.post(look);
  loop.run();
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST_F(ProofProgramsTest, WhatItSaysOfItselfIsKept) {
  use("echo step loading; echo file /lib/a; echo file /lib/b; echo nccl 2.27.3; echo ready; "
      "read line; echo step using; echo right; exec sleep 1000");
  EXPECT_TRUE(result_of().ok());
  const ProofBasis& basis = target->basis();
  EXPECT_EQ(basis.step, "using");
  EXPECT_EQ(basis.files, (std::vector<std::string>{"/lib/a", "/lib/b"}));
  EXPECT_EQ(basis.nccl, "2.27.3");
  EXPECT_EQ(basis.no_nccl, "");
}

/// What names a library, or makes one be loaded, does not reach a process with amemd's rights.
TEST_F(ProofProgramsTest, TheEnvironmentIsTheProofsOwn) {
  const std::map<std::string, std::string> of_a_job = {{"LD_LIBRARY_PATH", "/home/job/lib"},
                                                       {"LD_AUDIT", "/home/job/audit.so"},
                                                       {"NCCL_NET_PLUGIN", "/home/job/net.so"},
                                                       {"NCCL_CONF_FILE", "/home/job/nccl.conf"},
                                                       {"CUDA_INJECTION64_PATH", "/home/job/i"},
                                                       {"CUDA_VISIBLE_DEVICES", "5"},
                                                       {"HOME", "/home/job"}};
  for (const auto& [name, value] : of_a_job) ::setenv(name.c_str(), value.c_str(), 1);
  ::setenv("AMEM_SIM_MEMORY", "1GiB", 1);
  use("echo failed 15 $(/usr/bin/env); exec sleep 1000");
  const std::string text = ' ' + result_of().text();
  for (const auto& [name, value] : of_a_job) {
    ::unsetenv(name.c_str());
    EXPECT_EQ(text.find(' ' + name + '=' + value + ' '), std::string::npos) << text;
  }
  ::unsetenv("AMEM_SIM_MEMORY");
  for (const char* const its :
       {" AMEM_SIM_MEMORY=1GiB ", " CUDA_VISIBLE_DEVICES=GPU-00000000-0000-0000-0000-000000000000",
        " NCCL_CONF_FILE=/dev/null "})
    EXPECT_NE(text.find(its), std::string::npos) << text;
}

TEST_F(ProofProgramsTest, TheProgramItself) {
  // It takes the driver that this process has.
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(driver, nullptr) << ::dlerror();
  ::setenv("AMEM_SIM_DIR", (dir + "/sim").c_str(), 1);
  start(AMEM_CHECKPOINT, {Place::kMemfd, 0, nullptr});
  const Status status = result_of();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(status.text(),
            "it was to see device GPU-00000000-0000-0000-0000-000000000000, but sees none");
  ::unsetenv("AMEM_SIM_DIR");
}

}  // namespace
}  // namespace amem
