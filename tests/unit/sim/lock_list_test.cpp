// The kernel's list of locks, where it is so long that whoever asks may be given what another has
// read.
#include "tests/sim/node/lock_list.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

/// A lock of one byte at a place of its own, until it is closed.
int Lock(off_t at) {
  const int fd = memfd_create("locked", MFD_CLOEXEC);
  struct flock lock {};
  lock.l_type = F_RDLCK;
  lock.l_start = at;
  lock.l_len = 1;
  EXPECT_EQ(fcntl(fd, F_OFD_SETLK, &lock), 0) << strerror(errno);
  return fd;
}

bool Has(const std::string& list, off_t at) {
  return list.find(' ' + std::to_string(at) + ' ' + std::to_string(at) + '\n') != std::string::npos;
}

/// The kernel gives the list a page at a time, and may leave one out where another goes meanwhile.
bool IsThere(off_t at) {
  bool has = false;
  for (int tries = 0; tries < 20 && !has; ++tries) has = Has(sim::LockList(), at);
  return has;
}

TEST(LockListTest, IsNeverOlderThanTheCall) {
  constexpr off_t kPlace = 8'100'200'300'400'500;
  constexpr int kOthers = 900;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kOthers + 100) GTEST_SKIP() << "too few descriptors for a long list";
  std::vector<int> others;
  for (int i = 0; i < kOthers; ++i) others.push_back(Lock(i));
  ASSERT_GT(sim::LockList().size(), 32768U) << "so long that it is shared from now on";
  std::atomic<bool> ends{false};
  std::vector<std::thread> who_ask;
  for (int i = 0; i < 3; ++i)
    who_ask.emplace_back([&] {
      while (!ends) (void)sim::LockList();
    });
  for (int i = 0; i < 200; ++i) {
    const int fd = Lock(kPlace + i);
    EXPECT_TRUE(IsThere(kPlace + i)) << "time " << i;
    close(fd);
    EXPECT_FALSE(Has(sim::LockList(), kPlace + i)) << "time " << i;
  }
  ends = true;
  for (std::thread& each : who_ask) each.join();
  for (const int fd : others) close(fd);
}

}  // namespace
