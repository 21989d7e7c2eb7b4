// FileLock: a lock that threads of all processes of a node share, for as long as the object lives.
#pragma once

#include <string>

namespace sim {

class FileLock {
 public:
  /// On a file of the node's directory. Waits. The file is opened anew each time, so that threads
  /// exclude each other, too.
  explicit FileLock(const std::string& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace sim
