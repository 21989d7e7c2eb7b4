// shim/glibc/newer.cpp where the C library of the process has none of its functions: what this
// program calls by these names are those.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "shim/process/symbols.h"

namespace amem::shim {

void* c_library_symbol(const char* /*name*/) { return nullptr; }
FindObject find_object() { return nullptr; }
int find_in_newer(const void* address, FoundObject* found) __asm__("_dl_find_object");
int wait_in_newer(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                  const timespec* end) __asm__("pthread_cond_clockwait");

int print_in_newer(char* text, std::size_t size, int flag, std::size_t room, const char* format,
                   ...) __asm__("__snprintf_chk");

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

[[noreturn]] void fails() { throw std::runtime_error("passes frames"); }

TEST(ShimNewer, ExceptionsFindTheirFrames) {
  std::string caught;
  try {
    fails();
  } catch (const std::exception& error) {
    caught = error.what();
  }
  EXPECT_EQ(caught, "passes frames");
  FoundObject found;
  const auto find = [&found](const void* address) { return find_in_newer(address, &found); };
  EXPECT_EQ(find(reinterpret_cast<const void*>(&fails)), 0);
  EXPECT_LE(found.begin, reinterpret_cast<const void*>(&fails));
  EXPECT_GT(found.end, reinterpret_cast<const void*>(&fails));
  EXPECT_NE(found.eh_frame, nullptr);
  const int on_the_stack = 0;
  EXPECT_EQ(find(&on_the_stack), -1);
}

TEST(ShimNewer, AWaitEndsAtItsDeadline) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const auto begin = Clock::now();
  EXPECT_EQ(condition.wait_until(lock, begin + 50ms), std::cv_status::timeout);
  EXPECT_GE(Clock::now() - begin, 50ms);
  EXPECT_EQ(condition.wait_until(lock, begin), std::cv_status::timeout);
  // Longer than it waits at a time.
  EXPECT_FALSE(condition.wait_for(lock, 1200ms, [] { return false; }));
  EXPECT_GE(Clock::now() - begin, 1250ms);
  EXPECT_LT(Clock::now() - begin, 30s);
}

TEST(ShimNewer, AWaitIsBrokenUpEachSecond) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  timespec end{};
  ::clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += 1;
  end.tv_nsec += 200'000'000;
  if (end.tv_nsec >= 1'000'000'000) {
    ++end.tv_sec;
    end.tv_nsec -= 1'000'000'000;
  }
  ::pthread_mutex_lock(&mutex);
  const auto begin = Clock::now();
  EXPECT_EQ(wait_in_newer(&condition, &mutex, CLOCK_MONOTONIC, &end), 0);
  EXPECT_GE(Clock::now() - begin, 990ms);  // by another clock
  while (wait_in_newer(&condition, &mutex, CLOCK_MONOTONIC, &end) == 0) {
  }
  EXPECT_GE(Clock::now() - begin, 1190ms);
  ::pthread_mutex_unlock(&mutex);
}

TEST(ShimNewer, AWaitEndsWhenItIsWoken) {
  std::mutex mutex;
  std::condition_variable condition;
  bool woken = false;
  std::thread other([&] {
    const std::lock_guard lock(mutex);
    woken = true;
    condition.notify_one();
  });
  {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(condition.wait_for(lock, 60s, [&] { return woken; }));
  }
  other.join();
}

TEST(ShimNewer, FilesAndRandomBytes) {
  const int file = ::memfd_create("newer", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  EXPECT_EQ(::fcntl(file, F_GETFD), FD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, 12345), 0);
  struct stat facts {};
  ASSERT_EQ(::fstat(file, &facts), 0);
  EXPECT_EQ(facts.st_size, 12345);
  ASSERT_EQ(::stat(("/proc/self/fd/" + std::to_string(file)).c_str(), &facts), 0);
  EXPECT_EQ(facts.st_size, 12345);
  ::close(file);
  EXPECT_EQ(::fstat(file, &facts), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::stat("/proc/no such file", &facts), -1);
  EXPECT_EQ(errno, ENOENT);

  std::array<unsigned char, 32> one{};
  std::array<unsigned char, 32> other{};
  EXPECT_EQ(::getentropy(one.data(), one.size()), 0);
  EXPECT_EQ(::getrandom(other.data(), other.size(), 0), static_cast<ssize_t>(other.size()));
  EXPECT_NE(one, other);
  EXPECT_NE(one, (std::array<unsigned char, 32>{}));
  std::array<unsigned char, 257> many{};
  EXPECT_EQ(::getentropy(many.data(), many.size()), -1);
  EXPECT_EQ(errno, EIO);
}

TEST(ShimNewer, PrintsWithinTheRoom) {
  std::array<char, 8> text{};
  EXPECT_EQ(print_in_newer(text.data(), text.size(), 1, text.size(), "%d %s", 12, "of many"), 10);
  EXPECT_STREQ(text.data(), "12 of m");
  EXPECT_DEATH(print_in_newer(text.data(), text.size() + 1, 1, text.size(), "%d", 1), "");
}

int forked_in_child = 0;

TEST(ShimNewer, ForkCallsTheHandlers) {
  ASSERT_EQ(::pthread_atfork(nullptr, nullptr, [] { forked_in_child = 7; }), 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(forked_in_child);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace amem::shim
