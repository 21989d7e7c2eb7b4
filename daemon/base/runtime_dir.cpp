#include "daemon/base/runtime_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace amem {
namespace {

/// Whoever else could write to it could put sockets of its own there, and so play broker.
Status refuse(const std::string& path, const std::string& why) {
  return {Code::kFailedPrecondition, "the runtime directory " + path + " " + why};
}

/// The directory itself: nobody has put a link in its place, and nobody else may write to it.
Result<Fd> open_own_directory(const std::string& path) {
  // With a slash at the end, open() would follow a link.
  const std::string bare = path.substr(0, path.find_last_not_of('/') + 1);
  Fd directory(::open(bare.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) {
    const int error = errno;
    struct stat st {};
    if (::lstat(bare.c_str(), &st) == 0 && S_ISLNK(st.st_mode))
      return refuse(path, "is a symbolic link. Name the directory itself with --runtime-dir");
    return errno_status(Code::kFailedPrecondition, "open the runtime directory " + path, error);
  }
  struct stat st {};
  if (::fstat(directory.get(), &st) != 0)
    return errno_status(Code::kFailedPrecondition, "stat the runtime directory " + path, errno);
  if (st.st_uid != ::geteuid() && st.st_uid != 0)
    return refuse(path, "belongs to uid " + std::to_string(st.st_uid) + ", and this amemd is uid " +
                            std::to_string(::geteuid()) +
                            ". Remove it, or choose another directory with --runtime-dir");
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return refuse(path,
                  "is writable for other users. Run `chmod go-w` on it, or choose another "
                  "directory with --runtime-dir");
  return directory;
}

}  // namespace

Status RuntimeDir::open(const std::string& path, mode_t mode) {
  const bool made = ::mkdir(path.c_str(), mode) == 0;
  if (!made && errno != EEXIST)
    return errno_status(Code::kFailedPrecondition, "create the runtime directory " + path, errno);
  const Result<Fd> directory = open_own_directory(path);
  if (!directory.ok()) return directory.status();
  if (made) ::fchmod(directory.value().get(), mode);  // whatever the umask
  const std::string lock = path + "/amemd.lock";
  lock_.reset(::openat(directory.value().get(), "amemd.lock",
                       O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock_) return errno_status(Code::kFailedPrecondition, "open " + lock, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return errno_status(Code::kInternal, "lock " + lock, errno);
    char pid[32] = {};
    const ssize_t n = ::pread(lock_.get(), pid, sizeof pid - 1, 0);
    std::string who = n > 0 ? " (pid " + std::string(pid, static_cast<std::size_t>(n)) : "";
    while (!who.empty() && who.back() == '\n') who.pop_back();
    if (!who.empty()) who += ")";
    return {Code::kAlreadyExists, "another amemd" + who + " serves " + path +
                                      ". Stop it, or choose another directory with --runtime-dir"};
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock_.get(), 0) != 0 ||
      ::pwrite(lock_.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
    return errno_status(Code::kInternal, "write " + lock, errno);
  return {};
}

}  // namespace amem
