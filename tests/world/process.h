// Process: what the system does for a rank: it gives it a number, connects it, sends for it and
// ends it. So one class of ranks plays on a node that is simulated and beside real ones.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/world/checkpoints.h"

namespace amem::world {

/// Connects the socket by hand of whoever calls: 0 or an errno.
int connect_to(int socket, const std::string& path);

class Process {
 public:
  virtual ~Process() = default;
  virtual pid_t pid() const = 0;
  virtual bool lives() const = 0;
  /// If it has not begun. What is readable once it has ended; -1: it begins only to connect().
  virtual int begin() { return -1; }
  /// 0 or an errno.
  virtual int connect(int socket, const std::string& path) = 0;
  virtual void send(int socket, const std::string& bytes, const std::vector<int>& fds);
  /// REQUIRES: it lives.
  virtual void end() = 0;
  /// What a checkpoint has made of it.
  virtual ProcessState state() const { return ProcessState::kRunning; }
};

/// The one that runs this code, which goes on when the rank ends.
class ThisProcess final : public Process {
 public:
  pid_t pid() const override;
  bool lives() const override { return lives_; }
  int connect(int socket, const std::string& path) override;
  void end() override { lives_ = false; }

 private:
  bool lives_ = false;
};

}  // namespace amem::world
