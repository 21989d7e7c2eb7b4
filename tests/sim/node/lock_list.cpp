#include "tests/sim/node/lock_list.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "tests/sim/node/node.h"

namespace sim {
namespace {

constexpr size_t kLong = 32768;

/// Of all processes.
uint64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

std::string Read() {
  constexpr const char* kPath = "/proc/locks";
  const int fd = open(kPath, O_RDONLY | O_CLOEXEC);
  if (fd < 0) Die(std::string("cannot open ") + kPath + ": " + strerror(errno));
  std::string text;
  for (ssize_t n = 1; n != 0;) {
    constexpr size_t kMore = 65536;
    const size_t size = text.size();
    text.resize(size + kMore);
    n = read(fd, text.data() + size, kMore);
    if (n < 0 && errno != EINTR) Die(std::string("cannot read ") + kPath + ": " + strerror(errno));
    text.resize(size + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
  close(fd);
  return text;
}

/// The last reading. Locked for as long as this object lives; opened anew each time, so that flock
/// excludes threads as well as processes.
class Shared {
 public:
  Shared() {
    const std::string path = "/dev/shm/amem-sim-locks-" + std::to_string(geteuid());
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat file {};
    if (fd_ >= 0 && (fstat(fd_, &file) != 0 || file.st_uid != geteuid())) {
      close(fd_);
      fd_ = -1;
    }
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0) {
      if (errno != EINTR) Die("cannot lock " + path + ": " + strerror(errno));
    }
  }
  ~Shared() {
    if (fd_ < 0) return;
    flock(fd_, LOCK_UN);  // by hand: a child forked meanwhile holds the same open file
    close(fd_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  /// False: it began before `since`, or there is none.
  bool Get(uint64_t since, std::string& text) const {
    Head head;
    if (fd_ < 0 || pread(fd_, &head, sizeof head, 0) != sizeof head) return false;
    if (head.magic != kMagic || head.began < since || head.began > Now()) return false;
    text.resize(head.size);
    return pread(fd_, text.data(), text.size(), sizeof head) == static_cast<ssize_t>(text.size());
  }
  /// Where it cannot be kept, nobody has it.
  void Put(uint64_t began, const std::string& text) const {
    if (fd_ < 0) return;
    Head head{0, began, text.size()};
    bool whole =
        pwrite(fd_, &head, sizeof head, 0) == sizeof head &&
        pwrite(fd_, text.data(), text.size(), sizeof head) == static_cast<ssize_t>(text.size());
    head.magic = kMagic;
    if (whole) whole = pwrite(fd_, &head, sizeof head, 0) == sizeof head;
  }

 private:
  static constexpr uint64_t kMagic = 0x314b434f4c4d4953ULL;  // "SIMLOCK1"
  struct Head {
    uint64_t magic = 0;  // 0: it is being written
    uint64_t began = 0;
    uint64_t size = 0;
  };
  int fd_ = -1;
};

}  // namespace

std::string LockList() {
  static std::atomic<bool> is_long{false};  // when last seen
  const uint64_t since = Now();
  std::string text;
  if (is_long) {
    const Shared shared;
    if (!shared.Get(since, text)) {
      const uint64_t began = Now();
      text = Read();
      shared.Put(began, text);
    }
  } else {
    text = Read();
  }
  is_long = text.size() > kLong;
  return text;
}

}  // namespace sim
