#include "tests/sim/node/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/sim/node/node.h"

namespace sim {

FileLock::FileLock(const std::string& file) {
  const std::string path = Node().dir + "/" + file;
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) Die("cannot open " + path + ": " + strerror(errno));
  while (flock(fd_, LOCK_EX) != 0) {
    if (errno != EINTR) Die("cannot lock " + path + ": " + strerror(errno));
  }
}

FileLock::~FileLock() {
  // Unlocked by hand: a child forked meanwhile holds the same open file, and close would leave it
  // locked.
  flock(fd_, LOCK_UN);
  close(fd_);
}

}  // namespace sim
