// SimulatedProcess: a process that is a number, a user and the end that a broker waits for.
#pragma once

#include "common/fd.h"
#include "tests/world/process.h"

namespace amem::world {

class SimulatedProcess : public Process {
 public:
  SimulatedProcess(pid_t pid, uid_t user) : pid_(pid), user_(user) {}

  pid_t pid() const final { return pid_; }
  bool lives() const final { return static_cast<bool>(life_); }
  int begin() final;
  int connect(int socket, const std::string& path) override;
  void end() override;

 private:
  const pid_t pid_;
  const uid_t user_;
  Fd life_;  // an eventfd: readable once it has ended
};

}  // namespace amem::world
