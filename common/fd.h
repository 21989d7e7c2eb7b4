// Fd: owns one file descriptor and closes it. Move-only, not synchronised.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace amem {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  /// A second descriptor for the same file, close-on-exec; empty when the table is full.
  Fd duplicate() const { return Fd(::fcntl(fd_, F_DUPFD_CLOEXEC, 0)); }

 private:
  int fd_ = -1;
};

/// A descriptor that several hold, each for a time of its own.
using SharedFd = std::shared_ptr<const Fd>;

/// As many open files as the process may have. False: errno says why not.
inline bool raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/// Makes space for `count` descriptors in the process's table, up to its limit. Otherwise the table
/// grows on demand, and in a process with threads the kernel then waits 5 to 40 ms until no CPU can
/// be reading the old one. A resume that has just received descriptors must not wait for that.
/// `open`: any open descriptor.
inline void reserve_descriptors(int open, rlim_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto last = static_cast<int>(std::min(count, limit.rlim_cur)) - 1;
  const Fd highest(::fcntl(open, F_DUPFD_CLOEXEC, last));
}

}  // namespace amem
