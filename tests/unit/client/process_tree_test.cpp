#include "client/ctl/job/process_tree.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace amem::ctl {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(ProcessTree, WhatIsBelowAProcess) {
  const Parents parents = {{1, 0}, {10, 1}, {11, 10}, {12, 11}, {13, 10}, {20, 1}, {21, 20}};
  EXPECT_THAT(below(10, parents), ElementsAre(11, 12, 13));
  EXPECT_THAT(below(12, parents), IsEmpty());
  EXPECT_THAT(below(99, parents), IsEmpty());
  EXPECT_THAT(below(5, {{5, 6}, {6, 5}}), ElementsAre(6)) << "numbers came again while it was read";
}

TEST(ProcessTree, NamesMayHaveAnything) {
  const std::filesystem::path proc = std::filesystem::path(testing::TempDir()) / "proc";
  for (const auto& [pid, stat] :
       {std::pair("10", "10 (a) b) S 1 10"), std::pair("11", "11 (x y) T 10 11"),
        std::pair("12", "12 (no end"), std::pair("self", "13 (link) S 1 1")}) {
    std::filesystem::create_directories(proc / pid);
    std::ofstream(proc / pid / "stat") << stat;
  }
  std::filesystem::create_directories(proc / "14");  // it has just ended
  EXPECT_THAT(read_parents(proc), ElementsAre(Pair(10, 1), Pair(11, 10)));
  std::filesystem::remove_all(proc);
  EXPECT_THAT(read_parents(proc), IsEmpty());
}

TEST(ProcessTree, ASignalReachesAllBelow) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() == 0) ::setsid();
    for (;;) ::pause();
  }
  const auto two = [&] { return below(::getpid(), read_parents()).size() == 2; };
  while (!two()) ::usleep(1000);
  EXPECT_THAT(signal_all_below(SIGSTOP, milliseconds(5000)), IsEmpty());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_THAT(signal_all_below(SIGKILL, milliseconds(5000)), IsEmpty());
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
}

}  // namespace
}  // namespace amem::ctl
