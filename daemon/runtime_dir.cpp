#include "daemon/runtime_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace amem {

Status RuntimeDir::open(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) == 0) {
    ::chmod(path.c_str(), mode);  // whatever the umask
  } else if (errno != EEXIST) {
    return errno_status(Code::kFailedPrecondition, "create the runtime directory " + path, errno);
  }
  const std::string lock = path + "/amemd.lock";
  lock_.reset(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock_) return errno_status(Code::kFailedPrecondition, "open " + lock, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return errno_status(Code::kInternal, "lock " + lock, errno);
    char pid[32] = {};
    const ssize_t n = ::pread(lock_.get(), pid, sizeof pid - 1, 0);
    std::string who = n > 0 ? " (pid " + std::string(pid, static_cast<std::size_t>(n)) : "";
    while (!who.empty() && who.back() == '\n') who.pop_back();
    if (!who.empty()) who += ")";
    return {Code::kAlreadyExists, "another amemd" + who + " serves " + path +
                                      "; stop it, or choose another directory with --runtime-dir"};
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock_.get(), 0) != 0 ||
      ::pwrite(lock_.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
    return errno_status(Code::kInternal, "write " + lock, errno);
  return {};
}

}  // namespace amem
