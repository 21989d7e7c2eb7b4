// Whether two connections are one process's.
#include "daemon/owners/peer_credentials.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace amem {
namespace {

SharedFd process(pid_t pid) {
  return std::make_shared<const Fd>(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

PeerCredentials peer(pid_t pid, uid_t uid, SharedFd process) {
  PeerCredentials made;
  made.pid = pid;
  made.uid = uid;
  made.process = std::move(process);
  return made;
}

TEST(SameProcess, IsToldByNumberAndUserWhereNumbersAreSeen) {
  EXPECT_TRUE(same_process(peer(7, 1, nullptr), peer(7, 1, nullptr)));
  EXPECT_FALSE(same_process(peer(7, 1, nullptr), peer(8, 1, nullptr)));
  EXPECT_FALSE(same_process(peer(7, 1, nullptr), peer(7, 2, nullptr)));
}

TEST(SameProcess, WithoutNumbersIsToldByTheKernelOrIsNone) {
  const pid_t child = ::fork();
  if (child == 0)
    while (true) ::pause();
  const PeerCredentials here = peer(0, 1, process(::getpid()));
  const PeerCredentials again = peer(0, 1, process(::getpid()));
  const PeerCredentials other = peer(0, 1, process(child));
  struct statfs system {};
  ASSERT_EQ(::fstatfs(here.process->get(), &system), 0);
  const bool told = system.f_type == 0x50494446;  // pidfs
  EXPECT_EQ(same_process(here, again), told);
  EXPECT_FALSE(same_process(here, other));
  EXPECT_FALSE(same_process(here, peer(0, 1, nullptr)));
  EXPECT_FALSE(same_process(peer(0, 1, nullptr), peer(0, 1, nullptr)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace amem
